//! A transport without a device, or over a scripted one: unknown lanes and NICs, the conversions
//! around a step, and lanes that the device does not let go.

use super::*;
use crate::settings::LANE_QUEUE_PAIRS_MAX;
use crate::verbs::scripted::Device;
use crate::verbs::{NicConfig, NicSink, Registration};
use handfast_core::{Incarnation, NodeName};
use handfast_transport::{Access, CompletionStatus, Direction, Memory, RemoteSpan};
use parking_lot::Mutex;
use std::sync::atomic::Ordering;

const GONE: Lifecycle = Lifecycle(7);

#[derive(Default)]
struct Recorder {
    ended: Mutex<Vec<(Lifecycle, Vec<Completion>)>>,
    failures: Mutex<Vec<(Lifecycle, TransportError)>>,
}

impl LaneSink for Recorder {
    fn on_completions(&self, lane: Lifecycle, completions: &mut Vec<Completion>) {
        self.ended.lock().push((lane, std::mem::take(completions)));
    }

    fn on_lane_failed(&self, lane: Lifecycle, error: TransportError) {
        self.failures.lock().push((lane, error));
    }
}

impl NicSink for Recorder {}

fn of_rail(path: &NicPath) -> Option<&str> {
    path.rail().map(|(_, ours)| ours)
}

fn transport() -> (RdmaTransport, Arc<Recorder>) {
    let sink = Arc::new(Recorder::default());
    (RdmaTransport::new(Vec::new(), of_rail, sink.clone()).unwrap(), sink)
}

fn node() -> NodeName {
    NodeName::new("peer").unwrap()
}

fn path() -> NicPath {
    NicPath { node: node(), nic: NodeName::new("tcp").unwrap() }
}

fn pair(lifecycle: Lifecycle) -> Pair {
    Pair { incarnation: Incarnation(1), lifecycle }
}

fn postings(count: u64) -> Vec<Posting> {
    let memory = Memory::zeroed(8).unwrap();
    let posting = |slice| Posting {
        slice: SliceId::from_bits(slice),
        direction: Direction::Write,
        span: memory.whole(),
        remote: RemoteSpan { key: 1, address: 0 },
        memory: None,
        region_key: None,
    };
    (0..count).map(posting).collect()
}

/// Slices for a lane that is gone end at once and in order, and nothing of them is kept.
#[tokio::test]
async fn post_to_a_gone_lane_releases_the_slices() {
    let (transport, sink) = transport();
    let mut slices = postings(3);
    transport.post(GONE, &mut slices);
    assert!(slices.is_empty());
    let ended = std::mem::take(&mut *sink.ended.lock());
    let [(GONE, completions)] = &ended[..] else { panic!("{ended:?}") };
    let released = |slice| Completion::released(SliceId::from_bits(slice), Sent::None);
    assert_eq!(completions[..], [released(0), released(1), released(2)]);

    transport.post(GONE, &mut Vec::new());
    assert_eq!(sink.ended.lock().len(), 0, "an empty list is no report");
}

/// A caller with another transport keeps the slices that have no lane here.
#[tokio::test]
async fn try_post_leaves_slices_without_a_lane() {
    let (transport, sink) = transport();
    let mut slices = postings(2);
    assert!(transport.handle(GONE).is_none());
    assert!(!transport.try_post(GONE, &mut slices));
    assert_eq!(slices.len(), 2);
    assert!(!transport.try_withdraw(GONE, slices[0].slice, handfast_core::Duration(0)));
    assert_eq!((sink.ended.lock().len(), sink.failures.lock().len()), (0, 0));
}

