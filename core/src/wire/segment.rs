//! The segment descriptor of metadata frames: the served memory of a node, and its key `handfast`.

use super::cut::Cut;
use super::message::{DETAIL_BYTES_MAX, SHORT_TEXT_BYTES_MAX, from_object, truncated};
use crate::identity::{Incarnation, NodeName};
use crate::mooncake::{Nics, PriorityMatrix, Protocols, is_bounded, is_null, matrix};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// Maximum regions of one descriptor.
pub const REGIONS_PUBLISHED_MAX: usize = 131_072;
/// Maximum regions of one descriptor unless configured otherwise. At about 150 bytes each they fit
/// into a frame of 1 MiB, the most that a Mooncake node takes by default.
pub const REGIONS_PUBLISHED_DEFAULT_MAX: usize = 4_096;
/// Longest descriptor that this version takes from a peer, in bytes.
pub const DESCRIPTOR_BYTES_MAX: usize = 64 << 20;
/// Longest name of a region, in bytes.
pub const REGION_NAME_BYTES_MAX: usize = 64;
/// Longest location of a region's memory, in bytes.
pub const REGION_LOCATION_BYTES_MAX: usize = 64;
/// Maximum RDMA devices of one descriptor. Current machines have at most 16 ports.
pub const DEVICES_PUBLISHED_MAX: usize = 64;
/// Longest name of a device, in bytes; the kernel allows 63.
pub const DEVICE_NAME_BYTES_MAX: usize = 64;

/// Required feature bit: the node describes itself to peers that prove a key alone.
pub const REQUIRED_AUTH: u64 = 1;

/// A node's public description: its identity, and its reachable memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeDescriptor {
    /// The node's name.
    pub name: NodeName,
    /// The node's incarnation.
    pub incarnation: Incarnation,
    /// `host:port` of its control channel; empty if it accepts no calls.
    pub address: String,
    /// Transports of its lanes.
    pub transports: Transports,
    /// Its RDMA devices.
    pub devices: Vec<DeviceDescriptor>,
    /// NICs near to memory, if announced.
    pub matrix: Option<PriorityMatrix>,
    /// Its regions, in the order of their registration.
    pub regions: Vec<RegionDescriptor>,
    /// A checksum request for bytes of a region, or its answer.
    pub checksum: Option<Checksum>,
    /// Data port for Mooncake nodes, if any.
    pub data_port: Option<DataPort>,
    /// In a request: more calls may follow over the same connection. In its answer: they are
    /// accepted.
    pub keep: bool,
}

/// A port for Mooncake's TCP data protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataPort {
    /// The host; an IPv6 address without brackets.
    pub host: String,
    /// The port, not 0.
    pub port: u16,
}

/// Transports of a node's lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transports {
    /// Whether lanes may run over TCP.
    pub tcp: bool,
    /// Whether lanes may run over queue pairs.
    pub rdma: bool,
}

impl Default for Transports {
    /// TCP only, the offer of a node that announces none.
    fn default() -> Self {
        Self { tcp: true, rdma: false }
    }
}

/// An RDMA device of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceDescriptor {
    /// Its address: sixteen hexadecimal bytes joined by colons.
    #[serde(default)]
    pub gid: String,
    /// Its LID, 0 on Ethernet.
    #[serde(default)]
    pub lid: u32,
    /// Its name.
    pub name: String,
}

/// A request for the CRC-32C of bytes in a region of the answering node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checksum {
    /// The region's key.
    pub key: u64,
    /// First byte, in the owner's addresses.
    pub address: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Absent in the request; the checksum, or the reason of a refusal.
    pub answer: Option<Result<u32, String>>,
}

/// A region that peers may reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionDescriptor {
    /// Its name, unique within the node.
    pub name: String,
    /// Key for access over TCP.
    pub key: u64,
    /// Keys for access over RDMA, one per device of the node, of each piece in turn; empty for a
    /// region without registrations.
    pub remote_keys: Vec<u32>,
    /// The pieces, if there are several.
    pub cut: Option<Cut>,
    /// First byte, in the owner's addresses.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
    /// Whether peers may read it.
    pub readable: bool,
    /// Whether peers may write it.
    pub writable: bool,
    /// Location of its memory, such as `cpu:0`, in the names of the matrix; absent if unknown.
    pub location: Option<String>,
    /// Whether its owner may miss a write of an RDMA device until a read of it over the same queue pair.
    pub needs_flush: bool,
}

