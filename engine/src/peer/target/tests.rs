//! A target with two rails on a scripted data path. Its decisions are tested in the core.

use super::*;
use crate::api::transfer::Transfer;
use crate::api::warming::open_lane_within;
use crate::error::{Cause, Error};
use crate::time::TokioClock;
use handfast_core::policy::{FailureClass, RailPlan};
use handfast_core::transfer::{Remote, RequestStatus};
use handfast_core::wire::DeviceDescriptor;
use handfast_core::{Lifecycle, NodeName};
use handfast_transport::{AtOnce, CompletionStatus, LaneHandle, Memory, Sent, Step};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::UnboundedReceiver;

/// Records the postings with their lanes, and answers as many probes as it has permits.
struct Notes {
    posted: Mutex<Vec<(Lifecycle, SliceId)>>,
    answers: Arc<Semaphore>,
}

impl DataPath for Notes {
    fn post(&self, lane: Lifecycle, postings: &mut Vec<Posting>) {
        let mut notes = self.posted.lock();
        notes.extend(postings.drain(..).map(|posting| (lane, posting.slice)));
    }

    fn withdraw(&self, _: Lifecycle, _: SliceId, _: Duration) {}

    fn probe_rail(&self, _: Lifecycle) -> Step<()> {
        let answers = self.answers.clone();
        Box::pin(async move {
            answers.acquire_owned().await.unwrap().forget();
            Ok(())
        })
    }
}

impl Notes {
    fn take(&self) -> Vec<(Lifecycle, SliceId)> {
        std::mem::take(&mut *self.posted.lock())
    }
}

const FIRST: Lifecycle = Lifecycle(1);
const SECOND: Lifecycle = Lifecycle(2);
const THIRD: Lifecycle = Lifecycle(3);
/// Longer than the first pause of a rail.
const PAUSE: std::time::Duration = std::time::Duration::from_secs(2);

struct Story {
    target: Arc<Target>,
    data_path: Arc<Notes>,
    commands: UnboundedReceiver<Command>,
    meters: Arc<PeerMeters>,
    paths: [NicPath; 2],
}

impl Story {
    /// Creates a target with two rails and a lane over each.
    fn new() -> Self {
        Self::with_lane_timeout(Duration(u64::MAX))
    }

    fn with_lane_timeout(lane_mute: Duration) -> Self {
        let node = NodeName::new("b:1").unwrap();
        let answers = Arc::new(Semaphore::new(0));
        let data_path = Arc::new(Notes { posted: Mutex::default(), answers });
        let meters = Arc::new(PeerMeters::default());
        let (sender, commands) = Commands::channel();
        let path = crate::path::nic_path(&node);
        let target = Target::start(TargetParts {
            path,
            incarnation: Incarnation(7),
            address: "b:1".to_owned(),
            runtime: Handle::current(),
            data_path: data_path.clone(),
            clock: Arc::new(TokioClock::new()),
            commands: sender,
            limits: TransferLimits { slice_bytes_max: 10, ..TransferLimits::default() },
            lane_mute,
            trace: None,
            meters: Some(meters.clone()),
        });
        let paths = ["rxe0", "rxe1"].map(|nic| NicPath::over_rail(&node, nic, nic).unwrap());
        let plan = |device: usize| RailPlan { path: paths[device].clone(), peer_device: device };
        let device =
            |name: &str| DeviceDescriptor { gid: String::new(), lid: 0, name: name.to_owned() };
        target.set_rails(&[plan(0), plan(1)], &[device("rxe0"), device("rxe1")], false);
        assert!(target.want_lane());
        let mut story = Self { target, data_path, commands, meters, paths };
        story.up(FIRST, 0);
        assert_eq!(story.opened(), story.paths);
        story.up(SECOND, 1);
        story
    }

    fn up(&self, lane: Lifecycle, rail: usize) {
        let path = self.paths[rail].clone();
        let (transport_kind, has_devices) = (TransportKind::Rdma, true);
        let up = LaneUp { path, depth: 8, transport_kind, has_devices, opening: None };
        self.target.on_lane_up(lane, up);
    }

