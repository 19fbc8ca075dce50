//! The connection descriptor and its key `handfast`.

use crate::connection::ANNOUNCEMENT_BYTES_MAX;
use crate::identity::{Incarnation, Lifecycle, NameError, NicPath, NodeName, Pair};
use crate::mooncake::is_null;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Version of the handfast key. A higher version is answered; an unknown required bit is refused.
pub const WIRE_VERSION: u32 = 1;
/// Maximum queue pairs of one lifecycle. Mooncake's default is 2; 64 bounds a hostile list.
pub const QUEUE_PAIRS_MAX: usize = 64;
/// Longest GID, in bytes; one has 47.
pub(super) const SHORT_TEXT_BYTES_MAX: usize = 64;
/// Longest token, in bytes: that of an encrypted lane has 71.
const TOKEN_BYTES_MAX: usize = 72;
/// End of the token of a lane that the announcing node encrypts.
pub const SEALED_TOKEN_END: &str = "+sealed";
/// Longest announcement of shared memory, in bytes.
pub const SHARED_MEMORY_BYTES_MAX: usize = 128;
/// Maximum kept length of a peer's text, in bytes: a refusal's detail, or the quotation in a parse
/// error.
pub(super) const DETAIL_BYTES_MAX: usize = 512;

/// Mooncake's connection descriptor, with keys in the sorted order of its writer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Descriptor {
    /// The handfast key; absent from Mooncake nodes, ignored by them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handfast: Option<Key>,
    /// GID of the sender's NIC as sixteen hexadecimal bytes joined by colons; may be empty.
    #[serde(default)]
    pub local_gid: String,
    /// LID of the sender's port, 0 on Ethernet.
    #[serde(default)]
    pub local_lid: u32,
    /// `node@nic` of the sender.
    #[serde(default)]
    pub local_nic_path: String,
    /// Opaque; only the newest releases write it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<String>,
    /// `node@nic` that the sender addresses.
    #[serde(default)]
    pub peer_nic_path: String,
    /// The sender's queue-pair numbers, in lane order.
    #[serde(default)]
    pub qp_num: Vec<u32>,
    /// Present: the sender knows the ready phase. True: this is the ready message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_ack: Option<bool>,
    /// Empty for success, else the reason of a rejection.
    #[serde(default)]
    pub reply_msg: String,
}

/// The complete schema of the handfast key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    auth: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    connection_manager: Option<Box<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    echo: Option<KeyPair>,
    incarnation: String,
    lifecycle: u64,
    #[serde(default)]
    mtu: u32,
    op: Op,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    probe: Option<ProbeByte>,
    #[serde(default)]
    psn: Vec<u32>,
    #[serde(default)]
    rd_atomic: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    refusal: Option<KeyRefusal>,
    #[serde(default)]
    required: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shared_memory: Option<Box<str>>,
    #[serde(default)]
    started_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    version: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct KeyPair {
    incarnation: String,
    lifecycle: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct KeyRefusal {
    detail: String,
    /// Whether the sides differ in encryption alone; earlier versions know the reason without it.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    encryption: bool,
    reason: RefusalReason,
}

/// Purpose of a message (rule H2, and quiesce and retired of H11).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// Announces queue pairs and asks for the peer's.
    Request,
    /// Announces queue pairs and echoes the requester's.
    Reply,
    /// The sender has connected towards the echoed lifecycle.
    Ready,
    /// The sender has connected too; answers a ready.
    Ack,
    /// The sender wants to retire the pair and asks the peer to stop posting.
    Quiesce,
    /// The peer has stopped and drained; answers a quiesce.
    Retired,
    /// The message was refused.
    Refuse,
}

/// Reason for a refusal. Rule H10 gives the receiver's duty for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalReason {
    /// The echoed lifecycle no longer exists.
    Gone,
    /// A newer lifecycle or incarnation has replaced it.
    Superseded,
    /// A table is full; the same lifecycle may try later.
    Busy,
    /// The node is not ready yet; the same lifecycle may try later.
    Starting,
    /// The configurations of the two nodes are incompatible.
    Configuration,
    /// One node encrypts its lanes, and the other does not. On the wire it is `configuration` with a mark.
    Encryption,
    /// The peer lacks the permission.
    Protection,
    /// Two live processes share a name.
    NameConflict,
    /// Lanes to another incarnation of the sender exist: ask again, echoing the refusing pair.
    Unproven,
}

/// A refusal with a human-readable detail.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Refusal {
    /// The machine-readable reason.
    pub reason: RefusalReason,
    /// Observation of the refusing side, at most 512 bytes.
    pub detail: String,
}

