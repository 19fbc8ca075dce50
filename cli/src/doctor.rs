//! `handfast doctor`.

mod answering;
mod lanes;
mod prove;
#[cfg(feature = "tls")]
mod tls;

use crate::failure::{Failure, Outcome};
use crate::lanes::{Certificates, EngineName, TransportName};
use crate::tuning::Tuning;
use crate::{bench, help, output, serve, size, terminal};
use clap::Args;
use handfast::identity::NodeName;
use handfast_core::address::{AddressError, host_and_port, with_port};
use handfast_diagnosis::doctor::{self, Facts, Library, Report, Request, ThisMachine, Wanted};
use handfast_diagnosis::{Id, Language, ids};
use handfast_metadata::Source;
use handfast_transport_rdma::{RdmaUnavailable, availability};
use std::fs::OpenOptions;
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Findings that prevent answering at the `--listen` address.
const PREVENT_LISTENING: [Id; 5] = [
    ids::PORT_IN_USE,
    ids::PORT_RESERVED_ERDMA,
    ids::NET_NOT_LOCAL,
    ids::NET_UNRESOLVED,
    ids::CONFIG_INVALID,
];
/// Default memory of `serve`.
const MEMORY_DEFAULT_BYTES: u64 = 64 << 20;

/// Find obstacles to transfers on this machine, or between it and another
#[derive(Args)]
#[command(after_long_help = help::DOCTOR)]
pub(crate) struct Doctor {
    /// Compare with the doctor that answers there, and name the side at fault
    #[arg(long, value_name = "HOST:PORT")]
    peer: Option<String>,
    /// Check that a node can listen there, then answer other doctors until interrupted
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// End after the report, even with --listen
    #[arg(long)]
    once: bool,
    /// Also write a report without secrets and names to FILE, to share with others
    #[arg(long, value_name = "FILE")]
    bundle: Option<PathBuf>,
    /// Measure what handfast assumes of an RDMA device, on queue pairs of its own
    #[arg(long, conflicts_with_all = ["peer", "listen", "bundle", "metadata", "once", "gid"])]
    prove: bool,
    /// Also write the measurements to FILE, as JSON
    #[arg(long, value_name = "FILE", requires = "prove")]
    output: Option<PathBuf>,
    /// Host, or HOST:PORT, at which peers reach the node
    #[arg(long, value_name = "HOST")]
    advertise: Option<String>,
    /// Metadata service, etcd://HOST:PORT[,HOST:PORT], http[s]://HOST[:PORT]/PATH or
    /// redis[s]://[USER:PASSWORD@]HOST[:PORT][/DATABASE]; p2p for none
    #[arg(long, value_name = "URL")]
    metadata: Option<String>,
    #[command(flatten)]
    #[cfg_attr(not(feature = "tls"), allow(dead_code, reason = "of use with TLS alone"))]
    certificates: Certificates,
    /// Name of a node, to check its entries in the metadata service
    #[arg(long, value_name = "NAME", requires = "metadata")]
    segment: Option<String>,
    /// Transport to check; with rdma, every obstacle to it is fatal
    #[arg(long, value_enum, value_name = "NAME", default_value_t = TransportName::Auto)]
    transport: TransportName,
    /// RDMA devices to use, by name, separated by commas [default: all; with --prove the first]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    device: Vec<String>,
    /// Address of the RDMA device's port to use
    #[arg(long, value_name = "ADDRESS")]
    gid: Option<IpAddr>,
    #[command(flatten)]
    tuning: Tuning,
    /// Memory to serve [default: 64M]
    #[arg(long, value_name = "[NAME=]SIZE")]
    memory: Vec<String>,
    /// Language, en or zh [default: that of LANG]
    #[arg(long, value_name = "LANGUAGE")]
    lang: Option<Language>,
    /// Print the report as one line of JSON
    #[arg(long)]
    json: bool,
    /// Option of `serve`, without effect here
    #[arg(long, hide = true)]
    name: Option<String>,
    #[arg(long, value_enum, hide = true)]
    compat: Option<EngineName>,
    #[arg(long, hide = true)]
    file: Vec<String>,
    #[arg(long, hide = true)]
    read_only: bool,
    #[arg(long, hide = true)]
    metrics: Option<String>,
    #[arg(long, hide = true)]
    nic_priority_matrix: Option<PathBuf>,
    #[arg(long, hide = true)]
    record: Option<PathBuf>,
    #[arg(long, hide = true, value_parser = size::parse_positive)]
    record_bytes: Option<u64>,
    #[arg(long, hide = true, value_delimiter = ',')]
    cores: Vec<usize>,
    #[arg(long, hide = true)]
    auth: Vec<String>,
    #[arg(long, hide = true)]
    open: bool,
    #[arg(long, hide = true)]
    encrypt_lanes: bool,
    #[arg(long, hide = true)]
    trust_group: Vec<String>,
    #[arg(long, hide = true)]
    grants: Option<PathBuf>,
    #[arg(long, hide = true, value_delimiter = ',')]
    administrators: Vec<String>,
    #[arg(long, hide = true)]
    shared_memory_dir: Option<PathBuf>,
    #[arg(long, hide = true)]
    until_stdin_ends: bool,
    /// Root folder of all files to read
    #[arg(long, hide = true, default_value = "/")]
    root: PathBuf,
}

