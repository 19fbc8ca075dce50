//! The private data of connections, and a node that gets any of it.

use crate::check_error;
use handfast_core::connection::{
    Announced, ConnectionId, ConnectionOutput, Connections, PRIVATE_DATA_BYTES, PrivateData,
    RequestId, Token,
};
use handfast_core::{Incarnation, Lifecycle, Pair};

/// The token of the node's queue pair: not in the input of a stranger.
const SECRET: Token = Token(0x5ec7_e700_0000_0000_0000_0000_0000_0001);

/// Panics unless what decodes encodes to the same again, and a node accepts nobody without its token.
pub fn check(bytes: &[u8]) {
    match PrivateData::decode(bytes) {
        Ok(data) => assert_eq!(data.encode()[..], bytes[..PRIVATE_DATA_BYTES], "the data changed"),
        Err(error) => check_error(&error.to_string()),
    }
    let id = ConnectionId { lifecycle: Lifecycle(1), place: 0 };
    let mut node = Connections::new(Incarnation(2));
    node.announce(id, 1, SECRET, false).expect("the table is empty");
    let pair = Pair { incarnation: Incarnation(1), lifecycle: Lifecycle(1) };
    let peer = Announced { pair, place: 0, number: 1, token: Token(1), asks: false };
    node.handle_request(RequestId(1), bytes);
    node.connect(id, peer);
    node.handle_request(RequestId(2), bytes);
    let has_token = PrivateData::decode(bytes).is_ok_and(|data| data.token == SECRET);
    while let Some(output) = node.poll_output() {
        let accepts = matches!(output, ConnectionOutput::Accept { .. });
        assert!(!accepts || has_token, "a stranger is accepted");
    }
    node.handle_rejected(id, bytes);
    node.handle_established(id, bytes);
}
