//! The step of the connection manager: queue pairs below the engine that connect through it alone.

use super::report::Report;
use crate::failure::Outcome;
use handfast::rdma::RdmaOptions;
use handfast_diagnosis::doctor::Device;
use std::time::Duration;

pub(super) const NAME: &str = "rdma-cm";

/// Whether the device of a node connects through the connection manager.
pub(super) fn is_used(found: &[Device], options: &RdmaOptions) -> bool {
    let name = options.devices.first();
    name.is_none_or(|name| found.iter().any(|device| device.name == *name && device.is_managed))
}

/// Connects two devices, or one to itself, if they connect through the connection manager.
pub(super) async fn run(
    report: &mut Report,
    found: &[Device],
    options: [RdmaOptions; 2],
    timeout: Duration,
) -> Outcome {
    let out_of_band: Vec<_> = options.iter().filter(|options| !is_used(found, options)).collect();
    if !out_of_band.is_empty() {
        let names = out_of_band.iter().filter_map(|options| options.devices.first());
        let mut names: Vec<_> = names.cloned().collect();
        names.dedup();
        let verb = if names.len() == 1 { "connects" } else { "connect" };
        let why = format!("{} {verb} out of band", names.join(" and "));
        return report.skip(&[NAME], &why);
    }
    connect(report, options, timeout).await
}

#[cfg(feature = "verbs")]
async fn connect(report: &mut Report, options: [RdmaOptions; 2], timeout: Duration) -> Outcome {
    use super::blocking;
    use super::queue_pairs::Pair;
    let words = blocking(move || Pair::open(&options, timeout)?.connect_managed());
    let step = async { Ok(((), words.await?)) };
    report.step(NAME, step).await.map(drop)
}

/// Unreachable: a program without verbs has no devices.
#[cfg(not(feature = "verbs"))]
async fn connect(report: &mut Report, _: [RdmaOptions; 2], _: Duration) -> Outcome {
    report.skip(&[NAME], "the program has no RDMA")
}