pub(crate) fn run(arguments: Doctor) -> Outcome {
    if arguments.prove {
        return prove::run(&arguments);
    }
    let request = request(&arguments)?;
    let outside = ThisMachine::new(&arguments.root).with_lanes(lanes::lanes(&arguments));
    #[cfg(feature = "tls")]
    let outside = outside.with_encryption(tls::encrypt(&arguments));
    let facts = Facts::read(&arguments.root);
    let report = doctor::examine(&facts, &request, &outside);
    if let Some(file) = &arguments.bundle {
        write_bundle(file, &doctor::bundle(&report, &facts, &request, &outside))?;
    }
    show(&report, &arguments)?;
    check_served(&arguments)?;
    // An address that cannot be bound was reported.
    let can_listen = !report.findings().any(|finding| PREVENT_LISTENING.contains(&finding.id));
    if let Some(listen) = arguments.listen.as_deref().filter(|_| !arguments.once && can_listen) {
        answering::run(listen, &arguments, &request, &outside)?;
    }
    let fatal = report.findings();
    let fatal = fatal.filter(|finding| finding.severity == handfast_diagnosis::Severity::Fatal);
    match fatal.count() {
        0 => Ok(()),
        count => Err(Failure::Unwell(count)),
    }
}

fn show(report: &Report, arguments: &Doctor) -> Outcome {
    let style = terminal::style(arguments.lang);
    match arguments.json {
        true => output::say_json(&report.json(style.language)),
        false => output::say(format_args!("{}", report.words(&style).trim_end())),
    }
}

fn request(arguments: &Doctor) -> Result<Request, Failure> {
    if !arguments.root.join("proc").is_dir() {
        return Err(Failure::NoDoctor("there is no /proc to read".to_owned()));
    }
    check_places(arguments)?;
    let metadata = metadata(arguments)?;
    let host = std::fs::read_to_string(arguments.root.join("proc/sys/kernel/hostname"));
    Ok(Request {
        wanted: match arguments.transport {
            // The lanes below those through shared memory are checked.
            TransportName::Tcp | TransportName::Shm => Wanted::Tcp,
            TransportName::Auto => Wanted::Auto,
            TransportName::Rdma => Wanted::Rdma,
        },
        devices: arguments.device.iter().map(|name| of_port(name).to_owned()).collect(),
        gid: arguments.gid,
        packets: lanes::packets(arguments),
        connection_manager: lanes::connection_manager(arguments),
        listen: arguments.listen.clone(),
        advertise: arguments.advertise.clone(),
        peer: arguments.peer.clone(),
        metadata,
        segment: arguments.segment.clone(),
        memory_bytes: memory_bytes(&arguments.memory)?,
        verbs_library: match availability() {
            Ok(names) => Library::Devices(names),
            Err(RdmaUnavailable::NotBuilt) => Library::NotBuilt,
            Err(RdmaUnavailable::NoLibrary { detail, .. }) => Library::Missing(detail),
            Err(RdmaUnavailable::NoList { .. } | RdmaUnavailable::NoDevice) => {
                Library::Devices(Vec::new())
            }
        },
        host: host.map_or_else(|_| "this host".to_owned(), |host| host.trim().to_owned()),
        // A variable that is not UTF-8 is not one of interest.
        environment: std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect(),
        root: arguments.root.clone(),
    })
}

