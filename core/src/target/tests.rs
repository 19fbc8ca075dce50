//! A target with two rails, or with one path, and a caller that does what the story says.

use super::lanes::Lane;
use super::*;
use crate::hashed::fed;
use crate::identity::NodeName;
use crate::policy::{FailureClass, RAIL_PAUSE_MIN, RailPlan, RailVerdict};
use crate::sharing::{AT_ONCE_BYTES_MAX, AT_ONCE_REQUESTS_MAX};
use crate::time::Instant;
use crate::transfer::{
    Affinity, BatchOutcome, Cause, Completion, CompletionStatus, Direction, LocalSpan, Remote,
    RemoteSpan, Request, RequestStatus, Sent,
};
use crate::transport::Side;
use alloc::vec;
use alloc::vec::Vec;

const FIRST: Lifecycle = Lifecycle(1);
const SECOND: Lifecycle = Lifecycle(2);
const NOW: Instant = Instant(5);
const SILENCE: Duration = Duration::from_millis(8);

struct Story {
    target: Target,
    paths: [NicPath; 2],
    outputs: Vec<TargetOutput>,
}

fn error(side: Side, call: &'static str) -> TransportError {
    TransportError { side, call: call.into(), code: 12, detail: "injected".into() }
}

fn silent() -> TransportError {
    error(Side::Peer, "completion")
}

fn device_gone() -> TransportError {
    error(Side::Local, "create")
}

impl Story {
    fn without_lanes(with_rails: bool) -> Self {
        let node = NodeName::new("b:1").unwrap();
        let path = NicPath { node: node.clone(), nic: NodeName::new("any").unwrap() };
        let limits = TransferLimits { slice_bytes_max: 10, ..TransferLimits::default() };
        let config =
            TargetConfig { path: path.clone(), limits, lane_timeout: SILENCE, legacy: false };
        let mut target = Target::new(config, NOW);
        let mut paths = [path.clone(), path];
        if with_rails {
            paths = ["nic0", "nic1"].map(|nic| NicPath::over_rail(&node, nic, nic).unwrap());
            let plan = |at: usize| RailPlan { path: paths[at].clone(), peer_device: at };
            target.set_rails(NOW, &[plan(0), plan(1)], false);
        }
        Self { target, paths, outputs: Vec::new() }
    }

    /// With a lane over each of two rails.
    fn with_rails() -> Self {
        let mut story = Self::without_lanes(true);
        story.target.handle_demand();
        story.up(FIRST, 0);
        story.up(SECOND, 1);
        assert_eq!(story.opened(), story.paths);
        story.drain();
        story
    }

    /// With a lane over the one path.
    fn with_one_path() -> Self {
        let mut story = Self::without_lanes(false);
        story.up(FIRST, 0);
        story.drain();
        story
    }

    fn up(&mut self, lane: Lifecycle, rail: usize) {
        let path = self.paths[rail].clone();
        self.target.handle_lane_up(NOW, lane, path, 8);
    }

    fn down(&mut self, lane: Lifecycle, cause: TransportError) {
        self.target.handle_lane_ending(lane, cause, true);
        self.target.handle_lane_down(NOW, lane);
    }

    /// Whether a batch may be moved within its submission.
    fn moves_at_once(&mut self) -> bool {
        self.target.lane_at_once(NOW, (1, 8), None) == Some(FIRST)
    }

    fn keep_outputs(&mut self) {
        while let Some(output) = self.target.poll_output(NOW) {
            self.outputs.push(output);
        }
    }

    /// The outputs since the last call.
    fn drain(&mut self) -> Vec<TargetOutput> {
        self.keep_outputs();
        core::mem::take(&mut self.outputs)
    }

    /// Takes the outputs of one kind.
    fn taken<T>(&mut self, kind: impl Fn(&TargetOutput) -> Option<T>) -> Vec<T> {
        self.keep_outputs();
        self.outputs
            .extract_if(.., |output| kind(output).is_some())
            .filter_map(|it| kind(&it))
            .collect()
    }

    fn opened(&mut self) -> Vec<NicPath> {
        self.taken(|output| match output {
            TargetOutput::Open(path) => Some(path.clone()),
            _ => None,
        })
    }

