//! Messages of a legacy Mooncake node: the connection descriptor without the handfast key (rule
//! H13).

use super::Body;
use super::message::{
    DETAIL_BYTES_MAX, Descriptor, MessageError, QUEUE_PAIRS_MAX, SHORT_TEXT_BYTES_MAX, truncated,
};
use crate::identity::NicPath;
use alloc::string::{String, ToString};
use serde::{Deserialize, Serialize};

/// A connection descriptor without the handfast key.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PlainMessage {
    /// The sending NIC; absent from the answer to a ready, and from a node that speaks TCP only.
    pub from: Option<NicPath>,
    /// The addressed NIC; absent likewise.
    pub to: Option<NicPath>,
    /// Queue pairs, GID and LID; the GID is empty before Mooncake 0.3.11. Other attributes are
    /// absent.
    pub body: Body,
    /// Absent: the sender does not know the ready phase. True: this is the ready message.
    pub ready: Option<bool>,
    /// Reason for a rejection, at most 512 bytes.
    pub rejected: Option<String>,
}

impl PlainMessage {
    /// Decodes the JSON text of a connection frame, with or without the handfast key.
    pub fn decode(text: &str) -> Result<Self, MessageError> {
        let descriptor = Descriptor::decode(text)?;
        if descriptor.qp_num.len() > QUEUE_PAIRS_MAX {
            return Err(MessageError::Field("qp_num"));
        }
        if descriptor.local_gid.len() > SHORT_TEXT_BYTES_MAX {
            return Err(MessageError::Field("local_gid"));
        }
        let path = |key, text: &str| match text {
            "" => Ok(None),
            text => {
                NicPath::parse(text).map(Some).map_err(|error| MessageError::Path { key, error })
            }
        };
        let rejected = Some(descriptor.reply_msg).filter(|text| !text.is_empty());
        Ok(Self {
            from: path("local_nic_path", &descriptor.local_nic_path)?,
            to: path("peer_nic_path", &descriptor.peer_nic_path)?,
            body: Body {
                queue_pairs: descriptor.qp_num,
                gid: descriptor.local_gid,
                lid: descriptor.local_lid,
                ..Body::default()
            },
            ready: descriptor.ready_ack,
            rejected: rejected.map(|text| truncated(text, DETAIL_BYTES_MAX)),
        })
    }

    /// Encodes to the JSON text of a connection frame: compact, keys sorted, one line feed.
    pub fn encode(&self) -> String {
        let path = |path: &Option<NicPath>| path.as_ref().map(NicPath::to_string);
        let descriptor = Descriptor {
            handfast: None,
            local_gid: self.body.gid.clone(),
            local_lid: self.body.lid,
            local_nic_path: path(&self.from).unwrap_or_default(),
            payload: Some(String::new()),
            peer_nic_path: path(&self.to).unwrap_or_default(),
            qp_num: self.body.queue_pairs.clone(),
            ready_ack: self.ready,
            reply_msg: self.rejected.clone().unwrap_or_default(),
        };
        descriptor.encode()
    }

    /// Returns the answer to a ready, in a Mooncake node's form.
    pub fn ack() -> Self {
        Self::default()
    }

    /// Returns a rejection with a human-readable reason.
    pub fn rejection(detail: &str) -> Self {
        let rejected = Some(truncated(detail.to_string(), DETAIL_BYTES_MAX));
        Self { rejected, ..Self::default() }
    }
}
