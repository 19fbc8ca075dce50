//! A node of a smoke test: an engine with RDMA only, and a segment.

use super::bytes::SEGMENT_BYTES;
use crate::failure::Failure;
use handfast::rdma::RdmaOptions;
use handfast::{Access, Engine, Memory, Registration, Segment, TransportChoice};

const SEGMENT: &str = "smoke";

pub(super) struct Node {
    pub(super) engine: Engine,
    _served: Registration,
}

impl Node {
    /// Starts a named node, which serves zeroed bytes.
    pub(super) async fn start(
        name: &str,
        listen: &str,
        options: &RdmaOptions,
    ) -> Result<Self, Failure> {
        let builder = Engine::builder().name(name).listen(listen);
        let engine = builder.transport(TransportChoice::Rdma).rdma(options.clone()).start().await?;
        let memory = Memory::zeroed(SEGMENT_BYTES)?;
        let served = engine.register(SEGMENT).access(Access::READ_WRITE).serve(memory.whole())?;
        Ok(Self { engine, _served: served })
    }

    pub(super) fn device(&self) -> &str {
        self.engine.devices().next().unwrap_or("no device")
    }

    /// Opens the segment of another node.
    pub(super) async fn open(&self, other: &Self) -> Result<Segment, Failure> {
        Ok(self.engine.open(&format!("{}/{SEGMENT}", other.engine.address())).await?)
    }

    /// Opens a lane to another node and waits until it is established.
    pub(super) async fn warm(&self, other: &Self) -> Result<(), Failure> {
        let failures = self.engine.warm(&[other.engine.address()]).await;
        failures.into_iter().next().map_or(Ok(()), |error| Err(error.into()))
    }
}
