//! The transport of lanes: its options and its fallbacks.

use crate::failure::Failure;
use crate::tuning::Tuning;
use crate::{cure, files, output};
use clap::builder::TypedValueParser;
use clap::{Args, ValueEnum};
use handfast::auth::TrustGroups;
use handfast::metadata::MetadataOptions;
use handfast::rdma::RdmaOptions;
use handfast::topology::{MATRIX_BYTES_MAX, MatrixError, PriorityMatrix};
use handfast::{
    AuthOptions, Builder, Engine, Error, Fallback, Memory, MemoryError, Segment, TransportChoice,
};
use handfast_environment::Environment;
use handfast_metadata::{Credentials, Source, TlsFiles};
use serde::Serialize;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Read;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// Options of all commands that move bytes.
#[derive(Args, Clone)]
pub(crate) struct LaneOptions {
    /// Transport of the lanes
    #[arg(long, value_enum, value_name = "NAME", default_value_t = TransportName::Auto)]
    pub(crate) transport: TransportName,
    /// Directory by which processes of this host without a common network namespace, such as
    /// containers, find each other to share memory: each names its own mount of it
    #[arg(long, value_name = "DIR")]
    pub(crate) shared_memory_dir: Option<PathBuf>,
    /// RDMA devices to use, by name, or ports of them, such as mlx5_0:2, separated by commas; bytes are
    /// striped over all of them, and a warning names each that cannot be used [default: all usable ones of the best kind, hardware
    /// before software; with --gid the one with that address]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) device: Vec<String>,
    /// Preferred devices for memory by its location: a file like MC_CUSTOM_TOPO_JSON's, as printed
    /// by `handfast topology --matrix` [default: those on the memory's own NUMA node]
    #[arg(long, value_name = "FILE")]
    pub(crate) nic_priority_matrix: Option<PathBuf>,
    /// Address of the RDMA device's port to use, its GID; IPv4 addresses in their usual form
    /// [default: the best one]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) gid: Option<IpAddr>,
    #[command(flatten)]
    pub(crate) tuning: Tuning,
    /// Call and accept only nodes that prove a key of a file, psk:FILE: one key per line, its id and
    /// 64 hexadecimal digits, the one to call with first; or a certificate, tls:DIRECTORY with
    /// ca.crt, tls.crt, tls.key and, if it is there, ca.crl, or
    /// tls:AUTHORITY,CERTIFICATE,KEY[,REVOCATIONS]. Given twice, nodes with either are accepted and the
    /// first is used to call. Changed files are read again. The bytes of lanes are not encrypted
    /// without --encrypt-lanes [default: HANDFAST_AUTH]
    #[arg(long, value_name = "SOURCE")]
    pub(crate) auth: Vec<String>,
    /// Encrypt the bytes of lanes over TCP, and use no lanes over RDMA, which cannot be encrypted. Both
    /// nodes need it, and --auth [default: HANDFAST_ENCRYPT_LANES]
    #[arg(long)]
    pub(crate) encrypt_lanes: bool,
    /// Put the peers whose proven names PEERS covers, with * for any characters, into a trust group: RDMA
    /// devices refuse them the keys of other groups. The first one that covers a name counts; needs --auth
    #[arg(long, value_name = "GROUP=PEERS")]
    pub(crate) trust_group: Vec<String>,
    /// Also communicate with nodes of another engine, over its TCP data protocol. That protocol has
    /// no keys: every host that reaches the port may access the memory
    #[arg(long, value_enum, value_name = "ENGINE")]
    pub(crate) compat: Option<EngineName>,
    /// Metadata store in which nodes find each other by name: p2p (by address),
    /// http[s]://HOST:PORT/PATH, etcd://HOST:PORT[,HOST:PORT], with https:// before each
    /// endpoint for TLS, or redis[s]://[USER:PASSWORD@]HOST[:PORT][/DATABASE]; ETCDCTL_USER has
    /// the name and password for an etcd, MC_REDIS_USERNAME and MC_REDIS_PASSWORD for a Redis
    #[arg(long, value_name = "STORE", default_value = "p2p", value_parser = StoreParser)]
    pub(crate) metadata: Source,
    #[command(flatten)]
    pub(crate) certificates: Certificates,
    /// Data port for nodes of another engine; 0 for any.
    #[arg(skip)]
    pub(crate) data_port: u16,
}

/// Reads a metadata store. The error omits the value, which may have a password.
#[derive(Clone)]
struct StoreParser;

impl TypedValueParser for StoreParser {
    type Value = Source;