    fn posted(&mut self) -> Vec<(Lifecycle, SliceId)> {
        self.taken(|output| match output {
            TargetOutput::Post { lane, slice, .. } => Some((*lane, *slice)),
            _ => None,
        })
    }

    fn fences_lost(&mut self) -> usize {
        let lost = |output: &TargetOutput| matches!(output, TargetOutput::FenceLost { .. });
        self.taken(|output| lost(output).then_some(())).len()
    }

    /// The report of the only batch that ended.
    fn report(&mut self) -> BatchReport {
        let reports = self.taken(|output| match output {
            TargetOutput::Finished { report, .. } => Some(report.clone()),
            _ => None,
        });
        let [report] = &reports[..] else { panic!("{reports:?}") };
        report.clone()
    }

    fn write(&mut self, bytes: u64) -> BatchId {
        let request = Request {
            direction: Direction::Write,
            local: LocalSpan { region: 0, offset: 0 },
            remote: RemoteSpan { key: 1, address: 4_096 },
            length: bytes,
        };
        self.target.submit(NOW, &[request], &[], None).unwrap()
    }

    fn ended(&mut self, (_, slice): (Lifecycle, SliceId), status: CompletionStatus) {
        self.target.handle_completion(NOW, Completion { slice, status });
    }

    fn done(&mut self, posted: impl IntoIterator<Item = (Lifecycle, SliceId)>) {
        posted.into_iter().for_each(|slice| self.ended(slice, CompletionStatus::Done));
    }

    /// A write of two slices, of which the one on the first lane is tried again on the second after
    /// its lane failed, and is done there.
    fn write_of_which_a_slice_moved(&mut self) {
        self.write(20);
        let mut posted = self.posted();
        posted.sort_unstable();
        let [first, second] = posted[..] else { panic!("{posted:?}") };
        assert_eq!((first.0, second.0), (FIRST, SECOND));
        self.ended(first, CompletionStatus::Failed(silent().into()));
        let again = self.posted();
        assert!(matches!(again[..], [(SECOND, _)]), "{again:?}");
        self.done([second, again[0]]);
    }
}

/// The class of the failure that ended a batch whose write may still land.
fn indeterminate(report: &BatchReport) -> FailureClass {
    let write = report.requests.first();
    let remote = Remote::Indeterminate;
    assert!(
        matches!(write, Some(RequestStatus::WriteIncomplete { remote: at, .. }) if *at == remote)
    );
    let BatchOutcome::Failed(Cause::PeerLost(cause)) = &report.outcome else {
        panic!("{:?}", report.outcome)
    };
    FailureClass::of(cause)
}

/// A write that moved to another rail succeeds once its first rail reopens.
#[test]
fn moved_write_succeeds_once_its_rail_reopens() {
    let mut story = Story::with_rails();
    story.write_of_which_a_slice_moved();
    story.down(FIRST, silent());
    assert_eq!(story.opened(), [story.paths[0].clone()], "to prove that nothing lands any more");
    story.target.handle_fence(NOW, Some(&story.paths[0].clone()));
    assert_eq!(story.report().outcome, BatchOutcome::Success);
    assert_eq!(story.fences_lost(), 0);
}

/// A write whose first rail cannot reopen fails as indeterminate, with the failure's class.
#[test]
fn moved_write_fails_when_its_rail_stays_down() {
    let mut story = Story::with_rails();
    story.write_of_which_a_slice_moved();
    story.down(FIRST, silent());
    assert_eq!(story.opened(), [story.paths[0].clone()]);
    assert_eq!(story.fences_lost(), 0);
    story.target.handle_open_failed(NOW, &story.paths[0].clone(), &device_gone());
    assert_eq!(indeterminate(&story.report()), FailureClass::LocalPort);
    assert_eq!(story.fences_lost(), 1, "it was the lost proof that failed it");
    assert!(
        story.outputs.contains(&TargetOutput::DemandFailed(device_gone())),
        "waiters learn of it"
    );

    story.write(10);
    let posted = story.posted();
    assert!(matches!(posted[..], [(SECOND, _)]), "the other rail goes on: {posted:?}");
    story.done(posted);
    assert_eq!(story.report().outcome, BatchOutcome::Success);
}

