//! Settings from the environment variables that users of Mooncake set, and of etcdctl's.

mod known;
mod ports;

pub use ports::Ports;

use handfast::Builder;
use handfast::metadata::MetadataOptions;
use handfast::mooncake::{MooncakeOptions, ProtocolVersion};
use handfast::rdma::{LANE_QUEUE_PAIRS_MAX, PartitionKey, RdmaOptions};
use handfast_metadata::{Credentials, Source, TlsFiles};
use known::{WITHOUT_EFFECT, why_without_effect};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

/// The form of a variable's value.
#[derive(Clone, Copy)]
enum Values {
    /// A whole number.
    Number { min: u64, max: u64, unit: &'static str },
    /// One of these words.
    Word(&'static [&'static str]),
    /// A non-empty text of at most so many bytes.
    Text { bytes_max: usize },
    /// A switch, enabled by any value.
    Set,
    /// Name and password; the password is never shown.
    User,
    /// A non-empty text that is never shown.
    Password,
}

/// Maximum edit distance of a suggested name.
const SUGGESTION_EDITS_MAX: usize = 4;
/// Maximum edit distance between one of handfast's variables and a mistyped name. Variables of other
/// programs, such as test runners, may have the prefix too.
const TYPING_EDITS_MAX: usize = 2;

impl fmt::Display for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number { min, max, unit: "" } => write!(f, "{min} to {max}"),
            Self::Number { min, max, unit } => write!(f, "{min} to {max} {unit}"),
            Self::Word(words) => write!(f, "one of {}", words.join(", ")),
            Self::Text { bytes_max } => write!(f, "a text of 1 to {bytes_max} bytes"),
            Self::Set => f.write_str("anything"),
            Self::User => f.write_str("NAME:PASSWORD"),
            Self::Password => write!(f, "a password of 1 to {PASSWORD_BYTES_MAX} bytes"),
        }
    }
}

/// A supported variable.
struct Variable {
    name: &'static str,
    values: Values,
    /// The value of an unset variable.
    default: &'static str,
    what: &'static str,
}

/// Whether only processes of this machine reach an address, `host:port`. A name other than localhost
/// may lead anywhere.
pub fn is_of_machine(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let ip = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    ip.map_or(host == "localhost", |ip| ip.is_loopback())
}

/// Least timeout of a request, as in Mooncake.
pub const TIMEOUT_MIN: Duration = Duration::from_secs(5);

const AUTH: &str = "HANDFAST_AUTH";
const ENCRYPT_LANES: &str = "HANDFAST_ENCRYPT_LANES";
const ACCEPT_EXPOSED_MEMORY: &str = "HANDFAST_ACCEPT_EXPOSED_MEMORY";
const ACCEPT_FORKED_MEMORY: &str = "HANDFAST_ACCEPT_FORKED_MEMORY";
const RDMA_CM: &str = "HANDFAST_RDMA_CM";
const RDMA_CM_PORT: &str = "HANDFAST_RDMA_CM_PORT";
const PORT_MIN: &str = "MC_MIN_RPC_PORT";
const PORT_MAX: &str = "MC_MAX_RPC_PORT";
const ETCD_CERTIFICATE: &str = "ETCDCTL_CERT";
const ETCD_KEY: &str = "ETCDCTL_KEY";
const REDIS_USER: &str = "MC_REDIS_USERNAME";
const REDIS_PASSWORD: &str = "MC_REDIS_PASSWORD";
const REDIS_DATABASE: &str = "MC_REDIS_DB_INDEX";

/// The prefix of Mooncake's variables.
const THEIRS: &str = "MC_";
/// The prefix of handfast's variables.
const OURS: &str = "HANDFAST_";
/// Mooncake's default ports if only one end of the range is set.
const PORTS: RangeInclusive<u16> = 15_000..=17_000;
/// Maximum length of a password, and of a name.
const PASSWORD_BYTES_MAX: usize = 512;
/// Length from which a text that is no path may be a secret, and is not shown.
const SECRET_CHARS_MIN: usize = 32;
/// Maximum length of a path.
const PATH_BYTES_MAX: usize = 4_095;

