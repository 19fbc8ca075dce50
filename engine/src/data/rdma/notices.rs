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

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    const NAMES: [&str; 2] = ["nic0", "nic1"];
    /// A loss or a change of either device, a look at the notices, or a wait for them.
    const CALLS: u32 = 6;

    /// A look returns all that was noted since the last, and a wait after a note ends: in every sequence of
    /// six calls.
    #[test]
    fn notice_is_lost_in_no_sequence() {
        for number in 0..CALLS.pow(6) {
            let (notices, mut expected) = (Notices::default(), BTreeMap::new());
            let mut is_noted = false;
            for call in (0..6).map(|step| number / CALLS.pow(step) % CALLS) {
                let name = NAMES[call as usize % 2];
                let entry = |expected: &mut BTreeMap<String, Notice>| {
                    *expected.entry(name.to_owned()).or_default()
                };
                match call {
                    0 | 1 => {
                        notices.on_lost(name);
                        let noted = Notice { is_lost: true, ..entry(&mut expected) };
                        expected.insert(name.to_owned(), noted);
                        is_noted = true;
                    }
                    2 | 3 => {
                        notices.on_changed(name);
                        let noted = Notice { is_changed: true, ..entry(&mut expected) };
                        expected.insert(name.to_owned(), noted);
                        is_noted = true;
                    }
                    4 => assert_eq!(notices.take(), std::mem::take(&mut expected), "{number}"),
                    _ => {
                        let mut context = Context::from_waker(Waker::noop());
                        let waited = pin!(notices.changed.notified()).poll(&mut context);
                        assert_eq!(waited.is_ready(), std::mem::take(&mut is_noted), "{number}");
                    }
                }
            }
            assert_eq!(notices.take(), expected, "{number}");
        }
    }
}
