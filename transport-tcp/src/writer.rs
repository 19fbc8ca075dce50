//! The sending loop of a lane.

use crate::failure::peer_io;
use crate::lane::{Lane, lock};
use crate::net::StreamWriter;
use crate::posting::LaneCompletion;
use handfast_core::transport::TransportError;
use std::io;
use std::sync::Arc;

/// What one turn of the loop found.
enum Turn {
    Sent,
    Blocked,
    Idle,
    Closed,
}

/// The sending loop's own things, kept from turn to turn.
pub(crate) struct Outbound<W> {
    lane: Arc<Lane>,
    half: W,
    written: Vec<usize>,
    completions: Vec<LaneCompletion>,
}

impl<W: StreamWriter> Outbound<W> {
    pub(crate) fn new(lane: Arc<Lane>, half: W) -> Self {
        Self { lane, half, written: Vec::new(), completions: Vec::new() }
    }

    /// Sends until the lane ends, and tells it when sending is what fails.
    pub(crate) async fn run(mut self) {
        if let Err(error) = self.send_all().await {
            self.lane.close(Some(error));
        }
    }

    async fn send_all(&mut self) -> Result<(), TransportError> {
        let failed = |error| peer_io("send", &error);
        loop {
            match self.turn().map_err(failed)? {
                // Sends may go on and on without an await of their own.
                Turn::Sent => tokio::task::consume_budget().await,
                Turn::Blocked => self.half.writable().await.map_err(failed)?,
                Turn::Idle => {
                    self.half.flush().await.map_err(failed)?;
                    self.lane.work.notified().await;
                }
                Turn::Closed => return Ok(()),
            }
        }
    }

    fn turn(&mut self) -> io::Result<Turn> {
        let mut outgoing = lock(&self.lane.outgoing);
        if outgoing.closed {
            return Ok(Turn::Closed);
        }
        if outgoing.batch.is_empty() {
            let state = &mut *lock(&self.lane.state);
            outgoing.batch.refill(&mut state.answers, &mut state.slots);
            if outgoing.batch.is_empty() {
                return Ok(Turn::Idle);
            }
        }
        match outgoing.batch.send(&mut self.half, &mut self.written) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Turn::Blocked),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if !self.written.is_empty() {
            let slots = &mut lock(&self.lane.state).slots;
            self.completions.extend(self.written.drain(..).filter_map(|slot| slots.written(slot)));
        }
        drop(outgoing);
        self.lane.report(&mut self.completions);
        Ok(Turn::Sent)
    }
}