    fn parse_ref(
        &self,
        command: &clap::Command,
        _: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<Source, clap::Error> {
        let parsed = value.to_string_lossy().parse();
        parsed.map_err(|error: handfast_metadata::SourceError| {
            let text = format!("invalid value for '--metadata <STORE>': {error}\n");
            clap::Error::raw(clap::error::ErrorKind::ValueValidation, text).with_cmd(command)
        })
    }
}

/// Certificates for a metadata store.
#[derive(Args, Clone)]
pub(crate) struct Certificates {
    /// Certificates of the authorities trusted for a store that uses TLS [default: for an etcd
    /// ETCDCTL_CACERT, else those trusted by the system]
    #[arg(long, value_name = "PEM")]
    metadata_ca: Option<PathBuf>,
    /// Client certificate for a store that requires one [default: for an etcd ETCDCTL_CERT]
    #[arg(long, value_name = "PEM", requires = "metadata_key")]
    metadata_cert: Option<PathBuf>,
    /// Key of that certificate [default: for an etcd ETCDCTL_KEY]
    #[arg(long, value_name = "PEM", requires = "metadata_cert")]
    metadata_key: Option<PathBuf>,
}

impl Certificates {
    /// Returns the files of these options, with those of the variables as defaults.
    pub(crate) fn over(&self, variables: TlsFiles) -> TlsFiles {
        let identity = self.metadata_cert.clone().zip(self.metadata_key.clone());
        TlsFiles {
            authority: self.metadata_ca.clone().or(variables.authority),
            identity: identity.or(variables.identity),
        }
    }
}

/// Engines whose nodes can be peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EngineName {
    /// Mooncake Transfer Engine, 0.3.0 and newer
    Mooncake,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TransportName {
    /// TCP only
    Tcp,
    /// RDMA only; an error with the reason if it is unavailable
    Rdma,
    /// Shared memory only, with processes of this host; an error with the reason elsewhere
    Shm,
    /// Shared memory with processes of this host, else RDMA if it works on both sides, else TCP, with a
    /// warning that gives the reason
    Auto,
}

impl LaneOptions {
    /// Maps zero bytes, which processes of this host may map as well if lanes may share memory.
    pub(crate) fn allocate(&self, len: usize) -> Result<Memory, MemoryError> {
        match self.transport {
            TransportName::Shm => Memory::shared(len),
            TransportName::Auto => Memory::shared(len).or_else(|_| Memory::zeroed(len)),
            TransportName::Tcp | TransportName::Rdma => Memory::zeroed(len),
        }
    }

    fn trust_groups(&self) -> Result<TrustGroups, Failure> {
        let mut groups = TrustGroups::default();
        for text in &self.trust_group {
            let wrong =
                |error: &dyn Display| Failure::Usage(format!("--trust-group {text}: {error}"));
            let named = text.split_once('=');
            let (group, peers) = named.ok_or_else(|| wrong(&"write GROUP=PEERS"))?;
            groups.add(group, peers).map_err(|error| wrong(&error))?;
        }
        Ok(groups)
    }

    pub(crate) fn apply(&self, builder: Builder) -> Result<Builder, Failure> {
        let environment = Environment::read()?;
        warn(environment.warnings());
        let choice = match self.transport {
            _ if environment.forces_tcp() => TransportChoice::Tcp,
            TransportName::Tcp => TransportChoice::Tcp,
            TransportName::Rdma => TransportChoice::Rdma,
            TransportName::Shm => TransportChoice::Shm,
            TransportName::Auto => TransportChoice::Auto,
        };
        let has_devices = matches!(choice, TransportChoice::Rdma | TransportChoice::Auto);
        let several = self.device.len() != 1 && has_devices;
        let said = || environment.matrix().filter(|_| several);
        let matrix = self.nic_priority_matrix.clone().or_else(said);
        let matrix = matrix.as_deref().map(read_matrix).transpose()?;
        let trust_groups = self.trust_groups()?;
        let options = self.tuning.apply(environment.rdma(RdmaOptions::default())).with(|it| {
            it.devices = self.device.clone();
            it.matrix = matrix;
            it.address = self.gid;
            it.trust_groups = trust_groups;
        });
        let mut builder = environment.bounds(builder).transport(choice).rdma(options);
        if let Some(directory) = &self.shared_memory_dir {
            builder = builder.shared_memory_dir(directory);
        }
        let given = self.auth.iter().map(|source| AuthOptions::from_source(source));
        let auth = match environment.auth_source().filter(|_| self.auth.is_empty()) {
            Some(source) => Some(AuthOptions::from_source(source)?),
            None => given.reduce(|first, second| first?.and(second?)).transpose()?,
        };
        if let Some(auth) = auth {
            if self.compat.is_some() {
                let text = "--compat and --auth exclude each other: nodes of another engine prove \
                            no key";
                return Err(Failure::Usage(text.into()));
            }
            builder = builder.auth(auth);
        }
        builder = builder.encrypt_lanes(self.encrypt_lanes || environment.encrypts_lanes());
        if let Some(EngineName::Mooncake) = self.compat {
            warn(environment.warnings_of_those_without_effect());
            let options = environment.mooncake();
            builder = builder.mooncake(options.with(|it| it.data_port = self.data_port));
        }
        if let Some(store) = self.metadata.open(self.credentials(&environment)?)? {
            builder = builder.metadata(environment.metadata(MetadataOptions::new(store)));
        }
        Ok(builder)
    }

