//! Reports of refused accesses.

use crate::data::regions::Regions;
use crate::observe::counters::Counts;
use crate::observe::event::Event;
use crate::time::Clock;
use handfast_core::policy::{AuditPace, Requester};
use handfast_transport::{Refused, RegionError, RegionWatch};
use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use tokio::sync::broadcast;

/// The log target of refused peers.
pub(crate) const AUDIT: &str = "handfast::audit";

/// Counts every refusal, and reports as many as [`AuditPace`] allows.
pub(crate) struct Audit {
    counts: Arc<Counts>,
    clock: Arc<dyn Clock>,
    events: broadcast::Sender<Event>,
    regions: Weak<Regions>,
    pace: Mutex<AuditPace>,
}

impl Audit {
    /// Reports the refusals of the regions from now on.
    pub(crate) fn start(
        regions: &Arc<Regions>,
        counts: Arc<Counts>,
        clock: Arc<dyn Clock>,
        events: broadcast::Sender<Event>,
    ) {
        let pace = Mutex::default();
        let of = Arc::downgrade(regions);
        regions.audit_by(Arc::new(Self { counts, clock, events, regions: of, pace }));
    }
}

impl RegionWatch for Audit {
    fn on_refused(&self, refused: &Refused<'_>) {
        let Refused { requester, key, direction, error } = *refused;
        self.counts.update(|it| match error {
            RegionError::UnknownKey => it.access.unknown_key += 1,
            RegionError::OutOfBounds { .. } => it.access.out_of_bounds += 1,
            RegionError::NotGranted | RegionError::Permission(_) => it.access.not_granted += 1,
        });
        let Some(unreported) = self.pace.lock().handle_refusal(self.clock.now()) else { return };
        let peer = match requester {
            Requester::Peer(name) => Some(name.clone()),
            Requester::Own | Requester::Anybody => None,
        };
        let segment = self.regions.upgrade().and_then(|regions| regions.name_of(key));
        let segment = segment.as_deref().map(str::to_owned);
        tracing::warn!(
            target: AUDIT,
            peer = peer.as_ref().map(handfast_core::NodeName::as_str),
            segment,
            ?direction,
            reason = ?error,
            unreported,
            "access refused"
        );
        // Nobody may listen.
        let _ = self.events.send(Event::AccessRefused {
            peer,
            segment,
            direction,
            reason: error,
            unreported,
        });
    }
}