/// A lane that proved nothing and breaks under its probe loses the proof, and its rail pauses.
#[test]
fn failed_probe_loses_the_proof() {
    let mut story = Story::with_rails();
    story.write_of_which_a_slice_moved();
    story.down(FIRST, silent());
    assert_eq!(story.opened(), [story.paths[0].clone()]);
    let (third, path) = (Lifecycle(3), story.paths[0].clone());
    let verdict = story.target.rails.as_mut().unwrap().handle_lane_up(NOW, &path, third);
    assert_eq!(verdict, RailVerdict::Probe);
    story.target.lanes.push(Lane::new(third, path.clone(), 8));
    story.down(third, silent());
    assert_eq!(indeterminate(&story.report()), FailureClass::PeerRail);
    assert_eq!(story.fences_lost(), 1);
    assert!(story.outputs.contains(&TargetOutput::Close(path)));
}

/// An answered probe puts the lane into use.
#[test]
fn answered_probe_puts_lane_into_use() {
    let mut story = Story::with_rails();
    story.write_of_which_a_slice_moved();
    story.down(FIRST, silent());
    let third = Lifecycle(3);
    story.up(third, 0);
    assert!(!story.drain().contains(&TargetOutput::InUse(third)), "not before its probe");
    story.target.handle_probed(NOW, third);
    assert!(story.drain().contains(&TargetOutput::InUse(third)));
}

/// A lane that never finishes its retire fails the batches that wait for its proof.
#[test]
fn stuck_retire_fails_waiting_batches() {
    let mut story = Story::with_rails();
    story.write_of_which_a_slice_moved();
    story.target.handle_retire_overdue(NOW, FIRST, error(Side::Local, "retire"));
    assert_eq!(indeterminate(&story.report()), FailureClass::LocalPort);
    assert_eq!(story.fences_lost(), 1);
}

/// The device holds a slice until its lane is overdue, and flushes it then. The slice is written over
/// the other rail, but the proof of the first lane is given up: the write fails and does not wait.
#[test]
fn slice_flushed_after_overdue_retire_fails_write() {
    let mut story = Story::with_rails();
    story.write(20);
    let mut posted = story.posted();
    posted.sort_unstable();
    let [first, second] = posted[..] else { panic!("{posted:?}") };
    story.target.handle_lane_revoked(NOW, FIRST);
    story.target.handle_retire_overdue(NOW, FIRST, error(Side::Local, "retire"));
    story.ended(first, CompletionStatus::Flushed);
    let again = story.posted();
    story.done(again);
    story.done([second]);
    assert_eq!(indeterminate(&story.report()), FailureClass::LocalPort);
}

/// A batch fails if the lane of no rail ends.
#[test]
fn stuck_retires_of_all_rails_lose_the_peer() {
    let mut story = Story::with_rails();
    for lane in [FIRST, SECOND] {
        story.target.handle_lane_revoked(NOW, lane);
    }
    story.write(10);
    assert_eq!(story.opened(), [], "both rails have lanes");
    for lane in [FIRST, SECOND] {
        story.target.handle_retire_overdue(NOW, lane, error(Side::Local, "retire"));
    }
    assert_eq!(story.opened(), story.paths);
    let overdue = error(Side::Local, "handshake");
    for path in story.paths.clone() {
        story.target.handle_open_failed(NOW, &path, &overdue);
    }
    assert!(matches!(story.report().outcome, BatchOutcome::Failed(Cause::PeerLost(_))));
}

/// Without rails a lane that never finishes its retire is waited for.
#[test]
fn stuck_retire_without_rails_is_awaited() {
    let mut story = Story::with_one_path();
    story.write(10);
    let [posted] = story.posted()[..] else { panic!("one slice") };
    story.ended(posted, CompletionStatus::Failed(silent().into()));
    story.target.handle_retire_overdue(NOW, FIRST, device_gone());
    assert_eq!(story.fences_lost(), 0);
    story.down(FIRST, silent());
    story.up(SECOND, 0);
    let again = story.posted();
    story.done(again);
    assert_eq!(story.report().outcome, BatchOutcome::Success);
}

