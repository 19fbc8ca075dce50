//! What the environment says, in the variables that users of Mooncake set.

use crate::failure::Failure;
use handfast::{Builder, MetadataOptions, MooncakeOptions, ProtocolVersion, RdmaOptions};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use tracing_subscriber::filter::LevelFilter;

/// What values a variable takes.
#[derive(Clone, Copy)]
enum Values {
    /// A whole number.
    Number { min: u64, max: u64, unit: &'static str },
    /// One of these words.
    Word(&'static [&'static str]),
    /// Any text, not empty, of so many bytes at most.
    Text { bytes_max: usize },
    /// Set to anything, it is on.
    Set,
}

impl fmt::Display for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number { min, max, unit: "" } => write!(f, "{min} to {max}"),
            Self::Number { min, max, unit } => write!(f, "{min} to {max} {unit}"),
            Self::Word(words) => write!(f, "one of {}", words.join(", ")),
            Self::Text { bytes_max } => write!(f, "a text of 1 to {bytes_max} bytes"),
            Self::Set => f.write_str("anything"),
        }
    }
}

/// A variable that is honoured.
struct Variable {
    name: &'static str,
    values: Values,
    /// What applies where it is not set.
    default: &'static str,
    what: &'static str,
}

const CLUSTER: &str = "MC_METADATA_CLUSTER_ID";
const BIND: &str = "MC_TCP_BIND_ADDRESS";
const PROTO: &str = "MC_TCP_PROTO";
const STATUS: &str = "MC_TCP_STATUS_TIMEOUT_SEC";
const LANES: &str = "MC_TCP_LANES_PER_PEER";
const CONNECT: &str = "MC_HANDSHAKE_CONNECT_TIMEOUT";
const FORCE_TCP: &str = "MC_FORCE_TCP";
const IB_PORT: &str = "MC_IB_PORT";
const SLICE: &str = "MC_SLICE_SIZE";
const LOG: &str = "MC_LOG_LEVEL";

/// Longest slice that lanes take.
const SLICE_BYTES_MAX: u64 = handfast::SLICE_BYTES_MAX as u64;

#[rustfmt::skip]
const VARIABLES: [Variable; 10] = [
    Variable { name: CLUSTER, values: Values::Text { bytes_max: 256 }, default: "(none)",
        what: "part of every key in a metadata store" },
    Variable { name: BIND, values: Values::Text { bytes_max: 255 }, default: "(the host listened at)",
        what: "the host that peers are told, where --advertise is not given" },
    Variable { name: PROTO, values: Values::Word(&["1", "2"]), default: "2",
        what: "highest version of Mooncake's TCP data protocol" },
    Variable { name: STATUS, values: Values::Number { min: 1, max: 3_600, unit: "s" }, default: "30",
        what: "how long a Mooncake node may take to answer a request" },
    Variable { name: LANES, values: Values::Number { min: 1, max: 16, unit: "" }, default: "4",
        what: "data connections to one Mooncake node" },
    Variable { name: CONNECT, values: Values::Number { min: 1, max: 3_599, unit: "s" }, default: "5",
        what: "how long a call to a peer may take" },
    Variable { name: FORCE_TCP, values: Values::Set, default: "(not set)",
        what: "lanes run over TCP whatever --transport says" },
    Variable { name: IB_PORT, values: Values::Number { min: 1, max: 255, unit: "" }, default: "1",
        what: "port of the RDMA device" },
    Variable { name: SLICE, values: Values::Number { min: 1, max: SLICE_BYTES_MAX, unit: "bytes" },
        default: "1048576", what: "longest slice of a transfer" },
    Variable { name: LOG, values: Values::Word(&["TRACE", "INFO", "WARNING", "ERROR"]),
        default: "ERROR", what: "what is told on standard error, where -v is not given" },
];

/// Variables of Mooncake that are known and of no effect here: what they set has no counterpart, or
/// is found out.
const WITHOUT_EFFECT: [&str; 34] = [
    "MC_NUM_CQ_PER_CTX",
    "MC_NUM_COMP_CHANNELS_PER_CTX",
    "MC_GID_INDEX",
    "MC_AUTO_GID_MAX_RETRIES",
    "MC_PKEY_INDEX",
    "MC_MAX_CQE_PER_CTX",
    "MC_MAX_EP_PER_CTX",
    "MC_NUM_QP_PER_EP",
    "MC_MAX_SGE",
    "MC_MAX_WR",
    "MC_MAX_INLINE",
    "MC_MTU",
    "MC_HANDSHAKE_PORT",
    "MC_WORKERS_PER_CTX",
    "MC_FRAGMENT_RATIO",
    "MC_MAX_MR_SIZE",
    "MC_RETRY_CNT",
    "MC_DISABLE_METACACHE",
    "MC_HANDSHAKE_LISTEN_BACKLOG",
    "MC_HANDSHAKE_MAX_LENGTH",
    "MC_SLICE_TIMEOUT",
    "MC_MIN_RPC_PORT",
    "MC_MAX_RPC_PORT",
    "MC_USE_IPV6",
    "MC_ENDPOINT_STORE_TYPE",
    "MC_IB_TC",
    "MC_IB_SL",
    "MC_LOG_DIR",
    "MC_LEGACY_RPC_PORT_BINDING",
    "MC_FORCE_HCA",
    "MC_CUSTOM_TOPO_JSON",
    "MC_TE_FILTERS",
    "MC_TCP_ENABLE_CONNECTION_POOL",
    "MC_TRANSFER_TIMEOUT",
];

