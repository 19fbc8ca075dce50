//! The RDMA handshake with Mooncake nodes, where it enters and leaves the life cycle (rule H13).
//!
//! A node of ours has one path whatever its devices; a Mooncake node addresses a device, and is
//! addressed by one. In the life cycle our own path is the only one we have.

use crate::control::exchange;
use crate::directory::{Directory, Found};
use crate::engine::NIC;
use handfast_core::mooncake::SegmentDescriptor;
use handfast_core::transport::{Side, TransportError};
use handfast_core::wire::{
    Body, DeviceDescriptor, FrameKind, Message, MessageError, NodeDescriptor, PlainMessage,
};
use handfast_core::{NicPath, NodeName};
use handfast_transport_tcp::Net;
use std::sync::Arc;

/// Whether a path is a Mooncake node's, which has the name of a device where ours have one word.
pub(crate) fn is_theirs(path: &NicPath) -> bool {
    path.nic.as_str() != NIC && path.rail().is_none()
}

/// Why a call of a Mooncake node is answered without the life cycle.
const NOT_OURS: &str = "Invalid argument: peer nic path inconsistency";

/// A call of a Mooncake node as the life cycle takes it, and the path that it was addressed to.
///
/// # Errors
/// Why it is rejected.
pub(crate) fn received(
    text: &str,
    own: &NicPath,
    devices: &[DeviceDescriptor],
) -> Result<(PlainMessage, NicPath), String> {
    let message = PlainMessage::decode(text).map_err(|error| error.to_string())?;
    let addressed = message.to.clone().filter(|to| is_at(to, own, devices));
    let from_theirs = message.from.as_ref().is_some_and(is_theirs);
    match addressed.filter(|_| from_theirs) {
        Some(addressed) => Ok((PlainMessage { to: Some(own.clone()), ..message }, addressed)),
        None => Err(NOT_OURS.to_owned()),
    }
}

/// An answer of ours as a Mooncake node reads it that called `addressed`.
pub(crate) fn answered(answer: PlainMessage, addressed: NicPath) -> PlainMessage {
    PlainMessage { from: answer.from.map(|_| addressed), ..answer }
}

/// Whether a path names one of our devices.
fn is_at(path: &NicPath, own: &NicPath, devices: &[DeviceDescriptor]) -> bool {
    path.node == own.node && devices.iter().any(|device| device.name == path.nic.as_str())
}

/// What calls to Mooncake nodes need.
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

    /// A call of ours as it is sent: to a Mooncake node from the device.
    pub(crate) fn text(&self, message: &Message) -> String {
        let device = self.devices.first().and_then(|device| NodeName::new(&device.name).ok());
        match device.filter(|_| is_theirs(&message.to)) {
            Some(nic) => {
                let from = NicPath { nic, ..message.from.clone() };
                Message { from, ..message.clone() }.encode()
            }
            None => message.encode(),
        }
    }

    /// What a Mooncake node answered to a call of ours, as the life cycle takes it.
    ///
    /// # Errors
    /// When the text is no answer.
    pub(crate) fn answer(&self, text: &str) -> Result<PlainMessage, MessageError> {
        let message = PlainMessage::decode(text)?;
        let ours =
            |to: NicPath| if is_at(&to, &self.own, &self.devices) { self.own.clone() } else { to };
        Ok(PlainMessage { to: message.to.map(ours), ..message })
    }

    /// What a Mooncake node announced, with its address looked up in its descriptor where it
    /// announced none, as releases before 0.3.11 do. Takes as long as a call may.
    ///
    /// # Errors
    /// What stood in the way of the descriptor, or that the device is not in it.
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
        let device = descriptor.devices.iter().find(|device| device.name == peer.nic.as_str());
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

    /// What a released node sent to another, `10.0.0.1:16026` with the device rxe0.
    fn recorded(name: &str) -> String {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../core/tests/golden");
        let bytes = fs::read(golden.join(name)).unwrap();
        decode_frame(&bytes, bytes.len()).unwrap().text.to_owned()
    }

    fn path(text: &str) -> NicPath {
        NicPath::parse(text).unwrap()
    }

    fn devices(name: &str) -> Vec<DeviceDescriptor> {
        vec![DeviceDescriptor { gid: String::new(), lid: 0, name: name.to_owned() }]
    }

    #[test]
    fn a_recorded_request_is_taken_for_our_own_path_and_answered_from_the_device_it_named() {
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

    #[test]
    fn a_request_for_another_device_or_node_or_from_a_path_of_ours_is_rejected() {
        let request = recorded("rdma-write64-02.c2s.bin");
        for (own, device) in [("10.0.0.1:16026@tcp", "rxe1"), ("10.0.0.1:16027@tcp", "rxe0")] {
            assert_eq!(received(&request, &path(own), &devices(device)), Err(NOT_OURS.to_owned()));
        }
        let forged = request.replace("10.0.0.2:16598@rxe1", "10.0.0.2:16598@tcp");
        let taken = received(&forged, &path("10.0.0.1:16026@tcp"), &devices("rxe0"));
        assert_eq!(taken, Err(NOT_OURS.to_owned()));
        assert!(received("null", &path("10.0.0.1:16026@tcp"), &devices("rxe0")).is_err());
    }

    #[test]
    fn an_answer_to_our_device_is_one_to_our_path() {
        let own = path("10.0.0.2:16598@tcp");
        let theirs = Theirs {
            own: own.clone(),
            devices: devices("rxe1"),
            directory: None,
            descriptor: String::new(),
            timeout_ms: 1,
        };
        let answer = theirs.answer(&recorded("rdma-write64-02.s2c.bin")).unwrap();
        assert_eq!((answer.to, answer.from), (Some(own), Some(path("10.0.0.1:16026@rxe0"))));
        assert!(theirs.answer(&recorded("rdma-write64-03.s2c.bin")).unwrap().to.is_none());
    }
}
