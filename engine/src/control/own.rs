//! The addresses at which a node may call itself.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// Port of a connection that sends nothing.
const DISCARD: u16 = 9;

/// The addresses of this node: the one that it announces, the one at which it listens and, if it listens at
/// every address of its host, those with its port.
#[derive(Clone, Debug, Default)]
pub(crate) struct OwnAddresses {
    announced: String,
    bound: Option<SocketAddr>,
    /// The network is that of this host.
    is_of_host: bool,
}

impl OwnAddresses {
    pub(crate) fn new(announced: String, bound: Option<SocketAddr>, is_of_host: bool) -> Self {
        Self { announced, bound, is_of_host }
    }

    /// Whether an address, `host:port`, is one of this node. Names are compared with the announced address
    /// alone, since a resolver is not authenticated.
    pub(crate) fn contains(&self, address: &str) -> bool {
        let Some(bound) = self.bound else { return false };
        if address.eq_ignore_ascii_case(&self.announced) {
            return true;
        }
        let Some((host, port)) = address.rsplit_once(':') else { return false };
        if port.parse() != Ok(bound.port()) {
            return false;
        }
        let host = host.strip_prefix('[').and_then(|it| it.strip_suffix(']')).unwrap_or(host);
        let is_localhost = host.eq_ignore_ascii_case("localhost");
        let host = if is_localhost { "127.0.0.1" } else { host };
        let Ok(ip) = host.parse().map(|ip: IpAddr| ip.to_canonical()) else { return false };
        match bound.ip().to_canonical() {
            at if at.is_unspecified() => ip.is_loopback() || (self.is_of_host && is_local(ip)),
            at => at == ip || (is_localhost && at.is_loopback()),
        }
    }
}

/// Whether an address is the first of an interface of this host: packets to it come from the address itself.
fn is_local(ip: IpAddr) -> bool {
    let any = match ip {
        IpAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    let source = || {
        let socket = UdpSocket::bind((any, 0))?;
        // Chooses a route and sends nothing.
        socket.connect((ip, DISCARD))?;
        socket.local_addr()
    };
    source().is_ok_and(|source| source.ip() == ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(announced: &str, bound: &str) -> OwnAddresses {
        OwnAddresses::new(announced.into(), Some(bound.parse().unwrap()), true)
    }

    /// A node listens at one address, or at all of its host; another port, host or name is another's.
    #[test]
    fn addresses_of_a_node_are_its_announced_and_bound_ones() {
        let one = own("gpu-1.example:7000", "127.0.0.2:7411");
        for its in ["gpu-1.example:7000", "GPU-1.example:7000", "127.0.0.2:7411", "localhost:7411"]
        {
            assert!(one.contains(its), "{its}");
        }
        for other in [
            "gpu-1.example:7411",
            "127.0.0.2:7412",
            "127.0.0.1:7411",
            "gpu-2.example:7000",
            "gpu-2.example:7411",
            "127.0.0.2",
            "",
        ] {
            assert!(!one.contains(other), "{other}");
        }
        let all = own("10.0.0.7:7411", "0.0.0.0:7411");
        for its in ["10.0.0.7:7411", "127.0.0.1:7411", "localhost:7411", "[::ffff:127.0.0.1]:7411"]
        {
            assert!(all.contains(its), "{its}");
        }
        // Of a range that no host has.
        for other in ["192.0.2.1:7411", "gpu-2.example:7411", "127.0.0.1:7412"] {
            assert!(!all.contains(other), "{other}");
        }
        let client = OwnAddresses::default();
        assert!(!client.contains("") && !client.contains("127.0.0.1:7411"), "it does not listen");
    }

    /// The addresses of interfaces are a node's own if it listens at all of them, in the network of the host.
    #[test]
    fn addresses_of_interfaces_are_own_at_the_port() {
        assert!(is_local(Ipv4Addr::LOCALHOST.into()) && !is_local([192, 0, 2, 1].into()));
        let all = own("gpu-1.example:7411", "0.0.0.0:7411");
        let simulated = OwnAddresses { is_of_host: false, ..all.clone() };
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        if socket.connect(("192.0.2.1", DISCARD)).is_err() {
            println!("skipped: no interface but the loopback has a route");
            return;
        }
        let address = socket.local_addr().unwrap().ip();
        assert!(all.contains(&format!("{address}:7411")), "{address}");
        assert!(!all.contains(&format!("{address}:7412")));
        assert!(!simulated.contains(&format!("{address}:7411")));
    }
}
