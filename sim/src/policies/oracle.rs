//! The oracles of policies, and names for peers.

use crate::machine_world::Violation;
use handfast_core::{NicPath, NodeName};

/// The oracles of policies. `docs/testing.md` has the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PolicyOracle {
    /// Eviction: a lane that is chosen, or waited for, is up and has no transfer of this side under way.
    Idle,
    /// Eviction: a lane stays for its hold time, that of a returning peer for twice the last.
    Held,
    /// Eviction: a lane used since the last choice stays while one that was never used may go.
    Unused,
    /// Eviction: a choice fails only if every lane is busy or ending.
    GivesUp,
    /// Eviction: a wait ends when the first lane may go, or after the time in which use may show.
    Wait,
    /// Quota: no lane begins while its peer holds as many as it may.
    Quota,
    /// Quota: no lane is refused to a peer that holds fewer.
    Refused,
    /// Quota: a lane that has begun goes on.
    Begun,
    /// Fallback: RDMA is given up after the number of failures in a row, not before.
    GivenUpEarly,
    /// Fallback: RDMA is given up after the number of failures in a row, not later.
    GivenUpLate,
    /// Fallback: lanes run over TCP until the time is over.
    TriedEarly,
    /// Fallback: RDMA is tried again when the time is over.
    TriedLate,
    /// Reused numbers: a peer that repeats them under another incarnation is reported.
    Missed,
    /// Reused numbers: nothing else is reported.
    Imagined,
    /// Grants: a peer moves no byte that no grant allows it to.
    Ungranted,
    /// Grants: a peer is not refused what a grant allows, nor shown less.
    Withheld,
    /// Grants: a device's key allows its peers nothing that no grant allows any more.
    KeyOutlives,
    /// Grants: no lane reaches memory that is registered for another trust group.
    OtherGroup,
    /// Grants: a registration that failed is not tried again before its pause is over.
    Unpaused,
    /// Administration: a peer that is no administrator neither sees nor changes grants.
    Outsider,
    /// Administration: an administrator is not refused.
    Administrator,
    /// Rails: a rail pauses for as long as its failures in a row say, and is opened then.
    Paused,
    /// Rails: a rail that failed is probed before it carries bytes, and no other one.
    Probed,
    /// Rails: a demand fails only if no rail is in use or tried.
    Lost,
    /// Fences: those lanes are in doubt on which a write may still land, until the proof of their path.
    Doubted,
    /// Silence: a lane is unresponsive after the time with work in which the peer shows no sign of life.
    Silence,
    /// Every schedule ends, and at its end no lane is half open.
    Liveness,
}

/// A NIC of a peer, both by number.
pub(super) fn path(peer: usize, nic: usize) -> NicPath {
    let name = |text: String| NodeName::new(&text).expect("it is a name");
    NicPath { node: name(format!("peer-{peer}")), nic: name(format!("nic-{nic}")) }
}

pub(super) fn violation(oracle: PolicyOracle, detail: String) -> Violation<PolicyOracle> {
    Violation { oracle, detail }
}
