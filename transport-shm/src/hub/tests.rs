//! The task of a hub, without its thread.

use super::{
    Admission, Arc, Duration, Instant, Lane, Name, Shared, WAKE, attend, hello, listen, sys,
};
use crate::announcement::{Announcement, Place};
use crate::channel::Channel;
use crate::hello::Proof;
use crate::map::Process;
use crate::reason::NoChannel;
use crate::transport::{ANSWER_UNAWAITED_MAX, DIAL_AFTER, ShmConfig};
use crate::wire::Hello;
use handfast_core::transport::TransportError;
use handfast_core::wire::Body;
use handfast_core::{Incarnation, Lifecycle, NicPath, NodeName, Pair};
use handfast_transport::{
    Attempt, Completion, Created, DataPath, Endpoints, LaneSink, Posting, RegionTable, SliceId,
    Step, TransportKind,
};
use std::os::fd::OwnedFd;
use tokio::task::JoinHandle;

const KNOCK: u64 = 5;
const ANSWER: u64 = 7;
/// Long enough for anything a test waits for.
const PATIENCE: Duration = Duration::from_secs(20);

/// A transport below and a sink that nothing reaches.
struct Nothing;

impl LaneSink for Nothing {
    fn on_completions(&self, _: Lifecycle, _: &mut Vec<Completion>) {}

    fn on_lane_failed(&self, _: Lifecycle, _: TransportError) {}
}

impl DataPath for Nothing {
    fn post(&self, _: Lifecycle, _: &mut Vec<Posting>) {}

    fn withdraw(&self, _: Lifecycle, _: SliceId, _: handfast_core::Duration) {}
}

impl Endpoints for Nothing {
    fn create(&self, _: Lifecycle, _: NicPath, _: u64, _: Attempt) -> Created {
        Box::pin(std::future::ready(Ok(Body::default())))
    }

    fn connect(&self, _: Pair, _: Pair, _: Body) -> Step<()> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn retire(&self, _: Lifecycle) -> Step<()> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn transport_kind(&self, _: Lifecycle) -> TransportKind {
        TransportKind::Tcp
    }

    fn served(&self, _: Lifecycle) -> u64 {
        0
    }
}

/// The task of a hub. Its end is that of the lanes, which hold the state that holds them.
struct Task {
    shared: Arc<Shared>,
    handle: JoinHandle<()>,
}

impl Drop for Task {
    fn drop(&mut self) {
        self.shared.take_lanes();
        self.shared.hub.all().iter().for_each(|lane| self.shared.hub.remove(lane.token));
    }
}

/// A hub whose task alone handles events, with one lane, the name of its socket, and the task.
fn attended() -> (Arc<Shared>, Arc<Lane>, String, Task) {
    let name = format!("handfast-test-{:016x}", sys::random().unwrap());
    let config = ShmConfig {
        incarnation: Incarnation(1),
        directory: None,
        is_required: false,
        open_device: None,
    };
    let place = Place::Abstract(name.clone());
    let (regions, nothing) = (Arc::new(RegionTable::new()), Arc::new(Nothing));
    let at = (1, place.clone());
    let shared = Shared::new(config, &regions, nothing.clone(), nothing, at).unwrap();
    let handler = listen(&shared, &Name::Abstract(&name), Admission::SameUser).unwrap();
    let ready = shared.hub.poller.in_runtime().unwrap();
    let handle = tokio::spawn(attend(Arc::downgrade(&shared), handler, ready));
    let announcement = Announcement { knock: KNOCK, answer: ANSWER, host: 1, place };
    let peer = (Lifecycle(10), NicPath::parse("peer@host").unwrap());
    let lane = Lane::new(peer, shared.hub.token(), announcement, Arc::clone(&shared));
    (shared.clone(), shared.insert(lane), name, Task { shared, handle })
}

fn pair(incarnation: u128) -> Pair {
    Pair { incarnation: Incarnation(incarnation), lifecycle: Lifecycle(10) }
}

