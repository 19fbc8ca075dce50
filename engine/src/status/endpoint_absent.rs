//! Stub used when the `metrics-http` feature is off: no value of this type exists.

use super::view::View;
use crate::control::accept::Listening;
use crate::error::Error;
use crate::observe::counters::Counts;
use handfast_transport_tcp::Net;
use std::convert::Infallible;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The port for metrics.
pub(crate) struct MetricsListener<N: Net>(Infallible, PhantomData<N>);

impl<N: Net> MetricsListener<N> {
    /// Binds nothing.
    pub(crate) async fn bind(_address: Option<&str>, _net: &N) -> Result<Option<Self>, Error> {
        Ok(None)
    }

    pub(crate) fn bound(&self) -> SocketAddr {
        match self.0 {}
    }

    pub(crate) fn serve(self, _: N, _: Arc<View>, _: Arc<Counts>, _: Duration) -> Listening {
        match self.0 {}
    }
}