/// Returns the device of a name that may have a port, such as `mlx5_0:2`.
fn of_port(name: &str) -> &str {
    name.split_once(':').map_or(name, |(device, _)| device)
}

/// Validates options of `serve` that no probe checks.
fn check_served(arguments: &Doctor) -> Outcome {
    if let Some(name) = &arguments.name {
        NodeName::new(name).map_err(|error| Failure::Usage(error.to_string()))?;
    }
    bench::check_processors(&arguments.cores)?;
    serve::check(&arguments.memory, &arguments.file, arguments.read_only)
}

/// Validates hosts and ports.
fn check_places(arguments: &Doctor) -> Outcome {
    let wrong = |error: AddressError| Failure::Usage(error.to_string());
    let Doctor { listen, peer, metrics, .. } = arguments;
    for text in [listen, peer, metrics].into_iter().flatten() {
        with_port(text).map_err(wrong)?;
    }
    if let Some(text) = &arguments.advertise {
        host_and_port(text).map_err(wrong)?;
    }
    Ok(())
}

/// Returns the service to query; `None` if nodes find each other without one. Invalid services are
/// findings.
fn metadata(arguments: &Doctor) -> Result<Option<String>, Failure> {
    let is_peers = |url: &&String| matches!(url.parse(), Ok(Source::Peers));
    match (arguments.metadata.as_ref().filter(is_peers), &arguments.segment) {
        (Some(_), Some(_)) => {
            let text = "--segment looks into a metadata service, and --metadata p2p names none";
            Err(Failure::Usage(text.to_owned()))
        }
        (Some(_), None) => Ok(None),
        (None, _) => Ok(arguments.metadata.clone()),
    }
}

fn memory_bytes(memory: &[String]) -> Result<u64, Failure> {
    let mut total = 0_u64;
    for text in memory {
        let bytes = text.split_once('=').map_or(text.as_str(), |(_, bytes)| bytes);
        total = total.saturating_add(size::parse_positive(bytes).map_err(Failure::Usage)?);
    }
    Ok(if memory.is_empty() { MEMORY_DEFAULT_BYTES } else { total })
}

/// Creates the file readable by its owner only, and replaces no existing file.
fn write_bundle(file: &Path, bundle: &serde_json::Value) -> Outcome {
    let written = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file);
    let written = written.and_then(|mut written| {
        written.write_all(format!("{bundle:#}\n").as_bytes())?;
        written.sync_all()
    });
    written.map_err(|error| Failure::file(file, "writing", error))?;
    output::note(format_args!("wrote {}", file.display()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Doctor, of_port};
    use crate::serve::Serve;
    use clap::{Args, Command};

    /// Each option, and whether it takes a value.
    fn options<T: Args>() -> Vec<(String, bool)> {
        let command = T::augment_args(Command::new("command"));
        let option = |it: &clap::Arg| {
            it.get_long().map(|long| (long.to_owned(), it.get_action().takes_values()))
        };
        command.get_arguments().filter_map(option).collect()
    }

    /// A container's arguments of `serve` are those of the `doctor` that runs before it.
    #[test]
    fn doctor_has_every_option_of_serve() {
        let own = options::<Doctor>();
        let missing: Vec<_> =
            options::<Serve>().into_iter().filter(|option| !own.contains(option)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn device_of_a_port_is_its_name() {
        assert_eq!((of_port("mlx5_0:2"), of_port("rxe0")), ("mlx5_0", "rxe0"));
    }
}
