//! Devices as a kernel would list them.

use crate::convert::{gid_bytes, gid_type};
use crate::devices;
use handfast_transport_sim::verbs::Gid;
use std::net::Ipv6Addr;

/// A device of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// Its name.
    pub name: String,
    /// Its node GUID.
    pub guid: u64,
    /// The name of its profile.
    pub profile: String,
    /// Whether its link layer is InfiniBand, and not Ethernet.
    pub is_infiniband: bool,
    /// The GID table of each port.
    pub ports: Vec<Gids>,
}

/// For each place of a GID table: the address and the type of packets, `RoCE v2` for example.
pub type Gids = Vec<Option<(Ipv6Addr, &'static str)>>;

/// The node GUID of a device, which it has under every name.
pub fn guid(nic: usize) -> u64 {
    0x0200_00ff_fe00_0000 | (nic as u64 + 1)
}

/// Returns the devices of a list as in `HANDFAST_FABRIC`, as they are at the start of a process.
///
/// # Errors
/// The list is wrong, with the reason.
pub fn listing(list: &str) -> Result<Vec<Listing>, String> {
    let listed = devices::parse(list)?;
    let gid = |nic: usize, (kind, version)| {
        let gid = Gid { kind, host: nic as u16, version };
        let packets = ["IB/RoCE v1", "IB/RoCE v1", "RoCE v2"];
        (Ipv6Addr::from(gid_bytes(gid)), packets[gid_type(gid) as usize % packets.len()])
    };
    let table = |nic: usize| {
        let profile = listed[nic].profile;
        let mut gids: Gids = profile.gids.iter().map(|known| Some(gid(nic, *known))).collect();
        gids.resize(profile.gid_table_length, None);
        gids
    };
    let devices = listed.iter().enumerate().filter(|(_, device)| device.port_of.is_none());
    Ok(devices
        .map(|(nic, device)| Listing {
            name: device.name.to_owned(),
            guid: guid(nic),
            profile: device.profile.name.to_owned(),
            is_infiniband: device.is_infiniband,
            ports: [Some(nic), device.second].into_iter().flatten().map(table).collect(),
        })
        .collect())
}