/// Steps of an unknown lifecycle are errors of this side that name the step; its retirement has
/// nothing to do.
#[tokio::test]
async fn steps_of_an_unknown_lifecycle_name_the_step() {
    let (transport, _) = transport();
    let connected = transport.connect(pair(GONE), pair(Lifecycle(8)), Body::default()).await;
    let probed = (transport.probe(GONE).await, transport.probe_rail(GONE).await);
    for (outcome, call) in [(connected, "wire"), (probed.0, "prove"), (probed.1, "probe")] {
        let error = outcome.unwrap_err();
        assert_eq!((error.side, &*error.call), (Side::Local, call), "{error}");
        assert_eq!(error.detail, "no lane has the lifecycle");
    }
    assert_eq!(transport.retire(GONE).await, Ok(()));
    assert_eq!((transport.has_endpoint(GONE), transport.is_connected(GONE)), (false, false));
    assert_eq!((transport.served(GONE), transport.transport_kind(GONE)), (0, TransportKind::Rdma));
}

/// A path that names a NIC of another node is a mistake of the configuration, and leaves no
/// endpoint; so does a transport without a NIC.
#[tokio::test]
async fn unknown_nic_leaves_no_endpoint() {
    let (transport, _) = transport();
    let rail = NicPath::over_rail(&node(), "rxe1", "rxe0").unwrap();
    let refused = transport.create(GONE, rail.clone(), 1, Attempt::First).await.unwrap_err();
    assert_eq!((refused.error.side, refused.limit), (Side::Configuration, None));
    assert_eq!(
        refused.error.detail,
        "this node does not use a NIC 'rxe0'; name one that it has opened"
    );
    let refused = transport.create_legacy(GONE, path(), 0).await.unwrap_err();
    assert_eq!((refused.error.side, &*refused.error.detail), (Side::Local, "no NIC is open"));
    assert!(!transport.has_endpoint(GONE));
    assert_eq!(transport.skip_numbers(&rail, 1).await.unwrap_err().side, Side::Configuration);
    transport.note_address(&rail, "fe:01", None);
    assert_eq!((transport.nics().len(), transport.counters()), (0, NicCounters::default()));
}

/// A lane whose queue pair the device keeps is not retired, however often that is asked: its endpoint
/// stays, and its slices end with the retirement that succeeds.
#[tokio::test]
async fn retire_fails_until_the_device_lets_go() {
    let (device, transport, sink, registration) = over_device(NicConfig::new("scripted")).await;
    device.answer("ibv_destroy_qp", &[libc::EBUSY; 3]);
    transport.post(GONE, &mut vec![posting(&registration)]);
    for _ in 0..2 {
        let error = transport.retire(GONE).await.unwrap_err();
        assert_eq!((error.side, &*error.call), (Side::Local, "ibv_destroy_qp"), "{error}");
        assert!(transport.has_endpoint(GONE));
        assert_eq!(sink.ended.lock().len(), 0);
    }
    transport.retire(GONE).await.unwrap();
    assert!(!transport.has_endpoint(GONE));
    let flushed = Completion { slice: SliceId::from_bits(0), status: CompletionStatus::Flushed };
    assert_eq!(sink.ended.lock()[..], [(GONE, vec![flushed])]);
}

/// A withdrawn slice costs its lane once its device has reported nothing for longer than the timers
/// of the NIC take.
#[tokio::test]
async fn silent_device_fails_the_lane_of_a_withdrawn_slice() {
    let config = NicConfig { timeout_exponent: 11, retries: 2, ..NicConfig::new("scripted") };
    let (_, transport, sink, registration) = over_device(config).await;
    let patience = transport.nics()[0].as_ref().unwrap().patience();
    assert_eq!(patience, Duration::from_nanos(4 * 3 * (4_096 << 11)));
    transport.post(GONE, &mut vec![posting(&registration)]);
    transport.withdraw(GONE, SliceId::from_bits(0), handfast_core::Duration(0));
    assert_eq!(sink.failures.lock().len(), 0);
    until_failed(&sink).await;
    let failures = std::mem::take(&mut *sink.failures.lock());
    let [(GONE, error)] = &failures[..] else { panic!("{failures:?}") };
    assert_eq!((error.side, &*error.call), (Side::Local, "withdraw"), "{error}");
    assert!(error.detail.contains("within 100 ms"), "{error}");
}

