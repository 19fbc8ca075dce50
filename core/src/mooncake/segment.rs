//! The segment descriptor of a Mooncake node.

use super::matrix::{MATRIX_LOCATIONS_MAX, Nics, PriorityMatrix};
use super::store::host_port;
use super::{is_null, to_line};
use crate::wire::{DEVICE_NAME_BYTES_MAX, DEVICES_PUBLISHED_MAX, DeviceDescriptor, from_object};
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Deserializer, Serialize};

/// Maximum buffers of one descriptor: a frame of 1 MiB fits them at 64 bytes each.
pub const BUFFERS_MAX: usize = 16_384;
/// Longest name in a descriptor, in bytes.
pub const TEXT_BYTES_MAX: usize = 512;
/// Longest time stamp, in bytes; released nodes write 26.
pub const TIMESTAMP_BYTES_MAX: usize = 64;
/// The name of TCP in descriptors.
const TCP: &str = "tcp";
/// The name of RDMA in descriptors.
const RDMA: &str = "rdma";

/// Protocols of a node: one, or several for a node built with several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Protocols {
    /// One protocol.
    One(String),
    /// Several protocols.
    Several(Vec<String>),
}

impl Default for Protocols {
    /// Returns no protocol, as in a descriptor without the key.
    fn default() -> Self {
        Self::One(String::new())
    }
}

impl Protocols {
    /// Returns whether the protocol is one of them.
    pub fn has(&self, name: &str) -> bool {
        match self {
            Self::One(protocol) => protocol == name,
            Self::Several(protocols) => protocols.iter().any(|protocol| protocol == name),
        }
    }
}

/// A Mooncake node's description of itself and its memory, with keys in the sorted order of its
/// writer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentDescriptor {
    /// Its memory.
    #[serde(default)]
    pub buffers: Vec<BufferDescriptor>,
    /// Its RDMA devices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<DeviceDescriptor>,
    /// Its name in stores and NIC paths.
    pub name: String,
    /// NICs near to memory; with RDMA devices only. A malformed one is ignored, as in released
    /// nodes.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "matrix")]
    pub priority_matrix: Option<PriorityMatrix>,
    /// Offered protocols.
    pub protocol: Protocols,
    /// Its name in NIC paths, if different from `name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma_server_name: Option<String>,
    /// Host of its TCP data port; absent before 0.3.13, which means the host of its calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp_data_host: Option<String>,
    /// Its TCP data port, 0 for none.
    #[serde(default)]
    pub tcp_data_port: u16,
    /// Highest version of the TCP data protocol it speaks; 1 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp_proto_version: Option<u32>,
    /// Time of publication, human-readable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<String>,
}

/// A buffer that peers may reach.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BufferDescriptor {
    /// First byte, in its owner's addresses.
    pub addr: u64,
    /// Bytes.
    pub length: u64,
    /// The owner's own keys, one for each device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lkey: Vec<u32>,
    /// Location of the memory over RDMA, name of the owner over TCP.
    #[serde(default)]
    pub name: String,
    /// Protocol of the buffer, on a node with several protocols.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// The keys that peers present, one for each device; empty if peers may not reach it over RDMA.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rkey: Vec<u32>,
}

/// Errors of decoding a Mooncake node's segment descriptor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SegmentError {
    /// The node has no descriptor: it is starting, or publishes to a metadata store alone.
    #[error("the node has no descriptor yet: it is starting, or keeps it in a metadata store")]
    Null,
    /// Not JSON, a key missing or of the wrong type.
    #[error("the segment descriptor is malformed: {0}")]
    Malformed(String),
    /// A field is out of range.
    #[error("the segment descriptor's '{0}' is out of range")]
    Field(&'static str),
}

impl SegmentDescriptor {
    /// Decodes the JSON text of a metadata frame, or the value of a store.
    ///
    /// # Errors
    /// [`SegmentError`]; no part of a malformed descriptor is used.
    pub fn decode(text: &str) -> Result<Self, SegmentError> {
        if is_null(text) {
            return Err(SegmentError::Null);
        }
        let descriptor: Self = from_object(text).map_err(SegmentError::Malformed)?;
        descriptor.check().map_err(SegmentError::Field)?;
        Ok(descriptor)
    }

    /// Encodes to the JSON text of a metadata frame: compact, keys sorted, one line feed.
    pub fn encode(&self) -> String {
        to_line(self)
    }