/// Maximum length of a slice of a lane.
const SLICE_BYTES_MAX: u64 = handfast::EngineLimits::SLICE_BYTES_MAX as u64;

/// Variables whose empty value is refused everywhere: what they protect would be open to everybody.
const NEVER_EMPTY: [&str; 2] = [AUTH, ENCRYPT_LANES];

/// Variables that the bindings alone read and check: other programs start with any value of them.
const OF_BINDINGS: [&str; 2] = ["HANDFAST_TRANSPORT", "HANDFAST_REGIONS_MAX"];

/// Maximum queue pairs of a lane.
const QUEUE_PAIRS_MAX: u64 = LANE_QUEUE_PAIRS_MAX as u64;

#[rustfmt::skip]
const VARIABLES: [Variable; 40] = [
    Variable { name: "MC_METADATA_CLUSTER_ID", values: Values::Text { bytes_max: 256 }, default: "(none)",
        what: "part of every key in a metadata store" },
    Variable { name: "MC_TCP_BIND_ADDRESS", values: Values::Text { bytes_max: 255 }, default: "(the host listened at)",
        what: "the advertised host without --advertise" },
    Variable { name: AUTH, values: Values::Text { bytes_max: PATH_BYTES_MAX }, default: "(none)",
        what: "keys or certificates by which nodes authenticate each other, psk:FILE, tls:DIRECTORY, tls:AUTHORITY,CERTIFICATE,KEY[,REVOCATIONS], or both with a space between, without --auth" },
    Variable { name: ENCRYPT_LANES, values: Values::Word(&["0", "1"]), default: "0",
        what: "1: the bytes of lanes over TCP are encrypted, without --encrypt-lanes" },
    Variable { name: ACCEPT_EXPOSED_MEMORY, values: Values::Word(&["0", "1"]), default: "0",
        what: "1: read-only memory is served, and stays registered, also where peers can write to it, without --accept-exposed-memory" },
    Variable { name: ACCEPT_FORKED_MEMORY, values: Values::Word(&["0", "1"]), default: "0",
        what: "1: memory of other libraries is registered also where a fork gives its pages away, without --accept-forked-memory" },
    Variable { name: RDMA_CM, values: Values::Word(&["0", "1"]), default: "0",
        what: "1: RDMA queue pairs connect through the connection manager also on RoCE and InfiniBand, without --rdma-cm" },
    Variable { name: RDMA_CM_PORT, values: Values::Number { min: 1, max: 65_535, unit: "" }, default: "(the kernel's choice)",
        what: "port at which the connection manager of each RDMA device listens, without --rdma-cm-port" },
    Variable { name: "HANDFAST_TRANSPORT", values: Values::Word(&["tcp", "rdma", "shm", "auto"]), default: "(not set)",
        what: "transport in place of the protocol of mooncake.engine and of libtransfer_engine; in these alone" },
    Variable { name: "HANDFAST_REGIONS_MAX", values: Values::Number { min: 1, max: 131_072, unit: "" }, default: "4096",
        what: "registered pieces of memory of an engine in Python and C; in these alone" },
    Variable { name: "HANDFAST_LOG", values: Values::Set, default: "(not set)",
        what: "1: libtransfer_engine writes each failure and warning to standard error; in it alone" },
    Variable { name: "MC_TCP_PROTO", values: Values::Word(&["1", "2"]), default: "2",
        what: "highest version of Mooncake's TCP data protocol" },
    Variable { name: "MC_TCP_STATUS_TIMEOUT_SEC", values: Values::Number { min: 1, max: 3_600, unit: "s" }, default: "30",
        what: "time limit of a Mooncake node's answer" },
    Variable { name: "MC_TCP_LANES_PER_PEER", values: Values::Number { min: 1, max: 16, unit: "" }, default: "4",
        what: "data connections to one Mooncake node" },
    Variable { name: "MC_HANDSHAKE_CONNECT_TIMEOUT", values: Values::Number { min: 1, max: 3_599, unit: "s" }, default: "5",
        what: "time limit of a call to a peer" },
    Variable { name: "MC_FORCE_TCP", values: Values::Set, default: "(not set)",
        what: "TCP for every lane, regardless of --transport" },
    Variable { name: "MC_IB_PORT", values: Values::Number { min: 1, max: 255, unit: "" }, default: "1",
        what: "port of the RDMA device" },
    Variable { name: "MC_CUSTOM_TOPO_JSON", values: Values::Text { bytes_max: PATH_BYTES_MAX }, default: "(the machine's)",
        what: "file with the RDMA devices near each memory, without --nic-priority-matrix" },
    Variable { name: "MC_GID_INDEX", values: Values::Number { min: 0, max: 255, unit: "" }, default: "(the best)",
        what: "index of the RDMA port's address in its table, without --gid" },
    Variable { name: "MC_MTU", values: Values::Word(&["512", "1024", "2048", "4096"]), default: "4096",
        what: "longest payload of an RDMA packet, in bytes; lanes have the least of this, the port's and the peer's" },
    Variable { name: "MC_IB_TC", values: Values::Number { min: 0, max: 255, unit: "" }, default: "0",
        what: "traffic class of RDMA packets; on Ethernet the DSCP times four" },
    Variable { name: "MC_IB_SL", values: Values::Number { min: 0, max: 15, unit: "" }, default: "0",
        what: "service level of RDMA packets" },
    Variable { name: "MC_NUM_QP_PER_EP", values: Values::Number { min: 1, max: QUEUE_PAIRS_MAX, unit: "" }, default: "2",
        what: "queue pairs of an RDMA lane, without --queue-pairs" },
    Variable { name: "MC_PKEY_INDEX", values: Values::Number { min: 0, max: 65_535, unit: "" }, default: "0",
        what: "index of the partition key in the tables of the RDMA ports, without --partition-key" },
    Variable { name: "MC_IB_PCI_RELAXED_ORDERING", values: Values::Word(&["0", "1", "2"]), default: "2",
        what: "0 keeps the order of the bytes of a transfer in the registration of memory; 1 and 2 let the device choose" },
    Variable { name: "MC_SLICE_SIZE", values: Values::Number { min: 1, max: SLICE_BYTES_MAX, unit: "bytes" },
        default: "1048576", what: "longest slice of a transfer" },
    Variable { name: "MC_LOG_LEVEL", values: Values::Word(&["TRACE", "INFO", "WARNING", "ERROR"]),
        default: "(errors and refused peers)", what: "log level of standard error without -v" },
    Variable { name: "MC_TCP_MAX_CONNECTIONS_PER_PEER", values: Values::Number { min: 1, max: 16, unit: "" }, default: "(not set)",
        what: "older name of MC_TCP_LANES_PER_PEER, which precedes it" },
    Variable { name: PORT_MIN, values: Values::Number { min: 1_024, max: 65_535, unit: "" },
        default: "(any free port)", what: "first port for port 0 of serve --listen" },
    Variable { name: PORT_MAX, values: Values::Number { min: 1_024, max: 65_535, unit: "" },
        default: "(any free port)", what: "last port for port 0 of serve --listen" },
    Variable { name: "MC_MIN_PRC_PORT", values: Values::Number { min: 1_024, max: 65_535, unit: "" },
        default: "(not set)", what: "older name of MC_MIN_RPC_PORT, which precedes it" },
    Variable { name: "MC_MAX_PRC_PORT", values: Values::Number { min: 1_024, max: 65_535, unit: "" },
        default: "(not set)", what: "older name of MC_MAX_RPC_PORT, which precedes it" },
    Variable { name: "MC_TRANSFER_TIMEOUT", values: Values::Number { min: 0, max: 86_400, unit: "s" },
        default: "(none)", what: "timeout of a request of put and get without --timeout; less than 5 s count as 5 s" },
    Variable { name: "ETCDCTL_USER", values: Values::User, default: "(none)",
        what: "name and password for an etcd" },
    Variable { name: "ETCDCTL_CACERT", values: Values::Text { bytes_max: PATH_BYTES_MAX }, default: "(the system's)",
        what: "file with the authorities trusted for an etcd, without --metadata-ca" },
    Variable { name: ETCD_CERTIFICATE, values: Values::Text { bytes_max: PATH_BYTES_MAX }, default: "(none)",
        what: "file with the client certificate for an etcd, without --metadata-cert" },
    Variable { name: ETCD_KEY, values: Values::Text { bytes_max: PATH_BYTES_MAX }, default: "(none)",
        what: "file with its key, without --metadata-key" },
    Variable { name: REDIS_USER, values: Values::Text { bytes_max: PASSWORD_BYTES_MAX }, default: "(Redis's default user)",
        what: "name for a Redis with a password, without a user in its URL" },
    Variable { name: REDIS_PASSWORD, values: Values::Password, default: "(none)",
        what: "password for a Redis, without a user in its URL" },
    Variable { name: REDIS_DATABASE, values: Values::Number { min: 0, max: 255, unit: "" }, default: "0",
        what: "database of a Redis, without one in its URL" },
];

