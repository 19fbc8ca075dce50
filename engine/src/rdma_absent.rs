//! What stands for RDMA in a program built without it.

use crate::error::{Cause, Error, Stage};
use crate::fallback::Fallbacks;
use crate::registry::LaneTable;
use crate::time::{Clock, Entropy};
use crate::transport::{RdmaOptions, Transport};
use handfast_transport_rdma::RdmaUnavailable;
use handfast_transport_tcp::{Net, TcpTransport};
use std::net::IpAddr;
use std::sync::Arc;

/// Memory that a device knows: there is none.
pub(crate) enum LocalRegion {}

impl LocalRegion {
    pub(crate) fn remote_key(&self) -> u32 {
        match *self {}
    }
}

/// As in a program with RDMA.
#[allow(dead_code, reason = "read in a program with RDMA")]
pub(crate) struct RdmaParts<N: Net> {
    pub(crate) options: RdmaOptions,
    pub(crate) listens_at: Option<IpAddr>,
    pub(crate) address: String,
    pub(crate) lanes_max: usize,
    pub(crate) lane_depth: u32,
    pub(crate) tcp: Option<TcpTransport<N>>,
    pub(crate) lanes: Arc<LaneTable>,
    pub(crate) fallbacks: Fallbacks,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Arc<dyn Entropy>,
}

/// Fails: there are no lanes over RDMA in this program.
pub(crate) async fn open<N: Net>(_parts: RdmaParts<N>) -> Result<Arc<dyn Transport>, Error> {
    Err(Error::local(Stage::Device, Cause::RdmaUnavailable(RdmaUnavailable::NotBuilt)))
}