/// A lane to a legacy peer takes the batches that wait for its fence with it.
#[test]
fn legacy_lane_takes_its_writes_along() {
    let mut story = Story::without_lanes(false);
    story.target.config.legacy = true;
    story.up(FIRST, 0);
    story.write(10);
    let [posted] = story.posted()[..] else { panic!("one slice") };
    story.ended(posted, CompletionStatus::Failed(silent().into()));
    story.down(FIRST, silent());
    assert_eq!(indeterminate(&story.report()), FailureClass::PeerRail);
    assert!(story.outputs.contains(&TargetOutput::PeerLost(silent())));
}

/// A refused access ends its own batch and the lane. A batch that waits gets another lane, and
/// without one no lane is made.
#[test]
fn refused_access_fails_no_other_batch() {
    let refused = error(Side::Protection, "completion");
    for with_other in [true, false] {
        let mut story = Story::with_one_path();
        story.write(10);
        if with_other {
            story.write(10);
        }
        let posted = story.posted();
        story.ended(posted[0], CompletionStatus::Refused(refused.clone().into()));
        assert!(matches!(story.report().outcome, BatchOutcome::Failed(Cause::Refused(_))));
        story.target.handle_lane_ending(FIRST, refused.clone(), true);
        if with_other {
            story.ended(posted[1], CompletionStatus::Failed(silent().into()));
        }
        story.drain();
        let path = story.paths[0].clone();
        story.target.handle_open_failed(NOW, &path, &refused);
        assert_eq!(story.opened().len(), usize::from(with_other));
        story.target.handle_lane_down(NOW, FIRST);
        story.up(SECOND, 0);
        let again = story.posted();
        assert_eq!(again.len(), usize::from(with_other));
        story.done(again);
        if with_other {
            assert_eq!(story.report().outcome, BatchOutcome::Success);
        }
    }
}

/// Another failure than the refused access loses the peer, also while the lane is not gone: nothing is
/// asked for in a circle.
#[test]
fn failed_opening_after_a_refused_access_loses_the_peer() {
    let refused = error(Side::Protection, "completion");
    let mut story = Story::with_one_path();
    story.write(10);
    story.write(10);
    let posted = story.posted();
    story.ended(posted[0], CompletionStatus::Refused(refused.clone().into()));
    story.report();
    story.target.handle_lane_ending(FIRST, refused.clone(), true);
    story.ended(posted[1], CompletionStatus::Failed(silent().into()));
    let path = story.paths[0].clone();
    story.target.handle_open_failed(NOW, &path, &refused);
    story.drain();
    story.target.handle_open_failed(NOW, &path, &device_gone());
    assert_eq!(story.opened(), []);
    assert!(matches!(story.report().outcome, BatchOutcome::Failed(Cause::PeerLost(_))));
}

/// A write of which a slice was flushed by another batch's refused access has its proof from the
/// rail's next lane.
#[test]
fn refused_access_leaves_the_proofs_of_its_rail() {
    let refused = error(Side::Protection, "completion");
    let mut story = Story::with_rails();
    story.write_of_which_a_slice_moved();
    story.down(FIRST, refused);
    assert_eq!((story.opened(), story.fences_lost()), (vec![story.paths[0].clone()], 0));
    story.up(Lifecycle(3), 0);
    assert_eq!(story.report().outcome, BatchOutcome::Success);
}

/// A protection error of a lane that never carried bytes fails all that waits.
#[test]
fn refused_opening_fails_what_waits() {
    let mut story = Story::without_lanes(false);
    story.write(10);
    let (path, refused) = (story.paths[0].clone(), error(Side::Protection, "connect"));
    story.drain();
    story.target.handle_open_failed(NOW, &path, &refused);
    assert_eq!(story.opened(), []);
    assert!(matches!(story.report().outcome, BatchOutcome::Failed(Cause::PeerLost(_))));
}