    fn down(&self, lane: Lifecycle, cause: TransportError) {
        self.target.on_lane_ending(lane, cause, true);
        self.target.on_lane_down(lane);
    }

    /// Returns the paths over which lanes were requested.
    fn opened(&mut self) -> Vec<NicPath> {
        self.commanded(|command| match command {
            Command::Open { path, .. } => Some(path),
            _ => None,
        })
    }

    /// Returns the lanes that were reported as drained.
    fn drained(&mut self) -> Vec<Lifecycle> {
        self.commanded(|command| match command {
            Command::OperationDone { id, outcome: Outcome::Drained } => Some(id.lifecycle),
            _ => None,
        })
    }

    /// Returns the lanes that were reported as failed.
    fn lanes_failed(&mut self) -> Vec<Lifecycle> {
        self.commanded(|command| match command {
            Command::LaneFailed { lifecycle, .. } => Some(lifecycle),
            _ => None,
        })
    }

    /// Takes the commands, and returns those of one kind.
    fn commanded<T>(&mut self, kind: impl Fn(Command) -> Option<T>) -> Vec<T> {
        std::iter::from_fn(|| self.commands.try_recv().ok()).filter_map(kind).collect()
    }

    fn lanes_in_use(&self) -> u32 {
        self.target.watch_lanes().borrow().up
    }

    fn write(&self, bytes: usize) -> Transfer {
        let span = Memory::zeroed(bytes).unwrap().whole();
        let remote = RemoteSpan { key: 1, address: 4_096 };
        let piece = RequestSpan {
            direction: Direction::Write,
            span,
            remote,
            regions: RequestRegions::None,
        };
        Transfer::new(self.target.clone(), self.target.submit(vec![piece], None).unwrap(), None)
    }

    fn done(&self, posted: impl IntoIterator<Item = (Lifecycle, SliceId)>) {
        let ended = posted.into_iter().map(|(_, slice)| Completion::done(slice));
        self.target.on_completions(&mut ended.collect());
    }

    fn failed(&self, posted: (Lifecycle, SliceId)) {
        self.ended(posted, CompletionStatus::Failed(silent().into()));
    }

    fn ended(&self, (_, slice): (Lifecycle, SliceId), status: CompletionStatus) {
        self.target.on_completions(&mut vec![Completion { slice, status }]);
    }

    fn fences_lost(&self) -> u64 {
        self.meters.state().fences_lost
    }

    /// Writes two slices. The one on the first lane is retried on the second after its lane failed,
    /// and completes there.
    fn write_of_which_a_slice_moved(&self) -> Transfer {
        let transfer = self.write(20);
        let mut posted = self.data_path.take();
        posted.sort_unstable();
        let [first, second] = posted[..] else { panic!("{posted:?}") };
        assert_eq!((first.0, second.0), (FIRST, SECOND));
        self.failed(first);
        let again = self.data_path.take();
        assert!(matches!(again[..], [(SECOND, _)]), "{again:?}");
        self.done([second, again[0]]);
        transfer
    }
}

/// A lane that copies six bytes of a batch within its submission.
struct Half;

impl LaneHandle for Half {
    fn post(&self, _: &mut Vec<Posting>) -> bool {
        panic!("a batch that has ended is not posted");
    }

    fn copies(&self) -> bool {
        true
    }

    fn copy_at_once<'a>(
        &self,
        _: usize,
        _: &dyn Fn(usize) -> (Direction, &'a Span, RemoteSpan),
    ) -> AtOnce {
        let error = TransportError::new(Side::Peer, COPY_CALL, "a page is missing");
        AtOnce::Partly { bytes: 6, error }
    }
}

/// Lanes of that kind.
struct Halves;

impl DataPath for Halves {
    fn post(&self, _: Lifecycle, _: &mut Vec<Posting>) {}

    fn withdraw(&self, _: Lifecycle, _: SliceId, _: Duration) {}

