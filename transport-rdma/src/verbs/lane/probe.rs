//! Probe requests, which check the peer's liveness and identity and move no user data.

use super::{Held, Lane, Purpose, Registration, RemoteSpan, WorkRequest, remote_of};
use crate::error::VerbsError;
use crate::verbs::binding::{ibv_sge, rdma_t};
use crate::verbs::nic::silent_side;
use crate::verbs::probing::ProbeKind;
use crate::verbs::work::POST;
use handfast_core::transport::Side;
use handfast_transport::Direction;
use std::net::Ipv6Addr;
use std::time::{Duration, Instant};

/// Memory for probes, in bytes. Each reads at most the first of the peer's into the first of ours.
pub(in crate::verbs) const SCRATCH_BYTES: usize = 4096;

/// First wait for the answer of a dial's read before it is posted again; each further one is twice as long.
const AGAIN_AFTER: Duration = Duration::from_millis(200);
/// Repetitions of a dial's read.
const AGAIN_MAX: u32 = 4;

/// Target of a probe.
#[derive(Clone, Copy, Debug)]
pub(in crate::verbs) enum Probe {
    /// The read that the peer's device answers: no byte, whatever the key, or the byte that it announced.
    Announced,
    /// One byte of the peer's memory.
    Byte(RemoteSpan),
}

/// The peer of a connected lane, as its probes need it.
#[derive(Clone, Copy, Debug)]
pub(in crate::verbs) struct Probed {
    pub(in crate::verbs) device: Ipv6Addr,
    /// The byte that it announced.
    pub(in crate::verbs) byte: Option<RemoteSpan>,
}

/// The read of a probe.
#[derive(Clone, Copy, Debug)]
struct Read {
    /// None of a probe with a byte of the caller's, which finds nothing out.
    kind: Option<ProbeKind>,
    byte: Option<RemoteSpan>,
}

impl Read {
    /// The read request; `None` if the key does not fit a device key.
    fn request(self, scratch: &Registration) -> Option<WorkRequest> {
        let (length, remote) = match self.byte {
            None => (0, rdma_t { remote_addr: 0, rkey: 0 }),
            Some(remote) => (1, remote_of(remote)?),
        };
        let (addr, lkey) = (scratch.span().address(), scratch.key().local);
        Some(WorkRequest::new(Direction::Read, ibv_sge { addr, length, lkey }, remote, 0))
    }
}

impl Lane {
    /// Posts a read on each queue pair and waits for all responses, after the lane's connection and a probe that is
    /// under way.
    pub(in crate::verbs) fn probe(
        &self,
        probe: Probe,
        deadline: Instant,
    ) -> Result<(), VerbsError> {
        self.probe_up_to(probe, 0, deadline)
    }

    /// Probes as the side of iWARP that has dialled: the read is posted again while it is unanswered. Soft-iWARP
    /// leaves a first frame unread that arrives before its accept has returned, until the next frame arrives.
    pub(in crate::verbs) fn probe_as_dialler(&self, deadline: Instant) -> Result<(), VerbsError> {
        self.probe_up_to(Probe::Announced, AGAIN_MAX, deadline)
    }

