//! Bytes as a peer may send them first: a frame, the connection descriptor in it, our key in that.

use crate::check_error;
use handfast_core::wire::{
    Descriptor, FRAME_BYTES_DEFAULT_MAX, FRAME_HEADER_BYTES, Frame, FrameKind, GrantsAnswer,
    GrantsRequest, Message, NodeDescriptor, decode_frame, encode_frame,
};

/// Panics unless what decodes encodes to the same again, and what does not fails in few words.
pub fn check(bytes: &[u8]) {
    match decode_frame(bytes, FRAME_BYTES_DEFAULT_MAX) {
        Ok(frame) => check_frame(bytes, frame),
        Err(error) => check_error(&error.to_string()),
    }
    // A mutation seldom keeps length and text in step: try the text without its frame too.
    if let Some(Ok(text)) = bytes.get(FRAME_HEADER_BYTES + 1..).map(str::from_utf8) {
        check_descriptor(text);
        check_segment(text);
        check_grants(text);
    }
}

fn check_grants(text: &str) {
    match GrantsRequest::decode(text) {
        Some(Ok(request)) => {
            let again = GrantsRequest::decode(&request.encode());
            assert_eq!(Some(Ok(request)), again, "the request for grants changed");
        }
        Some(Err(error)) => check_error(&error.to_string()),
        None => {}
    }
    match GrantsAnswer::decode(text) {
        Ok(answer) => {
            let again = GrantsAnswer::decode(&answer.encode());
            assert_eq!(Ok(answer), again, "the grants changed");
        }
        Err(error) => check_error(&error.to_string()),
    }
}

fn check_segment(text: &str) {
    match NodeDescriptor::decode(text) {
        Ok(descriptor) => {
            let again = NodeDescriptor::decode(&descriptor.encode());
            assert_eq!(Ok(descriptor), again, "the segment descriptor changed");
        }
        Err(error) => check_error(&error.to_string()),
    }
}

fn check_frame(bytes: &[u8], frame: Frame<'_>) {
    let encoded = encode_frame(frame.kind, frame.text);
    assert_eq!(bytes.get(..encoded.len()), Some(&*encoded), "the frame changed");
    match frame.kind {
        FrameKind::Connection | FrameKind::Untyped => check_descriptor(frame.text),
        FrameKind::Metadata => {
            check_segment(frame.text);
            check_grants(frame.text);
        }
        FrameKind::Notify | FrameKind::Probe => {}
    }
}

fn check_descriptor(text: &str) {
    if let Ok(descriptor) = serde_json::from_str::<Descriptor>(text) {
        let encoded = serde_json::to_string(&descriptor).expect("a descriptor is JSON");
        let again = serde_json::from_str(&encoded).expect("what was encoded decodes");
        assert_eq!(descriptor, again, "the descriptor changed");
    }
    match Message::decode(text) {
        Ok(message) => {
            let again = Message::decode(&message.encode());
            assert_eq!(Ok(message), again, "the message changed");
        }
        Err(error) => check_error(&error.to_string()),
    }
}