/// What applies, and who says so.
#[derive(Serialize)]
pub(crate) struct Setting {
    pub(crate) name: &'static str,
    pub(crate) value: String,
    /// `environment` or `default`.
    pub(crate) source: &'static str,
    pub(crate) accepts: String,
    pub(crate) what: &'static str,
}

/// The variables that are set, checked.
pub(crate) struct Environment {
    set: BTreeMap<&'static str, String>,
    /// Set, of Mooncake's, and of no effect here.
    pub(crate) without_effect: Vec<String>,
    /// Set, and of nobody we know.
    pub(crate) unknown: Vec<String>,
}

impl Environment {
    pub(crate) fn read() -> Result<Self, Failure> {
        let all = std::env::vars_os().filter_map(|(name, value)| {
            let name = name.into_string().ok().filter(|name| name.starts_with("MC_"))?;
            Some((name, value.to_string_lossy().into_owned()))
        });
        Self::of(all).map_err(Failure::Usage)
    }

    fn of(all: impl Iterator<Item = (String, String)>) -> Result<Self, String> {
        let mut read = Self { set: BTreeMap::new(), without_effect: vec![], unknown: vec![] };
        for (name, value) in all {
            if let Some(variable) = VARIABLES.iter().find(|variable| variable.name == name) {
                variable.check(&value)?;
                read.set.insert(variable.name, value);
            } else if WITHOUT_EFFECT.contains(&&*name) {
                read.without_effect.push(name);
            } else {
                read.unknown.push(name);
            }
        }
        read.without_effect.sort();
        read.unknown.sort();
        Ok(read)
    }

    pub(crate) fn settings(&self) -> Vec<Setting> {
        let setting = |variable: &Variable| {
            let set = self.set.get(variable.name);
            Setting {
                name: variable.name,
                value: set.map_or(variable.default, String::as_str).to_owned(),
                source: if set.is_some() { "environment" } else { "default" },
                accepts: variable.values.to_string(),
                what: variable.what,
            }
        };
        VARIABLES.iter().map(setting).collect()
    }

    pub(crate) fn forces_tcp(&self) -> bool {
        self.set.contains_key(FORCE_TCP)
    }

    /// The host that peers are told.
    pub(crate) fn advertise(&self) -> Option<&str> {
        self.set.get(BIND).map(String::as_str)
    }

    pub(crate) fn log_level(&self) -> Option<LevelFilter> {
        Some(match self.set.get(LOG)?.as_str() {
            "TRACE" => LevelFilter::TRACE,
            "INFO" => LevelFilter::INFO,
            "WARNING" => LevelFilter::WARN,
            _ => LevelFilter::ERROR,
        })
    }

    pub(crate) fn mooncake(&self) -> MooncakeOptions {
        let default = MooncakeOptions::default();
        let old = self.set.get(PROTO).is_some_and(|version| version == "1");
        MooncakeOptions {
            version_max: if old { ProtocolVersion::One } else { default.version_max },
            status_timeout_ms: self.number(STATUS).map_or(default.status_timeout_ms, |s| s * 1_000),
            lanes_per_peer: self.number(LANES).map_or(default.lanes_per_peer, |it| it as usize),
            ..default
        }
    }

    pub(crate) fn metadata(&self, options: MetadataOptions) -> MetadataOptions {
        let cluster_id = self.set.get(CLUSTER).cloned();
        MetadataOptions { cluster_id: cluster_id.unwrap_or_default(), ..options }
    }

    pub(crate) fn rdma(&self, options: RdmaOptions) -> RdmaOptions {
        let port = self.number(IB_PORT).and_then(|port| u8::try_from(port).ok());
        RdmaOptions { port: port.unwrap_or(options.port), ..options }
    }

