//! The trait that every transport implements for the life cycle of its endpoints.

use crate::limit::LimitReached;
use crate::path::{DataPath, Step};
use handfast_core::transport::{Side, TransportError};
use handfast_core::wire::Body;
use handfast_core::{Lifecycle, NicPath, Pair};
use std::pin::Pin;

/// Transport of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransportKind {
    /// A copy within the process, for a local segment.
    Copy,
    /// TCP.
    Tcp,
    /// RDMA.
    Rdma,
    /// Memory that both processes map.
    Shm,
}

impl TransportKind {
    /// All transports, in order of declaration.
    pub const ALL: [Self; 4] = [Self::Copy, Self::Tcp, Self::Rdma, Self::Shm];

    /// Returns the name in reports, a single word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Tcp => "tcp",
            Self::Rdma => "rdma",
            Self::Shm => "shm",
        }
    }
}

/// Attempt to create an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// First attempt: it allocates nothing if a limit is reached.
    First,
    /// Second attempt, after a request for capacity. Unavailable optional parts are omitted.
    Last,
}

/// The error of an endpoint that was not created.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct NotCreated {
    /// The error.
    pub error: TransportError,
    /// The limit that was reached, if the end of another endpoint would lift it.
    pub limit: Option<LimitReached>,
}

impl From<TransportError> for NotCreated {
    fn from(error: TransportError) -> Self {
        Self { error, limit: None }
    }
}

/// The announcement of a created endpoint.
pub type Created = Pin<Box<dyn Future<Output = Result<Body, NotCreated>> + Send>>;

/// Endpoints and their steps. The steps of one endpoint are requested in order: create, connect,
/// probe if the peer is a legacy node, retire. A dropped step may continue until the endpoint is
/// retired.
pub trait Endpoints: DataPath {
    /// Allocates the endpoint of `lifecycle` and returns its announcement. `entropy` is 64 random
    /// bits, different in each call.
    fn create(
        &self,
        lifecycle: Lifecycle,
        peer: NicPath,
        entropy: u64,
        attempt: Attempt,
    ) -> Created;

    /// Connects the endpoint to the peer's, announced as `body`. Once per endpoint.
    fn connect(&self, local: Pair, remote: Pair, body: Body) -> Step<()>;

    /// Ends the endpoint. Afterwards it no longer touches memory.
    fn retire(&self, lifecycle: Lifecycle) -> Step<()>;

    /// Probes the peer over each queue pair of a connected endpoint (rule H13).
    fn probe(&self, _lifecycle: Lifecycle) -> Step<()> {
        let detail = "a lane over TCP never leads to a legacy peer";
        let error = TransportError::new(Side::Configuration, "prove", detail);
        Box::pin(std::future::ready(Err(error)))
    }

    /// Creates and destroys `count` queue pairs, so that the numbers of the next endpoint to `peer`
    /// differ from those of an earlier incarnation (rule H13).
    fn skip_numbers(&self, _peer: &NicPath, _count: u32) -> Step<()> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Returns the transport of a connected endpoint.
    fn transport_kind(&self, lane: Lifecycle) -> TransportKind;

    /// Returns the number of the peer's requests on the endpoint. Queue pairs do not expose it.
    fn served(&self, lane: Lifecycle) -> u64;
}
