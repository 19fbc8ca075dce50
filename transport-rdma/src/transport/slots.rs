//! The places of a node's NICs. A place stays with the name of its device: the NIC is taken out
//! when it is lost, and another comes when the device was opened again.

use crate::counters::NicCounters;
use crate::error::VerbsError;
use crate::verbs::{Nic, NicCounts};
use handfast_core::transport::{Side, TransportError};
use parking_lot::RwLock;
use std::sync::Arc;

pub(super) struct Slots {
    slots: RwLock<Vec<Slot>>,
}

struct Slot {
    device: String,
    /// The NIC, or the failure by which it was lost.
    nic: Result<Arc<Nic>, VerbsError>,
    takes_lanes: bool,
    counts: NicCounts,
}

impl Slots {
    pub(super) fn new(nics: Vec<Nic>) -> Self {
        let slot = |nic: Nic| Slot {
            device: nic.device().to_owned(),
            counts: nic.counts(),
            nic: Ok(Arc::new(nic)),
            takes_lanes: true,
        };
        Self { slots: RwLock::new(nics.into_iter().map(slot).collect()) }
    }

    pub(super) fn devices(&self) -> Vec<String> {
        self.slots.read().iter().map(|slot| slot.device.clone()).collect()
    }

    pub(super) fn nics(&self) -> Vec<Result<Arc<Nic>, VerbsError>> {
        self.slots.read().iter().map(|slot| slot.nic.clone()).collect()
    }

    pub(super) fn counters(&self) -> NicCounters {
        self.slots.read().iter().map(|slot| slot.counts.read()).sum()
    }

    pub(super) fn counts(&self, device: &str) -> NicCounts {
        let slots = self.slots.read();
        let slot = slots.iter().find(|slot| slot.device == device);
        slot.map_or_else(NicCounts::default, |slot| slot.counts.clone())
    }

    /// The NIC of a device, or of the first place, for a new lane.
    pub(super) fn for_lane(&self, device: Option<&str>) -> Result<Arc<Nic>, TransportError> {
        let slots = self.slots.read();
        let Some(device) = device else {
            let none = || TransportError::new(Side::Local, "bring_up", "no NIC is open");
            return slots.first().ok_or_else(none)?.for_lane();
        };
        let slot = slots.iter().find(|slot| slot.device == device);
        slot.map(Slot::for_lane).unwrap_or_else(|| {
            let detail =
                format!("this node does not use a NIC '{device}'; name one that it has opened");
            Err(TransportError::new(Side::Configuration, "bring_up", detail))
        })
    }

    /// The device of a place that takes no lanes.
    pub(super) fn lost_device(&self, device: Option<&str>) -> Option<String> {
        let slots = self.slots.read();
        let slot = slots.iter().find(|slot| device.is_none_or(|device| slot.device == device))?;
        let is_lost = slot.nic.as_ref().map_or(true, |nic| nic.lost().is_some());
        (is_lost || !slot.takes_lanes).then(|| slot.device.clone())
    }

    pub(super) fn remove(&self, device: &str, lost: VerbsError) -> Option<Arc<Nic>> {
        self.change(device, |slot| {
            slot.takes_lanes = false;
            std::mem::replace(&mut slot.nic, Err(lost)).ok()
        })
    }

    pub(super) fn put(&self, nic: Arc<Nic>) {
        let device = nic.device().to_owned();
        let former = self.change(&device, |slot| {
            slot.takes_lanes = false;
            std::mem::replace(&mut slot.nic, Ok(nic)).ok()
        });
        // Not under the lock: the end of a NIC blocks.
        drop(former);
    }

    pub(super) fn admit_lanes(&self, device: &str) {
        self.change(device, |slot| {
            slot.takes_lanes = true;
            None
        });
    }

    fn change(
        &self,
        device: &str,
        change: impl FnOnce(&mut Slot) -> Option<Arc<Nic>>,
    ) -> Option<Arc<Nic>> {
        let mut slots = self.slots.write();
        change(slots.iter_mut().find(|slot| slot.device == device)?)
    }
}

impl Slot {
    fn for_lane(&self) -> Result<Arc<Nic>, TransportError> {
        let lost = |code, why: &str| {
            let detail = format!("{}: the device {why}", self.device);
            TransportError { code, ..TransportError::new(Side::Local, "bring_up", detail) }
        };
        match &self.nic {
            Ok(nic) if self.takes_lanes => Ok(Arc::clone(nic)),
            Ok(_) => Err(lost(0, "is being opened again")),
            Err(VerbsError { call, code, detail, .. }) => {
                let why = format!("is lost, since {call} failed: {detail}; it is opened again");
                Err(lost(*code, &why))
            }
        }
    }
}