/// A variable is malformed, or contradicts another.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Invalid(String);

/// The effective value and its origin.
#[derive(Serialize)]
pub struct Setting {
    /// The variable.
    pub name: &'static str,
    /// The value; a password is not shown.
    pub value: String,
    /// `environment` or `default`.
    pub source: &'static str,
    /// The accepted values.
    pub accepts: String,
    /// The effect.
    pub what: &'static str,
}

/// A variable of Mooncake's without an effect here.
#[derive(Serialize)]
pub struct WithoutEffect {
    /// The variable.
    pub name: &'static str,
    /// Whether the environment has it.
    pub set: bool,
    /// Its replacement, or the reason why it has none.
    pub why: &'static str,
}

/// A set variable with an unknown name: with the prefix of Mooncake's, or similar to one of handfast's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unknown {
    /// The variable.
    pub name: String,
    /// The most similar known name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nearest: Option<&'static str>,
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is not a known variable", self.name)?;
        match self.nearest {
            Some(nearest) => write!(f, "; did you mean {nearest}?"),
            None => Ok(()),
        }
    }
}

/// The set variables, validated.
#[derive(Clone, PartialEq, Eq)]
pub struct Environment {
    set: BTreeMap<&'static str, String>,
    without_effect: Vec<String>,
    /// Sorted by name.
    pub unknown: Vec<Unknown>,
    /// Why the bindings refuse their variables.
    refused_by_bindings: Vec<Invalid>,
}

