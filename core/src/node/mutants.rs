//! Broken variants of the rules. An explorer must find what is wrong with each; without the cargo
//! feature `mutants` none of this exists and every question below is answered by a constant.

use super::api::TimerKind;
#[cfg(feature = "mutants")]
use super::api::{NodeConfig, Output};
#[cfg(feature = "mutants")]
use super::lane::{Lane, State, StateKind};
use super::machine::Node;
use crate::identity::{Lifecycle, NicPath};
use crate::questions::questions;
use crate::time::Instant;
#[cfg(feature = "mutants")]
use crate::transport::Operation;

/// A broken variant of the rules.
#[cfg(feature = "mutants")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mutant {
    /// A request replaces whatever endpoint there is; two messages, no identities.
    ReplacedByRequest,
    /// A second open rebuilds the queue pairs while the call is out; two messages.
    RebuiltByWaiter,
    /// Two messages; a different generation replaces, older or not.
    TwoMessagesEqual,
    /// Two messages; a newer generation replaces, an older one is refused.
    TwoMessagesOrdered,
    /// Established as soon as our own side has wired.
    EstablishedOnFirstSight,
    /// Lifecycle numbers are reused as soon as they are free.
    ReusedNumbers,
    /// A request is wired towards at once, without an echo, with queue pairs of its own.
    WiredOnFirstSight,
    /// An unknown incarnation takes the name at first sight, and the one before it is banned.
    SupersededSet,
    /// The side with the lower path initiates, the other waits.
    LowerInitiates,
    /// A peer may wire while our earlier lanes to it still exist: rule H6 on one side only.
    OfferedUnfenced,
    /// Publishes a lane before it has queue pairs: no search can miss it.
    Canary,
    /// A reply takes a lifecycle back that has ended and is being retired.
    RevivedByReply,
    /// A request finds a lifecycle that has ended and is answered with it.
    OfferedWhileRetiring,
    /// A ready counts for the lane that is bound now, whichever pair it is about.
    StaleReadyTaken,
    /// A ready about a lifecycle that is gone raises another.
    RaisedByReady,
    /// Nothing ends a lifecycle that was announced and is not echoed.
    HalfOpenForEver,
    /// A ready that is repeated is refused.
    ReadyAnsweredOnce,
    /// A call of ours that fails ends the lifecycle, whatever has become of it.
    WipedByOwnFailure,
    /// A request that is repeated builds the lane anew.
    RebuiltByDuplicate,
    /// A request that crosses ours is turned away as busy.
    CrossingTurnedAway,
    /// A peer is known by the number of its lifecycle, whichever run it is of.
    KnownByNumber,
    /// An older request than the last is taken like any other.
    OlderRequestWins,
    /// Of the pairs that were bound, only the present one is remembered.
    LastPairForgotten,
    /// A lifecycle that was offered to one incarnation is offered to another.
    OfferedTwice,
    /// An echo that gives leave to wire is sent while earlier lanes exist.
    EchoedUnfenced,
    /// A request that is tried again repeats an echo that is out of date.
    OldEchoRepeated,
    /// Our own Wire waits for no earlier lane.
    WiredUnfenced,
    /// Lanes to an earlier incarnation fence nothing.
    EarlierRunsUnfenced,
    /// A request is answered after a call of ours to its sender was, and nothing else meanwhile.
    AnsweredAfterLookUp,
    /// A protection or configuration error is tried again.
    ProtectionRetried,
    /// What fails on our own side ends the lifecycles that wait for it.
    PeerBlamed,
    /// What has ended is retired when something new is raised.
    RetiredOnInsert,
    /// A retire that fails counts as done.
    FailedRetireForgotten,
    /// A peer whose lanes exist makes way in a table that is full.
    BusyPeerEvicted,
    /// A request that is lost is not sent again.
    RequestedOnce,
    /// A ready that is lost is not sent again.
    ReadyOnce,
    /// An operation of ours that never ends is waited for.
    OperationUnbounded,
    /// A demand outlives the failure of its lane, and nothing is done for it.
    DemandForgotten,
    /// A refusal changes nothing for its receiver.
    RefusalSwallowed,
    /// A side that has wired takes a reply for the word that the peer has.
    ReplyTakenForAck,
    /// An answer to a lifecycle that has ended counts for the present one.
    AnswerMisdirected,
    /// The present lane ends before there is known to be room for another.
    RoomCheckedLate,
    /// A lane is retired while it may still be posted on.
    RetiredUnrevoked,
    /// A close destroys a lane at once, whatever the peer still does on it.
    RetiredUnasked,
    /// Only earlier lanes to the same NIC are waited for, whatever node they led to.
    OneNicFenced,
    /// A request is answered when no request of our own is out.
    AnsweredInTurn,
    /// A lane to a node without our key is usable as soon as both have wired.
    UsableUnproven,
    /// A request of a node without our key is answered when our own to it has been.
    PlainAnsweredInTurn,
}

