//! Arguments of an engine in Mooncake's form, and the environment variables that change them.

use crate::failure::Failure;
use crate::regions::LOCAL_REGIONS_MAX;
use handfast::TransportChoice;
use handfast::auth::Administrators;
use handfast::rdma::RdmaOptions;
use handfast::topology::{MATRIX_BYTES_MAX, PriorityMatrix};
use handfast_core::address::host_and_port;
use handfast_core::wire::REGIONS_PUBLISHED_DEFAULT_MAX;
use handfast_environment::{Environment, Ports};
use handfast_metadata::Source;
use std::env;
use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::time::Duration;

/// Time limit of a transfer without `MC_TRANSFER_TIMEOUT`, as in Mooncake.
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);

/// The variable that chooses the transport for callers that cannot: `tcp`, `rdma`, `shm` or `auto`.
const TRANSPORT: &str = "HANDFAST_TRANSPORT";

/// The variable that raises the limit of memory that peers reach.
const REGIONS_MAX: &str = "HANDFAST_REGIONS_MAX";

/// Options of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// Listening address, `host:port`.
    pub listen: String,
    /// Host that peers use.
    pub advertise: String,
    /// Name in a metadata store; `None` for the advertised address.
    pub name: Option<String>,
    /// The metadata store.
    pub store: Source,
    /// Transport of lanes.
    pub transport: TransportChoice,
    /// RDMA devices by name; empty for all usable ones.
    pub devices: Vec<String>,
    /// Devices near each memory; `None` for what the machine reports.
    pub matrix: Option<PriorityMatrix>,
    /// Time limit of a transfer, without the time for its bytes.
    pub timeout: Duration,
    /// The variables.
    pub environment: Environment,
    /// Whether they are those of a caller of Mooncake.
    is_of_mooncake: bool,
    /// Maximum registered pieces of memory that peers reach, at most [`LOCAL_REGIONS_MAX`].
    pub regions_max: usize,
    /// Source of the keys or certificates by which nodes authenticate each other, `psk:FILE` or
    /// `tls:DIRECTORY`, or both with a space between. Default: that of the variable `HANDFAST_AUTH`;
    /// without either, every host that reaches the engine is a peer.
    pub auth: Option<String>,
    /// Patterns of the names of peers that may list and change the grants of this engine's memory. They
    /// need `auth`. Default: none.
    pub administrators: Vec<String>,
    /// Serves read-only memory, and keeps memory registered, also over devices whose driver lets every
    /// peer write to all of it: eRDMA in compat mode. Default: false.
    /// `HANDFAST_ACCEPT_EXPOSED_MEMORY=1` accepts it too.
    pub accept_exposed_memory: bool,
    /// Registers memory with devices also where a fork gives registered pages away: before Linux 5.12.
    /// Default: false. `HANDFAST_ACCEPT_FORKED_MEMORY=1` accepts it too.
    pub accept_forked_memory: bool,
    /// Whether lanes over TCP are encrypted, which needs `auth`. Default: the variable
    /// `HANDFAST_ENCRYPT_LANES`.
    pub encrypt_lanes: bool,
    /// Whether queue pairs connect through the connection manager also where a device connects out of
    /// band; peers need the same. Default: false. `HANDFAST_RDMA_CM=1` chooses it too.
    pub rdma_cm: bool,
    /// Address of the metrics server, `host:port`.
    #[cfg(feature = "metrics")]
    pub metrics: Option<String>,
}

impl Options {
    /// Reads the arguments of Mooncake's `initialize`, and the environment.
    ///
    /// # Errors
    /// An argument or a variable is invalid.
    pub fn of_mooncake(
        local_name: &str,
        metadata: &str,
        protocol: &str,
        devices: &str,
    ) -> Result<Self, Failure> {
        let store = store(metadata)?;
        let environment = Environment::read_without_empty(&store)?;
        let transport = of_protocol(protocol, environment.forces_tcp())?;
        let options = Self::with_transport(local_name, store, transport, devices, environment)?;
        Ok(Self { is_of_mooncake: true, ..options })
    }