    fn probe_up_to(
        &self,
        probe: Probe,
        repetitions: u32,
        deadline: Instant,
    ) -> Result<(), VerbsError> {
        let refused = |words: &str| self.context().error(Side::Local, "prove", 0, words);
        let unanswered = || {
            let words = "the peer's NIC did not answer a read in time";
            self.context().error(Side::Peer, "prove", 0, words)
        };
        {
            let mut state = self.state.lock();
            // The peer's answer may arrive before the event of the established connection.
            self.idle.wait_while_until(&mut state, |state| state.waiting.is_some(), deadline);
            if state.waiting.is_some() {
                let words = "the peer did not connect the lane in time";
                return Err(self.context().error(Side::Peer, "prove", 0, words));
            }
            if state.probes > 0 {
                // One of an idle lane, whose failure is the lane's.
                self.idle.wait_while_until(&mut state, |state| state.probes > 0, deadline);
                if state.probes > 0 {
                    return Err(unanswered());
                }
                if let Some(error) = state.probe_failed.clone() {
                    return Err(VerbsError { call: "prove", ..error });
                }
            }
            state.probe_failed = None;
        }
        let read = match probe {
            Probe::Byte(remote) => Some(Read { kind: None, byte: Some(remote) }),
            Probe::Announced => self.read(),
        };
        let Some(read) = read else {
            let words = "the devices answer no read that could show whether the peer is connected: \
                         they refused an empty one, and refuse one of a byte or the peer announces \
                         none; use TCP for this peer";
            return Err(self.context().error(Side::Configuration, "prove", 0, words));
        };
        // A queue pair that refused a request settles it in ERR alone.
        let post = || {
            self.post_probes(read).inspect_err(|error| {
                if error.call == POST {
                    self.fail(error.clone());
                }
            })
        };
        let posted = post()?;
        if posted < self.connected_pairs() {
            return Err(refused("the lane is not wired, is ending or is full"));
        }
        for wait in (0..repetitions).map(|doubled| AGAIN_AFTER * (1 << doubled)) {
            let again = Instant::now() + wait;
            if again >= deadline || self.wait(again, |state| state.probes == 0) {
                break;
            }
            post()?;
        }
        if !self.wait(deadline, |state| state.probes == 0) {
            return Err(unanswered());
        }
        // Others wait for the same end.
        match self.state.lock().probe_failed.clone() {
            Some(error) => Err(VerbsError { call: "prove", ..error }),
            None => Ok(()),
        }
    }

    /// Probes the peer if nothing was posted and nothing ended since the last call. A probe that
    /// neither completes nor fails within `patience` ends the lane.
    pub(in crate::verbs) fn probe_if_idle(&self, patience: Duration) {
        {
            let mut state = self.state.lock();
            let was_active = std::mem::replace(&mut state.active, false);
            let lost = state.probes > 0 && state.probed.is_some_and(|at| at.elapsed() > patience);
            if lost && !was_active && !state.over {
                drop(state);
                let words = "the device told neither an answer nor an error of a probe in time";
                let side = silent_side(self.setup.completes_early);
                return self.fail(self.context().error(side, "probe", 0, words));
            }
            if !state.connected || state.over || was_active || !state.in_flight.is_empty() {
                return;
            }
        }
        if let Some(read) = self.read()
            && let Err(error) = self.post_probes(read)
        {
            self.fail(error);
        }
    }

    /// Returns whether there is a read that the devices answer, as far as is known.
    pub(in crate::verbs) fn can_probe(&self) -> bool {
        self.read().is_some()
    }

    /// The read to probe the peer with, by what is known of its device; `None` if there is none.
    fn read(&self) -> Option<Read> {
        let Some(peer) = self.state.lock().peer else {
            // It is posted nowhere.
            return Some(Read { kind: None, byte: None });
        };
        let kind = self.setup.probing.lock().kind(peer.device)?;
        let byte = match kind {
            ProbeKind::Empty => None,
            ProbeKind::Byte => Some(peer.byte?),
        };
        Some(Read { kind: Some(kind), byte })
    }

    /// Number of queue pairs in use, which is the smaller one of both sides.
    pub(in crate::verbs) fn connected_pairs(&self) -> usize {
        self.state.lock().outstanding.len()
    }

    /// Posts a probe on each queue pair with free capacity, and returns their number.
    fn post_probes(&self, read: Read) -> Result<usize, VerbsError> {
        let Some(_ticket) = self.gate.enter() else { return Ok(0) };
        let Some(queue_pairs) = self.queue_pairs() else { return Ok(0) };
        let Some(request) = read.request(&self.setup.scratch) else {
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
            let held = Held { purpose: Purpose::Probe(read.kind), pair };
            let Ok(name) = state.in_flight.insert(held) else { continue };
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

    /// Learns from the end of a probe. Returns what it shows of the devices, if that changes the
    /// probes of further lanes.
    pub(super) fn learn(
        &self,
        peer: Option<Probed>,
        kind: Option<ProbeKind>,
        status: u32,
    ) -> Option<&'static str> {
        let (peer, kind) = peer.zip(kind)?;
        let mut probing = self.setup.probing.lock();
        if status == 0 {
            probing.on_answered(peer.device, kind);
            return None;
        }
        let is_refused = probing.on_failed(peer.device, kind, status, self.setup.serial);
        is_refused.then_some(match kind {
            ProbeKind::Empty => {
                "the devices refuse an empty read: idle lanes are probed with one of a byte"
            }
            ProbeKind::Byte => "the devices refuse a read of a byte too: idle lanes are not probed",
        })
    }
}
