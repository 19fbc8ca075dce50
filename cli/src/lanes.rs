//! The transport of lanes: its options, and notes on a fallback.

use crate::environment::Environment;
use crate::failure::Failure;
use crate::{cure, files, output};
use clap::{Args, ValueEnum};
use handfast::metadata::MetadataOptions;
use handfast::rdma::RdmaOptions;
use handfast::topology::{MATRIX_BYTES_MAX, MatrixError, PriorityMatrix};
use handfast::{Builder, Engine, Error, Fallback, Segment, TransportChoice};
use handfast_metadata::{Credentials, Source};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Read;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// Options of every command that moves bytes.
#[derive(Args, Clone)]
pub(crate) struct LaneOptions {
    /// Transport of the bytes
    #[arg(long, value_enum, value_name = "NAME", default_value_t = TransportName::Tcp)]
    pub(crate) transport: TransportName,
    /// RDMA devices to use, by name, with commas between; bytes are striped over all of them
    /// [default: one with the address listened at, or else the first usable one]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) device: Vec<String>,
    /// Preferred devices for memory by its location: a file like MC_CUSTOM_TOPO_JSON's, as printed
    /// by `handfast topology --matrix` [default: those on the memory's own NUMA node]
    #[arg(long, value_name = "FILE", requires = "device")]
    pub(crate) nic_priority_matrix: Option<PathBuf>,
    /// Address of the RDMA device's port to use, its GID; IPv4 addresses as such [default: the best
    /// there is]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) gid: Option<IpAddr>,
    /// Speak to nodes of another engine too, over its TCP data protocol. That protocol has no keys:
    /// every host that reaches the port may access the memory
    #[arg(long, value_enum, value_name = "ENGINE")]
    pub(crate) compat: Option<EngineName>,
    /// Metadata store in which nodes find each other by name: p2p (by address),
    /// http[s]://HOST:PORT/PATH, or etcd://HOST:PORT[,HOST:PORT], with https:// before each
    /// endpoint for TLS; ETCDCTL_USER has the name and password for an etcd
    #[arg(long, value_name = "STORE", default_value = "p2p")]
    pub(crate) metadata: Source,
    /// Certificates of who may vouch for a store that speaks TLS [default: for an etcd
    /// ETCDCTL_CACERT, else those that the system trusts]
    #[arg(long, value_name = "PEM")]
    pub(crate) metadata_ca: Option<PathBuf>,
    /// Client certificate for a store that requires one [default: for an etcd ETCDCTL_CERT]
    #[arg(long, value_name = "PEM", requires = "metadata_key")]
    pub(crate) metadata_cert: Option<PathBuf>,
    /// Key of that certificate [default: for an etcd ETCDCTL_KEY]
    #[arg(long, value_name = "PEM", requires = "metadata_cert")]
    pub(crate) metadata_key: Option<PathBuf>,
    /// Port for the data of another engine; 0 is any.
    #[arg(skip)]
    pub(crate) data_port: u16,
}

/// Engines whose nodes can be peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EngineName {
    /// Mooncake Transfer Engine, 0.3.0 and newer
    Mooncake,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TransportName {
    /// TCP alone
    Tcp,
    /// RDMA alone, or an error that says what is missing
    Rdma,
    /// RDMA where both sides have it and it works, else TCP, with a warning that says why
    Auto,
}

impl TransportName {
    fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Rdma => "rdma",
            Self::Auto => "auto",
        }
    }
}

impl LaneOptions {
    pub(crate) fn apply(&self, builder: Builder) -> Result<Builder, Failure> {
        let environment = Environment::read()?;
        environment.warn();
        let choice = match self.transport {
            _ if environment.forces_tcp() => TransportChoice::Tcp,
            TransportName::Tcp => TransportChoice::Tcp,
            TransportName::Rdma => TransportChoice::Rdma,
            TransportName::Auto => TransportChoice::Auto,
        };
        let several = self.device.len() > 1 && choice != TransportChoice::Tcp;
        let said = || environment.matrix().filter(|_| several);
        let matrix = self.nic_priority_matrix.clone().or_else(said);
        let matrix = matrix.as_deref().map(read_matrix).transpose()?;
        let options = environment.rdma(RdmaOptions::default()).with(|it| {
            it.devices = self.device.clone();
            it.matrix = matrix;
            it.address = self.gid;
        });
        let mut builder = environment.bounds(builder).transport(choice).rdma(options);
        if let Some(EngineName::Mooncake) = self.compat {
            environment.warn_of_those_without_effect();
            let options = environment.mooncake();
            builder = builder.mooncake(options.with(|it| it.data_port = self.data_port));
        }
        if let Some(store) = self.metadata.open(self.credentials(&environment)?)? {
            builder = builder.metadata(environment.metadata(MetadataOptions::new(store)));
        }
        Ok(builder)
    }