    /// Reads options whose transport is `tcp`, `rdma`, `shm` or `auto`; `rdma` requires RDMA.
    ///
    /// # Errors
    /// An argument or a variable is invalid.
    pub fn new(
        local_name: &str,
        metadata: &str,
        transport: &str,
        devices: &str,
    ) -> Result<Self, Failure> {
        let store = store(metadata)?;
        let environment = Environment::read_without_empty(&store)?;
        let transport = choice("the transport", transport)?;
        let transport = if environment.forces_tcp() { TransportChoice::Tcp } else { transport };
        Self::with_transport(local_name, store, transport, devices, environment)
    }

    fn with_transport(
        local_name: &str,
        store: Source,
        transport: TransportChoice,
        devices: &str,
        environment: Environment,
    ) -> Result<Self, Failure> {
        let host = host_of(local_name)?;
        let name = (store != Source::Peers).then(|| local_name.to_owned());
        let (listen, advertise) = match environment.advertise() {
            // A name in a store need not resolve: a Mooncake node publishes an address of its machine.
            None if name.is_some() && !is_address(&host) => anywhere()?,
            advertise => place(advertise.unwrap_or(&host))?,
        };
        let devices = devices.split(',').map(str::trim).filter(|name| !name.is_empty());
        let devices: Vec<_> = devices.map(str::to_owned).collect();
        let has_devices = matches!(transport, TransportChoice::Rdma | TransportChoice::Auto);
        let has_choice = devices.len() != 1 && has_devices;
        let matrix = environment.matrix().filter(|_| has_choice);
        Ok(Self {
            listen,
            advertise,
            name,
            store,
            transport,
            devices,
            matrix: matrix.as_deref().map(read_matrix).transpose()?,
            timeout: environment.transfer_timeout().unwrap_or(TIMEOUT_DEFAULT),
            regions_max: regions_max()?,
            auth: environment.auth_source().map(str::to_owned),
            administrators: Vec::new(),
            accept_exposed_memory: false,
            accept_forked_memory: false,
            encrypt_lanes: environment.encrypts_lanes(),
            rdma_cm: false,
            #[cfg(feature = "metrics")]
            metrics: None,
            environment,
            is_of_mooncake: false,
        })
    }

    /// Places the engine at a host that its peers resolve, unless the environment names one.
    ///
    /// # Errors
    /// It is no host.
    pub fn at_host(mut self, host: &str) -> Result<Self, Failure> {
        if self.environment.advertise().is_none() {
            (self.listen, self.advertise) = place(&host_of(host)?)?;
        }
        Ok(self)
    }

    /// A warning of an engine without keys that other machines reach.
    pub(crate) fn openness(&self) -> Option<String> {
        let is_open = self.auth.is_none() && !handfast_environment::is_of_machine(&self.listen);
        is_open.then(|| {
            format!(
                "every host that reaches {} can read and write registered memory: no peer is \
                 authenticated; HANDFAST_AUTH=psk:FILE names keys, \
                 and tls:DIRECTORY certificates",
                self.advertise
            )
        })
    }

    /// The peers that may change grants.
    ///
    /// # Errors
    /// A pattern is invalid, or names of peers are not proven.
    pub(crate) fn administrators(&self) -> Result<Administrators, Failure> {
        if !self.administrators.is_empty() && self.auth.is_none() {
            let text = "administrators need keys or certificates of peers, without which names are \
                        not proven: `auth`, or HANDFAST_AUTH, is psk:FILE or tls:DIRECTORY";
            return Err(Failure::argument(text));
        }
        Administrators::new(self.administrators.iter().map(|pattern| &**pattern))
            .map_err(|error| Failure::argument(format!("administrators: {error}")))
    }

    /// Options of RDMA devices.
    pub(crate) fn rdma(&self) -> RdmaOptions {
        self.environment.rdma(RdmaOptions::default()).with(|it| {
            it.devices = self.devices.clone();
            it.matrix = self.matrix.clone();
            it.accepts_exposed_memory |= self.accept_exposed_memory;
            it.connection_manager |= self.rdma_cm;
            it.accepts_forked_memory |= self.accept_forked_memory;
        })
    }