/// The silence of a lane before the withdrawal is a part of the device's time.
#[tokio::test]
async fn silence_before_the_withdrawal_counts() {
    let config = NicConfig { timeout_exponent: 31, ..NicConfig::new("scripted") };
    let (_, transport, sink, registration) = over_device(config).await;
    let patience = transport.nics()[0].as_ref().unwrap().patience();
    assert!(patience > Duration::from_secs(3_600));
    transport.post(GONE, &mut vec![posting(&registration)]);
    let silence = handfast_core::Duration(patience.as_nanos() as u64);
    transport.withdraw(GONE, SliceId::from_bits(0), silence);
    until_failed(&sink).await;
}

/// Waits until a lane has failed.
async fn until_failed(sink: &Recorder) {
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while sink.failures.lock().is_empty() {
        assert!(std::time::Instant::now() < deadline, "the device had all of its time");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// A transport over a device that completes nothing, with a connected lane and memory.
async fn over_device(
    config: NicConfig,
) -> (&'static Device, RdmaTransport, Arc<Recorder>, Registration) {
    let (device, sink) = (Device::new(), Arc::new(Recorder::default()));
    device.holds.store(true, Ordering::Relaxed);
    let drain = Duration::from_millis(20);
    let nic = device.nic(NicConfig { drain, idle_probe: None, ..config }, sink.clone());
    let memory = Memory::zeroed(8).unwrap();
    let registration = nic.register(memory.whole(), Access::READ_WRITE).unwrap();
    let transport = RdmaTransport::new(vec![nic], of_rail, sink.clone()).unwrap();
    let body = transport.create_legacy(GONE, path(), 1).await.unwrap();
    transport.connect(pair(GONE), pair(Lifecycle(8)), body).await.unwrap();
    (device, transport, sink, registration)
}

fn posting(registration: &Registration) -> Posting {
    Posting {
        slice: SliceId::from_bits(0),
        direction: Direction::Write,
        span: registration.span().clone(),
        remote: registration.remote_span(),
        memory: Some(registration.memory().clone()),
        region_key: None,
    }
}

/// Each queue pair starts with 24 bits of its own.
#[test]
fn sequence_numbers_share_no_bits() {
    assert_eq!(psns(0x1234_abcd_ef98_7654, 2), [0x0098_7654, 0x00ab_cdef]);
    assert_eq!(psns(u64::MAX, 2), [PSN_MASK; 2]);
    let all = psns(7, LANE_QUEUE_PAIRS_MAX);
    assert!(all.iter().all(|psn| *psn <= PSN_MASK));
    let different: std::collections::BTreeSet<_> = all.iter().collect();
    assert_eq!(different.len(), LANE_QUEUE_PAIRS_MAX, "{all:?}");
}

/// Another lane's end lifts a limit of lanes, and no limit of memory.
#[test]
fn limits_of_lanes_permit_a_second_attempt() {
    let refused = |limit| {
        let limit = LimitReached { limit, in_use: 1, max: 1 };
        let (device, detail) = ("rxe0".to_owned(), "full".to_owned());
        let (side, call) = (Side::Local, "bring_up");
        not_created(VerbsError { side, call, code: 0, device, detail, limit: Some(limit) })
    };
    for limit in [NicLimit::Lanes, NicLimit::QueuePairs, NicLimit::CompletionEntries] {
        assert_eq!(refused(limit).limit.map(|reached| reached.limit), Some(limit));
    }
    for limit in [NicLimit::Regions, NicLimit::LockedMemory] {
        let refused = refused(limit);
        assert_eq!(refused.limit, None);
        assert!(refused.error.detail.contains("1 of 1 are in use"), "{}", refused.error);
    }
}
