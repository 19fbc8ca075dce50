//! Interfaces, addresses, routes, neighbours and sockets of this network namespace.

use super::Tree;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Maximum processes searched for the owner of a socket.
const PROCESSES_MAX: usize = 4_096;

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// Interface name.
    pub name: String,
    /// Whether an administrator has enabled it.
    pub is_up: bool,
    /// Whether the link has a carrier.
    pub has_carrier: bool,
    /// Maximum length of a packet, in bytes.
    pub mtu: u32,
    /// Speed in megabits per second; 0 if unknown.
    pub speed_mbps: u32,
}

/// A route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// The outgoing interface.
    pub interface: String,
    /// The destination network.
    pub network: IpAddr,
    /// Number of leading bits that are significant.
    pub prefix: u8,
}

impl Route {
    fn leads_to(&self, address: IpAddr) -> bool {
        IpNet::new(self.network, self.prefix).is_ok_and(|network| network.contains(&address))
    }
}

/// Whether a route over the interface leads to the address.
pub(in crate::doctor) fn is_reached(routes: &[Route], interface: &str, address: IpAddr) -> bool {
    routes.iter().any(|route| route.interface == interface && route.leads_to(address))
}

/// Returns the interface of the most specific route to the address.
pub(in crate::doctor) fn way_to(routes: &[Route], address: IpAddr) -> Option<&str> {
    let leading = routes.iter().filter(|route| route.leads_to(address));
    leading.max_by_key(|route| route.prefix).map(|route| route.interface.as_str())
}

/// A neighbour over IPv4.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Neighbour {
    /// Its address.
    pub address: Ipv4Addr,
    /// The interface of the entry.
    pub interface: String,
    /// Whether it has answered.
    pub has_answered: bool,
}

/// A socket that holds an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listener {
    /// The address.
    pub address: SocketAddr,
    /// Whether it accepts connections.
    pub is_listening: bool,
    /// The inode, which identifies the owner.
    pub inode: u64,
}

pub(super) fn interfaces(tree: &Tree<'_>) -> Vec<Interface> {
    /// IFF_UP.
    const UP: u64 = 1;
    let interface = |name: String| {
        let folder = format!("sys/class/net/{name}");
        let mtu = u32::try_from(tree.number(&format!("{folder}/mtu"))).ok()?;
        // A file such as bonding_masters is not an interface.
        (mtu > 0).then(|| Interface {
            is_up: tree.number(&format!("{folder}/flags")) & UP != 0,
            has_carrier: tree.number(&format!("{folder}/carrier")) == 1,
            mtu,
            speed_mbps: u32::try_from(tree.number(&format!("{folder}/speed"))).unwrap_or(0),
            name,
        })
    };
    tree.names("sys/class/net").into_iter().filter_map(interface).collect()
}

pub(super) fn addresses(tree: &Tree<'_>) -> Vec<IpAddr> {
    let mut found = BTreeSet::new();
    let mut last = None;
    for line in tree.text("proc/net/fib_trie").lines() {
        let line = line.trim();
        if let Some(address) = line.strip_prefix("|-- ") {
            last = address.parse::<Ipv4Addr>().ok();
        } else if line == "/32 host LOCAL" {
            found.extend(last.map(IpAddr::from));
        }
    }
    for line in tree.text("proc/net/if_inet6").lines() {
        let digits = line.split_whitespace().next().unwrap_or_default();
        found.extend(
            u128::from_str_radix(digits, 16)
                .ok()
                .map(|bits| IpAddr::from(Ipv6Addr::from_bits(bits))),
        );
    }
    found.into_iter().collect()
}

/// Returns the IPv6 addresses of network interfaces, by their names.
pub(super) fn ipv6_of(tree: &Tree<'_>, names: &[&str]) -> Vec<IpAddr> {
    let address = |line: &str| {
        let columns: Vec<_> = line.split_whitespace().collect();
        let bits = u128::from_str_radix(columns.first()?, 16).ok()?;
        names.contains(columns.get(5)?).then(|| IpAddr::from(Ipv6Addr::from_bits(bits)))
    };
    tree.text("proc/net/if_inet6").lines().filter_map(address).collect()
}

/// Returns the interfaces that may have a local IPv4 address: those of the most specific routes to it,
/// since the kernel's table of addresses names no interface.
pub(in crate::doctor) fn owners(routes: &[Route], address: IpAddr) -> Vec<&str> {
    let leads = |route: &&Route| route.prefix > 0 && route.leads_to(address);
    let leading: Vec<&Route> = routes.iter().filter(leads).collect();
    let longest = leading.iter().map(|route| route.prefix).max();
    let owners = leading.into_iter().filter(|route| Some(route.prefix) == longest);
    owners.map(|route| route.interface.as_str()).collect()
}

