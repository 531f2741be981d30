//! Replays the committed corpus of the fuzz targets: what they found stays checked, without a fuzzer.

#[path = "../../fuzz/checks.rs"]
mod checks;

use std::fs;
use std::path::Path;

/// Files that a target's corpus has at least: fewer means that it was not found.
const LEAST_FILES: usize = 10;

fn replay(target: &str, check: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fuzz/corpus")
        .join(target);
    let files = fs::read_dir(&folder).expect("the corpus is in the repository");
    let paths: Vec<_> = files
        .map(|file| file.expect("the corpus can be listed").path())
        .collect();
    assert!(paths.len() >= LEAST_FILES, "{} files", paths.len());
    for path in paths {
        let bytes = fs::read(&path).expect("the file can be read");
        // Shown by the test harness if the check fails.
        println!("{}", path.display());
        check(&bytes);
    }
}

#[test]
fn the_argument_parser_passes_on_its_corpus() {
    replay("syntax", checks::check_syntax);
}

#[test]
fn the_state_codec_and_the_decisions_pass_on_their_corpus() {
    replay("state", checks::check_state);
}
