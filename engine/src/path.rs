//! NIC paths: the one path of a handfast node, and the path of each device of a Mooncake node.

use handfast_core::wire::DeviceDescriptor;
use handfast_core::{NicPath, NodeName};

/// The NIC part of a node's path. A node has one life cycle for all its transports and keeps its
/// path when it returns with another transport; the text is the name of the first supported
/// transport.
const NIC: &str = "tcp";
/// Separates a device of a Mooncake node from a local one other than the first.
const BETWEEN_DEVICES: char = '>';

/// The path of a handfast node.
pub(crate) fn nic_path(name: &NodeName) -> NicPath {
    let nic = NodeName::new(NIC).expect("a constant that is a name");
    NicPath { node: name.clone(), nic }
}

/// Returns whether the path is a Mooncake node's, which names a device.
pub(crate) fn is_legacy(path: &NicPath) -> bool {
    path.nic.as_str() != NIC && path.rail().is_none()
}

/// Returns the devices in a Mooncake node's path: the peer's, and the local one unless it is the first.
pub(crate) fn devices_on(path: &NicPath) -> (&str, Option<&str>) {
    match path.nic.as_str().split_once(BETWEEN_DEVICES) {
        Some((theirs, ours)) => (theirs, Some(ours)),
        None => (path.nic.as_str(), None),
    }
}

/// Converts the path to the Mooncake node's form.
pub(crate) fn known_there(path: &NicPath) -> NicPath {
    let nic = NodeName::new(devices_on(path).0).unwrap_or_else(|_| path.nic.clone());
    NicPath { nic, ..path.clone() }
}

/// Returns a Mooncake node's path over the local device at index `place`; `None` if the names do
/// not form a valid path.
pub(crate) fn over(path: &NicPath, devices: &[DeviceDescriptor], place: usize) -> Option<NicPath> {
    if path.nic.as_str().contains(BETWEEN_DEVICES) {
        return None;
    }
    let ours = devices.get(place).map(|device| device.name.as_str()).filter(|_| place > 0);
    let Some(ours) = ours else { return Some(path.clone()) };
    let nic = NodeName::new(&format!("{}{BETWEEN_DEVICES}{ours}", path.nic)).ok()?;
    Some(NicPath { nic, ..path.clone() })
}