pub(super) fn routes(tree: &Tree<'_>) -> Vec<Route> {
    let mut routes = ipv4_routes(tree, |_| true);
    routes.extend(tree.text("proc/net/ipv6_route").lines().filter_map(route_of_ipv6));
    routes
}

/// Returns the IPv4 networks that interfaces are in, those behind a gateway left out.
pub(super) fn connected_routes(tree: &Tree<'_>) -> Vec<Route> {
    ipv4_routes(tree, |gateway| gateway.is_unspecified())
}

fn ipv4_routes(tree: &Tree<'_>, is_wanted: impl Fn(Ipv4Addr) -> bool) -> Vec<Route> {
    let route = |line: &str| {
        let columns: Vec<_> = line.split_whitespace().collect();
        let address = |at: usize| of_hexadecimal(columns.get(at)?);
        let interface = (*columns.first()?).to_owned();
        let prefix = u8::try_from(address(7)?.to_bits().leading_ones()).ok()?;
        let route = Route { interface, network: address(1)?.into(), prefix };
        is_wanted(address(2)?).then_some(route)
    };
    tree.text("proc/net/route").lines().skip(1).filter_map(route).collect()
}

/// Parses a route of the IPv6 table; `None` for local and rejected destinations, which the IPv4
/// table omits.
fn route_of_ipv6(line: &str) -> Option<Route> {
    /// RTF_REJECT, RTF_ANYCAST, RTF_LOCAL.
    const NO_WAY: u32 = 0x0200 | 0x0010_0000 | 0x8000_0000;
    let columns: Vec<_> = line.split_whitespace().collect();
    let flags = u32::from_str_radix(columns.get(8)?, 16).ok()?;
    let network = u128::from_str_radix(columns.first()?, 16).ok()?;
    let prefix = u8::from_str_radix(columns.get(1)?, 16).ok()?;
    let interface = (*columns.get(9)?).to_owned();
    let network = Ipv6Addr::from_bits(network).into();
    (flags & NO_WAY == 0).then_some(Route { interface, network, prefix })
}

pub(super) fn neighbours(tree: &Tree<'_>) -> Vec<Neighbour> {
    let neighbour = |line: &str| {
        let columns: Vec<_> = line.split_whitespace().collect();
        Some(Neighbour {
            address: columns.first()?.parse().ok()?,
            has_answered: *columns.get(2)? != "0x0",
            interface: (*columns.get(5)?).to_owned(),
        })
    };
    tree.text("proc/net/arp").lines().skip(1).filter_map(neighbour).collect()
}

pub(super) fn listeners(tree: &Tree<'_>) -> Vec<Listener> {
    /// TCP_LISTEN and TCP_TIME_WAIT in the kernel's notation.
    const LISTENING: &str = "0A";
    let listener = |line: &str| {
        let columns: Vec<_> = line.split_whitespace().collect();
        let (address, port) = columns.get(1)?.split_once(':')?;
        let address: IpAddr = match address.len() {
            8 => of_hexadecimal(address)?.into(),
            32 => {
                let words = (0..4)
                    .map(|word| u32::from_str_radix(address.get(word * 8..word * 8 + 8)?, 16).ok());
                let words: Vec<u32> = words.collect::<Option<_>>()?;
                let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).to_canonical()
            }
            _ => return None,
        };
        let port = u16::from_str_radix(port, 16).ok()?;
        Some(Listener {
            address: SocketAddr::new(address, port),
            is_listening: *columns.get(3)? == LISTENING,
            inode: columns.get(9)?.parse().ok()?,
        })
    };
    let tables = ["proc/net/tcp", "proc/net/tcp6"].map(|path| tree.text(path));
    let lines = tables.iter().flat_map(|table| table.lines().skip(1));
    lines.filter_map(listener).filter(|listener| listener.is_listening).collect()
}

/// Returns the process that owns the socket, by number and name; `None` if it is not visible.
pub(in crate::doctor) fn owner(tree: &Tree<'_>, inode: u64) -> Option<(u32, String)> {
    let wanted = format!("socket:[{inode}]");
    let processes = tree.names("proc").into_iter().filter_map(|name| name.parse::<u32>().ok());
    for process in processes.take(PROCESSES_MAX) {
        for file in tree.names(&format!("proc/{process}/fd")) {
            let target = fs::read_link(tree.0.join(format!("proc/{process}/fd/{file}")));
            if target.is_ok_and(|target| target.as_os_str() == wanted.as_str()) {
                return Some((process, tree.line(&format!("proc/{process}/comm"))));
            }
        }
    }
    None
}

/// Parses an IPv4 address in the notation of the kernel's tables: a number in the machine's byte
/// order.
fn of_hexadecimal(text: &str) -> Option<Ipv4Addr> {
    let number = u32::from_str_radix(text, 16).ok()?;
    Some(Ipv4Addr::from(number.to_ne_bytes()))
}