    /// Ports to choose from, if the environment bounds them.
    pub(crate) fn ports(&self) -> Result<Option<Ports<'_>>, Failure> {
        let (range, host) = (self.environment.ports()?, self.listen.rsplit_once(':'));
        let of_host =
            |(range, (host, _)): (_, (_, &str))| Ports::new(host, range).beside(&self.listen);
        Ok(range.zip(host).map(of_host))
    }

    /// Whether the engine chooses its port, and whether it has a port for data that it chooses.
    pub(crate) fn wants_ports(&self) -> (bool, bool) {
        let has_data_port = matches!(self.transport, TransportChoice::Tcp | TransportChoice::Auto);
        (self.listen.ends_with(":0"), has_data_port)
    }

    /// The listening address, with this port if one was chosen and none is given.
    pub(crate) fn listen_at(&self, port: Option<u16>) -> String {
        match (self.listen.strip_suffix(":0"), port) {
            (Some(host), Some(port)) => format!("{host}:{port}"),
            _ => self.listen.clone(),
        }
    }

    /// Whether a caller of Mooncake gave them.
    pub(crate) fn is_of_mooncake(&self) -> bool {
        self.is_of_mooncake
    }

    /// Warnings of variables. Those without an effect here are worth one to callers of Mooncake.
    pub(crate) fn warnings(&self) -> impl Iterator<Item = String> {
        let without_effect = self.environment.warnings_of_those_without_effect();
        let without_effect = without_effect.filter(|_| self.is_of_mooncake);
        self.environment.warnings().chain(without_effect)
    }
}

fn read_matrix(path: &Path) -> Result<PriorityMatrix, Failure> {
    let refused = |why: &dyn std::fmt::Display| {
        Failure::argument(format!("{}, the file of MC_CUSTOM_TOPO_JSON: {why}", path.display()))
    };
    let read = || {
        if !std::fs::metadata(path)?.is_file() {
            return Err(io::Error::other("it is not a regular file"));
        }
        let mut text = String::new();
        // One byte more than the limit, so that a longer file is refused.
        File::open(path)?.take(MATRIX_BYTES_MAX as u64 + 1).read_to_string(&mut text)?;
        Ok(text)
    };
    let text = read().map_err(|error| refused(&error))?;
    PriorityMatrix::parse(&text).map_err(|error| refused(&error))
}

/// Returns the host of `host`, `host:port` or `[host]:port`.
fn host_of(name: &str) -> Result<String, Failure> {
    let invalid =
        |error| Failure::argument(format!("the local name '{name}' is not HOST[:PORT]: {error}"));
    host_and_port(name).map(|(host, _)| host.to_owned()).map_err(invalid)
}

/// Returns the address to listen at and the host to advertise. Peers may use another address of the
/// machine than the one in the name, so a node listens at all of them, unless its name is local.
fn place(host: &str) -> Result<(String, String), Failure> {
    let address: Option<IpAddr> = host.parse().ok();
    match address {
        Some(address) if address.is_loopback() => Ok((at(host), host.to_owned())),
        Some(address) if address.is_unspecified() => Ok((at(host), outward(address)?)),
        Some(IpAddr::V6(_)) => Ok((at("::"), host.to_owned())),
        None if host == "localhost" => Ok((at("127.0.0.1"), "127.0.0.1".to_owned())),
        _ => Ok((at("0.0.0.0"), host.to_owned())),
    }
}

fn is_address(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok()
}

/// Returns the address to listen at and the address to advertise of a node at all addresses of the
/// machine.
fn anywhere() -> Result<(String, String), Failure> {
    let [v4, v6] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
    match routed(v4).is_none() && routed(v6).is_some() {
        true => place("::"),
        false => place("0.0.0.0"),
    }
}

/// Any free port of a host.
fn at(host: &str) -> String {
    match host.contains(':') {
        true => format!("[{host}]:0"),
        false => format!("{host}:0"),
    }
}

