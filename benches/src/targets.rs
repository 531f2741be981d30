//! What the project set out to reach, beside what was measured.

use crate::calls::Subject;
use crate::instructions::Counts;
use crate::memory::{Kind, Memory};
use crate::timing::Timings;

/// A bound on a ratio.
#[derive(Clone, Copy)]
enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

/// A ratio beside its bound.
pub struct Verdict {
    pub what: String,
    bound: Bound,
    measured: f64,
}

impl Verdict {
    pub fn is_reached(&self) -> bool {
        match self.bound {
            Bound::AtMost(most) => self.measured <= most,
            Bound::AtLeast(least) => self.measured >= least,
        }
    }

    /// "≤ 1.15".
    pub fn bound_text(&self) -> String {
        match self.bound {
            Bound::AtMost(most) => format!("≤ {most}"),
            Bound::AtLeast(least) => format!("≥ {least}"),
        }
    }

    pub fn measured_text(&self) -> String {
        let measured = self.measured;
        if self.is_reached() {
            format!("{measured:.2}")
        } else {
            // A digit more, so that a narrow miss shows as one.
            format!("**{measured:.3}** not reached")
        }
    }
}

/// Collects verdicts on what could be measured.
#[derive(Default)]
struct Verdicts(Vec<Verdict>);

impl Verdicts {
    fn add(&mut self, what: &str, bound: Bound, measured: Option<f64>) {
        if let Some(measured) = measured {
            self.0.push(Verdict {
                what: what.to_owned(),
                bound,
                measured,
            });
        }
    }
}

/// Server time and throughput, with or without AOF.
pub fn of_timings(timings: &Timings) -> Vec<Verdict> {
    use Bound::{AtLeast, AtMost};
    use Subject::{
        All, BucketAllowed, BucketDenied, BucketDeniedMs, BucketPreview, BucketScript, Set,
        SlidingAllowed, SlidingDenied, SlidingDeniedMs, SlidingPreview, SlidingScript,
    };
    // Redis 7 calls modules more cheaply, in relation to its SET, than the later servers do.
    let by_server = |redis_7, later| {
        AtMost(if timings.server.starts_with("Redis 7") {
            redis_7
        } else {
            later
        })
    };
    let mut verdicts = Verdicts::default();
    let time = |subject, base| timings.time_ratio(subject, base);
    let rate = |subject, base| timings.rate_ratio(subject, base);
    if timings.append_only {
        let bound = AtMost(1.4);
        verdicts.add(
            "RL.TOKENBUCKET allowed / SET, time",
            bound,
            time(BucketAllowed, Set),
        );
        verdicts.add(
            "RL.SLIDING allowed / SET, time",
            bound,
            time(SlidingAllowed, Set),
        );
        return verdicts.0;
    }
    let allowed = by_server(1.15, 1.45);
    verdicts.add(
        "RL.TOKENBUCKET allowed / SET, time",
        allowed,
        time(BucketAllowed, Set),
    );
    verdicts.add(
        "RL.SLIDING allowed / SET, time",
        allowed,
        time(SlidingAllowed, Set),
    );
    let denied = by_server(0.85, 1.0);
    verdicts.add(
        "RL.TOKENBUCKET denied / SET, time",
        denied,
        time(BucketDenied, Set),
    );
    verdicts.add(
        "RL.SLIDING denied / SET, time",
        denied,
        time(SlidingDenied, Set),
    );
    let preview = by_server(0.7, 0.9);
    verdicts.add(
        "RL.TOKENBUCKET_RO / SET, time",
        preview,
        time(BucketPreview, Set),
    );
    verdicts.add(
        "RL.SLIDING_RO / SET, time",
        preview,
        time(SlidingPreview, Set),
    );
    verdicts.add(
        "RL.ALL of two / RL.TOKENBUCKET, time",
        AtMost(2.1),
        time(All, BucketAllowed),
    );
    verdicts.add(
        "RL.TOKENBUCKET denied, with MS / without, time",
        AtMost(1.1),
        time(BucketDeniedMs, BucketDenied),
    );
    verdicts.add(
        "RL.SLIDING denied, with MS / without, time",
        AtMost(1.1),
        time(SlidingDeniedMs, SlidingDenied),
    );
    verdicts.add(
        "its EVALSHA / RL.TOKENBUCKET, time",
        AtLeast(6.5),
        time(BucketScript, BucketAllowed),
    );
    verdicts.add(
        "its EVALSHA / RL.SLIDING, time",
        AtLeast(7.0),
        time(SlidingScript, SlidingAllowed),
    );
    verdicts.add(
        "RL.TOKENBUCKET / SET, calls a second",
        AtLeast(0.8),
        rate(BucketAllowed, Set),
    );
    verdicts.add(
        "RL.SLIDING / SET, calls a second",
        AtLeast(0.8),
        rate(SlidingAllowed, Set),
    );
    verdicts.add(
        "RL.TOKENBUCKET / its EVALSHA, calls a second",
        AtLeast(3.3),
        rate(BucketAllowed, BucketScript),
    );
    verdicts.add(
        "RL.SLIDING / its EVALSHA, calls a second",
        AtLeast(3.3),
        rate(SlidingAllowed, SlidingScript),
    );
    verdicts.0
}

pub fn of_memory(memory: &Memory) -> Vec<Verdict> {
    let mut verdicts = Verdicts::default();
    verdicts.add(
        "RL.TOKENBUCKET / its script's hash",
        Bound::AtMost(0.9),
        memory.ratio(Kind::Bucket, Kind::BucketScript),
    );
    verdicts.add(
        "RL.SLIDING / its script's three strings",
        Bound::AtMost(0.5),
        memory.ratio(Kind::Window, Kind::WindowScript),
    );
    verdicts.0
}

pub fn of_counts(counts: &Counts) -> Vec<Verdict> {
    let mut verdicts = Verdicts::default();
    for (what, subject, most) in [
        ("RL.TOKENBUCKET allowed / SET", Subject::BucketAllowed, 1.25),
        ("RL.SLIDING allowed / SET", Subject::SlidingAllowed, 1.25),
        ("RL.TOKENBUCKET denied / SET", Subject::BucketDenied, 0.7),
        ("RL.SLIDING denied / SET", Subject::SlidingDenied, 0.7),
        ("RL.TOKENBUCKET_RO / SET", Subject::BucketPreview, 0.4),
        ("RL.SLIDING_RO / SET", Subject::SlidingPreview, 0.4),
        ("RL.ALL of two / SET", Subject::All, 2.5),
    ] {
        verdicts.add(what, Bound::AtMost(most), counts.ratio(subject));
    }
    verdicts.0
}