/// Everything a side needs to connect to the other's queue pairs.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Body {
    /// Queue-pair numbers in lane order.
    pub queue_pairs: Vec<u32>,
    /// First packet sequence number per queue pair.
    pub psns: Vec<u32>,
    /// GID in text form; empty without one.
    pub gid: String,
    /// LID; 0 without one.
    pub lid: u32,
    /// Path MTU in bytes; 0 without one.
    pub mtu: u32,
    /// Outstanding reads that the side accepts; 0 for transports without such a limit.
    pub rd_atomic: u32,
    /// Token that a TCP lane must present, sixteen hexadecimal digits, or the lane's secret between
    /// nodes with keys; empty elsewhere.
    pub token: String,
    /// `host:port` at which the side accepts control calls and TCP lanes; empty if it accepts none.
    /// At most as long as a node's name.
    pub address: String,
    /// A byte that the peer may read to learn whether this side answers; `None` if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe: Option<ProbeByte>,
    /// Socket at which the side offers shared memory, and a number that proves a peer of this host;
    /// `None` if it offers none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_memory: Option<Box<str>>,
    /// An [`Announcement`](crate::connection::Announcement) of queue pairs that connect through the
    /// connection manager; `None` for those that connect out of band.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection_manager: Option<Box<str>>,
}

impl Body {
    /// Whether the sender encrypts its lanes over TCP.
    pub fn is_sealed(&self) -> bool {
        self.token.ends_with(SEALED_TOKEN_END)
    }
}

/// A byte without user data in a side's registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProbeByte {
    /// Its address.
    pub address: u64,
    /// The device's key of its registration.
    pub key: u32,
}

/// A message between two handfast nodes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Message {
    /// Purpose.
    pub op: Op,
    /// The sending NIC.
    pub from: NicPath,
    /// The addressed NIC.
    pub to: NicPath,
    /// The sender's pair (rule H1).
    pub sender: Pair,
    /// The receiver's pair, if known to the sender (rule H1).
    pub echo: Option<Pair>,
    /// Queue pairs; empty in a refusal.
    pub body: Body,
    /// Present exactly when `op` is [`Op::Refuse`].
    pub refusal: Option<Refusal>,
}

/// Errors of decoding a handfast message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// Not JSON, or a key of the wrong type; quotes at most 512 bytes of the text.
    #[error("the connection descriptor is malformed: {0}")]
    Malformed(String),
    /// `null`: the peer is starting, or accepts no handshakes.
    #[error("the peer has no answer yet: it is starting, or accepts no handshakes")]
    Null,
    /// The handfast key is missing: a Mooncake node.
    #[error("the peer sent no 'handfast' key: it is a Mooncake node or a TCP-only one")]
    NoKey,
    /// The peer requires features this version lacks.
    #[error("the peer requires feature bits {0:#x} that this version does not know")]
    Required(u64),
    /// A NIC path is invalid.
    #[error("the descriptor's '{key}' is unusable: {error}")]
    Path {
        /// The key.
        key: &'static str,
        /// The error.
        error: NameError,
    },
    /// A field of the handfast key is out of range or missing for its op.
    #[error("the descriptor's '{0}' is missing, out of range or contradicts its op")]
    Field(&'static str),
}

impl Message {
    /// The refusal that an earlier version means with a descriptor without the handfast key: it cannot read
    /// the token of a node that encrypts its lanes, and says so. Another answer is none.
    pub fn unread(&self, answer: &str) -> Option<Self> {
        let Descriptor { handfast: None, reply_msg: said, .. } = Descriptor::decode(answer).ok()?
        else {
            return None;
        };
        if !self.body.is_sealed() || said != MessageError::Field("token").to_string() {
            return None;
        }
        let detail = format!(
            "this node encrypts its lanes, and the peer is an earlier version that does not: {said}"
        );
        Some(Self {
            op: Op::Refuse,
            from: self.to.clone(),
            to: self.from.clone(),
            sender: Pair { incarnation: Incarnation::UNKNOWN, lifecycle: Lifecycle(0) },
            echo: Some(self.sender),
            body: Body::default(),
            refusal: Some(Refusal {
                reason: RefusalReason::Encryption,
                detail: truncated(detail, DETAIL_BYTES_MAX),
            }),
        })
    }

    /// Decodes the JSON text of a connection frame.
    pub fn decode(text: &str) -> Result<Self, MessageError> {
        Self::from_descriptor(Descriptor::decode(text)?)
    }