/// Waits until a condition holds, and lets the task run.
async fn eventually(mut is_true: impl FnMut() -> bool) {
    let waited = async {
        while !is_true() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waited).await.expect("it becomes true in time");
}

/// The task accepts a connection, and answers its hello. The hello comes later than the connection, which
/// the task has to wait for without a time limit.
#[tokio::test]
async fn task_connects_a_lane_without_the_thread() {
    let (shared, lane, name, _task) = attended();
    let socket = sys::connect(&Name::Abstract(&name)).unwrap();
    // The limit of the missing hello is the thread's: it is woken.
    let mut ready = Vec::new();
    eventually(|| {
        shared.hub.poller.wait(&mut ready, 0);
        ready.iter().any(|event| event.token == WAKE)
    })
    .await;
    assert!(!lane.is_up());
    let hello = Hello { sender: pair(2), receiver: pair(1) };
    hello::say(&socket, &hello, &Proof::new(KNOCK).unwrap()).unwrap();
    eventually(|| lane.is_up()).await;
    hello::read_answer(&socket, ANSWER).unwrap();
    // It handles packets as well, here the end of the connection.
    lane.arm(pair(2)).unwrap();
    drop(socket);
    eventually(|| !lane.is_up()).await;
}

/// A peer whose connect failed comes again in a later lifecycle, and takes the place of its earlier
/// connection; an earlier lifecycle does not. The pair of the local connect takes any other's.
#[tokio::test]
async fn later_pair_takes_the_place_of_an_earlier() {
    let (shared, lane, name, _task) = attended();
    let later = |lifecycle| Pair { lifecycle: Lifecycle(lifecycle), ..pair(2) };
    let mut sockets = Vec::new();
    let mut says = |lifecycle| {
        let socket = sys::connect(&Name::Abstract(&name)).unwrap();
        let hello = Hello { sender: later(lifecycle), receiver: pair(1) };
        hello::say(&socket, &hello, &Proof::new(KNOCK).unwrap()).unwrap();
        sockets.push(socket);
    };
    let up = || shared.counts.snapshot().lanes;
    says(10);
    eventually(|| up() == 1).await;
    says(11);
    eventually(|| up() == 2).await;
    says(10);
    eventually(|| shared.counts.snapshot().refused == 1).await;
    assert!(lane.is_up(), "an earlier lifecycle takes no place");
    lane.arm(later(12)).unwrap();
    assert!(!lane.is_up(), "the channel leads to another lifecycle");
    says(12);
    eventually(|| lane.is_up()).await;
    assert_eq!(up(), 3);
}

/// A hello that is refused has no answer, so that its sender takes no lane for connected; one that is answered
/// has the lane by then.
#[tokio::test]
async fn refused_hello_has_no_answer() {
    let (shared, lane, name, _task) = attended();
    let later = |lifecycle| Pair { lifecycle: Lifecycle(lifecycle), ..pair(2) };
    let says = |lifecycle| {
        let socket = sys::connect(&Name::Abstract(&name)).unwrap();
        let hello = Hello { sender: later(lifecycle), receiver: pair(1) };
        hello::say(&socket, &hello, &Proof::new(KNOCK).unwrap()).unwrap();
        socket
    };
    let first = says(11);
    eventually(|| lane.is_up()).await;
    hello::read_answer(&first, ANSWER).unwrap();
    let earlier = says(10);
    eventually(|| shared.counts.snapshot().refused == 1).await;
    assert_eq!(hello::read_answer(&earlier, ANSWER).err(), Some(NoChannel::Refused));
}