    fn handle(&self, _: Lifecycle) -> Option<Arc<dyn LaneHandle>> {
        Some(Arc::new(Half))
    }
}

/// An answer to a look-up from before the loss of the peer leaves its descriptor out of date, and an address
/// found earlier does not replace a later one.
#[tokio::test]
async fn late_answer_leaves_target_stale() {
    let Story { target, .. } = Story::new();
    let early = look_ups::begin();
    target.mark_stale();
    let late = look_ups::begin();
    target.set_address(late, "b:2");
    target.set_address(early, "b:1");
    target.refresh(early);
    assert_eq!((target.is_stale(), &*target.address()), (true, "b:2"));
    target.refresh(late);
    assert!(!target.is_stale());
}

/// A batch of which a part was written within its submission fails with what became of each request.
#[tokio::test]
async fn batch_written_in_part_at_once_says_so() {
    let story = Story::new();
    let parts = &story.target.parts;
    let path = parts.path.clone();
    let alone = Target::start(TargetParts {
        path: path.clone(),
        incarnation: parts.incarnation,
        address: parts.address.clone(),
        runtime: parts.runtime.clone(),
        data_path: Arc::new(Halves),
        clock: parts.clock.clone(),
        commands: parts.commands.clone(),
        limits: parts.limits,
        lane_mute: parts.lane_mute,
        trace: None,
        meters: None,
    });
    assert!(alone.want_lane());
    let (transport_kind, has_devices) = (TransportKind::Shm, false);
    alone.on_lane_up(FIRST, LaneUp { path, depth: 8, transport_kind, has_devices, opening: None });
    let piece = |_| RequestSpan {
        direction: Direction::Write,
        span: Memory::zeroed(4).unwrap().whole(),
        remote: RemoteSpan { key: 1, address: 4_096 },
        regions: RequestRegions::None,
    };
    let submission = alone.submit((0..3).map(piece).collect(), None).unwrap();
    let error = ends(Transfer::new(alone, submission, None)).await;
    assert_eq!((error.side(), error.remote()), (Side::Peer, Some(Remote::Fenced)));
    let half = RequestStatus::WriteIncomplete { bytes: 2, remote: Remote::Fenced };
    let none = RequestStatus::WriteIncomplete { bytes: 0, remote: Remote::Untouched };
    assert_eq!(error.report().unwrap().requests, [RequestStatus::Complete, half, none]);
}

fn silent() -> TransportError {
    let detail = "no answer".to_owned();
    TransportError { side: Side::Peer, call: "completion".into(), code: 12, detail }
}

fn device_gone() -> TransportError {
    let detail = "the device is gone".to_owned();
    TransportError { side: Side::Local, call: "bring_up".into(), code: 19, detail }
}

async fn ends(transfer: Transfer) -> Error {
    let patience = std::time::Duration::from_secs(5);
    tokio::time::timeout(patience, transfer).await.expect("it waits for nothing").unwrap_err()
}

async fn succeeds(transfer: Transfer) {
    let patience = std::time::Duration::from_secs(5);
    tokio::time::timeout(patience, transfer).await.expect("it waits for nothing").unwrap();
}

async fn waits(transfer: &mut Transfer) -> bool {
    tokio::time::timeout(std::time::Duration::from_millis(20), transfer).await.is_err()
}

/// A write that moved to another rail succeeds once its first rail reopens.
#[tokio::test]
async fn moved_write_succeeds_once_its_rail_reopens() {
    let mut story = Story::new();
    let transfer = story.write_of_which_a_slice_moved();
    story.down(FIRST, silent());
    assert_eq!(story.opened(), [story.paths[0].clone()], "to prove that nothing lands any more");
    story.target.on_path_fenced(&story.paths[0]);
    succeeds(transfer).await;
    assert_eq!(story.fences_lost(), 0);
}

