//! Lanes over RDMA, with TCP beside where that is allowed.

mod device;
mod doubts;
mod lanes;
mod regions;
mod watch;

pub(crate) use regions::LocalRegion;

use crate::error::Error;
use crate::fallback::Fallbacks;
use crate::registry::LaneTable;
use crate::time::{Clock, Entropy};
use crate::transport::{RdmaOptions, Transport};
use handfast_transport_tcp::{Net, TcpTransport};
use lanes::{Lanes, LanesParts};
use std::net::IpAddr;
use std::sync::Arc;
use watch::Watch;

/// What lanes over RDMA are made of.
pub(crate) struct RdmaParts<N: Net> {
    pub(crate) options: RdmaOptions,
    /// Where calls are taken, if at one address alone.
    pub(crate) listens_at: Option<IpAddr>,
    /// What peers are told of that.
    pub(crate) address: String,
    pub(crate) lanes_max: usize,
    pub(crate) lane_depth: u32,
    /// Where lanes may run over TCP instead.
    pub(crate) tcp: Option<TcpTransport<N>>,
    pub(crate) lanes: Arc<LaneTable>,
    pub(crate) fallbacks: Fallbacks,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Arc<dyn Entropy>,
}

/// Opens a device.
///
/// # Errors
/// Why none can be used.
pub(crate) async fn open<N: Net>(parts: RdmaParts<N>) -> Result<Arc<dyn Transport>, Error> {
    let watch = Arc::new(Watch::new(
        parts.lanes.clone(),
        parts.tcp.is_some().then(|| parts.fallbacks.clone()),
        parts.clock.clone(),
    ));
    let (sink, options) = (watch.clone(), parts.options);
    let (listens_at, limits) = (parts.listens_at, (parts.lanes_max, parts.lane_depth));
    let opening =
        tokio::task::spawn_blocking(move || device::open(&options, listens_at, limits, &sink));
    let (nic, device) =
        opening.await.unwrap_or_else(|error| Err(device::failed(error.to_string())))?;
    Ok(Arc::new(Lanes::new(LanesParts {
        nic,
        device,
        watch,
        tcp: parts.tcp,
        lanes: parts.lanes,
        address: parts.address,
        fallbacks: parts.fallbacks,
        clock: parts.clock,
        entropy: parts.entropy,
    })))
}
