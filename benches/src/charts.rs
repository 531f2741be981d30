//! The charts: SVG without a background, readable on light and dark pages.

use crate::Result;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::fs;
use std::path::Path;

/// Lines and bars, told apart on light and on dark, by the colour-blind too.
const PALETTE: [RGBColor; 6] = [
    RGBColor(0x2f, 0x81, 0xf7),
    RGBColor(0xe0, 0x7b, 0x39),
    RGBColor(0x3f, 0xa3, 0x5b),
    RGBColor(0xb0, 0x6f, 0xd8),
    RGBColor(0xc9, 0x9a, 0x2e),
    RGBColor(0x8b, 0x94, 0x9e),
];

/// Axes and grid; letters too where style sheets are ignored.
const INK: RGBColor = RGBColor(0x8b, 0x94, 0x9e);

const FONT: &str = "sans-serif";
const LETTERS_PX: i32 = 13;
const TITLE_PX: i32 = 16;

/// Letters dark on light pages and light on dark ones.
const STYLE: &str =
    "<style>text{fill:#424a53}@media(prefers-color-scheme:dark){text{fill:#c9d1d9}}</style>";

/// A bar: label, value, and which colour it has.
pub struct Bar {
    pub label: String,
    pub value: f64,
    pub colour: usize,
}

/// Horizontal bars from 0, each with its value at its end.
pub fn bars(path: &Path, title: &str, unit: &str, bars: &[Bar]) -> Result<()> {
    const WIDTH: i32 = 760;
    const LABELS: i32 = 210;
    const VALUES: i32 = 110;
    const TOP: i32 = 40;
    const ROW: i32 = 26;
    const GAP: i32 = 3;
    let height = TOP + ROW * bars.len() as i32 + 10;
    let area = SVGBackend::new(path, (WIDTH as u32, height as u32)).into_drawing_area();
    let letters = TextStyle::from((FONT, LETTERS_PX)).color(&INK);
    let heading = TextStyle::from((FONT, TITLE_PX)).color(&INK);
    area.draw(&Text::new(title.to_owned(), (10, 10), heading))?;
    let most = bars.iter().map(|bar| bar.value).fold(0.0, f64::max);
    for (row, bar) in (0..).zip(bars) {
        let top = TOP + ROW * row;
        let middle = top + ROW / 2;
        let length = f64::from(WIDTH - LABELS - VALUES) * bar.value / most;
        let end = LABELS + length as i32;
        let colour = PALETTE[bar.colour % PALETTE.len()];
        area.draw(&Rectangle::new(
            [(LABELS, top + GAP), (end, top + ROW - GAP)],
            colour.filled(),
        ))?;
        let right = letters.clone().pos(Pos::new(HPos::Right, VPos::Center));
        area.draw(&Text::new(bar.label.clone(), (LABELS - 8, middle), right))?;
        let left = letters.clone().pos(Pos::new(HPos::Left, VPos::Center));
        let value = format!("{} {unit}", rounded(bar.value));
        area.draw(&Text::new(value, (end + 6, middle), left))?;
    }
    area.present()?;
    drop(area);
    for_light_and_dark(path)
}

/// A line: its name and points.
pub struct Line {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

/// Lines over logarithmic axes.
pub fn lines(path: &Path, title: &str, x: &str, y: &str, lines: &[Line]) -> Result<()> {
    let all = || lines.iter().flat_map(|line| &line.points);
    let least_x = all().map(|point| point.0).fold(f64::MAX, f64::min);
    let most_x = all().map(|point| point.0).fold(0.0, f64::max);
    let least_y = all().map(|point| point.1).fold(f64::MAX, f64::min);
    let most_y = all().map(|point| point.1).fold(0.0, f64::max);
    let area = SVGBackend::new(path, (760, 420)).into_drawing_area();
    let letters = TextStyle::from((FONT, LETTERS_PX)).color(&INK);
    let mut chart = ChartBuilder::on(&area)
        .caption(title, TextStyle::from((FONT, TITLE_PX)).color(&INK))
        .margin(10)
        .x_label_area_size(45)
        .y_label_area_size(80)
        .build_cartesian_2d(
            (least_x..most_x * 1.1).log_scale(),
            (least_y / 1.5..most_y * 1.5).log_scale(),
        )?;
    chart
        .configure_mesh()
        .x_desc(x)
        .y_desc(y)
        .x_label_formatter(&|value| rounded(*value))
        .y_label_formatter(&|value| rounded(*value))
        .axis_style(INK)
        .bold_line_style(INK.mix(0.35))
        .light_line_style(TRANSPARENT)
        .label_style(letters.clone())
        .axis_desc_style(letters.clone())
        .draw()?;
    for (line, colour) in lines.iter().zip(PALETTE.iter().cycle()) {
        let points = || line.points.iter().copied();
        chart
            .draw_series(LineSeries::new(points(), colour.stroke_width(2)))?
            .label(&line.name)
            .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(3)));
        chart.draw_series(points().map(|point| Circle::new(point, 3, colour.filled())))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .label_font(letters)
        .border_style(TRANSPARENT)
        .draw()?;
    area.present()?;
    drop(chart);
    drop(area);
    for_light_and_dark(path)
}

/// Puts the style sheet into a chart that was drawn.
fn for_light_and_dark(path: &Path) -> Result<()> {
    let svg = fs::read_to_string(path)?;
    let head = svg.find("<svg").ok_or("no chart was drawn")?;
    let end = head + svg[head..].find('>').ok_or("no chart was drawn")? + 1;
    fs::write(path, format!("{}\n{STYLE}{}", &svg[..end], &svg[end..]))?;
    Ok(())
}

/// Three digits, thousands as k and M.
pub fn rounded(value: f64) -> String {
    let (value, unit) = match value {
        _ if value >= 1e6 => (value / 1e6, "M"),
        _ if value >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = match value {
        _ if value >= 100.0 || value == value.trunc() => 0,
        _ if value >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.digits$}{unit}")
}
