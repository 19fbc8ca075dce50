//! What stands for RDMA in a program built without it.

use crate::data::transport::{RdmaParts, Transport};
use crate::error::{Cause, Error, Stage};
use crate::topology::Location;
use handfast_transport::Span;
use handfast_transport_rdma::RdmaUnavailable;
use handfast_transport_tcp::Net;
use std::sync::Arc;

/// Memory that a device knows: there is none.
pub(crate) enum LocalRegion {}

impl LocalRegion {
    pub(crate) fn remote_keys(&self) -> Vec<u32> {
        match *self {}
    }

    pub(crate) fn location(&self) -> &Location {
        match *self {}
    }

    pub(crate) fn place(&self, _span: &Span) -> Location {
        match *self {}
    }
}

/// Fails: there are no lanes over RDMA in this program.
pub(crate) async fn open<N: Net>(_parts: RdmaParts<N>) -> Result<Arc<dyn Transport>, Error> {
    Err(Error::local(Stage::Device, Cause::RdmaUnavailable(RdmaUnavailable::NotBuilt)))
}
