//! Messages of a legacy node: descriptors, notifications, entries of stores, data requests.

use crate::check_error;
use handfast_core::mooncake::{
    DataRequest, DataStatus, Notification, REQUEST_BYTES, RpcMeta, STATUS_BYTES, SegmentDescriptor,
};
use handfast_core::wire::PlainMessage;

/// Panics unless what decodes encodes to the same again, and what does not fails in few words.
pub fn check(bytes: &[u8]) {
    if let Some(header) = bytes.first_chunk::<REQUEST_BYTES>() {
        let request = DataRequest::decode(*header);
        assert_eq!(DataRequest::decode(request.encode()), request, "the request changed");
    }
    if let Some(frame) = bytes.first_chunk::<STATUS_BYTES>() {
        match DataStatus::decode(*frame) {
            Ok(status) => assert_eq!(status.encode(), *frame, "the status changed"),
            Err(error) => check_error(&error.to_string()),
        }
    }
    let Ok(text) = str::from_utf8(bytes) else { return };
    same(text, SegmentDescriptor::decode, SegmentDescriptor::encode);
    same(text, Notification::decode, Notification::encode);
    same(text, RpcMeta::decode, RpcMeta::encode);
    same(text, PlainMessage::decode, PlainMessage::encode);
}

fn same<T: PartialEq + std::fmt::Debug, E: PartialEq + std::fmt::Display + std::fmt::Debug>(
    text: &str,
    decode: impl Fn(&str) -> Result<T, E>,
    encode: impl Fn(&T) -> String,
) {
    match decode(text) {
        Ok(value) => assert_eq!(decode(&encode(&value)).as_ref(), Ok(&value), "it changed"),
        Err(error) => check_error(&error.to_string()),
    }
}
