//! Lanes over RDMA, with TCP as an optional fallback.

mod cache;
mod device;
mod keeper;
mod lanes;
mod legacy;
mod nics;
mod notices;
mod regions;
mod reopening;
mod watch;

use crate::data::transport::{RdmaParts, Transport};
use crate::error::Error;
use crate::path::devices_on;
use handfast_core::NicPath;
use handfast_transport_rdma::RdmaTransport;
use handfast_transport_tcp::Net;
use lanes::Lanes;
use std::sync::Arc;
use watch::Watch;

/// Opens the devices.
///
/// # Errors
/// No device is usable; the error states the reason.
pub(crate) async fn open<N: Net>(parts: RdmaParts<N>) -> Result<Arc<dyn Transport>, Error> {
    let watch = Arc::new(Watch::new(
        parts.lanes.clone(),
        parts.tcp.is_some().then(|| parts.fallbacks.clone()),
        parts.clock.clone(),
    ));
    let (sink, options) = (watch.clone(), parts.options.clone());
    let (listens_at, limits) = (parts.listens_at, (parts.lanes_max, parts.lane_depth));
    let trust = options.trust_groups.clone();
    let opening =
        tokio::task::spawn_blocking(move || device::open(&options, listens_at, limits, &sink));
    let opened = opening.await.unwrap_or_else(|error| Err(device::failed(error.to_string())))?;
    let rdma = RdmaTransport::in_groups(opened.nics, local_nic, trust, watch.clone());
    let rdma = rdma.map_err(|error| device::failed(error.to_string()))?;
    let opened = (opened.matrix.map(Arc::new), opened.unusable, opened.guids);
    Ok(Arc::new(Lanes::new(rdma, opened, watch, parts).kept()))
}

/// Returns the local NIC that a path names: the one of a rail, or of a Mooncake node's path.
fn local_nic(path: &NicPath) -> Option<&str> {
    path.rail().map_or_else(|| devices_on(path).1, |(_, ours)| Some(ours))
}
