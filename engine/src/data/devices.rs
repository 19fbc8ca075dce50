//! The RDMA devices of a node, as it announces them now.

use crate::error::Error;
use handfast_core::wire::DeviceDescriptor;
use parking_lot::RwLock;
use std::collections::BTreeMap;

/// The devices in use, in the order of the keys, and the errors of those that cannot be used.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    names: Vec<String>,
    /// Errors of the devices that could not be opened at the start.
    refused: Vec<Error>,
    now: RwLock<Now>,
}

#[derive(Debug, Default)]
struct Now {
    descriptors: Vec<DeviceDescriptor>,
    /// Errors of devices in use that do not work, by name.
    failed: BTreeMap<String, Error>,
}

#[cfg_attr(not(feature = "verbs"), allow(dead_code, reason = "of use with RDMA alone"))]
impl Devices {
    pub(crate) fn new(descriptors: Vec<DeviceDescriptor>, refused: Vec<Error>) -> Self {
        let names = descriptors.iter().map(|device| device.name.clone()).collect();
        Self { names, refused, now: RwLock::new(Now { descriptors, failed: BTreeMap::new() }) }
    }

    /// The names, which never change.
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    /// The present announcement. A device that does not work keeps its place and its last address.
    pub(crate) fn descriptors(&self) -> Vec<DeviceDescriptor> {
        self.now.read().descriptors.clone()
    }

    /// Errors of the devices that cannot be used now.
    pub(crate) fn unusable(&self) -> Vec<Error> {
        self.refused.iter().chain(self.now.read().failed.values()).cloned().collect()
    }

    /// A device in use does not work.
    pub(crate) fn on_failed(&self, device: &str, error: Error) {
        self.now.write().failed.insert(device.to_owned(), error);
    }

    /// A device works, and announces this. Returns whether the announcement differs from the last.
    pub(crate) fn on_working(&self, descriptor: DeviceDescriptor) -> bool {
        let mut now = self.now.write();
        now.failed.remove(&descriptor.name);
        let known = now.descriptors.iter_mut().find(|known| known.name == descriptor.name);
        let Some(known) = known.filter(|known| **known != descriptor) else { return false };
        *known = descriptor;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Cause, Stage};

    fn device(name: &str, gid: &str) -> DeviceDescriptor {
        DeviceDescriptor { name: name.to_owned(), gid: gid.to_owned(), lid: 0 }
    }

    /// A device that fails keeps its place; once it works again its new address is announced.
    #[test]
    fn failed_device_keeps_its_place() {
        let error = |text: &str| Error::local(Stage::Device, Cause::Invalid(text.to_owned()));
        let all = vec![device("nic0", "fe80::1"), device("nic1", "fe80::2")];
        let devices = Devices::new(all, vec![error("nic2 has no port")]);
        devices.on_failed("nic0", error("lost"));
        devices.on_failed("nic0", error("not back yet"));
        assert_eq!(devices.descriptors()[0], device("nic0", "fe80::1"));
        let texts: Vec<_> = devices.unusable().iter().map(ToString::to_string).collect();
        assert!(texts.len() == 2 && texts[1].contains("not back yet"), "{texts:?}");
        assert!(devices.on_working(device("nic0", "fe80::9")), "another address");
        assert!(!devices.on_working(device("nic0", "fe80::9")), "the same");
        assert_eq!(devices.descriptors()[0].gid, "fe80::9");
        assert_eq!((devices.unusable().len(), devices.names().len()), (1, 2));
    }

    /// The announcement of a device is the last one with which it worked, and its error the last since then:
    /// in every sequence of five changes of two devices.
    #[test]
    fn device_is_as_it_was_last_in_every_sequence() {
        let names = ["nic0", "nic1"];
        for number in 0..6u32.pow(5) {
            let all = names.map(|name| device(name, "first")).to_vec();
            let devices = Devices::new(all, Vec::new());
            let mut expected = [("first", None), ("first", None)];
            for step in 0..5 {
                let change = number / 6u32.pow(step) % 6;
                let (name, known) =
                    (names[change as usize % 2], &mut expected[change as usize % 2]);
                match ["first", "other", ""][change as usize / 2] {
                    "" => {
                        known.1 = Some(step);
                        let text = format!("{name} {step}");
                        devices.on_failed(name, Error::local(Stage::Device, Cause::Invalid(text)));
                    }
                    gid => {
                        let is_new = devices.on_working(device(name, gid));
                        assert_eq!(is_new, known.0 != gid, "{number}, {step}");
                        *known = (gid, None);
                    }
                }
            }
            let announced = devices.descriptors();
            let errors: Vec<String> = devices.unusable().iter().map(ToString::to_string).collect();
            assert_eq!(
                announced.iter().map(|it| &*it.gid).collect::<Vec<_>>(),
                expected.map(|it| it.0)
            );
            let failed = names.iter().zip(expected).filter_map(|(name, it)| it.1.zip(Some(name)));
            let failed: Vec<_> = failed.map(|(step, name)| format!("{name} {step}")).collect();
            assert_eq!(errors.len(), failed.len(), "{number}");
            assert!(errors.iter().zip(&failed).all(|(one, other)| one.contains(other.as_str())));
        }
    }
}
