//! Arguments of an engine in Mooncake's form, and the environment variables that change them.

use crate::failure::Failure;
use handfast::TransportChoice;
use handfast_core::address::host_and_port;
use handfast_metadata::{Credentials, Source};
use std::env;
use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

/// Time limit of a transfer without `MC_TRANSFER_TIMEOUT`, as in Mooncake.
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);
/// Least value of `MC_TRANSFER_TIMEOUT`, as in Mooncake.
pub const TIMEOUT_MIN: Duration = Duration::from_secs(5);

/// The variable that chooses the transport for callers that cannot: `tcp`, `rdma` or `auto`.
const TRANSPORT: &str = "HANDFAST_TRANSPORT";

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
    /// Time limit of a transfer, without the time for its bytes.
    pub timeout: Duration,
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
        Self::with_transport(local_name, metadata, of_protocol(protocol)?, devices)
    }

    /// Reads options whose transport is `tcp`, `rdma` or `auto`; `rdma` requires RDMA.
    ///
    /// # Errors
    /// An argument or a variable is invalid.
    pub fn new(
        local_name: &str,
        metadata: &str,
        transport: &str,
        devices: &str,
    ) -> Result<Self, Failure> {
        Self::with_transport(local_name, metadata, choice("the transport", transport)?, devices)
    }

    fn with_transport(
        local_name: &str,
        metadata: &str,
        transport: TransportChoice,
        devices: &str,
    ) -> Result<Self, Failure> {
        let host = host_of(local_name)?;
        let store: Source = metadata.parse().map_err(|error| {
            Failure::argument(format!("the metadata server is invalid: {error}"))
        })?;
        let name = (store != Source::Peers).then(|| local_name.to_owned());
        let (listen, advertise) = place(&host)?;
        let devices = devices.split(',').map(str::trim).filter(|name| !name.is_empty());
        Ok(Self {
            listen,
            advertise,
            name,
            store,
            transport,
            devices: devices.map(str::to_owned).collect(),
            timeout: timeout()?,
        })
    }
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
    let said = variable("MC_TCP_BIND_ADDRESS");
    let host = said.as_deref().unwrap_or(host);
    let address: Option<IpAddr> = host.parse().ok();
    match address {
        Some(address) if address.is_loopback() => Ok((at(host), host.to_owned())),
        Some(address) if address.is_unspecified() => Ok((at(host), outward(address)?)),
        Some(IpAddr::V6(_)) => Ok((at("::"), host.to_owned())),
        None if host == "localhost" => Ok((at("127.0.0.1"), "127.0.0.1".to_owned())),
        _ => Ok((at("0.0.0.0"), host.to_owned())),
    }
}

/// Any free port of a host.
fn at(host: &str) -> String {
    match host.contains(':') {
        true => format!("[{host}]:0"),
        false => format!("{host}:0"),
    }
}

/// Returns the address of the interface of the default route, or loopback without one. Sends
/// nothing.
fn outward(unspecified: IpAddr) -> Result<String, Failure> {
    let (any, somewhere, loopback) = match unspecified {
        IpAddr::V4(_) => ("0.0.0.0:0", "192.0.2.1:9", "127.0.0.1"),
        IpAddr::V6(_) => ("[::]:0", "[2001:db8::1]:9", "::1"),
    };
    let failed = |error| Failure::argument(format!("no address to advertise: {error}"));
    let socket = UdpSocket::bind(any).map_err(failed)?;
    let routed = socket.connect(somewhere).and_then(|()| socket.local_addr());
    Ok(routed.map_or_else(|_| loopback.to_owned(), |address| address.ip().to_string()))
}

