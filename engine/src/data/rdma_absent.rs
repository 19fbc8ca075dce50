//! Stub used when the `verbs` feature is off.

use crate::data::transport::{RdmaParts, Transport};
use crate::error::{Cause, Error, Stage};
use handfast_transport_rdma::RdmaUnavailable;
use handfast_transport_tcp::Net;
use std::sync::Arc;

/// Fails: this program is built without RDMA.
pub(crate) async fn open<N: Net>(_parts: RdmaParts<N>) -> Result<Arc<dyn Transport>, Error> {
    Err(Error::local(Stage::Device, Cause::RdmaUnavailable(RdmaUnavailable::NotBuilt)))
}
