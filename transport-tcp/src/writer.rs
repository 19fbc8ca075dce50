//! Sending on a lane: by the posting thread, and by the lane's task if the socket is full.

use crate::batch::Lost;
use crate::copies::CopyWait;
use crate::failure::{CopyFailed, peer_io};
use crate::lane::{Lane, Outgoing};
use crate::net::{Piece, StreamWriter};
use handfast_core::transport::TransportError;
use handfast_transport::Completion;
use parking_lot::MutexGuard;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Maximum consecutive sends of a posting thread; the lane's task sends the rest.
const TURNS_MAX: u32 = 4;

/// Result of one turn.
enum Progress {
    Sent,
    /// An accelerator copies the first bytes.
    Copying,
    Blocked,
    Idle,
    Closed,
}

/// State of the sending task between turns.
pub(crate) struct Outbound<W> {
    lane: Arc<Lane>,
    half: W,
    completions: Vec<Completion>,
}

impl<W: StreamWriter> Outbound<W> {
    pub(crate) fn new(lane: Arc<Lane>, half: W) -> Self {
        Self { lane, half, completions: Vec::new() }
    }

    /// Sends until the lane ends, and fails the lane when sending fails.
    pub(crate) async fn run(mut self) {
        if let Err(error) = self.send_all().await {
            self.lane.close(Some(error));
        }
    }

    async fn send_all(&mut self) -> Result<(), TransportError> {
        let failed = |error| peer_io("send", &error);
        let mut copying = CopyWait::default();
        loop {
            let progress = self.turn().map_err(failed)?;
            if !matches!(progress, Progress::Copying) {
                copying = CopyWait::default();
            }
            match progress {
                // Sends may repeat without an await.
                Progress::Sent => tokio::task::consume_budget().await,
                Progress::Copying => copying.pause().await?,
                Progress::Blocked => self.half.writable().await.map_err(failed)?,
                Progress::Idle => {
                    self.half.flush().await.map_err(failed)?;
                    self.lane.work.notified().await;
                }
                Progress::Closed => return Ok(()),
            }
        }
    }

    fn turn(&mut self) -> io::Result<Progress> {
        let Self { lane, half, completions } = self;
        let mut outgoing = lane.outgoing.lock();
        let turn = lane.send_once(&mut outgoing, |pieces| half.try_send(pieces), completions);
        // While nobody else sends.
        lane.is_blocked.store(matches!(turn, Ok(Progress::Blocked)), Ordering::Relaxed);
        drop(outgoing);
        lane.report(completions);
        turn
    }
}

impl Lane {
    /// Sends once from the current batch, or else from the queues.
    fn send_once(
        &self,
        outgoing: &mut Outgoing,
        try_send: impl FnOnce(&[Piece<'_>]) -> io::Result<usize>,
        completions: &mut Vec<Completion>,
    ) -> io::Result<Progress> {
        let Outgoing { closed, batch, written, .. } = outgoing;
        if *closed {
            return Ok(Progress::Closed);
        }
        if batch.is_empty() {
            let state = &mut *self.state.lock();
            batch.refill(&mut state.answers, &mut state.slots);
            if batch.is_empty() {
                return Ok(Progress::Idle);
            }
        }
        let result = match batch.send(try_send, written) {
            Ok(true) => Ok(Progress::Sent),
            Ok(false) => Ok(Progress::Copying),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let is_idle = batch.have_copies_ended();
                Ok(if is_idle { Progress::Blocked } else { Progress::Copying })
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Progress::Sent),
            Err(error) => match CopyFailed::of(&error) {
                Some(failed) => {
                    batch.on_copy_failed(failed);
                    Ok(Progress::Sent)
                }
                None => Err(error),
            },
        };
        for (lost, failed) in batch.take_lost() {
            tracing::warn!(lane = self.lifecycle.0, error = %failed, "bytes are not sent");
            let slots = &mut self.state.lock().slots;
            completions.extend(match lost {
                Lost::Answer => None,
                Lost::Rest(slot) => slots.on_write_failed(slot, failed.transport_error()),
                Lost::Write(slot) => slots.on_write_dropped(slot, failed.transport_error()),
            });
        }
        if !written.is_empty() {
            let slots = &mut self.state.lock().slots;
            completions.extend(written.drain(..).filter_map(|slot| slots.written(slot)));
        }
        result
    }

    /// Sends at once as far as the socket accepts bytes, unless another thread is sending. The rest
    /// is left to the lane's task, whose wake-up costs more than a send. Returns whether it is.
    pub(crate) fn send_now(self: &Arc<Self>) -> bool {
        // The lane remains until completed sends are reported.
        let Some(_live) = self.enter() else { return false };
        let mut completions = Vec::new();
        let sent =
            self.outgoing.try_lock().map(|outgoing| self.send_some(outgoing, &mut completions));
        self.report(&mut completions);
        match sent {
            Some(Ok(true)) => return false,
            Some(Ok(false)) | None => self.work.notify_one(),
            Some(Err(error)) => self.close(Some(peer_io("send", &error))),
        }
        true
    }

    /// Returns false if data is left.
    fn send_some(
        &self,
        mut outgoing: MutexGuard<'_, Outgoing>,
        completions: &mut Vec<Completion>,
    ) -> io::Result<bool> {
        let Some(direct) = outgoing.direct.clone() else { return Ok(outgoing.closed) };
        for _ in 0..TURNS_MAX {
            let turn =
                self.send_once(&mut outgoing, |pieces| direct.send_now(pieces), completions)?;
            match turn {
                Progress::Sent => {}
                // The lane's task asks for the copy.
                Progress::Copying => return Ok(false),
                Progress::Idle | Progress::Closed => return Ok(true),
                Progress::Blocked => {
                    self.is_blocked.store(true, Ordering::Relaxed);
                    return Ok(false);
                }
            }
        }
        Ok(false)
    }
}