/// Errors of decoding a handfast segment descriptor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DescriptorError {
    /// `null`: the node has no descriptor yet.
    #[error("the node has no descriptor yet: it is starting, or keeps it in a metadata store")]
    Null,
    /// Not JSON, or a key of the wrong type.
    #[error("the segment descriptor is malformed: {0}")]
    Malformed(String),
    /// The handfast key is missing.
    #[error("the node '{0}' is not a handfast node: its descriptor has no 'handfast' key")]
    NoKey(String),
    /// The peer requires features this version lacks.
    #[error("the node requires feature bits {0:#x} that this version does not know")]
    Required(u64),
    /// A field is out of range.
    #[error("the segment descriptor's '{0}' is out of range")]
    Field(&'static str),
}

/// Names of transports in Mooncake's `protocol`.
const TCP: &str = "tcp";
const RDMA: &str = "rdma";

/// Mooncake's segment descriptor with the handfast key; only the fields that both need.
#[derive(Serialize, Deserialize)]
struct Wire {
    #[serde(default)]
    buffers: Vec<WireBuffer>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    devices: Vec<DeviceDescriptor>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    handfast: Option<WireKey>,
    #[serde(default)]
    name: String,
    /// NICs near to memory, only for Mooncake nodes, which find no device without it.
    #[serde(default, skip_deserializing, skip_serializing_if = "Option::is_none")]
    priority_matrix: Option<PriorityMatrix>,
    #[serde(default)]
    protocol: Protocols,
    /// Always empty: NIC paths contain the node's name. Released nodes write it with a data port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rdma_server_name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tcp_data_host: Option<String>,
    #[serde(default)]
    tcp_data_port: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tcp_proto_version: Option<u32>,
}

/// Highest version of Mooncake's TCP data protocol.
const DATA_PROTOCOL_VERSION: u32 = 2;

#[derive(Serialize, Deserialize)]
struct WireBuffer {
    addr: u64,
    length: u64,
    /// Unused by peers; Mooncake expects the same number as in `rkey`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    lkey: Vec<u32>,
    #[serde(default)]
    name: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    rkey: Vec<u32>,
}

#[derive(Serialize, Deserialize)]
struct WireKey {
    #[serde(default)]
    address: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    checksum: Option<WireChecksum>,
    incarnation: String,
    #[serde(default, skip_serializing_if = "is_false")]
    keep: bool,
    /// Absent from nodes with one device.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "matrix")]
    matrix: Option<PriorityMatrix>,
    #[serde(default)]
    regions: Vec<WireRegion>,
    #[serde(default)]
    required: u64,
    /// Absent from nodes that support TCP only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    transports: Option<Vec<String>>,
    version: u32,
}

#[derive(Serialize, Deserialize)]
struct WireChecksum {
    address: u64,
    bytes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    crc32c: Option<u32>,
    key: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    refusal: Option<String>,
}

/// The part of a region that `buffers` lacks; the two lists have the same order.
#[derive(Serialize, Deserialize)]
struct WireRegion {
    /// Absent where it is false.
    #[serde(default, skip_serializing_if = "is_false")]
    flush: bool,
    key: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    location: Option<String>,
    /// In place of the keys in `buffers`, which belong to a whole region.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pieces: Option<WirePieces>,
    readable: bool,
    writable: bool,
}

#[derive(Serialize, Deserialize)]
struct WirePieces {
    bytes: u64,
    rkey: Vec<u32>,
    step: u64,
}