/// A write that moved to another rail waits while its first lane ends.
#[tokio::test]
async fn moved_write_waits_for_the_end_of_its_lane() {
    let story = Story::new();
    let mut transfer = story.write_of_which_a_slice_moved();
    story.target.on_lane_ending(FIRST, silent(), true);
    story.done([]);
    assert!(waits(&mut transfer).await, "packets of the lane may land");
    story.target.on_lane_down(FIRST);
    assert!(waits(&mut transfer).await, "the peer may still read them");
    story.target.on_path_fenced(&story.paths[0]);
    succeeds(transfer).await;
}

/// A write whose first rail cannot reopen fails as indeterminate, with the failure's class.
#[tokio::test]
async fn moved_write_fails_when_its_rail_stays_down() {
    let mut story = Story::new();
    let transfer = story.write_of_which_a_slice_moved();
    story.down(FIRST, silent());
    assert_eq!(story.opened(), [story.paths[0].clone()]);
    assert_eq!(story.fences_lost(), 0);
    story.target.on_open_failed(&story.paths[0], &device_gone());
    let error = ends(transfer).await;
    assert!(matches!(error.cause(), Cause::PeerLost(cause) if **cause == device_gone()), "{error}");
    assert_eq!(error.class(), Some(FailureClass::LocalPort));
    assert_eq!(error.remote(), Some(Remote::Indeterminate));
    assert_eq!(story.fences_lost(), 1, "it was the lost proof that failed it");

    let next = story.write(10);
    let posted = story.data_path.take();
    assert!(matches!(posted[..], [(SECOND, _)]), "the other rail goes on: {posted:?}");
    story.done(posted);
    next.await.unwrap();
}

/// A rail that cannot be opened is tried again after its pause, and not while another carries bytes.
#[tokio::test(start_paused = true)]
async fn rail_that_failed_is_tried_after_its_pause() {
    let mut story = Story::new();
    story.down(FIRST, silent());
    let transfer = story.write(10);
    assert_eq!(story.opened(), [story.paths[0].clone()]);
    story.target.on_open_failed(&story.paths[0], &device_gone());
    assert_eq!(story.opened(), [], "the other rail carries the write");
    tokio::time::sleep(PAUSE).await;
    assert_eq!(story.opened(), [story.paths[0].clone()], "the pause is over");
    story.done(story.data_path.take());
    succeeds(transfer).await;
}

/// A lane over a rail that failed carries bytes once its probe is answered.
#[tokio::test]
async fn lane_over_a_failed_rail_waits_for_its_probe() {
    let mut story = Story::new();
    let _transfer = story.write(10);
    story.down(FIRST, silent());
    assert_eq!(story.opened(), [story.paths[0].clone()]);
    story.up(THIRD, 0);
    assert_eq!(story.lanes_in_use(), 1, "nothing was answered over the rail");
    story.data_path.answers.add_permits(1);
    let mut lanes = story.target.watch_lanes();
    let both = lanes.wait_for(|status| status.up == 2);
    let patience = std::time::Duration::from_secs(5);
    tokio::time::timeout(patience, both).await.expect("the probe was answered").unwrap();
}

/// Lanes with work and without an answer are reported as failed.
#[tokio::test(start_paused = true)]
async fn lanes_without_an_answer_are_reported() {
    let mut story = Story::with_lane_timeout(Duration::from_millis(300));
    let _transfer = story.write(10);
    assert_eq!(story.lanes_failed(), []);
    tokio::time::sleep(std::time::Duration::from_millis(400)).await;
    assert_eq!(story.lanes_failed(), [FIRST, SECOND]);
}

/// A caller that warms a peer waits no longer than its limit for a lane that neither comes up nor fails.
#[tokio::test(start_paused = true)]
async fn warming_ends_at_its_limit() {
    let story = Story::new();
    let limit = || tokio::time::sleep(PAUSE);
    open_lane_within(limit(), &story.target).await.expect("there are lanes");
    story.down(FIRST, silent());
    story.down(SECOND, silent());
    let began = tokio::time::Instant::now();
    let error = open_lane_within(limit(), &story.target).await.unwrap_err();
    assert_eq!((error.cause(), began.elapsed()), (&Cause::DeadlinePassed, PAUSE));
    let late = async {
        tokio::time::sleep(PAUSE / 2).await;
        story.data_path.answers.add_permits(1);
        story.up(THIRD, 0);
    };
    let (opened, ()) = tokio::join!(open_lane_within(limit(), &story.target), late);
    opened.expect("a lane in time");
}