/// A drain is answered when the last posted slice has ended, and not before.
#[test]
fn drain_waits_for_the_last_slice() {
    let mut story = Story::with_one_path();
    story.write(10);
    let posted = story.posted();
    story.target.handle_lane_revoked(NOW, FIRST);
    story.target.handle_drain(FIRST);
    assert!(!story.drain().contains(&TargetOutput::Drained(FIRST)));
    story.done(posted);
    assert!(story.drain().contains(&TargetOutput::Drained(FIRST)));
}

/// Lanes with work and no answer are unresponsive, an idle lane never is.
#[test]
fn lanes_with_unanswered_work_are_unresponsive() {
    let mut story = Story::with_one_path();
    assert_eq!(story.target.poll_timeout(), None, "no work, no wait");
    let batch = story.write(10);
    story.posted();
    let due = NOW + SILENCE;
    assert_eq!(story.target.poll_timeout(), Some(due));
    story.target.handle_timeout(due);
    assert!(story.drain().contains(&TargetOutput::Unresponsive(FIRST)));
    story.target.cancel(due, batch);
    story.drain();
}

/// Later batches fail with the end, posted ones once their slices are back.
#[test]
fn end_covers_what_comes_after_it() {
    let mut story = Story::with_one_path();
    story.write(10);
    let posted = story.posted();
    story.target.handle_peer_restarted();
    let withdrawn = story.drain();
    assert!(matches!(withdrawn[..], [TargetOutput::Withdraw { .. }]), "{withdrawn:?}");
    story.ended(posted[0], CompletionStatus::Released(Sent::All));
    assert_eq!(story.report().outcome, BatchOutcome::Failed(Cause::PeerRestarted));
    assert!(!story.target.is_in_doubt(), "the memory is gone");
    story.write(10);
    assert_eq!(story.report().outcome, BatchOutcome::Failed(Cause::PeerRestarted));
    assert!(story.target.has_ended() && !story.target.is_busy());
}

/// The rails of an incarnation that has ended ask for no lane, though none ever came up.
#[test]
fn rails_of_an_ended_incarnation_rest() {
    let mut story = Story::without_lanes(true);
    story.write(10);
    assert_eq!(story.opened(), story.paths);
    story.target.handle_peer_restarted();
    assert_eq!(story.report().outcome, BatchOutcome::Failed(Cause::PeerRestarted));
    story.target.handle_open_failed(NOW, &story.paths[0].clone(), &silent());
    story.target.handle_demand();
    assert_eq!(story.opened(), []);
    assert_eq!(story.target.poll_timeout(), None);
}

/// A slice given back half sent leaves doubt until its lane is fenced.
#[test]
fn released_slice_leaves_doubt_until_the_fence() {
    let mut story = Story::with_one_path();
    let batch = story.write(10);
    let posted = story.posted();
    story.target.cancel(NOW, batch);
    story.ended(posted[0], CompletionStatus::Released(Sent::Partly));
    story.drain();
    assert!(story.target.has_sent_unanswered() && story.target.is_in_doubt());
    story.target.handle_fence_demand();
    assert_eq!(story.opened(), [story.paths[0].clone()]);
    story.down(FIRST, silent());
    assert_eq!(story.target.lanes_in_doubt().collect::<Vec<_>>(), [FIRST]);
    assert!(story.target.owes_proof());
    story.up(SECOND, 0);
    story.drain();
    assert!(!story.target.is_in_doubt() && !story.target.owes_proof());
}

/// A lane that ended without work is in doubt and owes no proof, also after one that did.
#[test]
fn lane_that_ended_without_work_owes_no_proof() {
    let mut story = Story::with_one_path();
    let batch = story.write(10);
    let posted = story.posted();
    story.target.cancel(NOW, batch);
    story.ended(posted[0], CompletionStatus::Released(Sent::All));
    story.down(FIRST, silent());
    story.up(SECOND, 0);
    story.down(SECOND, silent());
    story.drain();
    assert!(story.target.is_in_doubt() && !story.target.owes_proof());
}