#[cfg(feature = "mutants")]
impl Node {
    /// A node that follows a broken variant of the rules.
    pub fn with_mutant(config: NodeConfig, mutant: Mutant) -> Self {
        Self { mutant: Some(mutant), ..Self::new(config) }
    }

    /// A variant only: the lifecycle whose look-up keeps every other call waiting.
    pub(super) fn looking_up(&self) -> Option<Lifecycle> {
        let waits =
            |lane: &Lane| !lane.held.is_empty() && lane.state.kind() == StateKind::Announced;
        let mut lanes = self.lanes.iter().filter(|(_, lane)| self.looks_up() && waits(lane));
        lanes.next().map(|(lifecycle, _)| *lifecycle)
    }

    /// A variant only: a lifecycle that has ended and is taken back.
    pub(super) fn is_revived(&self, lifecycle: Lifecycle) -> bool {
        self.revives_ended() && self.state_of(lifecycle) == Some(StateKind::Retiring)
    }

    /// A variant only: what was found until it was gone is not any more.
    pub(super) fn lose_sight(&mut self, now: Instant, path: &NicPath, lifecycle: Lifecycle) {
        if !self.finds_ended() {
            return;
        }
        if let Some(peer) = self.peers.get_mut(path) {
            peer.open = peer.open.filter(|open| *open != lifecycle);
        }
        self.pursue(now, path);
    }

    /// A variant only: retires what has ended, now that something new is raised.
    pub(super) fn retire_ended(&mut self) {
        let ended = |lane: &Lane| lane.state.kind() == StateKind::Retiring;
        for (lifecycle, _) in self.lanes.iter().filter(|(_, lane)| ended(lane)) {
            if self.retires_on_insert() {
                let retire = Operation::Retire { lifecycle: *lifecycle };
                self.outputs.push_back(Output::Operate(retire));
            }
        }
    }

    /// A variant only: publishes what has no queue pairs yet.
    pub(super) fn publish_at_once(&mut self, lifecycle: Lifecycle, peer: &NicPath) {
        if self.mutant == Some(Mutant::Canary) {
            let (local, peer) = (self.pair(lifecycle), peer.clone());
            self.outputs.push_back(Output::Publish { local, remote: local, peer });
        }
    }

    /// A variant only: a reply that comes when we have wired stands for an acknowledgement.
    pub(super) fn takes_reply_for_ack(&self, lifecycle: Lifecycle) -> bool {
        let wired = self.state_of(lifecycle) == Some(StateKind::Wired);
        wired && self.mutant == Some(Mutant::ReplyTakenForAck)
    }

    /// A timer that ought to be armed and is not.
    pub(super) fn forgets_timer(&self, kind: TimerKind) -> bool {
        let forgotten = match self.mutant {
            Some(Mutant::RequestedOnce) => Some(TimerKind::RequestRetry),
            Some(Mutant::ReadyOnce) => Some(TimerKind::ReadyRetry),
            Some(Mutant::HalfOpenForEver) => Some(TimerKind::HalfOpen),
            Some(Mutant::OperationUnbounded) => Some(TimerKind::Operation),
            _ => None,
        };
        forgotten == Some(kind)
    }

    /// A variant only: a request of ours is out to somebody else.
    pub(super) fn answers_in_turn(&self, path: &NicPath) -> bool {
        let asks = |lane: &Lane| match &lane.state {
            State::Announced(announcement) => announcement.requests > 0,
            _ => false,
        };
        self.mutant == Some(Mutant::AnsweredInTurn)
            && self.lanes.values().any(|lane| lane.peer != *path && asks(lane))
    }

