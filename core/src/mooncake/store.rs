//! Entries of a metadata store: keys, and call addresses of nodes.

use super::to_line;
use crate::wire::from_object;
use alloc::format;
use alloc::string::String;
use serde::{Deserialize, Serialize};

/// Longest cluster id, in bytes (`MC_METADATA_CLUSTER_ID`).
pub const CLUSTER_ID_BYTES_MAX: usize = 256;

/// The keys of one cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    prefix: String,
}

/// Errors of validating a cluster id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeysError {
    /// It is too long.
    #[error(
        "a cluster id of {bytes} bytes is too long: at most {CLUSTER_ID_BYTES_MAX} are allowed"
    )]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// It has control characters.
    #[error("a cluster id must not contain control characters")]
    ForbiddenCharacter,
}

impl Keys {
    /// The keys of a cluster; an empty id means no cluster.
    ///
    /// # Errors
    /// [`KeysError`].
    pub fn new(cluster_id: &str) -> Result<Self, KeysError> {
        if cluster_id.len() > CLUSTER_ID_BYTES_MAX {
            return Err(KeysError::TooLong { bytes: cluster_id.len() });
        }
        if cluster_id.chars().any(char::is_control) {
            return Err(KeysError::ForbiddenCharacter);
        }
        let separator = if cluster_id.is_empty() || cluster_id.ends_with('/') { "" } else { "/" };
        Ok(Self { prefix: format!("mooncake/{cluster_id}{separator}") })
    }

    /// Key of a node's descriptor. A name with a slash contains its own prefix.
    pub fn segment(&self, node: &str) -> String {
        let below = if node.contains('/') { "" } else { "ram/" };
        format!("{}{below}{node}", self.prefix)
    }

    /// Key of a node's call address.
    pub fn rpc_meta(&self, node: &str) -> String {
        format!("{}rpc_meta/{node}", self.prefix)
    }
}

/// Call address of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RpcMeta {
    /// Its host, by address or name; an IPv6 address without brackets.
    pub ip_or_host_name: String,
    /// The port.
    pub rpc_port: u16,
}

/// Errors of decoding a call address entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RpcMetaError {
    /// Not JSON, a key missing or of the wrong type.
    #[error("the entry is malformed: {0}")]
    Malformed(String),
    /// The host is empty or too long.
    #[error("the entry names no host")]
    Host,
}

impl RpcMeta {
    /// Reads `host:port`, or `[host]:port` for an IPv6 address.
    pub fn of_address(address: &str) -> Option<Self> {
        let (host, port) = address.rsplit_once(':')?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = bare.unwrap_or(host);
        let rpc_port = port.parse().ok()?;
        (!host.is_empty()).then(|| Self { ip_or_host_name: host.into(), rpc_port })
    }

    /// `host:port`, with brackets around an IPv6 address.
    pub fn address(&self) -> String {
        host_port(&self.ip_or_host_name, self.rpc_port)
    }

    /// Decodes the value of an entry.
    ///
    /// # Errors
    /// [`RpcMetaError`].
    pub fn decode(text: &str) -> Result<Self, RpcMetaError> {
        let entry: Self = from_object(text).map_err(RpcMetaError::Malformed)?;
        let bytes = entry.ip_or_host_name.len();
        match bytes == 0 || bytes > crate::NodeName::BYTES_MAX {
            true => Err(RpcMetaError::Host),
            false => Ok(entry),
        }
    }

    /// Encodes to the value of an entry.
    pub fn encode(&self) -> String {
        to_line(self)
    }
}

/// `host:port`, with brackets around an IPv6 address.
pub(super) fn host_port(host: &str, port: u16) -> String {
    match host.contains(':') && !host.starts_with('[') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}