impl Environment {
    /// Reads the environment.
    ///
    /// # Errors
    /// A value is malformed, or empty.
    pub fn read() -> Result<Self, Invalid> {
        Self::of(variables())
    }

    /// Reads the environment for an engine with a store, without the variables of other stores.
    /// Empty values are no values, except those of switches, and of variables of authentication and
    /// encryption, without whose value an engine would be open.
    ///
    /// # Errors
    /// A value is malformed, or one of authentication or encryption is empty.
    pub fn read_without_empty(store: &Source) -> Result<Self, Invalid> {
        let is_of_another = |name: &str| {
            name.starts_with("ETCDCTL_") && !matches!(store, Source::Etcd(_))
                || name.starts_with("MC_REDIS_") && !matches!(store, Source::Redis(_))
        };
        let counts_empty = |name: &str| is_switch(name) || NEVER_EMPTY.contains(&name);
        let is_value = |(name, value): &(String, String)| !value.is_empty() || counts_empty(name);
        Self::of(variables().filter(is_value).filter(|(name, _)| !is_of_another(name)))
    }

    fn of(all: impl Iterator<Item = (String, String)>) -> Result<Self, Invalid> {
        let mut read = Self {
            set: BTreeMap::new(),
            without_effect: vec![],
            unknown: vec![],
            refused_by_bindings: vec![],
        };
        for (name, value) in all {
            if let Some(variable) = VARIABLES.iter().find(|variable| variable.name == name) {
                if OF_BINDINGS.contains(&variable.name) {
                    read.set_of_bindings(variable, &value);
                    continue;
                }
                variable.check(&value)?;
                read.set.insert(variable.name, value);
            } else if why_without_effect(&name).is_some() {
                read.without_effect.push(name);
            } else if let Some(unknown) = unknown(&name) {
                read.unknown.push(unknown);
            }
        }
        read.without_effect.sort_unstable();
        read.unknown.sort_by(|one, other| one.name.cmp(&other.name));
        read.ports()?;
        Ok(read)
    }