    /// Returns whether its memory is reachable over TCP.
    pub fn offers_tcp(&self) -> bool {
        self.protocol.has(TCP) && self.tcp_data_port != 0
    }

    /// Returns whether its memory is reachable over RDMA.
    pub fn offers_rdma(&self) -> bool {
        self.protocol.has(RDMA)
    }

    /// Highest version of the TCP data protocol it speaks.
    pub fn tcp_version(&self) -> super::ProtocolVersion {
        match self.tcp_proto_version {
            Some(2..) => super::ProtocolVersion::Two,
            _ => super::ProtocolVersion::One,
        }
    }

    /// Address of its TCP data port: at the named host, or else at `call_host`, the host of its
    /// calls.
    pub fn tcp_data_address(&self, call_host: &str) -> String {
        let named = self.tcp_data_host.as_deref().filter(|host| !host.is_empty());
        host_port(named.unwrap_or(call_host), self.tcp_data_port)
    }

    fn check(&self) -> Result<(), &'static str> {
        let named = |text: &str, max: usize| (1..=max).contains(&text.len());
        let short = |text: &Option<String>, max| text.as_ref().is_none_or(|text| text.len() <= max);
        if !named(&self.name, TEXT_BYTES_MAX) {
            return Err("name");
        }
        let known = match &self.protocol {
            Protocols::One(protocol) => named(protocol, TEXT_BYTES_MAX),
            Protocols::Several(protocols) => {
                (1..=DEVICES_PUBLISHED_MAX).contains(&protocols.len())
                    && protocols.iter().all(|protocol| named(protocol, TEXT_BYTES_MAX))
            }
        };
        if !known {
            return Err("protocol");
        }
        for (key, text, max) in [
            ("rdma_server_name", &self.rdma_server_name, TEXT_BYTES_MAX),
            ("tcp_data_host", &self.tcp_data_host, crate::NodeName::BYTES_MAX),
            ("timestamp", &self.timestamp, TIMESTAMP_BYTES_MAX),
        ] {
            if !short(text, max) {
                return Err(key);
            }
        }
        let device = |device: &DeviceDescriptor| {
            named(&device.name, DEVICE_NAME_BYTES_MAX) && named(&device.gid, TEXT_BYTES_MAX)
        };
        if self.devices.len() > DEVICES_PUBLISHED_MAX || !self.devices.iter().all(device) {
            return Err("devices");
        }
        if !self.priority_matrix.as_ref().is_none_or(is_bounded) {
            return Err("priority_matrix");
        }
        if self.buffers.len() > BUFFERS_MAX {
            return Err("buffers");
        }
        self.buffers.iter().try_for_each(|buffer| buffer.check(self.devices.len()))
    }
}

/// Returns whether a descriptor's matrix is within its limits.
pub(crate) fn is_bounded(matrix: &PriorityMatrix) -> bool {
    let row = |(location, nics): (&str, &Nics)| {
        location.len() <= TEXT_BYTES_MAX
            && nics.len() <= DEVICES_PUBLISHED_MAX
            && nics.iter().all(|name| (1..=DEVICE_NAME_BYTES_MAX).contains(&name.len()))
    };
    matrix.locations().count() <= MATRIX_LOCATIONS_MAX && matrix.locations().all(row)
}

/// Decodes a matrix; a malformed one counts as absent.
pub(crate) fn matrix<'de, D: Deserializer<'de>>(
    text: D,
) -> Result<Option<PriorityMatrix>, D::Error> {
    let value = serde_json::Value::deserialize(text)?;
    Ok(serde_json::from_value(value).ok())
}

impl BufferDescriptor {
    fn check(&self, devices: usize) -> Result<(), &'static str> {
        let whole = self.addr.checked_add(self.length).is_some();
        if self.addr == 0 || self.length == 0 || !whole {
            return Err("buffers.length");
        }
        if !(1..=TEXT_BYTES_MAX).contains(&self.name.len()) {
            return Err("buffers.name");
        }
        if self.protocol.as_ref().is_some_and(|protocol| protocol.len() > TEXT_BYTES_MAX) {
            return Err("buffers.protocol");
        }
        let keys = self.rkey.len();
        let as_many = keys == self.lkey.len() && keys == devices;
        if keys > 0 && !as_many || self.lkey.len() > DEVICES_PUBLISHED_MAX {
            return Err("buffers.rkey");
        }
        Ok(())
    }
}
