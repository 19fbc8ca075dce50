//! Decisions on opening a lost device again, without a clock, a device or a thread.
//!
//! A device is tried for as long as the node runs: an attempt costs one call in half a minute, and
//! a repaired device needs no restart of the node.

use handfast_core::{Duration, Instant};
use std::collections::BTreeMap;

/// Pause before the first attempt. A driver that recovers takes longer as a rule.
pub(crate) const REOPEN_PAUSE_MIN: Duration = Duration::from_millis(100);
/// Longest pause between two attempts; the pause doubles up to it.
pub(crate) const REOPEN_PAUSE_MAX: Duration = Duration::from_millis(30_000);
/// Time in use after which a loss begins with the shortest pause again.
pub(crate) const REOPEN_STEADY: Duration = Duration::from_millis(10_000);

/// The lost devices of a node. All methods of time take the same clock's.
#[derive(Clone, Debug, Default)]
pub(super) struct Reopening {
    devices: BTreeMap<String, State>,
}

#[derive(Clone, Copy, Debug)]
struct State {
    stage: Stage,
    /// Pauses in a row.
    pauses: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Paused {
        until: Instant,
    },
    /// An attempt is under way.
    Opening,
    Open {
        since: Instant,
    },
}

impl Reopening {
    /// A device in use is lost. Does nothing, and returns false, during a pause or an attempt,
    /// which finds it.
    pub(super) fn handle_lost(&mut self, now: Instant, device: &str) -> bool {
        let first = State { stage: Stage::Open { since: now }, pauses: 0 };
        let state = self.devices.entry(device.to_owned()).or_insert(first);
        let Stage::Open { since } = state.stage else { return false };
        if now >= since + REOPEN_STEADY {
            state.pauses = 0;
        }
        state.pause(now);
        true
    }

    /// The device of an attempt is in use.
    pub(super) fn handle_opened(&mut self, now: Instant, device: &str) {
        if let Some(state) = self.trying(device) {
            state.stage = Stage::Open { since: now };
        }
    }

    /// An attempt failed. Returns the pause before the next.
    pub(super) fn handle_failed(&mut self, now: Instant, device: &str) -> Option<Duration> {
        self.trying(device).map(|state| state.pause(now))
    }

    /// Yields a device whose pause is over, for an attempt that begins now; `None` without one.
    pub(super) fn poll_due(&mut self, now: Instant) -> Option<String> {
        let is_due = |state: &State| matches!(state.stage, Stage::Paused { until } if until <= now);
        let (device, state) = self.devices.iter_mut().find(|(_, state)| is_due(state))?;
        state.stage = Stage::Opening;
        Some(device.clone())
    }

    /// Time of the next attempt.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let until = |state: &State| match state.stage {
            Stage::Paused { until } => Some(until),
            Stage::Opening | Stage::Open { .. } => None,
        };
        self.devices.values().filter_map(until).min()
    }

    fn trying(&mut self, device: &str) -> Option<&mut State> {
        self.devices.get_mut(device).filter(|state| state.stage == Stage::Opening)
    }
}

impl State {
    fn pause(&mut self, now: Instant) -> Duration {
        let pause = REOPEN_PAUSE_MIN.doubled(self.pauses).min(REOPEN_PAUSE_MAX);
        self.pauses = self.pauses.saturating_add(1);
        self.stage = Stage::Paused { until: now + pause };
        pause
    }
}

#[cfg(test)]
mod model;

#[cfg(test)]
mod tests {
    use super::*;

    const NIC: &str = "nic0";

    fn at(millis: u64) -> Instant {
        Instant(millis * 1_000_000)
    }

    fn between(from: Instant, to: Instant) -> Duration {
        Duration(to.0 - from.0)
    }

    /// Fails attempts one after the other as soon as each is due, and returns the pauses in
    /// milliseconds.
    fn pauses(machine: &mut Reopening, mut now: Instant, count: usize) -> (Vec<u64>, Instant) {
        let mut pauses = Vec::new();
        for _ in 0..count {
            let due = machine.poll_timeout().expect("an attempt is planned");
            pauses.push(between(now, due).nanos() / 1_000_000);
            assert_eq!(machine.poll_due(Instant(due.0 - 1)), None, "not before its time");
            assert_eq!(machine.poll_due(due).as_deref(), Some(NIC));
            assert_eq!(
                (machine.poll_due(due), machine.poll_timeout()),
                (None, None),
                "one at a time"
            );
            machine.handle_failed(due, NIC);
            now = due;
        }
        (pauses, now)
    }

    /// A device that never returns is tried for ever, after pauses that double up to the longest.
    #[test]
    fn absent_device_is_tried_after_doubled_pauses() {
        let mut machine = Reopening::default();
        machine.handle_lost(at(5), NIC);
        let (first, now) = pauses(&mut machine, at(5), 10);
        assert_eq!(first, [100, 200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 30_000]);
        let (later, _) = pauses(&mut machine, now, 100);
        assert!(later.iter().all(|pause| *pause == 30_000), "{later:?}");
    }

    /// A device that is lost soon after it came back goes on with longer pauses; one that worked
    /// for a while begins again.
    #[test]
    fn steady_device_begins_with_the_shortest_pause() {
        let mut machine = Reopening::default();
        machine.handle_lost(at(0), NIC);
        let (_, now) = pauses(&mut machine, at(0), 3);
        let due = machine.poll_timeout().unwrap();
        assert_eq!(between(now, due), Duration::from_millis(800));
        machine.poll_due(due).unwrap();
        machine.handle_opened(due, NIC);
        assert_eq!(machine.poll_timeout(), None);
        let early = Instant((due + REOPEN_STEADY).0 - 1);
        machine.handle_lost(early, NIC);
        let next = machine.poll_timeout().unwrap();
        assert_eq!(between(early, next), Duration::from_millis(1_600));
        machine.poll_due(next).unwrap();
        machine.handle_opened(next, NIC);
        machine.handle_lost(next + REOPEN_STEADY, NIC);
        let steady = machine.poll_timeout().unwrap();
        assert_eq!(between(next + REOPEN_STEADY, steady), REOPEN_PAUSE_MIN);
    }

    /// A loss that is reported during a pause or an attempt changes nothing: the attempt finds it.
    #[test]
    fn second_report_of_a_loss_changes_nothing() {
        let mut machine = Reopening::default();
        machine.handle_lost(at(0), NIC);
        let due = machine.poll_timeout().unwrap();
        assert!(!machine.handle_lost(at(50), NIC));
        assert_eq!(machine.poll_timeout(), Some(due));
        machine.poll_due(due).unwrap();
        machine.handle_lost(due, NIC);
        assert_eq!(machine.poll_timeout(), None);
        assert_eq!(machine.handle_failed(due, NIC), Some(Duration::from_millis(200)));
        assert_eq!(machine.handle_failed(due, NIC), None, "no attempt is under way");
        machine.handle_opened(due, NIC);
        assert!(machine.poll_timeout().is_some(), "nor one that ended well");
    }

    /// Devices pause on their own.
    #[test]
    fn devices_pause_on_their_own() {
        let mut machine = Reopening::default();
        machine.handle_lost(at(0), NIC);
        machine.handle_lost(at(30), "nic1");
        assert_eq!(machine.poll_timeout(), Some(at(100)));
        assert_eq!(machine.poll_due(at(200)).as_deref(), Some(NIC));
        assert_eq!(machine.poll_due(at(200)).as_deref(), Some("nic1"));
        machine.handle_failed(at(200), "nic1");
        machine.handle_opened(at(250), NIC);
        assert_eq!(machine.poll_timeout(), Some(at(400)));
    }
}
