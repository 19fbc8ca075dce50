//! Notices of the devices' threads for the keeper, coalesced: one entry for each device.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use tokio::sync::Notify;

/// Changes of a device since the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Notice {
    pub(super) is_lost: bool,
    /// Addresses of the port came or went, or the port is active again.
    pub(super) is_changed: bool,
}

#[derive(Default)]
pub(super) struct Notices {
    by_device: Mutex<BTreeMap<String, Notice>>,
    pub(super) changed: Notify,
}

impl Notices {
    pub(super) fn on_lost(&self, device: &str) {
        self.note(device, |notice| notice.is_lost = true);
    }

    pub(super) fn on_changed(&self, device: &str) {
        self.note(device, |notice| notice.is_changed = true);
    }

    fn note(&self, device: &str, note: impl FnOnce(&mut Notice)) {
        note(self.by_device.lock().entry(device.to_owned()).or_default());
        self.changed.notify_one();
    }

    pub(super) fn take(&self) -> BTreeMap<String, Notice> {
        std::mem::take(&mut *self.by_device.lock())
    }
}
