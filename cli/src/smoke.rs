//! `handfast smoke`: tests the RDMA devices of this machine for the needs of lanes, step by step.

mod bytes;
mod devices;
mod loopback;
mod manager;
mod node;
mod peer;
#[cfg(feature = "verbs")]
mod queue_pairs;
mod report;

#[cfg(feature = "verbs")]
use crate::failure::Failure;
use crate::failure::Outcome;
use crate::lanes::warn;
use crate::place::Place;
use crate::{help, size};
use clap::{ArgGroup, Args};
use handfast::rdma::RdmaOptions;
use handfast_environment::Environment;
use report::Report;
use std::net::IpAddr;
use std::time::Duration;

/// Test the RDMA devices of this machine, step by step
///
/// Bytes move only over RDMA. With --loopback, two nodes in this process transfer to each other,
/// over two devices of one kind if there are two, else over one device to itself. With --peer,
/// bytes move to and from another node's segment, whose content is overwritten.
#[derive(Args)]
#[command(after_long_help = help::SMOKE)]
#[command(group(ArgGroup::new("mode").required(true).args(["loopback", "peer"])))]
pub(crate) struct Smoke {
    /// Test the devices against each other, or one against itself
    #[arg(long)]
    loopback: bool,
    /// Test against a node that serves with `--transport rdma`; the first two mebibytes of the
    /// place, or fewer if it is shorter, are overwritten
    #[arg(long, value_name = "HOST:PORT[/SEGMENT][:OFFSET[,LENGTH]]")]
    peer: Option<Place>,
    /// RDMA device to use, by name; two for the two nodes of --loopback [default: usable ones of
    /// one kind]
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = device_name)]
    device: Vec<String>,
    /// Address of the device's port to use, its GID; two for two devices [default: the best one]
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    gid: Vec<IpAddr>,
    /// Prove a key or a certificate to the node of --peer, as with `serve --auth` [default:
    /// HANDFAST_AUTH]
    #[arg(long, value_name = "SOURCE", requires = "peer")]
    auth: Option<String>,
    /// Connect RDMA queue pairs through the connection manager (librdmacm) also on RoCE and InfiniBand;
    /// the node of --peer needs it too [default: HANDFAST_RDMA_CM]
    #[arg(long)]
    rdma_cm: bool,
    /// Timeout of each step
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = size::parse_duration)]
    timeout: Duration,
    /// Print the result as one line of JSON
    #[arg(long)]
    json: bool,
    /// The options of lanes in the environment, as for `serve`, and `--rdma-cm`.
    #[arg(skip)]
    base: RdmaOptions,
}

pub(crate) async fn run(mut arguments: Smoke) -> Outcome {
    let environment = Environment::read()?;
    warn(environment.warnings());
    let from_environment = environment.rdma(RdmaOptions::default());
    arguments.base = from_environment.with(|it| {
        it.connection_manager |= arguments.rdma_cm;
        // Two nodes of the test may share a device, and a node that serves on this machine may have the port.
        it.connection_manager_port = 0;
    });
    if arguments.peer.is_some() && arguments.auth.is_none() {
        arguments.auth = environment.auth_source().map(str::to_owned);
    }
    let mode = if arguments.peer.is_some() { "peer" } else { "loopback" };
    let mut report = Report::new(mode, arguments.timeout, arguments.json);
    match &arguments.peer {
        Some(place) => peer::run(&arguments, place, &mut report).await?,
        None => loopback::run(&arguments, &mut report).await?,
    }
    report.finish()
}

/// Accepts a device without a port: all steps are on its first.
fn device_name(text: &str) -> Result<String, String> {
    match text.split_once(':') {
        None => Ok(text.to_owned()),
        Some((device, _)) => Err(format!(
            "smoke tests the first port of a device: give `{device}` without a port, and test another \
             port with `serve`, `put` and `get`"
        )),
    }
}

/// Runs blocking system calls outside the runtime's threads.
#[cfg(feature = "verbs")]
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(Failure::Device(error.to_string())))
}
