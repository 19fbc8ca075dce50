//! Latency of single requests, and of a ping-pong with the same bytes.

use super::load::Load;
use super::median::median;
use super::name;
use super::raw::{Sink, Waiting};
use crate::failure::Failure;
use crate::size;
use handfast::Direction;
use serde::Serialize;
use std::time::Duration;

/// Bytes of the short direction of the ping-pong: a header of the lane protocol.
pub(super) const SHORT_BYTES: u64 = 24;

/// The latencies of one kind of request by round, in nanoseconds.
pub(super) struct Latency {
    operation: Direction,
    size: u64,
    rounds: Vec<Times>,
    blocking: Vec<Times>,
    adaptive: Vec<Times>,
}

/// The result of one measurement, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Times {
    pub(super) mean: f64,
    pub(super) p50: f64,
    pub(super) p99: f64,
}

impl Times {
    pub(super) fn new(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        let at = |percent: usize| {
            let place = (times.len() * percent).div_ceil(100).saturating_sub(1);
            times.get(place).copied().map_or(0.0, us)
        };
        let sum = us(times.iter().sum());
        Self { mean: sum / times.len().max(1) as f64, p50: at(50), p99: at(99) }
    }

    /// The median of each figure over the rounds.
    pub(super) fn median(rounds: &[Self]) -> Option<Self> {
        let of = |figure: fn(&Self) -> f64| median(rounds.iter().map(figure).collect());
        let (mean, p50, p99) = (of(|it| it.mean)?, of(|it| it.p50)?, of(|it| it.p99)?);
        Some(Self { mean, p50, p99 })
    }
}

impl Latency {
    /// Returns one for each direction and size.
    pub(super) fn all(operations: &[Direction], sizes: &[u64]) -> Vec<Self> {
        let new = |size, operation| {
            let (rounds, blocking, adaptive) = (Vec::new(), Vec::new(), Vec::new());
            Self { operation, size, rounds, blocking, adaptive }
        };
        let of_size = |size| operations.iter().map(move |operation| new(size, *operation));
        sizes.iter().copied().flat_map(of_size).collect()
    }

    /// Measures once, the baseline first.
    pub(super) fn measure(&mut self, load: &Load<'_>, sink: Option<&Sink>) -> Result<(), Failure> {
        let ways = match self.operation {
            Direction::Write => (self.size, SHORT_BYTES),
            Direction::Read => (SHORT_BYTES, self.size),
        };
        if let Some(sink) = sink {
            let raw = |waiting| {
                let trips = sink.ping_pong(waiting, ways, load.duration);
                trips.map(Times::new).map_err(Failure::system("measuring raw round trips"))
            };
            self.blocking.push(raw(Waiting::Blocking)?);
            self.adaptive.push(raw(Waiting::Adaptive)?);
        }
        self.rounds.push(Times::new(load.latencies(self.operation, self.size)?));
        Ok(())
    }

    pub(super) fn show(self) -> ShownLatency {
        let ratio = |of: fn(&Times) -> f64| {
            let raw = self.blocking.iter().zip(&self.adaptive).map(|(a, b)| of(a).min(of(b)));
            median(self.rounds.iter().zip(raw).map(|(us, raw)| of(us) / raw).collect())
        };
        let to_adaptive = |of: fn(&Times) -> f64| {
            let ratios = self.rounds.iter().zip(&self.adaptive).map(|(us, raw)| of(us) / of(raw));
            median(ratios.collect())
        };
        ShownLatency {
            operation: name(self.operation),
            size: self.size,
            us: Times::median(&self.rounds),
            raw_blocking_us: Times::median(&self.blocking),
            raw_adaptive_us: Times::median(&self.adaptive),
            p50_ratio: ratio(|it| it.p50),
            p99_ratio: ratio(|it| it.p99),
            mean_ratio: ratio(|it| it.mean),
            mean_to_adaptive: to_adaptive(|it| it.mean),
            p99_to_adaptive: to_adaptive(|it| it.p99),
        }
    }
}

/// The medians over the rounds; a ratio is to the faster of the two raw ways of waiting.
#[derive(Serialize)]
pub(super) struct ShownLatency {
    operation: &'static str,
    size: u64,
    us: Option<Times>,
    #[serde(skip_serializing_if = "Option::is_none")]
    raw_blocking_us: Option<Times>,
    #[serde(skip_serializing_if = "Option::is_none")]
    raw_adaptive_us: Option<Times>,
    #[serde(skip_serializing_if = "Option::is_none")]
    p50_ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    p99_ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mean_ratio: Option<f64>,
    /// To the baseline that polls, whatever the other one did.
    #[serde(skip_serializing_if = "Option::is_none")]
    mean_to_adaptive: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    p99_to_adaptive: Option<f64>,
}