/// A slice that failed leaves doubt too, from its report on and not from the end of its lane.
#[test]
fn failed_slice_leaves_doubt_before_its_lane_is_down() {
    for status in [CompletionStatus::Failed(silent().into()), CompletionStatus::Flushed] {
        let mut story = Story::with_one_path();
        let batch = story.write(10);
        let posted = story.posted();
        story.target.cancel(NOW, batch);
        story.ended(posted[0], status);
        story.drain();
        assert!(story.target.is_in_doubt());
        story.down(FIRST, silent());
        story.up(SECOND, 0);
        story.drain();
        assert!(!story.target.is_in_doubt());
    }
}

/// A demand over rails that all fail is lost once, and a timer opens a paused rail while work waits.
#[test]
fn failed_rails_lose_the_peer_and_pause() {
    let mut story = Story::without_lanes(true);
    story.write(10);
    assert_eq!(story.opened(), story.paths);
    let [one, other] = story.paths.clone();
    story.target.handle_open_failed(NOW, &one, &silent());
    story.drain();
    let (timer, at) = story.target.timers().next().unwrap();
    assert_eq!((timer, at), (TargetTimer::Rails, NOW + RAIL_PAUSE_MIN));
    story.target.handle_timer(at, timer);
    assert_eq!(story.opened(), core::slice::from_ref(&one));
    story.target.handle_open_failed(NOW, &one, &silent());
    story.target.handle_open_failed(NOW, &other, &silent());
    assert!(story.drain().contains(&TargetOutput::PeerLost(silent())));
    assert!(!story.target.is_busy());
}

/// The affinity of a request keeps its slices on the near rail while that is usable.
#[test]
fn near_rail_is_used_while_it_is_usable() {
    let mut story = Story::with_rails();
    let near = Affinity::of(&[1, 0]);
    let request = Request {
        direction: Direction::Read,
        local: LocalSpan { region: 0, offset: 0 },
        remote: RemoteSpan { key: 1, address: 4_096 },
        length: 40,
    };
    story.target.submit(NOW, &[request], &[near], None).unwrap();
    let posted = story.posted();
    assert!(posted.len() == 4 && posted.iter().all(|(lane, _)| *lane == SECOND), "{posted:?}");
    story.target.handle_lane_revoked(NOW, SECOND);
    let flushed = posted.into_iter();
    flushed.for_each(|slice| story.ended(slice, CompletionStatus::Flushed));
    let moved = story.posted();
    assert!(moved.len() == 4 && moved.iter().all(|(lane, _)| *lane == FIRST), "{moved:?}");
}

/// A batch is moved within its submission over the only lane, while that takes slices and before the
/// deadline, and counts as a use.
#[test]
fn only_a_lane_that_lasts_moves_a_batch_at_once() {
    let mut story = Story::without_lanes(false);
    assert!(!story.moves_at_once(), "there is no lane");
    story.up(FIRST, 0);
    story.drain();
    let uses = story.target.usage().uses;
    assert!(story.moves_at_once());
    assert_eq!(story.target.usage().uses, uses + 1);
    assert_eq!(story.target.lane_at_once(NOW, (1, 8), Some(NOW)), None, "the deadline has passed");
    let mut is_short = |size| story.target.lane_at_once(NOW, size, None).is_some();
    assert!(is_short((AT_ONCE_REQUESTS_MAX, AT_ONCE_BYTES_MAX)));
    assert!(!is_short((AT_ONCE_REQUESTS_MAX + 1, 1)) && !is_short((1, AT_ONCE_BYTES_MAX + 1)));
    assert!(!is_short((0, 0)), "it has no request");
    story.up(SECOND, 1);
    story.drain();
    assert!(!story.moves_at_once(), "there are two");
    story.down(SECOND, silent());
    story.drain();
    assert!(story.moves_at_once());
    story.target.handle_lane_ending(FIRST, silent(), true);
    assert!(!story.moves_at_once(), "its end has begun");

    let mut story = Story::without_lanes(false);
    story.up(FIRST, 0);
    story.up(SECOND, 1);
    story.down(FIRST, silent());
    story.drain();
    let only = story.target.lane_at_once(NOW, (1, 8), None);
    assert_eq!(only, Some(SECOND), "the first is gone");

    let mut story = Story::with_one_path();
    story.target.handle_lane_revoked(NOW, FIRST);
    assert!(!story.moves_at_once(), "it is revoked");
    let mut story = Story::with_one_path();
    story.target.handle_peer_restarted();
    assert!(!story.moves_at_once(), "the incarnation has ended");
    assert!(!Story::with_rails().moves_at_once(), "rails share the bytes");
}