    /// Credentials for the store.
    fn credentials(&self, environment: &Environment) -> Result<Credentials, Failure> {
        let credentials = match &self.metadata {
            Source::Etcd(_) => environment.etcd_credentials()?,
            Source::Redis(_) => environment.redis_credentials(),
            Source::Peers | Source::Http(_) => Credentials::default(),
        };
        Ok(Credentials { tls: self.certificates.over(credentials.tls), ..credentials })
    }

    /// Returns the same options as command-line arguments.
    pub(crate) fn words(&self) -> Vec<String> {
        let Certificates { metadata_ca, metadata_cert, metadata_key } = &self.certificates;
        // A path that is not UTF-8 is altered here, and then refused by name.
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        let transport = self.transport.to_possible_value();
        let store = match &self.metadata {
            Source::Redis(url) => url.with_password(),
            other => other.to_string(),
        };
        let options = [
            ("--transport", transport.map(|value| value.get_name().to_owned())),
            ("--shared-memory-dir", path(&self.shared_memory_dir)),
            ("--device", (!self.device.is_empty()).then(|| self.device.join(","))),
            ("--nic-priority-matrix", path(&self.nic_priority_matrix)),
            ("--gid", self.gid.map(|gid| gid.to_string())),
            ("--compat", self.compat.map(|EngineName::Mooncake| "mooncake".to_owned())),
            ("--metadata", Some(store)),
            ("--metadata-ca", path(metadata_ca)),
            ("--metadata-cert", path(metadata_cert)),
            ("--metadata-key", path(metadata_key)),
        ];
        let given = options.into_iter().filter_map(|(name, value)| Some([name.to_owned(), value?]));
        let switch = self.encrypt_lanes.then(|| "--encrypt-lanes".to_owned());
        let auth = self.auth.iter().flat_map(|source| ["--auth".to_owned(), source.clone()]);
        given.flatten().chain(auth).chain(switch).chain(self.tuning.words()).collect()
    }
}

pub(crate) fn warn(warnings: impl Iterator<Item = String>) {
    for warning in warnings {
        output::note(format_args!("warning: {warning}"));
    }
}

fn read_matrix(path: &Path) -> Result<PriorityMatrix, Failure> {
    let (file, _) = files::open(path, OpenOptions::new().read(true))?;
    let mut text = String::new();
    // Reads one byte more than the limit, so that a longer file is refused.
    let read = file.take(MATRIX_BYTES_MAX as u64 + 1).read_to_string(&mut text);
    read.map_err(|error| Failure::file(path, "reading", error))?;
    let refused = |error: MatrixError| Failure::Usage(format!("{}: {error}", path.display()));
    PriorityMatrix::parse(&text).map_err(refused)
}

/// Prints each fallback, and each RDMA device that cannot be used, once.
#[derive(Default)]
pub(crate) struct Warnings(BTreeSet<String>);

impl Warnings {
    pub(crate) fn print_new(&mut self, engine: &Engine) {
        let words = |fallback: &Fallback| {
            format!("{} [{}]", cure::fallback_text(fallback), fallback.diagnosis_id())
        };
        let fallbacks = engine.fallbacks();
        let unusable = engine.unusable_devices();
        let unusable = unusable.iter().map(device_text);
        let unexpected = fallbacks.iter().filter(|fallback| !fallback.is_expected());
        let texts: BTreeSet<_> = unexpected.map(words).chain(unusable).collect();
        for text in texts.difference(&self.0) {
            output::note(format_args!("warning: {text}"));
        }
        // The engine itself keeps no more.
        self.0 = texts;
    }
}

/// Describes an RDMA device that cannot be used although others can.
fn device_text(error: &Error) -> String {
    let cure = cure::cure(error).unwrap_or(cure::OF_FALLBACK);
    format!(
        "an RDMA device is not used: {}; {cure} [{}]",
        error.without_hint(),
        error.diagnosis_id()
    )
}

/// A fallback in a report, or another error of RDMA.
#[derive(Serialize)]
pub(crate) struct FallbackReport {
    pub(crate) side: String,
    pub(crate) stage: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peer: Option<String>,
    pub(crate) cause: String,
    /// The id for `handfast explain`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<&'static str>,
    pub(crate) cure: &'static str,
}

impl FallbackReport {
    /// Describes an error; `cure` is the remedy of one that has none.
    pub(crate) fn of(error: &Error, cure: &'static str) -> Self {
        Self {
            side: format!("{:?}", error.side()).to_lowercase(),
            stage: error.stage().to_string(),
            peer: error.peer_address().map(str::to_owned),
            cause: error.cause().to_string(),
            id: Some(error.diagnosis_id().as_str()),
            cure: cure::cure(error).unwrap_or(cure),
        }
    }

    /// Returns all fallbacks so far.
    pub(crate) fn all(engine: &Engine) -> Vec<Self> {
        let of = |fallback: &Fallback| Self {
            cure: cure::of_fallback(fallback),
            ..Self::of(fallback.reason(), cure::OF_FALLBACK)
        };
        engine.fallbacks().iter().map(of).collect()
    }
}

/// Returns the transport of a segment's bytes, in one word; `None` if none moved.
pub(crate) fn transport_kind(segment: &Segment) -> Option<&'static str> {
    segment.transport_kind().map(handfast::TransportKind::name)
}