    /// Takes a variable of the bindings, for which an empty value is none.
    fn set_of_bindings(&mut self, variable: &Variable, value: &str) {
        if value.is_empty() {
            return;
        }
        match variable.check(value.trim()) {
            Ok(()) => {
                self.set.insert(variable.name, value.trim().to_owned());
            }
            Err(invalid) => self.refused_by_bindings.push(invalid),
        }
    }

    /// Warnings of variables with values that the bindings refuse.
    pub fn warnings_of_bindings(&self) -> impl Iterator<Item = String> {
        self.refused_by_bindings.iter().map(|invalid| format!("in Python and C, {invalid}"))
    }

    /// Warnings of variables with the prefix of Mooncake's and an unknown name, and of names that are
    /// similar to one of handfast's: after a typing error, a limit would not apply.
    pub fn warnings(&self) -> impl Iterator<Item = String> {
        self.unknown.iter().map(ToString::to_string)
    }

    /// Warnings of set variables of Mooncake's that have no effect here, with their replacement.
    /// For nodes with Mooncake nodes as peers, whose users may rely on the effect.
    pub fn warnings_of_those_without_effect(&self) -> impl Iterator<Item = String> {
        self.without_effect.iter().map(|name| {
            let why = why_without_effect(name).unwrap_or_default();
            format!("{name} sets nothing here: {why}")
        })
    }

    /// Returns Mooncake's variables without an effect here, set or not.
    pub fn without_effect(&self) -> Vec<WithoutEffect> {
        let all = WITHOUT_EFFECT.iter().flat_map(|known| {
            known.names.iter().map(|name| WithoutEffect {
                name,
                set: self.without_effect.iter().any(|set| set == name),
                why: known.why,
            })
        });
        all.collect()
    }

    /// Returns the range of ports for options that accept any port.
    ///
    /// # Errors
    /// The first exceeds the last.
    pub fn ports(&self) -> Result<Option<RangeInclusive<u16>>, Invalid> {
        let port = |name, old| {
            let port = self.number(name).or_else(|| self.number(old));
            port.and_then(|port| u16::try_from(port).ok())
        };
        let (min, max) = (port(PORT_MIN, "MC_MIN_PRC_PORT"), port(PORT_MAX, "MC_MAX_PRC_PORT"));
        if min.is_none() && max.is_none() {
            return Ok(None);
        }
        let (min, max) = (min.unwrap_or(*PORTS.start()), max.unwrap_or(*PORTS.end()));
        match min <= max {
            true => Ok(Some(min..=max)),
            false => Err(Invalid(format!(
                "{PORT_MIN} is {min} and {PORT_MAX} is {max}; the first must not exceed the last"
            ))),
        }
    }

    /// Timeout of a request, [`TIMEOUT_MIN`] at least.
    pub fn transfer_timeout(&self) -> Option<Duration> {
        let seconds = self.number("MC_TRANSFER_TIMEOUT");
        seconds.map(|seconds| Duration::from_secs(seconds).max(TIMEOUT_MIN))
    }