/// Returns the credentials for a store, from the environment, which `variable` reads.
pub(crate) fn credentials(
    store: &Source,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Credentials, Failure> {
    let none = Credentials::default();
    Ok(match store {
        Source::Peers | Source::Http(_) => none,
        Source::Etcd(_) => {
            let user = variable("ETCDCTL_USER");
            let user = user.and_then(|it| it.split_once(':').map(|(a, b)| (a.into(), b.into())));
            Credentials { user, ..none }
        }
        Source::Redis(_) => {
            let name = variable("MC_REDIS_USERNAME").unwrap_or_default();
            let user = variable("MC_REDIS_PASSWORD").map(|password| (name, password));
            let database = variable(REDIS_DATABASE).map(|text| {
                let invalid = format!("{REDIS_DATABASE} is '{text}': expected 0 to 255");
                text.parse().map_err(|_| Failure::argument(invalid))
            });
            Credentials { user, database: database.transpose()?, ..none }
        }
    })
}

/// The variable with the database of a Redis.
const REDIS_DATABASE: &str = "MC_REDIS_DB_INDEX";

pub(crate) fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// Mooncake's callers name `rdma` by default, on machines without a device too.
fn of_protocol(protocol: &str) -> Result<TransportChoice, Failure> {
    if env::var_os("MC_FORCE_TCP").is_some() {
        return Ok(TransportChoice::Tcp);
    }
    if let Some(chosen) = variable(TRANSPORT) {
        return choice(TRANSPORT, &chosen);
    }
    match protocol {
        "tcp" => Ok(TransportChoice::Tcp),
        "rdma" => Ok(TransportChoice::Auto),
        _ => Err(Failure::argument(format!(
            "the protocol '{protocol}' is not supported: use tcp, or rdma, which falls back to tcp"
        ))),
    }
}

fn choice(what: &str, transport: &str) -> Result<TransportChoice, Failure> {
    match transport {
        "tcp" => Ok(TransportChoice::Tcp),
        "rdma" => Ok(TransportChoice::Rdma),
        "auto" => Ok(TransportChoice::Auto),
        _ => Err(Failure::argument(format!("{what} is '{transport}': expected tcp, rdma or auto"))),
    }
}

fn timeout() -> Result<Duration, Failure> {
    const NAME: &str = "MC_TRANSFER_TIMEOUT";
    let Some(text) = variable(NAME) else { return Ok(TIMEOUT_DEFAULT) };
    let seconds: u64 = text.trim().parse().map_err(|_| {
        Failure::argument(format!("{NAME} is '{text}': expected a number of seconds"))
    })?;
    Ok(Duration::from_secs(seconds).clamp(TIMEOUT_MIN, TIMEOUT_MAX))
}

/// Greatest value of `MC_TRANSFER_TIMEOUT`: a day.
const TIMEOUT_MAX: Duration = Duration::from_secs(86_400);

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
        assert_eq!(it.devices, ["mlx5_0", "mlx5_1"]);
        assert_eq!(options("h", "h2:2379", "rdma").unwrap().transport, TransportChoice::Auto);
    }

    #[test]
    fn credentials_are_those_of_the_kind_of_store() {
        let set = |name: &str| {
            let value = match name {
                "ETCDCTL_USER" => "ann:a:b",
                "MC_REDIS_USERNAME" => "bob",
                "MC_REDIS_PASSWORD" => "secret",
                "MC_REDIS_DB_INDEX" => "255",
                _ => return None,
            };
            Some(value.to_owned())
        };
        let of = |store: &str, set: &dyn Fn(&str) -> Option<String>| {
            credentials(&store.parse().unwrap(), set)
        };
        assert_eq!(of("http://h/metadata", &set).unwrap(), Credentials::default());
        let user = |name: &str, password: &str| Some((name.to_owned(), password.to_owned()));
        assert_eq!(of("h:2379", &set).unwrap().user, user("ann", "a:b"));
        let redis = of("redis://h", &set).unwrap();
        assert_eq!((redis.user, redis.database), (user("bob", "secret"), Some(255)));
        let unnamed = |name: &str| set(name).filter(|_| name == "MC_REDIS_PASSWORD");
        assert_eq!(of("redis://h", &unnamed).unwrap().user, user("", "secret"));
        let error = of("redis://h", &|_| Some("256".to_owned())).unwrap_err();
        assert!(error.to_string().contains("MC_REDIS_DB_INDEX is '256'"), "{error}");
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
