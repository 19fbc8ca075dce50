//! The RDMA handshake with Mooncake nodes at the edge of the life cycle (rule H13).
//!
//! A handfast node has one path for all its devices; a Mooncake node addresses a device, and is
//! addressed by one. The life cycle knows a single local path. The peer's path names the local
//! device of a lane: `NODE@DEVICE` for the first, and `NODE@DEVICE>OURS` for another.

use crate::api::engine::NIC;
use crate::control::exchange;
use crate::node::directory::{Directory, Found};
use handfast_core::mooncake::SegmentDescriptor;
use handfast_core::transport::{Side, TransportError};
use handfast_core::wire::{
    Body, DeviceDescriptor, FrameKind, Message, MessageError, NodeDescriptor, PlainMessage,
};
use handfast_core::{NicPath, NodeName};
use handfast_transport_tcp::Net;
use std::sync::Arc;

/// Separates a device of a Mooncake node from a local one other than the first.
const BETWEEN_DEVICES: char = '>';

/// The path is a Mooncake node's, which names a device.
pub(crate) fn is_theirs(path: &NicPath) -> bool {
    path.nic.as_str() != NIC && path.rail().is_none()
}

/// The devices that a path of a Mooncake node names: theirs, and ours where that is not our first.
pub(crate) fn devices_on(path: &NicPath) -> (&str, Option<&str>) {
    match path.nic.as_str().split_once(BETWEEN_DEVICES) {
        Some((theirs, ours)) => (theirs, Some(ours)),
        None => (path.nic.as_str(), None),
    }
}

/// The same path as the Mooncake node knows it.
fn known_there(path: &NicPath) -> NicPath {
    let nic = NodeName::new(devices_on(path).0).unwrap_or_else(|_| path.nic.clone());
    NicPath { nic, ..path.clone() }
}

/// A Mooncake node's path over one of our devices, by its place. `None` if a name makes that
/// impossible.
fn over(path: &NicPath, devices: &[DeviceDescriptor], place: usize) -> Option<NicPath> {
    if path.nic.as_str().contains(BETWEEN_DEVICES) {
        return None;
    }
    let ours = devices.get(place).map(|device| device.name.as_str()).filter(|_| place > 0);
    let Some(ours) = ours else { return Some(path.clone()) };
    let nic = NodeName::new(&format!("{}{BETWEEN_DEVICES}{ours}", path.nic)).ok()?;
    Some(NicPath { nic, ..path.clone() })
}

/// Rejection of a call that never enters the life cycle.
const NOT_OURS: &str = "Invalid argument: peer nic path inconsistency";

/// A Mooncake node's call in the terms of the life cycle, and the path that it addressed.
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
        let from = message.from.as_ref().filter(|from| is_theirs(from))?;
        Some((over(from, devices, place)?, to.clone()))
    });
    match addressed {
        Some((from, addressed)) => {
            Ok((PlainMessage { from: Some(from), to: Some(own.clone()), ..message }, addressed))
        }
        None => Err(NOT_OURS.to_owned()),
    }
}

/// An answer as the Mooncake node that called `addressed` reads it.
pub(crate) fn answered(answer: PlainMessage, addressed: NicPath) -> PlainMessage {
    let to = answer.to.as_ref().map(known_there);
    PlainMessage { from: answer.from.map(|_| addressed), to, ..answer }
}

/// Index of the local device that a path names.
fn place_of(path: &NicPath, own: &NicPath, devices: &[DeviceDescriptor]) -> Option<usize> {
    let named = |device: &DeviceDescriptor| device.name == path.nic.as_str();
    devices.iter().position(named).filter(|_| path.node == own.node)
}

/// Context of calls to Mooncake nodes.
pub(crate) struct Theirs {
    own: NicPath,
    devices: Vec<DeviceDescriptor>,
    directory: Option<Arc<Directory>>,
    /// Our own descriptor: released nodes send theirs when they ask for another's.
    descriptor: String,
    timeout_ms: u64,
}

impl Theirs {
    pub(crate) fn new(
        own: NicPath,
        descriptor: &NodeDescriptor,
        directory: Option<Arc<Directory>>,
        timeout_ms: u64,
    ) -> Self {
        let (devices, text) = (descriptor.devices.clone(), descriptor.encode());
        Self { own, devices, directory, descriptor: text, timeout_ms }
    }

    /// The text of an outgoing call; to a Mooncake node both paths name devices.
    pub(crate) fn text(&self, message: &Message) -> String {
        match self.own_on(&message.to).filter(|_| is_theirs(&message.to)) {
            Some(from) => {
                Message { from, to: known_there(&message.to), ..message.clone() }.encode()
            }
            None => message.encode(),
        }
    }