    /// Credentials for an etcd.
    ///
    /// # Errors
    /// A certificate without its key, or a key alone.
    pub fn etcd_credentials(&self) -> Result<Credentials, Invalid> {
        let text = |name| self.get(name).map(String::as_str);
        let path = |name| text(name).map(PathBuf::from);
        let identity = match (path(ETCD_CERTIFICATE), path(ETCD_KEY)) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => {
                let text = format!("{ETCD_CERTIFICATE} and {ETCD_KEY} go together");
                return Err(Invalid(text));
            }
        };
        let user = text("ETCDCTL_USER").and_then(|user| user.split_once(':'));
        Ok(Credentials {
            user: user.map(|(name, password)| (name.to_owned(), password.to_owned())),
            database: None,
            tls: TlsFiles { authority: path("ETCDCTL_CACERT"), identity },
        })
    }

    /// Credentials for a Redis. As in Mooncake, a name without a password has no effect.
    pub fn redis_credentials(&self) -> Credentials {
        let text = |name| self.get(name).cloned();
        let user = |password| (text(REDIS_USER).unwrap_or_default(), password);
        let database = self.number(REDIS_DATABASE).and_then(|number| u8::try_from(number).ok());
        Credentials { user: text(REDIS_PASSWORD).map(user), database, ..Credentials::default() }
    }

    /// Every variable with an effect.
    pub fn settings(&self) -> Vec<Setting> {
        let setting = |variable: &Variable| {
            let set = self.set.get(variable.name);
            Setting {
                name: variable.name,
                value: set.map_or(variable.default.to_owned(), |set| variable.shown(set)),
                source: if set.is_some() { "environment" } else { "default" },
                accepts: variable.values.to_string(),
                what: variable.what,
            }
        };
        VARIABLES.iter().map(setting).collect()
    }

    /// Whether every lane is over TCP.
    pub fn forces_tcp(&self) -> bool {
        self.get("MC_FORCE_TCP").is_some()
    }

    /// The source of the keys by which nodes authenticate each other.
    pub fn auth_source(&self) -> Option<&str> {
        self.get(AUTH).map(String::as_str)
    }

    /// Whether lanes over TCP are encrypted.
    pub fn encrypts_lanes(&self) -> bool {
        self.is_on(ENCRYPT_LANES)
    }

    fn is_on(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| value == "1")
    }

    /// The advertised host.
    pub fn advertise(&self) -> Option<&str> {
        self.get("MC_TCP_BIND_ADDRESS").map(String::as_str)
    }

    /// The log level of standard error: `TRACE`, `INFO`, `WARNING` or `ERROR`.
    pub fn log_level(&self) -> Option<&str> {
        self.get("MC_LOG_LEVEL").map(String::as_str)
    }

    /// Options for Mooncake nodes as peers.
    pub fn mooncake(&self) -> MooncakeOptions {
        let default = MooncakeOptions::default();
        let lanes = self
            .number("MC_TCP_LANES_PER_PEER")
            .or_else(|| self.number("MC_TCP_MAX_CONNECTIONS_PER_PEER"));
        let old = self.get("MC_TCP_PROTO").is_some_and(|version| version == "1");
        default.with(|it| {
            it.version_max = if old { ProtocolVersion::One } else { default.version_max };
            it.status_timeout = self
                .number("MC_TCP_STATUS_TIMEOUT_SEC")
                .map_or(default.status_timeout, Duration::from_secs);
            it.lanes_per_peer = lanes.map_or(default.lanes_per_peer, |it| it as usize);
        })
    }

    /// Options of the metadata store.
    pub fn metadata(&self, options: MetadataOptions) -> MetadataOptions {
        let cluster_id = self.get("MC_METADATA_CLUSTER_ID").cloned();
        options.with(|it| it.cluster_id = cluster_id.unwrap_or_default())
    }

    /// Options of RDMA.
    pub fn rdma(&self, options: RdmaOptions) -> RdmaOptions {
        let byte = |name| self.number(name).and_then(|number| u8::try_from(number).ok());
        let mtu = self.get("MC_MTU").and_then(|bytes| bytes.parse().ok());
        options.with(|it| {
            it.port = byte("MC_IB_PORT").unwrap_or(it.port);
            it.gid_index = byte("MC_GID_INDEX").or(it.gid_index);
            it.mtu_bytes_max = mtu.unwrap_or(it.mtu_bytes_max);
            it.traffic_class = byte("MC_IB_TC").unwrap_or(it.traffic_class);
            it.service_level = byte("MC_IB_SL").unwrap_or(it.service_level);
            it.queue_pairs = byte("MC_NUM_QP_PER_EP").map(usize::from).or(it.queue_pairs);
            let index = self.number("MC_PKEY_INDEX").and_then(|index| u16::try_from(index).ok());
            it.partition_key = index.map_or(it.partition_key, PartitionKey::Index);
            it.connection_manager |= self.is_on(RDMA_CM);
            let port = self.number(RDMA_CM_PORT).and_then(|port| u16::try_from(port).ok());
            it.connection_manager_port = port.unwrap_or(it.connection_manager_port);
            it.relaxed_ordering = self.get("MC_IB_PCI_RELAXED_ORDERING").is_none_or(|it| it != "0");
            it.accepts_exposed_memory |= self.is_on(ACCEPT_EXPOSED_MEMORY);
            it.accepts_forked_memory |= self.is_on(ACCEPT_FORKED_MEMORY);
        })
    }

    /// Returns the file with the NICs near each memory.
    pub fn matrix(&self) -> Option<PathBuf> {
        self.get("MC_CUSTOM_TOPO_JSON").map(PathBuf::from)
    }

    /// Limits and times of an engine.
    pub fn bounds(&self, builder: Builder) -> Builder {
        builder.adjust(|limits, timing| {
            if let Some(seconds) = self.number("MC_HANDSHAKE_CONNECT_TIMEOUT") {
                timing.call_timeout = Duration::from_secs(seconds);
            }
            if let Some(bytes) =
                self.number("MC_SLICE_SIZE").and_then(|bytes| u32::try_from(bytes).ok())
            {
                limits.slice_bytes_max = bytes;
            }
        })
    }

    /// Returns a validated number.
    fn number(&self, name: &str) -> Option<u64> {
        self.get(name)?.parse().ok()
    }

    /// Returns a validated value.
    fn get(&self, name: &str) -> Option<&String> {
        debug_assert!(VARIABLES.iter().any(|known| known.name == name), "{name} is not known");
        self.set.get(name)
    }
}

