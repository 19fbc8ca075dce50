//! Lanes whose queue pairs connect through the connection manager.

use super::{Lane, Probed, QueuePair, RemoteSpan};
use handfast_core::gate::Ticket;
use handfast_transport::Posting;
use std::net::Ipv6Addr;

impl Lane {
    /// Prepares the lane for its connection: until then it keeps what is posted. Queue pairs beyond
    /// the peer's `count` are never used.
    ///
    /// # Errors
    /// It was connected before, or is retired.
    pub(in crate::verbs) fn await_connection(
        &self,
        count: usize,
        device: Ipv6Addr,
        byte: Option<RemoteSpan>,
    ) -> Result<(), String> {
        let mut state = self.state.lock();
        if std::mem::replace(&mut state.connected, true) {
            return Err("the lane was wired before".to_owned());
        }
        if state.over {
            return Err("the lane is retired".to_owned());
        }
        state.outstanding.truncate(count);
        state.peer = Some(Probed { device, byte });
        state.waiting = Some(Vec::new());
        Ok(())
    }

    /// Lets the lane post: all its queue pairs are connected. A second call changes nothing.
    pub(in crate::verbs) fn open_connection(&self) {
        {
            let mut state = self.state.lock();
            if state.over {
                // The end of the lane gives them back.
                return;
            }
            let Some(waiting) = state.waiting.take() else { return };
            state.queued.extend(waiting);
            // The next round of probes leaves it alone: on iWARP the side that has dialled sends first.
            state.active = true;
            self.gate.open();
            self.idle.notify_all();
            if state.queued.is_empty() {
                return;
            }
        }
        self.post(&mut Vec::new());
    }

    /// Returns whether the lane is connected and takes slices.
    pub(in crate::verbs) fn is_open(&self) -> bool {
        let state = self.state.lock();
        state.connected && state.waiting.is_none() && !state.over
    }

    /// Keeps slices until the lane is connected, as many as its queue pairs hold, and leaves the rest.
    /// Enters a lane that was connected since its gate was closed to the caller.
    pub(in crate::verbs) fn enter_or_wait(
        &self,
        postings: &mut Vec<Posting>,
    ) -> Option<Ticket<'_>> {
        let mut state = self.state.lock();
        let room = usize::try_from(self.setup.depth).unwrap_or(usize::MAX);
        let room = room.saturating_mul(state.outstanding.len());
        let Some(waiting) = &mut state.waiting else { return self.gate.enter() };
        let count = room.saturating_sub(waiting.len()).min(postings.len());
        waiting.extend(postings.drain(..count));
        None
    }

    /// Calls with a queue pair of the lane; `None` if it is gone.
    pub(in crate::verbs) fn with_queue_pair<T>(
        &self,
        place: u16,
        call: impl FnOnce(&QueuePair) -> T,
    ) -> Option<T> {
        let queue_pairs = self.queue_pairs()?;
        queue_pairs.get(usize::from(place)).map(call)
    }
}