    /// Our path as a Mooncake node knows it that is reached over `path`.
    fn own_on(&self, path: &NicPath) -> Option<NicPath> {
        let ours = devices_on(path).1.or(self.devices.first().map(|device| &*device.name))?;
        Some(NicPath { nic: NodeName::new(ours).ok()?, ..self.own.clone() })
    }

    /// A Mooncake node's answer to a call to `asked`, in the terms of the life cycle.
    ///
    /// # Errors
    /// The text is no answer.
    pub(crate) fn answer(&self, text: &str, asked: &NicPath) -> Result<PlainMessage, MessageError> {
        let message = PlainMessage::decode(text)?;
        let (there, here) = (known_there(asked), self.own_on(asked));
        let to =
            message.to.map(|to| if Some(&to) == here.as_ref() { self.own.clone() } else { to });
        let from = message.from.map(|from| if from == there { asked.clone() } else { from });
        Ok(PlainMessage { from, to, ..message })
    }

    /// A Mooncake node's announcement, with the address from its descriptor if it announced none,
    /// as releases before 0.3.11 do. Takes at most the time of a call.
    ///
    /// # Errors
    /// The descriptor is out of reach, or lacks the device.
    pub(crate) async fn with_address<N: Net>(
        &self,
        net: &N,
        peer: &NicPath,
        body: Body,
    ) -> Result<Body, TransportError> {
        if !body.gid.is_empty() {
            return Ok(body);
        }
        let failed = |detail: String| {
            let detail =
                format!("{peer} announced no address, and it cannot be looked up: {detail}");
            TransportError { side: Side::Peer, call: "look-up", code: 0, detail }
        };
        let descriptor = self.look_up(net, peer.node.as_str()).await.map_err(failed)?;
        let device = descriptor.devices.iter().find(|device| device.name == devices_on(peer).0);
        let device =
            device.ok_or_else(|| failed("its descriptor has no such device".to_owned()))?;
        Ok(Body { gid: device.gid.clone(), lid: device.lid, ..body })
    }

    async fn look_up<N: Net>(&self, net: &N, node: &str) -> Result<SegmentDescriptor, String> {
        if let Some(directory) = &self.directory {
            return match directory.look_up(node).await.map_err(|error| error.to_string())? {
                Found::Theirs(descriptor, _) => Ok(*descriptor),
                Found::Ours(_) => Err("the store has a node of ours under its name".to_owned()),
            };
        }
        let kind = FrameKind::Metadata;
        let frame = exchange(net, node, kind, &self.descriptor, self.timeout_ms).await;
        let frame = frame.map_err(|error| format!("{:?}", error.failure()))?;
        SegmentDescriptor::decode(&frame.text).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
        assert!(is_theirs(&theirs));
        assert_eq!(devices_on(&theirs), ("rxe1", Some("rxe0")));
        let reply = PlainMessage { from: message.to, to: message.from, ..PlainMessage::default() };
        let reply = answered(reply, addressed);
        let told = (path("10.0.0.1:16026@rxe0"), path("10.0.0.2:16598@rxe1"));
        assert_eq!((reply.from, reply.to), (Some(told.0), Some(told.1)));
        let forged = request.replace("10.0.0.2:16598@rxe1", "10.0.0.2:16598@rxe1>rxe0");
        let taken = received(&forged, &own, &devices("rxe7 rxe0"));
        assert_eq!(taken, Err(NOT_OURS.to_owned()), "no device has such a name");
    }

    fn at_rxe1(names: &str) -> Theirs {
        Theirs {
            own: path("10.0.0.2:16598@tcp"),
            devices: devices(names),
            directory: None,
            descriptor: String::new(),
            timeout_ms: 1,
        }
    }

    #[test]
    fn an_answer_to_our_device_is_one_to_our_path() {
        let answer = recorded("rdma-write64-02.s2c.bin");
        let own = Some(path("10.0.0.2:16598@tcp"));
        for (names, asked) in
            [("rxe1", "10.0.0.1:16026@rxe0"), ("rxe7 rxe1", "10.0.0.1:16026@rxe0>rxe1")]
        {
            let (theirs, asked) = (at_rxe1(names), path(asked));
            let taken = theirs.answer(&answer, &asked).unwrap();
            assert_eq!((taken.to, taken.from), (own.clone(), Some(asked.clone())), "{names}");
            let ready = theirs.answer(&recorded("rdma-write64-03.s2c.bin"), &asked).unwrap();
            assert!(ready.to.is_none());
        }
        let other = at_rxe1("rxe7 rxe1").answer(&answer, &path("10.0.0.1:16026@rxe0")).unwrap();
        assert_ne!(other.to, own, "it was not sent from that device");
    }
}
