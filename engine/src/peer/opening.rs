//! Duration of the steps that create a lane.

use handfast_core::{Instant, Lifecycle};
use std::collections::BTreeMap;
use std::time::Duration;

/// Duration of each step that creates a lane. A first transfer also waits for the look-up of its
/// peer, the registration of its memory and its own bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaneOpening {
    /// Allocating the local resources: queue pairs, or a slot for a connection.
    pub create: Duration,
    /// Connecting them to the announced endpoint of the peer.
    pub connect: Duration,
    /// The rest of the time up to the lane's first use: messages to and from the peer, and the
    /// peer's own steps.
    pub exchange: Duration,
}

#[derive(Clone, Copy)]
struct Steps {
    begun: Instant,
    create: Duration,
    connecting: Option<Instant>,
    connect: Duration,
}

/// Lanes being established.
#[derive(Default)]
pub(crate) struct Openings(BTreeMap<Lifecycle, Steps>);

impl Openings {
    pub(crate) fn on_begun(&mut self, lane: Lifecycle, now: Instant) {
        let none = Duration::ZERO;
        self.0.insert(lane, Steps { begun: now, create: none, connecting: None, connect: none });
    }

    pub(crate) fn on_brought_up(&mut self, lane: Lifecycle, now: Instant) {
        if let Some(steps) = self.0.get_mut(&lane) {
            steps.create = between(steps.begun, now);
        }
    }

    pub(crate) fn on_connecting(&mut self, lane: Lifecycle, now: Instant) {
        if let Some(steps) = self.0.get_mut(&lane) {
            steps.connecting = Some(now);
        }
    }

    pub(crate) fn on_connected(&mut self, lane: Lifecycle, now: Instant) {
        if let Some(steps) = self.0.get_mut(&lane)
            && let Some(since) = steps.connecting
        {
            steps.connect = between(since, now);
        }
    }

    /// Removes an established lane and returns its durations.
    pub(crate) fn on_up(&mut self, lane: Lifecycle, now: Instant) -> Option<LaneOpening> {
        let Steps { begun, create, connect, .. } = self.0.remove(&lane)?;
        let exchange = between(begun, now).saturating_sub(create + connect);
        Some(LaneOpening { create, connect, exchange })
    }

    /// Removes a lane that has ended, established or not.
    pub(crate) fn on_ended(&mut self, lane: Lifecycle) {
        self.0.remove(&lane);
    }
}

fn between(since: Instant, now: Instant) -> Duration {
    Duration::from_nanos(now.0.saturating_sub(since.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_moment_of_an_opening_belongs_to_one_step() {
        let mut openings = Openings::default();
        let lane = Lifecycle(1);
        openings.on_begun(lane, Instant(100));
        openings.on_brought_up(lane, Instant(130));
        openings.on_connecting(lane, Instant(200));
        openings.on_connected(lane, Instant(205));
        let opening = openings.on_up(lane, Instant(300)).unwrap();
        let nanos = Duration::from_nanos;
        let expected = LaneOpening { create: nanos(30), connect: nanos(5), exchange: nanos(165) };
        assert_eq!(opening, expected);
        assert_eq!(openings.on_up(lane, Instant(300)), None);
        openings.on_begun(Lifecycle(2), Instant(1));
        openings.on_ended(Lifecycle(2));
        assert!(openings.0.is_empty());
    }
}