/// A lane is drained when its last slice has ended, though it fails meanwhile.
#[tokio::test]
async fn lane_is_drained_once_its_work_has_ended() {
    let mut story = Story::new();
    let _transfer = story.write(20);
    let mut posted = story.data_path.take();
    posted.sort_unstable();
    story.target.on_lane_revoked(FIRST);
    story.target.drain(FIRST);
    assert_eq!(story.drained(), []);
    story.target.on_lane_ending(FIRST, silent(), true);
    story.done([]);
    assert_eq!(story.drained(), [], "its slice is outstanding");
    story.ended(posted[0], CompletionStatus::Flushed);
    assert_eq!(story.drained(), [FIRST]);
}

/// A fence waits for what was incomplete when it began. A slice that comes back half sent meanwhile is for
/// the next fence, which ends its lane.
#[tokio::test]
async fn fence_waits_for_earlier_writes_alone() {
    let mut story = Story::new();
    let (target, moment) = (story.target.clone(), std::time::Duration::from_millis(20));
    story.down(SECOND, silent());
    let mut fence = std::pin::pin!(target.fence(&target));
    assert!(tokio::time::timeout(moment, &mut fence).await.is_err(), "its rail owes the proof");

    let transfer = story.write(10);
    let posted = story.data_path.take();
    assert!(matches!(posted[..], [(FIRST, _)]), "{posted:?}");
    transfer.cancel();
    story.ended(posted[0], CompletionStatus::Released(Sent::All));
    story.up(THIRD, 1);
    story.target.on_path_fenced(&story.paths[1]);
    let patience = std::time::Duration::from_secs(5);
    tokio::time::timeout(patience, fence).await.expect("it waits for nothing more").unwrap();

    assert!(story.target.is_in_doubt());
    let ends = |command: Command| matches!(command, Command::EndLanes { .. }).then_some(());
    assert_eq!(story.commanded(ends).len(), 0);
    let next = std::pin::pin!(target.fence(&target));
    assert!(tokio::time::timeout(moment, next).await.is_err(), "the lane is up");
    assert_eq!(story.commanded(ends).len(), 1);
}

/// A lane over a rail that is being opened is awaited by work and by a fence, and after them too, since nothing
/// demands it again; a lane over another rail is not.
#[tokio::test]
async fn opening_lane_is_awaited_by_work_and_fences() {
    let story = Story::new();
    let (target, moment) = (story.target.clone(), std::time::Duration::from_millis(20));
    story.down(SECOND, silent());
    {
        let mut fence = std::pin::pin!(target.fence(&target));
        assert!(tokio::time::timeout(moment, &mut fence).await.is_err(), "its rail owes the proof");
        let awaited = [0, 1].map(|rail| target.awaits(&story.paths[rail]));
        assert_eq!(awaited, [false, true], "the lane over the first rail is up");
    }
    assert!(target.awaits(&story.paths[1]), "the fence is given up, and the rail is still opening");
    let _transfer = story.write(10);
    assert!(target.awaits(&story.paths[1]) && !target.awaits(&story.paths[0]));
}

/// A run of the peer that has ended gets no lane, and a request for one says so.
#[tokio::test]
async fn run_that_has_ended_gets_no_lane() {
    let story = Story::new();
    story.target.on_peer_restarted();
    assert!(!story.target.want_lane());
}

/// The restart of a peer ends a transfer once its slices are back.
#[tokio::test]
async fn restart_ends_a_posted_transfer() {
    let story = Story::new();
    let transfer = story.write(10);
    story.target.on_peer_restarted();
    for posted in story.data_path.take() {
        story.ended(posted, CompletionStatus::Released(Sent::All));
    }
    assert_eq!(ends(transfer).await.cause(), &Cause::PeerRestarted);
}
