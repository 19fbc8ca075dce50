//! Planted faults: what is held, what fails, and the counts of calls.

use crate::limit::LimitReached;
use crate::queues::Event;
use handfast_transport_sim::verbs::{Packet, PacketBody, WorkCompletion};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Maximum packets, and completions, that wait for their release; more are lost.
pub(crate) const PARKED_MAX: usize = 65_536;
/// Maximum queue pairs whose completions are held.
pub(crate) const HELD_MAX: usize = 1_024;
/// Maximum faults planted at a time.
pub(crate) const PLANTED_MAX: usize = 64;
/// The calls that can be counted, held and failed.
pub(crate) const CALLS: [&str; 41] = [
    "ibv_alloc_pd",
    "ibv_close_device",
    "ibv_create_comp_channel",
    "ibv_create_cq",
    "ibv_create_qp",
    "ibv_dealloc_pd",
    "ibv_dereg_mr",
    "ibv_destroy_comp_channel",
    "ibv_destroy_cq",
    "ibv_destroy_qp",
    "ibv_modify_qp(ERR)",
    "ibv_modify_qp(INIT)",
    "ibv_modify_qp(RESET)",
    "ibv_modify_qp(RTR)",
    "ibv_modify_qp(RTS)",
    "ibv_modify_qp(SQD)",
    "ibv_modify_qp(SQE)",
    "ibv_open_device",
    "ibv_poll_cq",
    "ibv_post_recv",
    "ibv_post_send",
    "ibv_query_device",
    "ibv_query_gid",
    "ibv_query_gid_ex",
    "ibv_query_gid_table",
    "ibv_query_pkey",
    "ibv_query_port",
    "ibv_query_qp",
    "ibv_reg_dmabuf_mr",
    "ibv_reg_mr",
    "ibv_req_notify_cq",
    "rdma_accept",
    "rdma_bind_addr",
    "rdma_connect",
    "rdma_disconnect",
    "rdma_get_cm_event",
    "rdma_listen",
    "rdma_reject",
    "rdma_resolve_addr",
    "rdma_resolve_route",
    "rdma_set_option",
];

/// Whether `name` is that of a call, or of a call without its step.
fn names(name: &str, call: &str) -> bool {
    let whole = call.split_once('(').map_or(call, |(whole, _)| whole);
    name == call || name == whole
}

/// Refuses the name of no call.
pub(crate) fn check_call(name: &str) -> Result<(), String> {
    match CALLS.iter().any(|call| names(name, call)) {
        true => Ok(()),
        false => Err(format!("no call '{name}'; there are: {}", CALLS.join(", "))),
    }
}

/// A fault of a call.
#[derive(Clone, Debug)]
pub(crate) struct Planted {
    pub(crate) nic: usize,
    /// The name of a call, such as `ibv_modify_qp(ERR)`; `ibv_modify_qp` is every step.
    pub(crate) call: String,
    /// Calls that pass before it takes effect.
    pub(crate) after: u64,
    pub(crate) effect: Effect,
}

/// The effect of a fault.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Effect {
    /// The call returns this error, as many times; `None` is for ever.
    Fail { code: i32, times: Option<u64> },
    /// The call waits for its release.
    Hold,
}

/// A call that waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    pub(crate) nic: usize,
    pub(crate) call: &'static str,
    /// The end: 0 lets the call go on, another value is returned in its place.
    pub(crate) released: Option<i32>,
}

impl Waiting {
    /// Whether it is a call of this device and name.
    pub(crate) fn is(&self, nic: usize, call: &str) -> bool {
        self.nic == nic && names(call, self.call)
    }
}

/// The decision on a call.
pub(crate) enum Verdict {
    Pass,
    Fail(i32),
    /// Waits, under this ticket.
    Wait(u64),
}

/// The packets of a path that are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    All,
    Writes,
}