    /// Credentials for the store: options precede variables.
    fn credentials(&self, environment: &Environment) -> Result<Credentials, Failure> {
        let mut credentials = match &self.metadata {
            Source::Etcd(_) => environment.etcd_credentials()?,
            Source::Peers | Source::Http(_) => Credentials::default(),
        };
        if self.metadata_ca.is_some() {
            credentials.tls.authority.clone_from(&self.metadata_ca);
        }
        if let (Some(certificate), Some(key)) = (&self.metadata_cert, &self.metadata_key) {
            credentials.tls.identity = Some((certificate.clone(), key.clone()));
        }
        Ok(credentials)
    }

    /// The same options as words of a command line.
    pub(crate) fn words(&self) -> Vec<String> {
        let mut words = vec!["--transport".to_owned(), self.transport.name().to_owned()];
        if !self.device.is_empty() {
            words.extend(["--device".to_owned(), self.device.join(",")]);
        }
        if let Some(path) = &self.nic_priority_matrix {
            words.extend(["--nic-priority-matrix".to_owned(), path.display().to_string()]);
        }
        if let Some(gid) = &self.gid {
            words.extend(["--gid".to_owned(), gid.to_string()]);
        }
        if let Some(EngineName::Mooncake) = self.compat {
            words.extend(["--compat".to_owned(), "mooncake".to_owned()]);
        }
        if self.metadata != Source::Peers {
            words.extend(["--metadata".to_owned(), self.metadata.to_string()]);
        }
        for (word, path) in [
            ("--metadata-ca", &self.metadata_ca),
            ("--metadata-cert", &self.metadata_cert),
            ("--metadata-key", &self.metadata_key),
        ] {
            // As a text, as the others are: a path that is none is refused by name.
            let text = path.iter().flat_map(|path| [word.to_owned(), path.display().to_string()]);
            words.extend(text);
        }
        words
    }
}

fn read_matrix(path: &Path) -> Result<PriorityMatrix, Failure> {
    let (file, _) = files::open(path, OpenOptions::new().read(true))?;
    let mut text = String::new();
    // One more than is taken, so that a longer file is refused as such.
    let read = file.take(MATRIX_BYTES_MAX as u64 + 1).read_to_string(&mut text);
    read.map_err(|error| Failure::file(path, "reading", error))?;
    let refused = |error: MatrixError| Failure::Usage(format!("{}: {error}", path.display()));
    PriorityMatrix::parse(&text).map_err(refused)
}

/// Says of each fallback once that it happened.
#[derive(Default)]
pub(crate) struct Warnings(BTreeSet<String>);

impl Warnings {
    pub(crate) fn tell(&mut self, engine: &Engine) {
        let words = |fallback: &Fallback| {
            format!("{} [{}]", cure::fallback_text(fallback), fallback.diagnosis_id())
        };
        let texts: BTreeSet<_> = engine.fallbacks().iter().map(words).collect();
        for text in texts.difference(&self.0) {
            output::note(format_args!("warning: {text}"));
        }
        // No more than the engine itself remembers.
        self.0 = texts;
    }
}

/// A fallback in a report, or another error that RDMA met with.
#[derive(Serialize)]
pub(crate) struct FallbackReport {
    pub(crate) side: String,
    pub(crate) stage: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peer: Option<String>,
    pub(crate) cause: String,
    /// For `handfast explain`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<&'static str>,
    pub(crate) cure: &'static str,
}

impl FallbackReport {
    fn new(fallback: &Fallback) -> Self {
        Self {
            side: format!("{:?}", fallback.side()).to_lowercase(),
            stage: fallback.stage().to_string(),
            peer: fallback.peer().map(str::to_owned),
            cause: fallback.cause().to_string(),
            id: Some(fallback.diagnosis_id().as_str()),
            cure: cure::fallback_cure(fallback),
        }
    }

    /// An error; `cure` is for one that names none.
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

    /// All there were so far.
    pub(crate) fn all(engine: &Engine) -> Vec<Self> {
        engine.fallbacks().iter().map(Self::new).collect()
    }
}

/// The transport of a segment's bytes, in one word; `None` where none moved.
pub(crate) fn carrier(segment: &Segment) -> Option<&'static str> {
    segment.carrier().map(handfast::Carrier::name)
}