impl fmt::Debug for Environment {
    /// Omits the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = |variable: &Variable| {
            Some((variable.name, variable.shown(self.set.get(variable.name)?)))
        };
        f.debug_map().entries(VARIABLES.iter().filter_map(set)).finish()
    }
}

impl Variable {
    fn check(&self, value: &str) -> Result<(), Invalid> {
        let good = match self.values {
            Values::Number { min, max, .. } => {
                value.parse().is_ok_and(|number: u64| (min..=max).contains(&number))
            }
            Values::Word(words) => words.contains(&value),
            Values::Text { bytes_max } => {
                (1..=bytes_max).contains(&value.len()) && !value.contains(char::is_control)
            }
            Values::Set => true,
            Values::User => value.split_once(':').is_some_and(|(name, _)| !name.is_empty()),
            Values::Password => (1..=PASSWORD_BYTES_MAX).contains(&value.len()),
        };
        let Self { name, values, .. } = self;
        match good {
            true => Ok(()),
            false => {
                Err(Invalid(format!("{name} is '{}'; it must be {values}", self.shown(value))))
            }
        }
    }

    /// Returns a value as shown to users.
    fn shown(&self, value: &str) -> String {
        match (self.values, value.split_once(':')) {
            (Values::User, Some((name, _))) => format!("{name}:..."),
            (Values::User, None) | (Values::Password, _) => "...".to_owned(),
            // Perhaps a secret in the place of its file.
            _ if self.name == AUTH && value.len() >= SECRET_CHARS_MIN && !value.contains('/') => {
                "...".to_owned()
            }
            _ => value.to_owned(),
        }
    }
}

fn variables() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os().filter_map(|(name, value)| {
        Some((name.into_string().ok()?, value.to_string_lossy().into_owned()))
    })
}

fn is_switch(name: &str) -> bool {
    let is = |known: &Variable| known.name == name && matches!(known.values, Values::Set);
    VARIABLES.iter().any(is)
}

/// Returns a name that looks like a variable of Mooncake's or of handfast's, and is none.
fn unknown(name: &str) -> Option<Unknown> {
    let nearest = match name {
        _ if name.starts_with(THEIRS) => nearest(name, SUGGESTION_EDITS_MAX),
        _ if name.starts_with(OURS) => Some(nearest(name, TYPING_EDITS_MAX)?),
        _ => return None,
    };
    Some(Unknown { name: name.to_owned(), nearest })
}

/// Returns the most similar known variable, if one is similar enough.
fn nearest(name: &str, edits_max: usize) -> Option<&'static str> {
    let known = WITHOUT_EFFECT.iter().flat_map(|known| known.names.iter().copied());
    let known = VARIABLES.iter().map(|variable| variable.name).chain(known);
    let edits = known.map(|known| (strsim::damerau_levenshtein(name, known), known));
    edits.filter(|(edits, _)| *edits <= edits_max).min().map(|(_, known)| known)
}

#[cfg(test)]
mod tests;