    fn from_descriptor(descriptor: Descriptor) -> Result<Self, MessageError> {
        let path = |key, text: &str| {
            NicPath::parse(text).map_err(|error| MessageError::Path { key, error })
        };
        let key = descriptor.handfast.ok_or(MessageError::NoKey)?;
        if key.required != 0 {
            return Err(MessageError::Required(key.required));
        }
        if key.version == 0 {
            return Err(MessageError::Field("version"));
        }
        if descriptor.qp_num.len() > QUEUE_PAIRS_MAX || key.psn.len() > QUEUE_PAIRS_MAX {
            return Err(MessageError::Field("qp_num"));
        }
        // A bound on everything that a node retains of a peer: otherwise a flood of messages fills
        // its memory.
        let texts = [
            ("address", key.address.as_deref(), NodeName::BYTES_MAX),
            ("token", key.token.as_deref(), TOKEN_BYTES_MAX),
            ("shared_memory", key.shared_memory.as_deref(), SHARED_MEMORY_BYTES_MAX),
            ("connection_manager", key.connection_manager.as_deref(), ANNOUNCEMENT_BYTES_MAX),
            ("local_gid", Some(&*descriptor.local_gid), SHORT_TEXT_BYTES_MAX),
        ];
        let long =
            |(_, text, max): &&(_, Option<&str>, usize)| text.is_some_and(|t| t.len() > *max);
        if let Some((name, ..)) = texts.iter().find(long) {
            return Err(MessageError::Field(name));
        }
        let refusal = key.refusal.map(|refusal| Refusal {
            reason: match (refusal.reason, refusal.encryption) {
                (RefusalReason::Configuration, true) => RefusalReason::Encryption,
                (reason, _) => reason,
            },
            detail: truncated(refusal.detail, DETAIL_BYTES_MAX),
        });
        if refusal.is_some() != (key.op == Op::Refuse) {
            return Err(MessageError::Field("refusal"));
        }
        let echo = match key.echo {
            Some(pair) => Some(parse_pair("echo", &pair.incarnation, pair.lifecycle)?),
            None if matches!(key.op, Op::Request | Op::Refuse) => None,
            None => return Err(MessageError::Field("echo")),
        };
        Ok(Self {
            op: key.op,
            from: path("local_nic_path", &descriptor.local_nic_path)?,
            to: path("peer_nic_path", &descriptor.peer_nic_path)?,
            sender: parse_pair("incarnation", &key.incarnation, key.lifecycle)?,
            echo,
            body: Body {
                queue_pairs: descriptor.qp_num,
                psns: key.psn,
                gid: descriptor.local_gid,
                lid: descriptor.local_lid,
                mtu: key.mtu,
                rd_atomic: key.rd_atomic,
                token: key.token.unwrap_or_default(),
                address: key.address.unwrap_or_default(),
                probe: key.probe,
                shared_memory: key.shared_memory,
                connection_manager: key.connection_manager,
            },
            refusal,
        })
    }

    /// Encodes to the JSON text of a connection frame: compact, keys sorted, one line feed.
    pub fn encode(&self) -> String {
        let pair = |pair: Pair| KeyPair {
            incarnation: pair.incarnation.to_hex(),
            lifecycle: pair.lifecycle.0,
        };
        let some = |text: &String| (!text.is_empty()).then(|| text.clone());
        let descriptor = Descriptor {
            handfast: Some(Key {
                address: some(&self.body.address),
                auth: None,
                connection_manager: self.body.connection_manager.clone(),
                echo: self.echo.map(pair),
                incarnation: self.sender.incarnation.to_hex(),
                lifecycle: self.sender.lifecycle.0,
                mtu: self.body.mtu,
                op: self.op,
                probe: self.body.probe,
                psn: self.body.psns.clone(),
                rd_atomic: self.body.rd_atomic,
                refusal: self.refusal.as_ref().map(|refusal| KeyRefusal {
                    detail: refusal.detail.clone(),
                    encryption: refusal.reason == RefusalReason::Encryption,
                    reason: match refusal.reason {
                        RefusalReason::Encryption => RefusalReason::Configuration,
                        reason => reason,
                    },
                }),
                required: 0,
                shared_memory: self.body.shared_memory.clone(),
                started_ms: 0,
                token: some(&self.body.token),
                version: WIRE_VERSION,
            }),
            local_gid: self.body.gid.clone(),
            local_lid: self.body.lid,
            local_nic_path: self.from.to_string(),
            payload: Some(String::new()),
            peer_nic_path: self.to.to_string(),
            qp_num: self.body.queue_pairs.clone(),
            ready_ack: Some(self.op == Op::Ready),
            reply_msg: self.refusal.as_ref().map(|r| r.detail.clone()).unwrap_or_default(),
        };
        descriptor.encode()
    }
}