    /// A variant only: a request of ours is out to the one that asks.
    pub(super) fn answers_plainly_in_turn(&self, lifecycle: Lifecycle) -> bool {
        let state = self.lanes.get(&lifecycle).map(|lane| &lane.state);
        let asks = matches!(state, Some(State::Announced(it)) if it.requests > 0);
        self.mutant == Some(Mutant::PlainAnsweredInTurn) && asks
    }
}

/// The shipping rules.
#[cfg(not(feature = "mutants"))]
#[allow(clippy::unused_self, reason = "a variant looks at it")]
impl Node {
    #[inline(always)]
    pub(super) const fn looking_up(&self) -> Option<Lifecycle> {
        None
    }

    #[inline(always)]
    pub(super) const fn is_revived(&self, _: Lifecycle) -> bool {
        false
    }

    #[inline(always)]
    pub(super) const fn takes_reply_for_ack(&self, _: Lifecycle) -> bool {
        false
    }

    #[inline(always)]
    pub(super) const fn answers_plainly_in_turn(&self, _: Lifecycle) -> bool {
        false
    }

    #[inline(always)]
    pub(super) const fn answers_in_turn(&self, _: &NicPath) -> bool {
        false
    }

    #[inline(always)]
    pub(super) const fn forgets_timer(&self, _: TimerKind) -> bool {
        false
    }

    #[inline(always)]
    pub(super) const fn lose_sight(&self, _: Instant, _: &NicPath, _: Lifecycle) {}

    #[inline(always)]
    pub(super) const fn retire_ended(&self) {}

    #[inline(always)]
    pub(super) const fn publish_at_once(&self, _: Lifecycle, _: &NicPath) {}
}

questions! {
    Node, Mutant;
    wires_on_request: ReplacedByRequest | RebuiltByWaiter | TwoMessagesEqual | TwoMessagesOrdered
        | WiredOnFirstSight;
    forgets_superseded: ReplacedByRequest | RebuiltByWaiter | TwoMessagesEqual
        | TwoMessagesOrdered | WiredOnFirstSight;
    establishes_alone: ReplacedByRequest | RebuiltByWaiter | TwoMessagesEqual
        | TwoMessagesOrdered | EstablishedOnFirstSight;
    replaces_on_request: ReplacedByRequest | WiredOnFirstSight;
    rebuilds_for_waiter: RebuiltByWaiter;
    ignores_order: TwoMessagesEqual | RebuiltByWaiter | ReplacedByRequest | WiredOnFirstSight
        | OlderRequestWins | RebuiltByDuplicate;
    reuses_numbers: ReusedNumbers;
    bans_superseded: SupersededSet;
    leaves_initiative: LowerInitiates;
    offers_unfenced: OfferedUnfenced;
    proves_unfenced: OfferedUnfenced | EchoedUnfenced;
    revives_ended: RevivedByReply;
    finds_ended: OfferedWhileRetiring;
    takes_stale_ready: StaleReadyTaken;
    raises_for_ready: RaisedByReady;
    acknowledges_once: ReadyAnsweredOnce;
    ends_for_failed_call: WipedByOwnFailure;
    rebuilds_for_duplicate: RebuiltByDuplicate;
    drops_crossing: CrossingTurnedAway;
    knows_by_number: KnownByNumber;
    forgets_last: LastPairForgotten;
    offers_twice: OfferedTwice;
    repeats_old_echo: OldEchoRepeated;
    wires_unfenced: WiredUnfenced;
    forgets_earlier_runs: EarlierRunsUnfenced;
    looks_up: AnsweredAfterLookUp;
    retries_for_ever: ProtectionRetried;
    blames_peer: PeerBlamed;
    retires_on_insert: RetiredOnInsert;
    gives_up_retire: FailedRetireForgotten;
    evicts_busy: BusyPeerEvicted;
    forgets_demand: DemandForgotten;
    swallows_refusals: RefusalSwallowed;
    misdirects_answers: AnswerMisdirected;
    ends_before_room: RoomCheckedLate;
    retires_unrevoked: RetiredUnrevoked;
    retires_unasked: RetiredUnasked;
    fences_one_nic: OneNicFenced;
    trusts_unproven: UsableUnproven;
}