    pub(crate) fn bounds(&self, builder: Builder) -> Builder {
        builder.adjust(|limits, timing| {
            if let Some(seconds) = self.number(CONNECT) {
                timing.call_timeout_ms = seconds * 1_000;
            }
            if let Some(bytes) = self.number(SLICE).and_then(|bytes| u32::try_from(bytes).ok()) {
                limits.slice_bytes_max = bytes;
            }
        })
    }

    /// A number that was checked.
    fn number(&self, name: &str) -> Option<u64> {
        self.set.get(name)?.parse().ok()
    }
}

impl Variable {
    fn check(&self, value: &str) -> Result<(), String> {
        let good = match self.values {
            Values::Number { min, max, .. } => {
                value.parse().is_ok_and(|number: u64| (min..=max).contains(&number))
            }
            Values::Word(words) => words.contains(&value),
            Values::Text { bytes_max } => {
                (1..=bytes_max).contains(&value.len()) && !value.contains(char::is_control)
            }
            Values::Set => true,
        };
        let Self { name, values, .. } = self;
        match good {
            true => Ok(()),
            false => Err(format!("{name} is '{value}'; it must be {values}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(set: &[(&str, &str)]) -> Result<Environment, String> {
        Environment::of(set.iter().map(|(name, value)| ((*name).into(), (*value).into())))
    }

    #[test]
    fn values_at_the_ends_of_their_ranges_are_taken_and_past_them_refused_with_the_range() {
        for (name, good, wrong, range) in [
            (STATUS, ["1", "3600"], ["0", "3601"], "1 to 3600 s"),
            (LANES, ["1", "16"], ["0", "17"], "1 to 16"),
            (CONNECT, ["1", "3599"], ["0", "3600"], "1 to 3599 s"),
            (IB_PORT, ["1", "255"], ["0", "256"], "1 to 255"),
            (SLICE, ["1", "1048576"], ["0", "-1"], "1 to"),
            (PROTO, ["1", "2"], ["3", ""], "one of 1, 2"),
            (LOG, ["TRACE", "ERROR"], ["DEBUG", "info"], "one of TRACE, INFO, WARNING, ERROR"),
            (CLUSTER, ["a", "b/"], ["", "a\nb"], "a text of 1 to 256 bytes"),
        ] {
            for value in good {
                assert!(of(&[(name, value)]).is_ok(), "{name}={value}");
            }
            for value in wrong.into_iter().chain(["4 apples".repeat(99).as_str()]) {
                let refused = of(&[(name, value)]).err().expect(name);
                assert!(refused.contains(name) && refused.contains(range), "{refused}");
            }
        }
    }

    #[test]
    fn what_is_set_has_its_effect_and_says_where_it_came_from() {
        let set =
            of(&[(PROTO, "1"), (STATUS, "7"), (LANES, "2"), (CLUSTER, "east"), (IB_PORT, "2")]);
        let set = set.unwrap();
        let mooncake = set.mooncake();
        assert_eq!(mooncake.version_max, ProtocolVersion::One);
        assert_eq!((mooncake.status_timeout_ms, mooncake.lanes_per_peer), (7_000, 2));
        assert_eq!(set.rdma(RdmaOptions::default()).port, 2);
        let settings = set.settings();
        let source = |name| settings.iter().find(|it| it.name == name).map(|it| it.source);
        assert_eq!((source(PROTO), source(SLICE)), (Some("environment"), Some("default")));
        assert_eq!(settings.len(), VARIABLES.len());
    }

    #[test]
    fn defaults_that_are_shown_are_those_that_apply() {
        let (none, shown) = (of(&[]).unwrap(), |name| {
            VARIABLES.iter().find(|it| it.name == name).map(|it| it.default).unwrap()
        });
        let mooncake = none.mooncake();
        assert_eq!(shown(STATUS), (mooncake.status_timeout_ms / 1_000).to_string());
        assert_eq!(shown(LANES), mooncake.lanes_per_peer.to_string());
        assert_eq!(shown(PROTO), "2");
        let (limits, timing) = Default::default();
        let (limits, timing): (handfast::EngineLimits, handfast::EngineTiming) = (limits, timing);
        assert_eq!(shown(SLICE), limits.slice_bytes_max.to_string());
        assert_eq!(shown(CONNECT), (timing.call_timeout_ms / 1_000).to_string());
        assert_eq!(shown(IB_PORT), RdmaOptions::default().port.to_string());
    }

    #[test]
    fn variables_without_effect_and_unknown_ones_are_told_apart_and_refuse_nothing() {
        let set = of(&[("MC_MTU", "9"), ("MC_PIGEON", "1")]).unwrap();
        assert_eq!((&*set.without_effect[0], &*set.unknown[0]), ("MC_MTU", "MC_PIGEON"));
        for variable in &VARIABLES {
            assert!(!WITHOUT_EFFECT.contains(&variable.name));
        }
    }
}