impl Descriptor {
    /// Decodes the JSON text of a connection frame without checking its fields.
    ///
    /// # Errors
    /// [`MessageError::Null`] and [`MessageError::Malformed`].
    pub fn decode(text: &str) -> Result<Self, MessageError> {
        if is_null(text) {
            return Err(MessageError::Null);
        }
        from_object(text).map_err(MessageError::Malformed)
    }

    /// Encodes to the JSON text of a connection frame: compact, keys sorted, one line feed.
    pub fn encode(&self) -> String {
        let mut text = serde_json::to_string(self)
            .expect("a descriptor has string keys and no fallible serializer");
        text.push('\n');
        text
    }
}

fn parse_pair(
    field: &'static str,
    incarnation: &str,
    lifecycle: u64,
) -> Result<Pair, MessageError> {
    let incarnation = Incarnation::from_hex(incarnation)
        .filter(|incarnation| *incarnation != Incarnation::UNKNOWN)
        .ok_or(MessageError::Field(field))?;
    Ok(Pair { incarnation, lifecycle: Lifecycle(lifecycle) })
}

/// Reads a JSON object; the error quotes at most 512 bytes. The decoder would also accept a list of
/// the fields in order, which no other reader does.
pub(crate) fn from_object<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    if !text.trim_start().starts_with('{') {
        return Err("it is no JSON object".to_string());
    }
    serde_json::from_str(text).map_err(|error| truncated(error.to_string(), DETAIL_BYTES_MAX))
}

pub(super) fn truncated(mut text: String, bytes_max: usize) -> String {
    while text.len() > bytes_max {
        text.pop();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answer of an earlier version to a message that says that the sender encrypts its lanes is a
    /// refusal for its reason. An answer without a reason or for another one, with a handfast key, or to
    /// another message is none.
    #[test]
    fn earlier_version_refuses_encryption_with_its_reason() {
        let path = |text: &str| NicPath::parse(text).expect("it is a path");
        let sender = Pair { incarnation: Incarnation(7), lifecycle: Lifecycle(3) };
        let asked = |token: &str| Message {
            op: Op::Request,
            from: path("a@tcp"),
            to: path("b@tcp"),
            sender,
            echo: None,
            body: Body { token: token.into(), ..Body::default() },
            refusal: None,
        };
        let said = |reply_msg: &str| {
            Descriptor { reply_msg: reply_msg.into(), ..Descriptor::default() }.encode()
        };
        let words = MessageError::Field("token").to_string();
        let refused = asked("00+sealed").unread(&said(&words)).expect("it says why");
        assert_eq!(
            (refused.op, refused.echo, &refused.from),
            (Op::Refuse, Some(sender), &path("b@tcp"))
        );
        let refusal = refused.refusal.expect("it is one");
        assert_eq!(refusal.reason, RefusalReason::Encryption);
        assert!(refusal.detail.contains("earlier version") && refusal.detail.ends_with(&words));
        for other in [
            MessageError::Field("connection_manager").to_string(),
            "this node speaks only the handfast handshake".into(),
        ] {
            assert_eq!(asked("00+sealed").unread(&said(&other)), None, "{other}");
        }
        let newer = Descriptor::decode(&asked("00").encode()).expect("it is one");
        let newer = Descriptor { reply_msg: words.clone(), ..newer }.encode();
        assert_eq!(asked("00+sealed").unread(&newer), None, "it has a handfast key");
        assert_eq!(asked("00+sealed").unread(&said("")), None);
        assert_eq!(asked("00").unread(&said(&words)), None);
        assert_eq!(asked("00+sealed").unread("null"), None);
    }

    /// A refusal for encryption is one for the configuration to earlier versions, and keeps its reason
    /// among present ones.
    #[test]
    fn refusal_for_encryption_is_read_by_earlier_versions() {
        for (reason, is_marked) in
            [(RefusalReason::Encryption, true), (RefusalReason::Configuration, false)]
        {
            let path = |text: &str| NicPath::parse(text).expect("it is a path");
            let message = Message {
                op: Op::Refuse,
                from: path("a@tcp"),
                to: path("b@tcp"),
                sender: Pair { incarnation: Incarnation(7), lifecycle: Lifecycle(3) },
                echo: None,
                body: Body::default(),
                refusal: Some(Refusal { reason, detail: "why".into() }),
            };
            let text = message.encode();
            assert!(text.contains(r#""reason":"configuration""#), "{text}");
            assert_eq!(text.contains(r#""encryption":true"#), is_marked, "{text}");
            assert_eq!(Message::decode(&text), Ok(message));
        }
    }
}
