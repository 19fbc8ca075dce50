//! Single requests with a pause before each: what looking for answers costs who seldom asks.

use super::latency::Times;
use super::load::Load;
use super::median::median;
use super::processor::{PAUSE, Paused};
use super::raw::Sink;
use crate::failure::Failure;
use crate::size;
use handfast::Direction;
use serde::Serialize;

/// Bytes of a request.
const BYTES: u64 = 4096;
/// Measurements by round.
#[derive(Default)]
pub(super) struct Sporadic {
    rounds: Vec<One>,
    raw: Vec<One>,
}

/// One measurement in microseconds.
#[derive(Clone, Copy)]
struct One {
    times: Times,
    processor_us: Option<f64>,
}

impl One {
    fn new(Paused { times, processor }: Paused) -> Self {
        let count = times.len().max(1) as f64;
        let processor_us = processor.map(|spent| spent.as_secs_f64() * 1e6 / count);
        Self { times: Times::new(times), processor_us }
    }
}

impl Sporadic {
    /// Measures once, the baseline first.
    pub(super) fn measure(&mut self, load: &Load<'_>, sink: Option<&Sink>) -> Result<(), Failure> {
        if let Some(sink) = sink {
            let raw =
                sink.ping_pong_with_pauses((BYTES, super::latency::SHORT_BYTES), load.duration);
            let raw = raw.map_err(Failure::system("measuring raw round trips with pauses"))?;
            self.raw.push(One::new(raw));
        }
        self.rounds.push(One::new(load.sporadic(Direction::Write, BYTES)?));
        Ok(())
    }

    pub(super) fn show(self) -> Option<ShownSporadic> {
        let times =
            |all: &[One]| Times::median(&all.iter().map(|one| one.times).collect::<Vec<_>>());
        let processor =
            |all: &[One]| median(all.iter().filter_map(|one| one.processor_us).collect());
        let ratios = self
            .rounds
            .iter()
            .zip(&self.raw)
            .filter_map(|(own, raw)| Some(own.processor_us? / raw.processor_us?));
        Some(ShownSporadic {
            size: BYTES,
            pause_us: PAUSE.as_micros() as u64,
            us: times(&self.rounds)?,
            raw_us: times(&self.raw),
            processor_us: processor(&self.rounds),
            raw_processor_us: processor(&self.raw),
            processor_ratio: median(ratios.collect()),
        })
    }
}

/// The medians over the rounds; the baseline is a ping-pong that sleeps, with the same pauses.
#[derive(Serialize)]
pub(super) struct ShownSporadic {
    size: u64,
    pause_us: u64,
    us: Times,
    #[serde(skip_serializing_if = "Option::is_none")]
    raw_us: Option<Times>,
    #[serde(skip_serializing_if = "Option::is_none")]
    processor_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    raw_processor_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    processor_ratio: Option<f64>,
}

impl ShownSporadic {
    pub(super) fn line(&self) -> String {
        let shown = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.1}"));
        format!(
            "writes of {} with pauses of {} ms: p50 {:.1} us, processor time of both {} us; raw, asleep: \
             p50 {} us, {} us; ratio {}",
            size::show(BYTES),
            PAUSE.as_millis(),
            self.us.p50,
            shown(self.processor_us),
            shown(self.raw_us.map(|raw| raw.p50)),
            shown(self.raw_processor_us),
            self.processor_ratio.map_or("-".into(), |ratio| format!("{ratio:.2}")),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Processor time is for each request, and its ratio of the same round.
    #[test]
    fn processor_time_is_for_each_request() {
        let one = |processor_ms| {
            let times = vec![Duration::from_micros(60); 100];
            One::new(Paused { times, processor: Some(Duration::from_millis(processor_ms)) })
        };
        let sporadic = Sporadic { rounds: vec![one(4), one(9)], raw: vec![one(4), one(3)] };
        let shown = sporadic.show().unwrap();
        assert!((shown.processor_us.unwrap() - 65.0).abs() < 1e-9);
        assert!((shown.processor_ratio.unwrap() - 2.0).abs() < 1e-9);
        let line = shown.line();
        assert!(line.starts_with("writes of 4.0 KiB with pauses of 1 ms: p50 60.0 us,"), "{line}");
        assert!(Sporadic::default().show().is_none());
    }
}
