//! RDMA devices, with the attributes that `discover` of the transport omits.

use super::Tree;
use super::network::{Interface, Route, ipv6_of, owners};
use handfast_transport_rdma::{Connecting, discover};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv6Addr};

/// An RDMA device.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Its profile, as recognised by the transport.
    pub profile: String,
    /// The attribute by which it was recognised.
    pub recognised_by: String,
    /// The reason why lanes over it are impossible, if they are.
    pub refused: Option<String>,
    /// Queue pairs connect through the kernel's connection manager alone.
    #[serde(default)]
    pub is_managed: bool,
    /// Its PCI address; empty for software devices.
    pub pci: String,
    /// Its node below `/dev/infiniband`, such as `uverbs0`; empty if the kernel created none.
    pub node: String,
    /// Device numbers of the node.
    pub node_numbers: (u32, u32),
    /// Its ports.
    pub ports: Vec<Port>,
}

/// A port of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Port {
    /// Number, counted from 1.
    pub number: u32,
    /// Logical state, such as `ACTIVE`.
    pub state: String,
    /// Physical state, such as `LinkUp`.
    pub physical: String,
    /// `Ethernet` or `InfiniBand`.
    pub link_layer: String,
    /// The local identifier; 0 over Ethernet, or without a subnet manager.
    pub lid: u64,
    /// The partition key in use; 0 without one.
    pub partition: u64,
    /// Errors of packets and links, since the counters were reset.
    pub errors: u64,
    /// The network interface below; empty over InfiniBand.
    pub interface: String,
    /// Maximum path MTU, in bytes; 0 if it cannot be derived.
    pub mtu: u32,
    /// Length of the GID table.
    pub places: usize,
    /// GIDs that are set.
    pub gids: Vec<Gid>,
    /// IP addresses of its network interfaces that peers in other networks can reach, on a device that
    /// connects through the connection manager alone, whose GID is no address; `None` if they are
    /// unknown.
    #[serde(default)]
    pub addresses: Option<Vec<IpAddr>>,
}

/// A GID of a port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Gid {
    /// Its index.
    pub index: u32,
    /// The address.
    pub address: Ipv6Addr,
    /// Type, such as `RoCE v2`; empty if it belongs to another network namespace.
    pub kind: String,
}

impl Gid {
    /// Returns the address in its usual notation.
    pub fn ip(&self) -> IpAddr {
        self.address.to_canonical()
    }

    /// Whether lanes over Ethernet can use it, at least within one network.
    pub fn is_usable(&self) -> bool {
        self.kind.contains("v2") || self.kind == "IB"
    }

    /// Whether it works only within one layer-2 network.
    pub fn is_link_local(&self) -> bool {
        self.address.is_unicast_link_local()
    }
}

impl Port {
    /// Whether the port can pass packets.
    pub fn is_active(&self) -> bool {
        self.state == "ACTIVE"
    }

    /// Whether the link layer is InfiniBand.
    pub fn is_infiniband(&self) -> bool {
        self.link_layer == "InfiniBand"
    }
}

/// The addresses of this network namespace, and the routes to the networks of its interfaces.
type Addresses<'a> = (&'a [IpAddr], &'a [Route]);

pub(super) fn devices(
    tree: &Tree<'_>,
    interfaces: &[Interface],
    addresses: Addresses<'_>,
) -> Vec<Device> {
    let found = discover(tree.0).unwrap_or_default();
    found.into_iter().map(|device| facts(tree, interfaces, addresses, device)).collect()
}

fn facts(
    tree: &Tree<'_>,
    interfaces: &[Interface],
    addresses: Addresses<'_>,
    device: handfast_transport_rdma::Device,
) -> Device {
    let recognised = device.recognise();
    let name = device.name;
    let is_managed = matches!(recognised.profile.connecting, Connecting::Manager(_));
    let refused = match recognised.profile.connecting {
        Connecting::OutOfBand | Connecting::Manager(_) => None,
        Connecting::Never(why) => Some(why.to_owned()),
    };
    let is_own =
        |node: &String| tree.line(&format!("sys/class/infiniband_verbs/{node}/ibdev")) == name;
    let node =
        tree.names("sys/class/infiniband_verbs").into_iter().find(is_own).unwrap_or_default();
    let numbers = tree.line(&format!("sys/class/infiniband_verbs/{node}/dev"));
    let numbers = numbers.split_once(':').map(|(major, minor)| (major.parse(), minor.parse()));
    let node_numbers = match numbers {
        Some((Ok(major), Ok(minor))) => (major, minor),
        _ => (0, 0),
    };
    let ports = device.ports.into_iter().map(|port| {
        let mut port = facts_of_port(tree, interfaces, &name, port);
        if is_managed {
            if port.interface.is_empty() {
                port.interface = by_link_address(tree, interfaces, &port.gids).unwrap_or_default();
            }
            port.addresses = addresses_of(tree, interfaces, addresses, &port.interface);
        }
        port
    });
    Device {
        profile: recognised.profile.name.to_owned(),
        recognised_by: recognised.why,
        refused,
        is_managed,
        pci: tree.link(&format!("sys/class/infiniband/{name}/device")),
        node,
        node_numbers,
        ports: ports.collect(),
        name,
    }
}

