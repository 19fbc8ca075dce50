//! Probe requests, which check the peer's liveness and identity and move no user data.

use super::{Held, Lane, Purpose, Registration, RemoteSpan, WorkRequest, remote_of};
use crate::error::VerbsError;
use crate::verbs::binding::{ibv_sge, rdma_t};
use crate::verbs::work::POST;
use handfast_core::transport::Side;
use handfast_transport::Direction;
use std::time::{Duration, Instant};

/// Local memory for probes, in bytes; each reads at most the first.
pub(in crate::verbs) const SCRATCH_BYTES: usize = 4096;

/// Target of a probe.
#[derive(Clone, Copy, Debug)]
pub(in crate::verbs) enum Probe {
    /// No byte: the peer's NIC answers for the queue pair, whatever the key.
    Nothing,
    /// One byte of the peer's memory.
    Byte(RemoteSpan),
}

impl Probe {
    /// The read request; `None` if the key does not fit a device key.
    fn request(self, scratch: &Registration) -> Option<WorkRequest> {
        let (length, remote) = match self {
            Self::Nothing => (0, rdma_t { remote_addr: 0, rkey: 0 }),
            Self::Byte(remote) => (1, remote_of(remote)?),
        };
        let (addr, lkey) = (scratch.span().address(), scratch.key().local);
        Some(WorkRequest::new(Direction::Read, ibv_sge { addr, length, lkey }, remote, 0))
    }
}

impl Lane {
    /// Posts a read on each queue pair and waits for all responses.
    pub(in crate::verbs) fn probe(
        &self,
        probe: Probe,
        scratch: &Registration,
        deadline: Instant,
    ) -> Result<(), VerbsError> {
        let refused = |words: &str| self.context().error(Side::Local, "prove", 0, words);
        {
            let mut state = self.state.lock();
            if state.probes > 0 {
                return Err(refused("a probe is under way"));
            }
            state.probe_failed = None;
        }
        // A queue pair that refused a request settles it in ERR alone.
        let posted = self.post_probes(probe, scratch).inspect_err(|error| {
            if error.call == POST {
                self.fail(error.clone());
            }
        })?;
        if posted < self.connected_pairs() {
            return Err(refused("the lane is not wired, is ending or is full"));
        }
        if !self.wait(deadline, |state| state.probes == 0) {
            let words = "the peer's NIC did not answer a read in time";
            return Err(self.context().error(Side::Peer, "prove", 0, words));
        }
        match self.state.lock().probe_failed.take() {
            Some(error) => Err(VerbsError { call: "prove", ..error }),
            None => Ok(()),
        }
    }

    /// Probes the peer if nothing was posted and nothing ended since the last call. A probe that
    /// neither completes nor fails within `patience` ends the lane.
    pub(in crate::verbs) fn probe_if_idle(&self, scratch: &Registration, patience: Duration) {
        {
            let mut state = self.state.lock();
            let was_active = std::mem::replace(&mut state.active, false);
            let lost = state.probes > 0 && state.probed.is_some_and(|at| at.elapsed() > patience);
            if lost && !was_active && !state.over {
                drop(state);
                let words = "the device told neither an answer nor an error of a probe in time";
                return self.fail(self.context().error(Side::Local, "probe", 0, words));
            }
            if !state.connected || state.over || was_active || !state.in_flight.is_empty() {
                return;
            }
        }
        if let Err(error) = self.post_probes(Probe::Nothing, scratch) {
            self.fail(error);
        }
    }

    /// Number of queue pairs in use, which is the smaller one of both sides.
    pub(in crate::verbs) fn connected_pairs(&self) -> usize {
        self.state.lock().outstanding.len()
    }

    /// Posts a probe on each queue pair with free capacity, and returns their number.
    fn post_probes(&self, probe: Probe, scratch: &Registration) -> Result<usize, VerbsError> {
        let Some(_ticket) = self.gate.enter() else { return Ok(0) };
        let Some(queue_pairs) = self.queue_pairs() else { return Ok(0) };
        let Some(request) = probe.request(scratch) else {
            let words = "the peer's key is none of a device";
            return Err(self.context().error(Side::Local, "probe", 0, words));
        };
        let mut requests = [request];
        let mut posted = 0;
        for (pair, queue_pair) in queue_pairs.iter().take(self.connected_pairs()).enumerate() {
            let mut state = self.state.lock();
            if state.outstanding[pair] >= self.setup.depth {
                continue;
            }
            let Ok(name) = state.in_flight.insert(Held { purpose: Purpose::Probe, pair }) else {
                continue;
            };
            state.outstanding[pair] += 1;
            state.probes += 1;
            state.probed = Some(Instant::now());
            drop(state);
            self.setup.counts.lock().probes += 1;
            // Counts as posted even if refused: the driver may hold it.
            requests[0].request.wr_id = name;
            queue_pair.post(&mut requests)?;
            posted += 1;
        }
        Ok(posted)
    }
}
