//! Handshake messages of Mooncake nodes over RDMA, at the edge of the life cycle (rule H13).
//!
//! A handfast node has one path for all its devices; a Mooncake node addresses a device, and is
//! addressed by one. The life cycle has a single local path. The peer's path names the local device
//! of a lane: `NODE@DEVICE` for the first, `NODE@DEVICE>OURS` for another.

use crate::path::{is_legacy, known_there, over};
use handfast_core::NicPath;
use handfast_core::wire::{DeviceDescriptor, PlainMessage};

/// Rejection of a call that does not reach the life cycle.
const NOT_OURS: &str = "Invalid argument: peer nic path inconsistency";

/// Converts a Mooncake node's call for the life cycle; returns the addressed path as well.
///
/// # Errors
/// The reason for a rejection.
pub(crate) fn received(
    text: &str,
    own: &NicPath,
    devices: &[DeviceDescriptor],
) -> Result<(PlainMessage, NicPath), String> {
    let message = PlainMessage::decode(text).map_err(|error| error.to_string())?;
    let addressed = message.to.as_ref().and_then(|to| {
        let place = place_of(to, own, devices)?;
        let from = message.from.as_ref().filter(|from| is_legacy(from))?;
        Some((over(from, devices, place)?, to.clone()))
    });
    match addressed {
        Some((from, addressed)) => {
            Ok((PlainMessage { from: Some(from), to: Some(own.clone()), ..message }, addressed))
        }
        None => Err(NOT_OURS.to_owned()),
    }
}

/// Converts an answer for the Mooncake node that called `addressed`.
pub(crate) fn answered(answer: PlainMessage, addressed: NicPath) -> PlainMessage {
    let to = answer.to.as_ref().map(known_there);
    PlainMessage { from: answer.from.map(|_| addressed), to, ..answer }
}

/// Returns the index of the local device in a path.
fn place_of(path: &NicPath, own: &NicPath, devices: &[DeviceDescriptor]) -> Option<usize> {
    let named = |device: &DeviceDescriptor| device.name == path.nic.as_str();
    devices.iter().position(named).filter(|_| path.node == own.node)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::devices_on;
    use handfast_core::wire::decode_frame;
    use std::fs;
    use std::path::Path;

    /// A request of a released node to another, `10.0.0.1:16026` with the device rxe0.
    fn recorded(name: &str) -> String {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../core/tests/golden");
        let bytes = fs::read(golden.join(name)).unwrap();
        decode_frame(&bytes, bytes.len()).unwrap().text.to_owned()
    }

    fn path(text: &str) -> NicPath {
        NicPath::parse(text).unwrap()
    }

    fn devices(names: &str) -> Vec<DeviceDescriptor> {
        let device = |name: &str| DeviceDescriptor { name: name.to_owned(), ..unnamed() };
        names.split(' ').map(device).collect()
    }

    fn unnamed() -> DeviceDescriptor {
        DeviceDescriptor { gid: String::new(), lid: 0, name: String::new() }
    }

    /// A recorded request maps to the local path and is answered from the device it names.
    #[test]
    fn recorded_request_maps_to_the_local_path() {
        let request = recorded("rdma-write64-02.c2s.bin");
        let own = path("10.0.0.1:16026@tcp");
        let (message, addressed) = received(&request, &own, &devices("rxe0")).unwrap();
        assert_eq!(
            (message.to, addressed.to_string()),
            (Some(own.clone()), "10.0.0.1:16026@rxe0".into())
        );
        assert_eq!(message.from, Some(path("10.0.0.2:16598@rxe1")));
        let reply = PlainMessage { from: Some(own), ..PlainMessage::default() };
        assert_eq!(answered(reply, addressed.clone()).from, Some(addressed.clone()));
        assert_eq!(
            answered(PlainMessage::ack(), addressed),
            PlainMessage::ack(),
            "it has no paths"
        );
    }

    /// A request for another device or node, or from a local path, is rejected.
    #[test]
    fn request_for_another_device_is_rejected() {
        let request = recorded("rdma-write64-02.c2s.bin");
        for (own, device) in [("10.0.0.1:16026@tcp", "rxe1"), ("10.0.0.1:16027@tcp", "rxe0")] {
            assert_eq!(received(&request, &path(own), &devices(device)), Err(NOT_OURS.to_owned()));
        }
        let forged = request.replace("10.0.0.2:16598@rxe1", "10.0.0.2:16598@tcp");
        let taken = received(&forged, &path("10.0.0.1:16026@tcp"), &devices("rxe0"));
        assert_eq!(taken, Err(NOT_OURS.to_owned()));
        assert!(received("null", &path("10.0.0.1:16026@tcp"), &devices("rxe0")).is_err());
    }

    /// A request for the second device maps to another path and is answered from that device.
    #[test]
    fn request_for_second_device_has_its_own_path() {
        let request = recorded("rdma-write64-02.c2s.bin");
        let own = path("10.0.0.1:16026@tcp");
        let (message, addressed) = received(&request, &own, &devices("rxe7 rxe0")).unwrap();
        let theirs = path("10.0.0.2:16598@rxe1>rxe0");
        assert_eq!((message.from.as_ref(), message.to.as_ref()), (Some(&theirs), Some(&own)));
        assert!(is_legacy(&theirs));
        assert_eq!(devices_on(&theirs), ("rxe1", Some("rxe0")));
        let reply = PlainMessage { from: message.to, to: message.from, ..PlainMessage::default() };
        let reply = answered(reply, addressed);
        let told = (path("10.0.0.1:16026@rxe0"), path("10.0.0.2:16598@rxe1"));
        assert_eq!((reply.from, reply.to), (Some(told.0), Some(told.1)));
        let forged = request.replace("10.0.0.2:16598@rxe1", "10.0.0.2:16598@rxe1>rxe0");
        let taken = received(&forged, &own, &devices("rxe7 rxe0"));
        assert_eq!(taken, Err(NOT_OURS.to_owned()), "no device has such a name");
    }
}