fn facts_of_port(
    tree: &Tree<'_>,
    interfaces: &[Interface],
    device: &str,
    port: handfast_transport_rdma::Port,
) -> Port {
    const COUNTERS: [&str; 4] =
        ["symbol_error", "link_downed", "port_rcv_errors", "excessive_buffer_overrun_errors"];
    let folder = format!("sys/class/infiniband/{device}/ports/{}", port.number);
    let of_gid = |gid: &handfast_transport_rdma::Gid| {
        tree.line(&format!("{folder}/gid_attrs/ndevs/{}", gid.index))
    };
    // The device's first interface if no GID names one: an interface that is down has no GID.
    let own = || {
        let parent = tree.line(&format!("sys/class/infiniband/{device}/parent"));
        let below = tree.names(&format!("sys/class/infiniband/{device}/device/net"));
        if parent.is_empty() { below.into_iter().next() } else { Some(parent) }
    };
    let zero = tree.line(&format!("{folder}/gid_attrs/ndevs/0"));
    let named = port.gids.iter().map(of_gid).find(|name| !name.is_empty());
    let interface = named.or((!zero.is_empty()).then_some(zero)).or_else(own).unwrap_or_default();
    let mtu = interfaces
        .iter()
        .find(|known| known.name == interface)
        .map_or(0, |known| path_mtu(known.mtu));
    let gids = port.gids.iter().filter_map(|gid| {
        Some(Gid { index: gid.index, address: gid.text.parse().ok()?, kind: gid.kind.clone() })
    });
    let counter = |name: &&str| tree.number(&format!("{folder}/counters/{name}"));
    let physical = tree.line(&format!("{folder}/phys_state"));
    Port {
        number: port.number,
        state: port.state,
        physical: physical.split_once(": ").map_or(physical.as_str(), |(_, word)| word).to_owned(),
        lid: tree.number(&format!("{folder}/lid")),
        partition: tree.number(&format!("{folder}/pkeys/0")),
        errors: COUNTERS.iter().map(counter).sum(),
        places: tree.names(&format!("{folder}/gids")).len(),
        link_layer: port.link_layer,
        gids: gids.collect(),
        interface,
        mtu,
        addresses: None,
    }
}

/// Returns the link address of an interface, such as `02:00:00:00:00:01`; empty if it has none.
fn link_address(tree: &Tree<'_>, interface: &str) -> String {
    tree.line(&format!("sys/class/net/{interface}/address"))
}

/// Returns the interface of an iWARP device, whose GID begins with the interface's link address.
fn by_link_address(tree: &Tree<'_>, interfaces: &[Interface], gids: &[Gid]) -> Option<String> {
    let octets = gids.first()?.address.octets();
    let digits: Vec<_> = octets[..6].iter().map(|octet| format!("{octet:02x}")).collect();
    let wanted = digits.join(":");
    let found = interfaces.iter().find(|known| link_address(tree, &known.name) == wanted);
    found.map(|known| known.name.clone())
}

/// Returns the addresses of an interface, and of those above it with the same link address, such as VLANs:
/// an iWARP device is that of all of them. `None` if they are unknown.
fn addresses_of(
    tree: &Tree<'_>,
    interfaces: &[Interface],
    (addresses, routes): Addresses<'_>,
    interface: &str,
) -> Option<Vec<IpAddr>> {
    interfaces.iter().find(|known| known.name == interface)?;
    let link = link_address(tree, interface);
    let is_own =
        |name: &str| name == interface || !link.is_empty() && link_address(tree, name) == link;
    let names = interfaces.iter().map(|known| known.name.as_str());
    let names: Vec<_> = names.filter(|name| is_own(name)).collect();
    let far = |ip: &IpAddr| {
        !ip.is_loopback() && !matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
    };
    let (mut found, mut is_complete) = (Vec::new(), true);
    for ip in addresses.iter().filter(|ip| ip.is_ipv4() && far(ip)) {
        let owners = owners(routes, *ip);
        is_complete &= !owners.is_empty();
        if owners.iter().any(|owner| names.contains(owner)) {
            found.push(*ip);
        }
    }
    found.extend(ipv6_of(tree, &names).into_iter().filter(far));
    // An address without a network may be this interface's.
    (is_complete || !found.is_empty()).then_some(found)
}

/// Returns the maximum path MTU over an interface: the part of its MTU that remains after all
/// headers.
pub(in crate::doctor) fn path_mtu(interface: u32) -> u32 {
    /// Length of GRH, UDP, BTH, XRC, atomics and checksum.
    const HEADERS: u32 = 96;
    let room = interface.saturating_sub(HEADERS);
    [4096, 2048, 1024, 512, 256].into_iter().find(|mtu| *mtu <= room).unwrap_or(0)
}