/// All faults.
#[derive(Default)]
pub(crate) struct Faults {
    counts: BTreeMap<(usize, &'static str), u64>,
    pub(crate) planted: Vec<Planted>,
    pub(crate) waiting: BTreeMap<u64, Waiting>,
    next_ticket: u64,
    /// Paths whose packets are held, by source and destination; all packets, or those of writes.
    pub(crate) packets: BTreeMap<(usize, usize), Held>,
    pub(crate) parked_packets: VecDeque<Packet>,
    /// Devices, or queue pairs of a device, whose completions are held.
    pub(crate) completions: BTreeSet<(usize, Option<u32>)>,
    pub(crate) parked_completions: VecDeque<(usize, WorkCompletion)>,
    /// Devices whose events are held.
    pub(crate) events: BTreeSet<usize>,
    /// Held events, with the open device that gets them.
    pub(crate) parked_events: VecDeque<(u64, Event)>,
}

impl Faults {
    /// Counts a call and decides on it.
    pub(crate) fn on_call(&mut self, nic: usize, call: &'static str) -> Verdict {
        debug_assert!(CALLS.contains(&call), "{call} is in the list");
        *self.counts.entry((nic, call)).or_default() += 1;
        if self.planted.is_empty() {
            return Verdict::Pass;
        }
        let is_of = |planted: &Planted| planted.nic == nic && names(&planted.call, call);
        let Some(at) = self.planted.iter().position(is_of) else { return Verdict::Pass };
        let planted = &mut self.planted[at];
        if planted.after > 0 {
            planted.after -= 1;
            return Verdict::Pass;
        }
        match &mut planted.effect {
            Effect::Hold => {
                let ticket = self.next_ticket;
                self.next_ticket += 1;
                self.waiting.insert(ticket, Waiting { nic, call, released: None });
                Verdict::Wait(ticket)
            }
            Effect::Fail { code, times } => {
                let code = *code;
                if let Some(times) = times {
                    *times -= 1;
                    if *times == 0 {
                        self.planted.remove(at);
                    }
                }
                Verdict::Fail(code)
            }
        }
    }

    /// Whether anything is held, or fails.
    pub(crate) fn has_any(&self) -> bool {
        !(self.planted.is_empty()
            && self.waiting.is_empty()
            && self.packets.is_empty()
            && self.parked_packets.is_empty()
            && self.completions.is_empty()
            && self.parked_completions.is_empty())
    }

    /// Returns the calls so far.
    pub(crate) fn count(&self, nic: usize, call: &str) -> u64 {
        let of = |((of, name), count): (&(usize, &'static str), &u64)| {
            (*of == nic && names(call, name)).then_some(*count)
        };
        self.counts.iter().filter_map(of).sum()
    }

    /// Parks a packet of a held path, or returns it.
    ///
    /// # Errors
    /// Too many wait; this one is lost.
    pub(crate) fn pass_packet(&mut self, packet: Packet) -> Result<Option<Packet>, LimitReached> {
        let held = self.packets.get(&(usize::from(packet.from), usize::from(packet.to)));
        let is_held = match held {
            None => false,
            Some(Held::All) => true,
            Some(Held::Writes) => matches!(packet.body, PacketBody::Write { .. }),
        };
        if !is_held {
            return Ok(Some(packet));
        }
        if self.parked_packets.len() >= PARKED_MAX {
            return Err(LimitReached::ParkedPackets);
        }
        self.parked_packets.push_back(packet);
        Ok(None)
    }

    /// Parks a completion that is held, or returns it.
    ///
    /// # Errors
    /// Too many wait; this one is lost.
    pub(crate) fn pass_completion(
        &mut self,
        nic: usize,
        completion: WorkCompletion,
    ) -> Result<Option<WorkCompletion>, LimitReached> {
        let held = [None, Some(completion.number)];
        if !held.iter().any(|number| self.completions.contains(&(nic, *number))) {
            return Ok(Some(completion));
        }
        if self.parked_completions.len() >= PARKED_MAX {
            return Err(LimitReached::ParkedCompletions);
        }
        self.parked_completions.push_back((nic, completion));
        Ok(None)
    }
}

/// Takes the elements of a queue that fit, in order.
pub(crate) fn take_all<T>(queue: &mut VecDeque<T>, fits: impl Fn(&T) -> bool) -> Vec<T> {
    let (taken, left): (Vec<T>, Vec<T>) = std::mem::take(queue).into_iter().partition(fits);
    queue.extend(left);
    taken
}
