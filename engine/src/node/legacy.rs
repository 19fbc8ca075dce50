//! Handshake calls to Mooncake nodes over RDMA.

use crate::control::exchange;
use crate::directory::{Directory, Found};
use crate::path::{devices_on, is_legacy, known_there};
use handfast_core::mooncake::SegmentDescriptor;
use handfast_core::transport::{Side, TransportError};
use handfast_core::wire::{
    Body, DeviceDescriptor, FrameKind, Message, MessageError, NodeDescriptor, PlainMessage,
};
use handfast_core::{NicPath, NodeName};
use handfast_transport_tcp::Net;
use std::sync::Arc;
use std::time::Duration;

/// Context of calls to Mooncake nodes.
pub(crate) struct LegacyPeers {
    own: NicPath,
    devices: Vec<DeviceDescriptor>,
    directory: Option<Arc<Directory>>,
    /// Descriptor of this node: released nodes send theirs when they request another's.
    descriptor: String,
    call_timeout: Duration,
}

impl LegacyPeers {
    pub(crate) fn new(
        own: NicPath,
        descriptor: &NodeDescriptor,
        directory: Option<Arc<Directory>>,
        call_timeout: Duration,
    ) -> Self {
        let (devices, text) = (descriptor.devices.clone(), descriptor.encode());
        Self { own, devices, directory, descriptor: text, call_timeout }
    }

    /// Encodes an outgoing call; to a Mooncake node both paths name devices.
    pub(crate) fn text(&self, message: &Message) -> String {
        match self.own_on(&message.to).filter(|_| is_legacy(&message.to)) {
            Some(from) => {
                Message { from, to: known_there(&message.to), ..message.clone() }.encode()
            }
            None => message.encode(),
        }
    }

    /// Returns the local path in the form of the Mooncake node at `path`.
    fn own_on(&self, path: &NicPath) -> Option<NicPath> {
        let ours = devices_on(path).1.or(self.devices.first().map(|device| &*device.name))?;
        Some(NicPath { nic: NodeName::new(ours).ok()?, ..self.own.clone() })
    }

    /// Decodes a Mooncake node's answer to a call to `asked` for the life cycle.
    ///
    /// # Errors
    /// The text is not an answer.
    pub(crate) fn answer(&self, text: &str, asked: &NicPath) -> Result<PlainMessage, MessageError> {
        let message = PlainMessage::decode(text)?;
        let (there, here) = (known_there(asked), self.own_on(asked));
        let to =
            message.to.map(|to| if Some(&to) == here.as_ref() { self.own.clone() } else { to });
        let from = message.from.map(|from| if from == there { asked.clone() } else { from });
        Ok(PlainMessage { from, to, ..message })
    }

    /// Completes a Mooncake node's announcement with the address from its descriptor if it has none,
    /// as releases before 0.3.11 do. Takes at most the time of a call.
    ///
    /// # Errors
    /// The descriptor cannot be fetched, or lacks the device.
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
            let detail = format!("{peer} announced no address, and looking it up failed: {detail}");
            TransportError::new(Side::Peer, "look-up", detail)
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
                Found::LegacyPeers(descriptor, _) => Ok(*descriptor),
                Found::Ours(_) => Err("the store has a handfast node under its name".to_owned()),
            };
        }
        let kind = FrameKind::Metadata;
        let frame = exchange(net, node, kind, &self.descriptor, self.call_timeout).await;
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

    fn at_rxe1(names: &str) -> LegacyPeers {
        LegacyPeers {
            own: path("10.0.0.2:16598@tcp"),
            devices: devices(names),
            directory: None,
            descriptor: String::new(),
            call_timeout: Duration::ZERO,
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