/// A lane that the peer opened over another path is asked for again while there is work, and only then.
#[test]
fn lane_of_the_peer_is_asked_for_while_there_is_work() {
    let node = NodeName::new("b:1").unwrap();
    let other = NicPath::over_rail(&node, "nic0", "nic0").unwrap();
    let story = || {
        let mut story = Story::with_one_path();
        story.target.handle_lane_up(NOW, SECOND, other.clone(), 8);
        story.drain();
        story
    };
    let mut idle = story();
    idle.down(SECOND, silent());
    assert_eq!(idle.opened(), []);
    let mut busy = story();
    busy.write(100);
    busy.down(SECOND, silent());
    assert_eq!(busy.opened(), core::slice::from_ref(&other));
    busy.down(FIRST, silent());
    assert_eq!(busy.opened(), [busy.paths[0].clone()], "the transfers ask for it once");
    let mut closed = story();
    closed.write(100);
    closed.target.handle_closed(silent());
    closed.down(SECOND, silent());
    assert_eq!(closed.opened(), []);
}

/// A lane that never carried bytes is not asked for again once the rails are gone.
#[test]
fn unused_lane_of_a_former_rail_is_not_asked_for() {
    let mut story = Story::with_rails();
    story.write(20);
    story.down(FIRST, silent());
    story.up(Lifecycle(3), 0);
    assert!(story.drain().contains(&TargetOutput::Probe(Lifecycle(3))));
    story.target.set_rails(NOW, &[], false);
    story.drain();
    story.down(Lifecycle(3), silent());
    assert_eq!(story.opened(), []);
}

/// A demand for proofs opens the rails that owe one; where none does, it is any demand.
#[test]
fn fence_demand_opens_the_rails_that_owe_one() {
    let mut owing = Story::without_lanes(true);
    owing.up(FIRST, 0);
    owing.target.handle_lane_ending(FIRST, silent(), false);
    owing.target.handle_lane_down(NOW, FIRST);
    assert_eq!(owing.opened(), []);
    owing.target.handle_fence_demand();
    assert_eq!(owing.opened(), owing.paths[..1]);
    let mut other = Story::without_lanes(true);
    other.target.handle_fence_demand();
    assert_eq!(other.opened(), other.paths);
}

/// A refused opening loses the peer, though a lane without a refused access is in use.
#[test]
fn refused_opening_beside_a_lane_loses_the_peer() {
    let mut story = Story::with_one_path();
    story.write(100);
    let (path, refused) = (story.paths[0].clone(), error(Side::Protection, "connect"));
    story.drain();
    story.target.handle_open_failed(NOW, &path, &refused);
    assert!(story.drain().contains(&TargetOutput::PeerLost(refused)));
}

/// A refused access on an idle rail asks for no proof, since no batch waits for one.
#[test]
fn refused_access_on_an_idle_rail_opens_nothing() {
    let mut story = Story::with_rails();
    story.down(FIRST, error(Side::Protection, "completion"));
    assert_eq!((story.opened(), story.fences_lost()), (vec![], 0));
}

/// Posted work that a lane takes along owes a proof, though none of it was reported.
#[test]
fn lane_that_ends_with_posted_work_owes_a_proof() {
    let mut story = Story::with_one_path();
    story.write(10);
    assert_eq!(story.posted().len(), 1);
    story.down(FIRST, silent());
    assert!(story.target.owes_proof());
}

/// A lane that is down is not drained any more; the others are.
#[test]
fn lane_that_is_down_is_not_drained() {
    let mut story = Story::with_rails();
    story.write(20);
    let posted = story.posted();
    for lane in [FIRST, SECOND] {
        story.target.handle_lane_revoked(NOW, lane);
        story.target.handle_drain(lane);
    }
    story.down(FIRST, device_gone());
    story.drain();
    story.done(posted.into_iter().filter(|(lane, _)| *lane == SECOND));
    let drained = story.taken(|output| match output {
        TargetOutput::Drained(lane) => Some(*lane),
        _ => None,
    });
    assert_eq!(drained, [SECOND]);
}