impl NodeDescriptor {
    /// Decodes the JSON text of a metadata frame.
    ///
    /// # Errors
    /// [`DescriptorError`]; no part of a malformed descriptor is used.
    pub fn decode(text: &str) -> Result<Self, DescriptorError> {
        if is_null(text) {
            return Err(DescriptorError::Null);
        }
        let wire: Wire = from_object(text).map_err(DescriptorError::Malformed)?;
        let Some(key) = wire.handfast else { return Err(DescriptorError::NoKey(short(wire.name))) };
        if key.required != 0 {
            return Err(DescriptorError::Required(key.required));
        }
        if key.version == 0 {
            return Err(DescriptorError::Field("version"));
        }
        if key.regions.len() != wire.buffers.len() || key.regions.len() > REGIONS_PUBLISHED_MAX {
            return Err(DescriptorError::Field("regions"));
        }
        let good = |device: &DeviceDescriptor| {
            (1..=DEVICE_NAME_BYTES_MAX).contains(&device.name.len())
                && device.gid.len() <= SHORT_TEXT_BYTES_MAX
        };
        if wire.devices.len() > DEVICES_PUBLISHED_MAX || !wire.devices.iter().all(good) {
            return Err(DescriptorError::Field("devices"));
        }
        if !key.matrix.as_ref().is_none_or(is_bounded) {
            return Err(DescriptorError::Field("matrix"));
        }
        let devices = wire.devices.len();
        let regions = wire.buffers.into_iter().zip(key.regions);
        let regions =
            regions.map(|region| decode_region(region, devices)).collect::<Result<_, _>>();
        Ok(Self {
            name: NodeName::new(&wire.name).map_err(|_| DescriptorError::Field("name"))?,
            incarnation: Incarnation::from_hex(&key.incarnation)
                .ok_or(DescriptorError::Field("incarnation"))?,
            address: key.address,
            transports: key.transports.map_or_else(Transports::default, |names| Transports {
                tcp: names.iter().any(|name| name == TCP),
                rdma: names.iter().any(|name| name == RDMA),
            }),
            devices: wire.devices,
            matrix: key.matrix,
            regions: regions?,
            checksum: key.checksum.map(checksum).transpose()?,
            data_port: data_port(wire.tcp_data_host, wire.tcp_data_port)?,
            keep: key.keep,
        })
    }

    /// Encodes the answer to a peer that proves no key: a descriptor of nothing that requires
    /// [`REQUIRED_AUTH`], which every version without it refuses. A Mooncake reader finds no protocol.
    pub fn locked(reason: &str) -> String {
        let key = WireKey {
            address: String::new(),
            checksum: None,
            incarnation: Incarnation::UNKNOWN.to_hex(),
            keep: false,
            matrix: None,
            regions: Vec::new(),
            required: REQUIRED_AUTH,
            transports: None,
            version: super::WIRE_VERSION,
        };
        let wire = Wire {
            buffers: Vec::new(),
            devices: Vec::new(),
            handfast: Some(key),
            name: reason.to_string(),
            priority_matrix: None,
            protocol: Protocols::One("authenticated".into()),
            rdma_server_name: None,
            tcp_data_host: None,
            tcp_data_port: 0,
            tcp_proto_version: None,
        };
        encoded(&wire)
    }

    fn priority_matrix(&self) -> PriorityMatrix {
        let preferred = self.devices.iter().map(|device| device.name.clone()).collect();
        [(LOCATION.to_string(), Nics { preferred, available: Vec::new() })].into_iter().collect()
    }

    /// Encodes to the JSON text of a metadata frame: compact, keys sorted, one line feed.
    pub fn encode(&self) -> String {
        let buffers = self.regions.iter().map(|region| {
            let whole = if region.cut.is_some() { &[][..] } else { &region.remote_keys };
            WireBuffer {
                addr: region.address,
                length: region.bytes,
                lkey: alloc::vec![0; whole.len()],
                name: region.name.clone(),
                rkey: whole.to_vec(),
            }
        });
        let regions = self.regions.iter().map(|region| WireRegion {
            flush: region.needs_flush,
            key: alloc::format!("{:016x}", region.key),
            location: region.location.clone(),
            pieces: region.cut.map(|cut| WirePieces {
                bytes: cut.piece_bytes(),
                rkey: region.remote_keys.clone(),
                step: cut.step(),
            }),
            readable: region.readable,
            writable: region.writable,
        });
        let Transports { tcp, rdma } = self.transports;
        let names = [(tcp, TCP), (rdma, RDMA)].into_iter().filter(|(offered, _)| *offered);
        // The default is omitted, as nodes that support TCP only expect it.
        let transports = (self.transports != Transports::default())
            .then(|| names.map(|(_, name)| name.to_string()).collect());
        // Mooncake nodes choose the transport by this field alone.
        let over_rdma = !self.devices.is_empty() && self.data_port.is_none();
        let wire = Wire {
            buffers: buffers.collect(),
            devices: self.devices.clone(),
            handfast: Some(WireKey {
                address: self.address.clone(),
                checksum: self.checksum.as_ref().map(wire_checksum),
                incarnation: self.incarnation.to_hex(),
                keep: self.keep,
                matrix: self.matrix.clone(),
                regions: regions.collect(),
                required: 0,
                transports,
                version: super::WIRE_VERSION,
            }),
            name: self.name.to_string(),
            priority_matrix: over_rdma.then(|| self.priority_matrix()),
            protocol: Protocols::One(if over_rdma { RDMA } else { TCP }.into()),
            rdma_server_name: self.data_port.as_ref().map(|_| String::new()),
            tcp_data_host: self.data_port.as_ref().map(|port| port.host.clone()),
            tcp_data_port: self.data_port.as_ref().map_or(0, |port| u32::from(port.port)),
            tcp_proto_version: self.data_port.as_ref().map(|_| DATA_PROTOCOL_VERSION),
        };
        encoded(&wire)
    }
}