/// Returns the table, at most 80 columns wide.
pub(super) fn table(latencies: &[ShownLatency]) -> Vec<String> {
    let head = "single requests, us; raw round trips asleep, or polling; two ratios to polling";
    let columns = "way     size   mean    p50    p99|  sleep    p99|   poll    p99|  p50 mean  p99";
    let mut lines = vec![head.to_owned(), columns.to_owned()];
    for one in latencies {
        let of = |times: Option<Times>, figure: fn(Times) -> f64| {
            times.map_or("-".to_owned(), |times| short_us(figure(times)))
        };
        let (mean, p50, p99) =
            (of(one.us, |it| it.mean), of(one.us, |it| it.p50), of(one.us, |it| it.p99));
        let [(sleeps, sleeps_99), (looks, looks_99)] = [one.raw_blocking_us, one.raw_adaptive_us]
            .map(|times| (of(times, |it| it.p50), of(times, |it| it.p99)));
        let [to_p50, to_mean, to_p99] = [one.p50_ratio, one.mean_to_adaptive, one.p99_to_adaptive]
            .map(|ratio| ratio.map_or("-".into(), short_ratio));
        lines.push(format!(
            "{:5} {:>6} {mean:>6} {p50:>6} {p99:>6}| {sleeps:>6} {sleeps_99:>6}| {looks:>6} \
             {looks_99:>6}| {to_p50:>4} {to_mean:>4} {to_p99:>4}",
            one.operation,
            size::short(one.size)
        ));
    }
    lines
}

/// Formats microseconds in at most six columns: from a second on, as seconds.
fn short_us(us: f64) -> String {
    if us >= 999_999.5 {
        format!("{:.0}s", us / 1e6)
    } else if us >= 1e3 {
        format!("{us:.0}")
    } else {
        format!("{us:.1}")
    }
}

/// Formats a ratio below 10,000 in at most four columns.
fn short_ratio(ratio: f64) -> String {
    if ratio >= 99.95 {
        format!("{ratio:.0}")
    } else if ratio >= 9.995 {
        format!("{ratio:.1}")
    } else {
        format!("{ratio:.2}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_a_hundred_times_are_exact() {
        let times = Times::new((1..=100).rev().map(Duration::from_micros).collect());
        let near = |value: f64, expected: f64| (value - expected).abs() < 1e-6;
        assert!(near(times.p50, 50.0) && near(times.p99, 99.0), "{times:?}");
        assert!(near(times.mean, 50.5), "{times:?}");
        let one = Times::new(vec![Duration::from_micros(7)]);
        assert!(near(one.p50, 7.0) && near(one.p99, 7.0), "{one:?}");
    }

    #[test]
    fn a_ratio_is_to_the_faster_way_of_waiting_round_by_round() {
        let times = |p50: f64| Times { mean: p50, p50, p99: p50 };
        let mut latency = Latency::all(&[Direction::Write], &[4096]).remove(0);
        latency.rounds = vec![times(20.0), times(30.0), times(60.0)];
        latency.blocking = vec![times(40.0), times(10.0), times(20.0)];
        latency.adaptive = vec![times(10.0), times(40.0), times(15.0)];
        let shown = latency.show();
        assert!((shown.p50_ratio.unwrap() - 3.0).abs() < 1e-9);
        assert!((shown.us.unwrap().p50 - 30.0).abs() < 1e-9);
    }

    #[test]
    fn the_table_is_aligned_and_eighty_columns_wide() {
        let times = |us: f64| Some(Times { mean: us, p50: us, p99: us });
        let shown = |us: f64, ratio| ShownLatency {
            operation: "write",
            size: 16 << 20,
            us: times(us),
            raw_blocking_us: times(us),
            raw_adaptive_us: None,
            p50_ratio: Some(ratio),
            p99_ratio: None,
            mean_ratio: None,
            mean_to_adaptive: Some(ratio),
            p99_to_adaptive: None,
        };
        let all = [(0.4, 0.5), (999.99, 9.999), (123_456.7, 99.97), (7e6, 4321.0)];
        let lines = table(&all.map(|(us, ratio)| shown(us, ratio)));
        assert!(lines.iter().all(|line| line.len() <= 80), "{lines:#?}");
        let bars = |line: &String| line.match_indices('|').map(|it| it.0).collect::<Vec<_>>();
        assert_eq!(bars(&lines[1]).len(), 3);
        for line in &lines[2..] {
            assert_eq!((line.len(), bars(line)), (lines[1].len(), bars(&lines[1])), "{lines:#?}");
        }
        assert!(lines[5].contains("     7s "), "{lines:#?}");
    }
}