/// New rails have the lanes over them, except for those that are ending.
#[test]
fn new_rails_have_the_lanes_that_last() {
    let paths = Story::without_lanes(true).paths;
    for (is_ending, opened) in [(false, &paths[1..]), (true, &paths[..])] {
        let mut story = Story::without_lanes(false);
        story.target.handle_lane_up(NOW, FIRST, paths[0].clone(), 8);
        if is_ending {
            story.target.handle_lane_ending(FIRST, silent(), true);
        }
        let plan = |at: usize| RailPlan { path: paths[at].clone(), peer_device: at };
        story.target.set_rails(NOW, &[plan(0), plan(1)], false);
        story.target.handle_demand();
        assert_eq!(story.opened(), opened, "ending: {is_ending}");
        assert!(story.target.rails().is_some());
    }
}

/// A target counts the bytes of each lane and the uses of all, and gives up what is cancelled.
#[test]
fn target_counts_and_cancels() {
    let mut story = Story::with_one_path();
    assert!(story.target.rails().is_none() && !story.target.has_sent_unanswered());
    story.write(10);
    let posted = story.posted();
    story.done(posted);
    let moved = story.target.take_moved(FIRST);
    assert_eq!((moved.written, moved.read), (10, 0));
    assert_eq!(story.target.take_moved(FIRST), Default::default());
    let batch = story.write(10);
    assert_eq!(story.target.usage().uses, 2);
    let posted = story.posted();
    story.drain();
    story.target.cancel(NOW, batch);
    story.ended(posted[0], CompletionStatus::Released(Sent::None));
    assert_eq!(story.report().outcome, BatchOutcome::Cancelled);
}

/// The batches of a caller that ends fail with its reason.
#[test]
fn closed_target_fails_its_batches() {
    let mut story = Story::without_lanes(false);
    story.write(10);
    story.target.handle_closed(device_gone());
    let lost = BatchOutcome::Failed(Cause::PeerLost(device_gone().into()));
    assert_eq!(story.report().outcome, lost);
    assert!(story.target.has_ended());
}

/// A fingerprint covers what later calls depend on; with keys, also the numbers of batches.
#[test]
fn fingerprint_separates_targets() {
    let story = |writes: usize| {
        let mut story = Story::with_one_path();
        for _ in 0..writes {
            story.write(10);
            let posted = story.posted();
            story.done(posted);
            story.drain();
        }
        story.target
    };
    let [none, one, again, two] = [0, 1, 1, 2].map(story);
    let print = |target: &Target| fed(|hasher| target.fingerprint(hasher));
    assert_eq!(print(&one), print(&again));
    assert_ne!(print(&one), print(&none), "a lane was used");
    let with_keys = |target: &Target| fed(|hasher| target.fingerprint_with_keys(hasher));
    assert_eq!(with_keys(&one), with_keys(&again));
    assert_ne!(with_keys(&one), with_keys(&none));
    assert_ne!(with_keys(&one), print(&one));
    let differing =
        |one: Vec<u8>, two: Vec<u8>| one.iter().zip(&two).filter(|(one, two)| one != two).count();
    let in_keys = differing(with_keys(&one), with_keys(&two));
    assert!(in_keys > differing(print(&one), print(&two)), "the next batch has another number");
}

/// A demand is being opened until it is met, also once its work has ended.
#[test]
fn demand_without_work_is_opening_until_it_is_met() {
    for with_rails in [false, true] {
        let mut story = Story::without_lanes(with_rails);
        let opening = |of: &Story| of.paths.each_ref().map(|path| of.target.is_opening(path));
        assert_eq!(opening(&story), [false, false]);
        let batch = story.write(10);
        story.drain();
        story.target.cancel(NOW, batch);
        assert_eq!(opening(&story), [true, true]);
        story.up(FIRST, 0);
        assert_eq!(opening(&story), [false, with_rails]);
    }
}