fn encoded(wire: &Wire) -> String {
    let mut text = serde_json::to_string(wire)
        .expect("a descriptor has string keys and no fallible serializer");
    text.push('\n');
    text
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_false(flag: &bool) -> bool {
    !flag
}

/// A location that every machine has. Buffers are without one, so that all devices count as near.
const LOCATION: &str = "cpu:0";

fn data_port(host: Option<String>, port: u32) -> Result<Option<DataPort>, DescriptorError> {
    let port = u16::try_from(port).map_err(|_| DescriptorError::Field("tcp_data_port"))?;
    let host = host.unwrap_or_default();
    if host.len() > NodeName::BYTES_MAX {
        return Err(DescriptorError::Field("tcp_data_host"));
    }
    Ok((port != 0).then_some(DataPort { host, port }))
}

fn wire_checksum(checksum: &Checksum) -> WireChecksum {
    let answer = checksum.answer.as_ref();
    WireChecksum {
        address: checksum.address,
        bytes: checksum.bytes,
        crc32c: answer.and_then(|answer| answer.as_ref().ok().copied()),
        key: alloc::format!("{:016x}", checksum.key),
        refusal: answer.and_then(|answer| answer.as_ref().err().cloned()),
    }
}

fn checksum(wire: WireChecksum) -> Result<Checksum, DescriptorError> {
    let answer = match (wire.crc32c, wire.refusal) {
        (None, None) => None,
        (Some(sum), None) => Some(Ok(sum)),
        (None, Some(refusal)) => Some(Err(short(refusal))),
        (Some(_), Some(_)) => return Err(DescriptorError::Field("checksum")),
    };
    let key = parse_key(&wire.key).ok_or(DescriptorError::Field("checksum.key"))?;
    Ok(Checksum { key, address: wire.address, bytes: wire.bytes, answer })
}

/// Truncates a peer's text for an error.
fn short(text: String) -> String {
    truncated(text, DETAIL_BYTES_MAX)
}

fn parse_key(text: &str) -> Option<u64> {
    let plain = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if plain { u64::from_str_radix(text, 16).ok() } else { None }
}

fn decode_region(
    (buffer, region): (WireBuffer, WireRegion),
    devices: usize,
) -> Result<RegionDescriptor, DescriptorError> {
    let key = parse_key(&region.key);
    if buffer.name.len() > REGION_NAME_BYTES_MAX {
        return Err(DescriptorError::Field("buffers.name"));
    }
    if buffer.addr.checked_add(buffer.length).is_none() {
        return Err(DescriptorError::Field("buffers.length"));
    }
    if region.location.as_ref().is_some_and(|text| text.len() > REGION_LOCATION_BYTES_MAX) {
        return Err(DescriptorError::Field("regions.location"));
    }
    if !buffer.rkey.is_empty() && buffer.rkey.len() != devices {
        return Err(DescriptorError::Field("buffers.rkey"));
    }
    let (remote_keys, cut) = match region.pieces {
        None => (buffer.rkey, None),
        Some(pieces) if buffer.rkey.is_empty() => {
            let cut = decode_pieces(buffer.length, &pieces, devices);
            (pieces.rkey, Some(cut.ok_or(DescriptorError::Field("regions.pieces"))?))
        }
        Some(_) => return Err(DescriptorError::Field("buffers.rkey")),
    };
    Ok(RegionDescriptor {
        name: buffer.name,
        key: key.ok_or(DescriptorError::Field("regions.key"))?,
        remote_keys,
        cut,
        address: buffer.addr,
        bytes: buffer.length,
        readable: region.readable,
        writable: region.writable,
        location: region.location,
        needs_flush: region.flush,
    })
}

fn decode_pieces(bytes: u64, wire: &WirePieces, devices: usize) -> Option<Cut> {
    let cut = Cut::of(bytes, wire.step, wire.bytes)?;
    let keys = usize::try_from(cut.count()).ok()?.checked_mul(devices)?;
    (wire.rkey.len() == keys).then_some(cut)
}