/// A side that dials takes the place of an earlier run's connection, which waits for a connect that never
/// comes, and of none that is its own.
#[tokio::test]
async fn side_that_dials_displaces_an_earlier_run() {
    let (_shared, lane, name, _task) = attended();
    let earlier = sys::connect(&Name::Abstract(&name)).unwrap();
    let hello = Hello { sender: pair(2), receiver: pair(1) };
    hello::say(&earlier, &hello, &Proof::new(KNOCK).unwrap()).unwrap();
    eventually(|| lane.is_up()).await;
    lane.arm(pair(3)).unwrap();
    assert!(!lane.is_up());
    let dials = || lane.await_answer(sys::pair().unwrap().0, ANSWER, pair(3));
    let answered = dials();
    assert!(answered.is_some(), "the pair of the connect takes the place");
    assert!(dials().is_none(), "its own stays");
}

/// A lane that no channel comes to shares no memory: nobody waits for it.
#[tokio::test]
async fn lane_without_a_channel_is_not_waited_for() {
    let (_shared, lane, _name, _task) = attended();
    assert!(lane.may_share(), "the peer may dial");
    lane.arm(pair(2)).unwrap();
    assert!(lane.may_share());
    let over = Instant::now().checked_sub(ANSWER_UNAWAITED_MAX + DIAL_AFTER).unwrap();
    lane.state.lock().armed_at = Some(over);
    assert!(!lane.may_share(), "the time for a hello is over");
    lane.state.lock().armed_at = Some(Instant::now());
    lane.note_apart(NoChannel::NoSocket);
    assert!(!lane.may_share());
    let error = lane.apart_error().to_string();
    assert!(error.contains(&NoChannel::NoSocket.to_string()), "{error}");
}

/// A connect that parts the lane from an earlier pair waits for its own, whose hello may come.
#[tokio::test]
async fn displaced_pair_leaves_the_lane_to_its_own() {
    let (_shared, lane, name, _task) = attended();
    let earlier = sys::connect(&Name::Abstract(&name)).unwrap();
    let hello = Hello { sender: pair(2), receiver: pair(1) };
    hello::say(&earlier, &hello, &Proof::new(KNOCK).unwrap()).unwrap();
    eventually(|| lane.is_up()).await;
    lane.arm(pair(3)).unwrap();
    assert!(!lane.is_up() && lane.may_share(), "its own may dial");
    let over = Instant::now().checked_sub(ANSWER_UNAWAITED_MAX + DIAL_AFTER).unwrap();
    lane.state.lock().armed_at = Some(over);
    assert!(!lane.may_share(), "the time for a hello is over");
}

/// A connection whose process cannot be watched leaves no claim: the next one of its pair has the lane.
#[tokio::test]
async fn unwatched_connection_leaves_no_claim() {
    let (shared, lane, _name, _task) = attended();
    lane.arm(pair(2)).unwrap();
    let attach = |descriptor: OwnedFd| {
        let (ours, theirs) = sys::pair().unwrap();
        let channel = Channel::new(ours, Process::new(1, Some(descriptor)), peer_name());
        (lane.attach(channel, pair(2)), theirs)
    };
    // A poller takes no plain file.
    let file = OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap());
    assert_eq!(attach(file).0, Err("its end cannot be watched"));
    let own = sys::open_process(std::process::id() as libc::pid_t).unwrap();
    let (attached, _theirs) = attach(own);
    assert_eq!(attached, Ok(()));
    assert!(lane.is_up());
    drop(shared);
}

fn peer_name() -> NodeName {
    NicPath::parse("peer@host").unwrap().node
}

/// The task refuses a hello with another number, and ends when its waker does.
#[tokio::test]
async fn task_refuses_and_ends_without_the_thread() {
    let (shared, lane, name, mut task) = attended();
    let socket = sys::connect(&Name::Abstract(&name)).unwrap();
    let hello = Hello { sender: pair(2), receiver: pair(1) };
    hello::say(&socket, &hello, &Proof::new(KNOCK + 1).unwrap()).unwrap();
    eventually(|| shared.counts.snapshot().refused == 1).await;
    assert!(!lane.is_up());
    shared.hub.end();
    tokio::time::timeout(PATIENCE, &mut task.handle).await.expect("it ends in time").unwrap();
}