/// Returns the address of the interface of the default route, else of an attached network, else
/// loopback.
fn outward(unspecified: IpAddr) -> Result<String, Failure> {
    let any = SocketAddr::new(unspecified, 0);
    let failed = |error| Failure::argument(format!("no address to advertise: {error}"));
    UdpSocket::bind(any).map_err(failed)?;
    let loopback: IpAddr = match unspecified {
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    Ok(routed(unspecified).unwrap_or(loopback).to_string())
}

/// Returns the address from which packets leave the machine, if there is a route. Sends nothing.
fn routed(unspecified: IpAddr) -> Option<IpAddr> {
    let somewhere: IpAddr = match unspecified {
        IpAddr::V4(_) => Ipv4Addr::new(192, 0, 2, 1).into(),
        IpAddr::V6(_) => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
    };
    let table = match unspecified {
        IpAddr::V4(_) => std::fs::read_to_string("/proc/net/route").unwrap_or_default(),
        IpAddr::V6(_) => String::new(),
    };
    let attached = attached(&table).map(IpAddr::from);
    [somewhere].into_iter().chain(attached).find_map(|host| {
        let socket = UdpSocket::bind(SocketAddr::new(unspecified, 0)).ok()?;
        socket.connect(SocketAddr::new(host, 9)).ok()?;
        let from = socket.local_addr().ok()?.ip();
        Some(from).filter(|it| !it.is_loopback() && !it.is_unspecified())
    })
}

/// Returns a host of each attached network, of the kernel's table of routes.
fn attached(table: &str) -> impl Iterator<Item = Ipv4Addr> {
    table.lines().skip(1).filter_map(|line| {
        let network = u32::from_str_radix(line.split_whitespace().nth(1)?, 16).ok()?;
        // The table has the network's order of bytes.
        let [first, second, third, last] = network.to_ne_bytes();
        (network != 0).then(|| Ipv4Addr::new(first, second, third, last | 1))
    })
}

/// Mooncake's callers name `rdma` by default, on machines without a device too.
fn of_protocol(protocol: &str, forces_tcp: bool) -> Result<TransportChoice, Failure> {
    if forces_tcp {
        return Ok(TransportChoice::Tcp);
    }
    if let Some(chosen) = env::var(TRANSPORT).ok().filter(|value| !value.is_empty()) {
        return choice(TRANSPORT, chosen.trim());
    }
    match protocol {
        "tcp" => Ok(TransportChoice::Tcp),
        "rdma" => Ok(TransportChoice::Auto),
        _ => Err(Failure::argument(format!(
            "the protocol '{protocol}' is not supported: use tcp, or rdma, which falls back to tcp"
        ))),
    }
}

fn store(metadata: &str) -> Result<Source, Failure> {
    let invalid = |error| Failure::argument(format!("the metadata server is invalid: {error}"));
    metadata.parse().map_err(invalid)
}

fn choice(what: &str, transport: &str) -> Result<TransportChoice, Failure> {
    match transport {
        "tcp" => Ok(TransportChoice::Tcp),
        "rdma" => Ok(TransportChoice::Rdma),
        "shm" => Ok(TransportChoice::Shm),
        "auto" => Ok(TransportChoice::Auto),
        _ => {
            let expected = "expected tcp, rdma, shm or auto";
            Err(Failure::argument(format!("{what} is '{transport}': {expected}")))
        }
    }
}

fn regions_max() -> Result<usize, Failure> {
    let given = env::var(REGIONS_MAX).ok().filter(|value| !value.is_empty());
    let Some(text) = given else { return Ok(REGIONS_PUBLISHED_DEFAULT_MAX) };
    let given = text.trim().parse().ok().filter(|it| (1..=LOCAL_REGIONS_MAX).contains(it));
    given.ok_or_else(|| {
        let range = format!("expected a number from 1 to {LOCAL_REGIONS_MAX}");
        Failure::argument(format!("{REGIONS_MAX} is '{text}': {range}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(name: &str, metadata: &str, protocol: &str) -> Result<Options, Failure> {
        Options::of_mooncake(name, metadata, protocol, " mlx5_0, ,mlx5_1 ")
    }

    #[test]
    fn name_gives_host_and_any_port() {
        let placed = |name| {
            let it = options(name, "P2PHANDSHAKE", "tcp").unwrap();
            (it.listen, it.advertise, it.name)
        };
        let at = |listen: &str, advertise: &str| (listen.into(), advertise.into(), None);
        assert_eq!(placed("127.0.0.1"), at("127.0.0.1:0", "127.0.0.1"));
        assert_eq!(placed("127.0.0.1:12345"), at("127.0.0.1:0", "127.0.0.1"));
        assert_eq!(placed("10.1.2.3"), at("0.0.0.0:0", "10.1.2.3"));
        assert_eq!(placed("node-7:80"), at("0.0.0.0:0", "node-7"));
        assert_eq!(placed("[::1]:5"), at("[::1]:0", "::1"));
        assert_eq!(placed("fd00::7"), at("[::]:0", "fd00::7"));
        let anywhere = placed("0.0.0.0");
        assert!(anywhere.1.parse::<IpAddr>().is_ok_and(|it| !it.is_unspecified()));
    }

    #[test]
    fn name_in_a_store_is_taken_literally() {
        let it = options("127.0.0.1:12345", "http://127.0.0.1:8080/metadata", "tcp").unwrap();
        assert_eq!(it.name.as_deref(), Some("127.0.0.1:12345"));
        assert_eq!((&*it.listen, &*it.advertise), ("127.0.0.1:0", "127.0.0.1"));
        assert_eq!(it.devices, ["mlx5_0", "mlx5_1"]);
        assert_eq!(options("h", "h2:2379", "rdma").unwrap().transport, TransportChoice::Auto);
    }

    /// The host of a name in a store is no address: peers find the node at one of its machine.
    #[test]
    fn name_in_a_store_is_published_with_an_address() {
        for name in ["ours:1", "ours"] {
            let it = options(name, "http://127.0.0.1:8080/metadata", "tcp").unwrap();
            assert_eq!(it.name.as_deref(), Some(name));
            let (listen, told): (SocketAddr, IpAddr) =
                (it.listen.parse().unwrap(), it.advertise.parse().unwrap());
            assert!(listen.ip().is_unspecified() && listen.is_ipv4() == told.is_ipv4());
            assert!(!told.is_unspecified());
            assert_eq!(options(name, "P2PHANDSHAKE", "tcp").unwrap().advertise, "ours");
        }
        assert_eq!(options("localhost:1", "h:1", "tcp").unwrap().advertise, "127.0.0.1");
    }

    /// Without a default route, an attached network has the address.
    #[test]
    fn hosts_of_attached_networks_are_read() {
        let table = "Iface\tDestination\tGateway\neth0\t00000000\t010200C0\neth0\t000200C0\t00000000\n\
            eth1\n";
        let expected = u32::from_str_radix("000200C0", 16).unwrap().to_ne_bytes();
        let expected = Ipv4Addr::new(expected[0], expected[1], expected[2], expected[3] | 1);
        assert_eq!(attached(table).collect::<Vec<_>>(), [expected]);
        assert_eq!(attached("").count(), 0);
    }

    #[test]
    fn accepted_risks_are_options_of_the_devices() {
        let mut it = Options::new("h", "P2PHANDSHAKE", "rdma", "").unwrap();
        let accepted =
            |rdma: RdmaOptions| (rdma.accepts_exposed_memory, rdma.accepts_forked_memory);
        assert_eq!(accepted(it.rdma()), (false, false));
        it.accept_exposed_memory = true;
        assert_eq!(accepted(it.rdma()), (true, false));
        (it.accept_exposed_memory, it.accept_forked_memory) = (false, true);
        assert_eq!(accepted(it.rdma()), (false, true));
    }

    #[test]
    fn connection_manager_is_an_option_of_the_devices() {
        let mut it = Options::new("h", "P2PHANDSHAKE", "rdma", "").unwrap();
        assert!(!it.rdma().connection_manager);
        it.rdma_cm = true;
        assert!(it.rdma().connection_manager);
    }

    #[test]
    fn invalid_arguments_are_named() {
        for (name, metadata, protocol, word) in [
            ("127.0.0.1:99999", "P2PHANDSHAKE", "tcp", "local name"),
            ("", "P2PHANDSHAKE", "tcp", "local name"),
            ("h", "redis:/x", "tcp", "metadata server"),
            ("h", "P2PHANDSHAKE", "nvlink", "protocol 'nvlink'"),
        ] {
            let error = options(name, metadata, protocol).unwrap_err();
            assert!(error.to_string().contains(word), "{error}");
            assert_eq!(error.code(), -1);
        }
    }
}
