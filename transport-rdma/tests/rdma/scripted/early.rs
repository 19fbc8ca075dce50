//! Stories of lanes whose writes may complete before the peer has accepted them, as on iWARP.

use super::managed::{EARLY, charge_refused, connection, tries_of};
use super::{on, sites, until};
use crate::support::{BYTES, LANE, PATIENCE, Site, config, connect_lane};
use handfast_core::Lifecycle;
use handfast_core::transport::Side;
use handfast_core::visibility::APART_ANSWERS;
use handfast_fabric_control::Fabric;
use handfast_transport::{CompletionStatus, DataPath, Direction, Sent, SliceId};
use handfast_transport_rdma::NicConfig;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

/// Six retransmissions of TCP, and retransmissions before it gives up (`tcp_retries2`).
const TCP_PATIENCE: Duration = Duration::from_millis(25_400);
const TCP_RETRIES: u8 = 15;

/// A lane that this node ends charges none of its writes.
#[test]
fn own_end_charges_no_write() {
    on(&EARLY, "early::own_end_charges_no_write", |fabric| {
        end_charges_no_write(fabric, |_| {});
    });
}

/// A completion queue that runs over ends its lanes, charges none of their writes, and slows no later lane.
#[test]
fn overrun_queue_charges_no_write() {
    on(&EARLY, "early::overrun_queue_charges_no_write", |fabric| {
        end_charges_no_write(fabric, |one| {
            fabric.run("overrun rxe0");
            one.told.wait("the failure", |told| !told.failures.is_empty());
        });
    });
}

/// An address that leaves the port ends its lanes, charges none of their writes, and slows no later lane.
#[test]
fn address_that_leaves_charges_no_write() {
    on(&EARLY, "early::address_that_leaves_charges_no_write", |fabric| {
        end_charges_no_write(fabric, |one| {
            // The only one is the MAC address; the later lane announces another one.
            fabric.run("gid rxe0 remove 0");
            assert_eq!(one.nic.fail_unaddressed(), Ok(1));
            fabric.run("gid rxe0 add 0");
        });
    });
}

/// A connection of a device that is removed charges no write, also where its event comes before that of the NIC.
#[test]
fn removed_connection_charges_no_write() {
    on(&EARLY, "early::removed_connection_charges_no_write", |fabric| {
        end_charges_no_write(fabric, |one| {
            let connection = connection(fabric, "rxe0");
            let number = connection.split(' ').next().unwrap();
            fabric.run(&format!("manager remove rxe0 {number}"));
            one.told.wait("the failure", |told| !told.failures.is_empty());
            let [(_, failure)] = &one.told.failures()[..] else { panic!("one lane has failed") };
            assert_eq!(failure.side, Side::Local, "{failure}");
        });
    });
}

/// Less than a disconnect waits for threads that post, and as long as it waits.
const MOMENT: Duration = Duration::from_millis(20);
const POSTERS_WAIT_MAX: Duration = Duration::from_secs(5);

/// The disconnect of a failed connection moves its queue pair to ERR, and waits for a thread that posts there.
#[test]
fn disconnect_waits_for_a_thread_that_posts() {
    on(&EARLY, "early::disconnect_waits_for_a_thread_that_posts", |fabric| {
        fails_during_a_post(fabric, |_, disconnects| {
            std::thread::sleep(MOMENT);
            assert_eq!(disconnects(), 0);
        });
    });
}

/// A driver that keeps a thread in its post delays the disconnect for the limit, and no longer. The device then
/// reports the request behind the held one.
#[test]
fn disconnect_follows_a_post_that_does_not_return() {
    on(&["siw"], "early::disconnect_follows_a_post_that_does_not_return", |fabric| {
        let number = fails_during_a_post(fabric, |failed, disconnects| {
            let deadline = Instant::now() + PATIENCE;
            while disconnects() == 0 {
                assert!(Instant::now() < deadline, "it is not disconnected");
                std::thread::sleep(MOMENT);
            }
            assert!(failed.elapsed() >= POSTERS_WAIT_MAX);
        });
        until(fabric, "laws", &format!("rxe0 {number}: posted in ERR"));
    });
}

/// A connection fails while a thread posts on it. `meanwhile` gets a time before the failure, and the count of
/// disconnects since. Returns the number of the queue pair.
fn fails_during_a_post(fabric: &Fabric, meanwhile: impl Fn(Instant, &dyn Fn() -> u32)) -> String {
    let (one, other) = sites();
    connect_lane(&one, &other, LANE, 1);
    let connection = connection(fabric, "rxe0");
    let number = connection.split(' ').next().unwrap();
    fabric.run("hold call rxe0 ibv_post_send");
    let count = || fabric.run("count rxe0 rdma_disconnect").parse::<u32>().unwrap();
    let before = count();
    std::thread::scope(|scope| {
        let slice = one.posting(&other, 0, Direction::Write, 0, 64);
        scope.spawn(|| one.nic.post(LANE, &mut vec![slice]));
        until(fabric, "waiting rxe0 ibv_post_send", "1");
        let started = Instant::now();
        fabric.run(&format!("manager remove rxe0 {number}"));
        one.told.wait("the failure", |told| !told.failures.is_empty());
        // A failed assertion lets the thread go, too.
        let result = catch_unwind(AssertUnwindSafe(|| meanwhile(started, &|| count() - before)));
        fabric.run("release call rxe0 ibv_post_send");
        result.unwrap_or_else(|panic| resume_unwind(panic));
    });
    one.nic.retire(LANE).unwrap();
    other.nic.retire(LANE).unwrap();
    number.to_owned()
}

/// The status of a request that siw was sending when its connection ended, whatever the cause.
const BROKEN_SEND: u32 = 2;

/// A request whose sending was broken off is no cause: nobody is charged, and the failure is the peer's.
#[test]
fn broken_send_charges_no_write() {
    on(&["siw"], "early::broken_send_charges_no_write", |fabric| {
        let (one, other) = sites();
        connect_lane(&one, &other, LANE, 1);
        fabric.run("hold packets rxe1 rxe0");
        let slice = |number| one.posting(&other, number, Direction::Write, 0, 4096);
        one.nic.post(LANE, &mut (0..4).map(slice).collect());
        let pairs = fabric.run("pairs rxe0");
        let number = pairs.split(' ').next().unwrap();
        fabric.run(&format!("fail request rxe0 {number} {BROKEN_SEND}"));
        one.told.wait("the failure", |told| !told.failures.is_empty());
        let [(_, failure)] = &one.told.failures()[..] else { panic!("one lane has failed") };
        assert_eq!(failure.side, Side::Peer, "{failure}");
        assert!(failure.detail.contains("the first error was not reported"), "{failure}");
        one.nic.retire(LANE).unwrap();
        let ends = one.told.ends(4);
        assert!(ends.iter().all(|end| *end == CompletionStatus::Flushed), "{ends:?}");
        fabric.run("release packets rxe1 rxe0");
        other.nic.retire(LANE).unwrap();
    });
}

/// Slices that are posted at once.
const SEVERAL: usize = 8;

/// A lane with unanswered writes ends by `end`, or by its retirement alone: no write is charged, and a later lane
/// takes several at a time.
fn end_charges_no_write(fabric: &Fabric, end: impl Fn(&Site)) {
    let (one, other) = sites();
    connect_lane(&one, &other, LANE, 1);
    fabric.run("hold packets rxe1 rxe0");
    let slice = |number| one.posting(&other, number, Direction::Write, 0, 4096);
    one.nic.post(LANE, &mut (0..4).map(slice).collect());
    end(&one);
    one.nic.retire(LANE).unwrap();
    let ends = one.told.ends(4);
    assert!(ends.iter().all(|end| *end == CompletionStatus::Flushed), "{ends:?}");
    fabric.run("release packets rxe1 rxe0");
    other.nic.retire(LANE).unwrap();
    connect_lane(&one, &other, Lifecycle(8), 1);
    assert!(packets_of_several(fabric, (&one, &other), Lifecycle(8), |held| held >= SEVERAL));
    one.nic.retire(Lifecycle(8)).unwrap();
    other.nic.retire(Lifecycle(8)).unwrap();
}

/// Posts several writes over a lane of one queue pair, and returns whether the packets that the device sends before
/// an answer become as many as `are`.
fn packets_of_several(
    fabric: &Fabric,
    (one, other): (&Site, &Site),
    lane: Lifecycle,
    are: impl Fn(usize) -> bool,
) -> bool {
    one.told.forget();
    fabric.run("hold packets rxe0 rxe1");
    let slice = |number| one.posting(other, number, Direction::Write, 0, 64);
    one.nic.post(lane, &mut (0..SEVERAL as u64).map(slice).collect());
    let deadline = Instant::now() + PATIENCE / 4;
    let held = || fabric.run("held rxe0 rxe1").parse().unwrap();
    while !are(held()) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    let is_so = are(held());
    fabric.run("release packets rxe0 rxe1");
    assert!(one.told.ends(SEVERAL).iter().all(|end| *end == CompletionStatus::Done));
    is_so
}

/// A lane to a peer that has refused a write takes as many slices as others, and sends one at a time, with the read
/// behind it, until the peer has answered [`APART_ANSWERS`] writes or reads: then it sends several.
#[test]
fn lane_sends_several_slices_once_its_peer_answers() {
    let name = "early::lane_sends_several_slices_once_its_peer_answers";
    on(&["siw:completes_early"], name, |fabric| {
        for direction in [Direction::Write, Direction::Read] {
            let (one, other) = sites();
            charge_refused(&one, &other, (10, 4, 2));
            connect_lane(&one, &other, LANE, 1);
            assert_eq!(one.nic.lane_depth(LANE), Some(config("rxe0").depth));
            assert!(packets_of_several(fabric, (&one, &other), LANE, |held| held == 2));
            for _ in 0..APART_ANSWERS as usize / SEVERAL {
                one.told.forget();
                let slice = |number| one.posting(&other, number, direction, 0, 64);
                one.nic.post(LANE, &mut (0..SEVERAL as u64).map(slice).collect());
                let ends = one.told.ends(SEVERAL);
                assert!(ends.iter().all(|end| *end == CompletionStatus::Done), "{ends:?}");
            }
            assert!(packets_of_several(fabric, (&one, &other), LANE, |held| held > SEVERAL));
            one.nic.retire(LANE).unwrap();
            other.nic.retire(LANE).unwrap();
        }
    });
}

/// A withdrawn slice that waits behind another one is given back at once and never sent. One that the device has
/// goes on.
#[test]
fn withdrawn_slice_that_waits_is_not_sent() {
    const LENGTH: usize = 64;
    let name = "early::withdrawn_slice_that_waits_is_not_sent";
    on(&["siw:completes_early"], name, |fabric| {
        let (one, other) = sites();
        let waiting = slow_lane(fabric, (&one, &other), LENGTH);
        let (sent, before) = (one.bytes(), vec![7; BYTES]);
        other.memory.copy_in(0, &before).unwrap();
        for slice in [0, 1, 3] {
            let slice = SliceId::from_bits(slice);
            DataPath::withdraw(&one.nic, LANE, slice, handfast_core::Duration(0));
        }
        assert_eq!(one.told.ends(2), vec![CompletionStatus::Released(Sent::None); 2]);
        assert!(!one.nic.holds(LANE, SliceId::from_bits(3)));
        fabric.run("release packets rxe0 rxe1");
        let ends = one.told.ends(waiting + 1);
        let is_done = |slice: usize| ends[slice] == CompletionStatus::Done;
        assert_eq!([0, 1, 2, 3].map(is_done), [true, false, true, false], "{ends:?}");
        let bytes = other.bytes();
        for slice in 0..=waiting {
            let place = slice * LENGTH..(slice + 1) * LENGTH;
            let expected = if is_done(slice) { &sent } else { &before };
            assert_eq!(bytes[place.clone()], expected[place], "slice {slice}");
        }
        one.nic.retire(LANE).unwrap();
        other.nic.retire(LANE).unwrap();
    });
}

/// The retirement of a lane waits for the report of slices that another thread has taken out of it.
#[test]
fn retirement_waits_for_the_report_of_slices() {
    let name = "early::retirement_waits_for_the_report_of_slices";
    on(&["siw:completes_early"], name, |fabric| {
        let drain = Duration::from_millis(100);
        let one = Site::new(NicConfig { drain, timeout_exponent: 20, ..config("rxe0") });
        let other = Site::new(NicConfig { timeout_exponent: 20, ..config("rxe1") });
        let waiting = slow_lane(fabric, (&one, &other), 64);
        let held = one.told.releases.lock().unwrap();
        fabric.run("overrun rxe0");
        let deadline = Instant::now() + PATIENCE;
        while one.nic.holds(LANE, SliceId::from_bits(waiting as u64)) {
            assert!(Instant::now() < deadline, "the failed lane keeps its slices");
            std::thread::sleep(Duration::from_millis(1));
        }
        let error = one.nic.retire(LANE).unwrap_err();
        assert_eq!((error.call, one.nic.lanes()), ("retire", 1), "{error}");
        drop(held);
        one.told.wait("the end of slices", |told| told.ends.len() == waiting + 1);
        // The thread that reports leaves the lane after the end of the last slice.
        let deadline = Instant::now() + PATIENCE;
        while let Err(error) = one.nic.retire(LANE) {
            assert!(Instant::now() < deadline, "{error}");
        }
        let released = CompletionStatus::Released(Sent::None);
        assert_eq!(one.told.ends(waiting + 1)[1..], vec![released; waiting]);
        fabric.run("release packets rxe0 rxe1");
        other.nic.retire(LANE).unwrap();
    });
}

/// A lane of one queue pair that takes one slice at a time: its first write of `length` bytes is not answered, and as
/// many wait behind it as are returned.
fn slow_lane(fabric: &Fabric, (one, other): (&Site, &Site), length: usize) -> usize {
    charge_refused(one, other, (10, 4, 2));
    connect_lane(one, other, LANE, 1);
    one.told.forget();
    fabric.run("hold packets rxe0 rxe1");
    let place = |number: u64| usize::try_from(number).unwrap() * length;
    let slice = |number| one.posting(other, number, Direction::Write, place(number), length);
    one.nic.post(LANE, &mut (0..4).map(slice).collect());
    3
}

/// A slice that meets the probe of an idle lane in its only place waits for it, also where the lane sends one slice at a
/// time.
#[test]
fn slice_waits_for_a_probe_in_its_place() {
    let profiles = ["siw", "siw:completes_early", "mlx5"];
    on(&profiles, "early::slice_waits_for_a_probe_in_its_place", |fabric| {
        // No packet is sent again, and none is of a probe of the other side.
        fabric.run("timers off");
        let shallow = |device, idle_probe| {
            Site::new(NicConfig { depth: 1, idle_probe, timeout_exponent: 20, ..config(device) })
        };
        let one = shallow("rxe0", Some(Duration::from_millis(10)));
        let other = shallow("rxe1", None);
        connect_lane(&one, &other, LANE, 1);
        fabric.run("hold packets rxe0 rxe1");
        until(fabric, "held rxe0 rxe1", "1");
        one.nic.post(LANE, &mut vec![one.posting(&other, 0, Direction::Write, 0, 64)]);
        assert_eq!(one.told.failures().len(), 0);
        fabric.run("release packets rxe0 rxe1");
        assert_eq!(one.told.ends(1), [CompletionStatus::Done]);
        one.nic.retire(LANE).unwrap();
        other.nic.retire(LANE).unwrap();
        fabric.run("timers on");
    });
}

/// A probe waits for that of an idle lane which is under way: its answer counts, and without one the peer is silent.
#[test]
fn probe_waits_for_that_of_an_idle_lane() {
    on(&["siw", "mlx5"], "early::probe_waits_for_that_of_an_idle_lane", |fabric| {
        // No packet is sent again, and none is of a probe of the other side.
        fabric.run("timers off");
        let site = |device, idle_probe| {
            Site::new(NicConfig { idle_probe, timeout_exponent: 20, ..config(device) })
        };
        let one = site("rxe0", Some(Duration::from_millis(10)));
        let other = site("rxe1", None);
        connect_lane(&one, &other, LANE, 1);
        fabric.run("hold packets rxe0 rxe1");
        until(fabric, "held rxe0 rxe1", "1");
        let error = one.nic.probe(LANE, None, Duration::from_millis(20)).unwrap_err();
        assert_eq!((error.side, error.call), (Side::Peer, "prove"), "{error}");
        std::thread::scope(|scope| {
            let probed = scope.spawn(|| one.nic.probe(LANE, None, PATIENCE));
            fabric.run("release packets rxe0 rxe1");
            probed.join().unwrap().unwrap();
        });
        assert_eq!(one.told.failures().len(), 0);
        one.nic.retire(LANE).unwrap();
        other.nic.retire(LANE).unwrap();
        fabric.run("timers on");
    });
}

/// A queue pair that an event has named is the one that failed: the write on the other one is not charged, in
/// whichever order their reads are given up.
#[test]
fn write_of_the_named_queue_pair_is_charged() {
    on(&["siw:completes_early"], "early::write_of_the_named_queue_pair_is_charged", |fabric| {
        let (one, other) = sites();
        charge_refused(&one, &other, (10, 4, 2));
        for (lane, failed) in [(20, 0), (21, 1)] {
            let lane = Lifecycle(lane);
            one.told.forget();
            let body = one.nic.create(lane, &[1, 2]).unwrap();
            let theirs = other.nic.create(lane, &[3, 4]).unwrap();
            other.nic.note_request(None, &body);
            one.nic.note_request(None, &theirs);
            other.nic.connect(lane, &body).unwrap();
            one.nic.connect(lane, &theirs).unwrap();
            one.wait_until_open(lane);
            fabric.run("hold completions rxe0");
            let slice = |number| one.posting(&other, number, Direction::Write, 0, 64);
            one.nic.post(lane, &mut (0..2).map(slice).collect());
            fabric.run(&format!("manager disconnect rxe0 {}", body.queue_pairs[failed]));
            one.told.wait("the failure", |told| !told.failures.is_empty());
            fabric.run("release completions rxe0");
            one.nic.retire(lane).unwrap();
            other.nic.retire(lane).unwrap();
            let is_charged = |end: &CompletionStatus| matches!(end, CompletionStatus::Failed(_));
            let ends = one.told.ends(2);
            assert_eq!(
                [0, 1].map(|pair| is_charged(&ends[pair])),
                [failed == 0, failed == 1],
                "{ends:?}"
            );
        }
    });
}

/// TCP retransmits on devices of iWARP: no timeout is set on connections, the retries are TCP's, and a silent
/// slice is given the time of TCP, whatever the options of RoCE say.
#[test]
fn iwarp_connections_have_no_timers_of_roce() {
    on(&["siw", "iwarp"], "early::iwarp_connections_have_no_timers_of_roce", |fabric| {
        let set = |device: &str| NicConfig {
            traffic_class: 104,
            timeout_exponent: 19,
            retries: 1,
            ..config(device)
        };
        let (one, other) = (Site::new(set("rxe0")), Site::new(set("rxe1")));
        connect_lane(&one, &other, LANE, 1);
        let lines = ["rxe0", "rxe1"].map(|device| connection(fabric, device));
        assert!(lines.iter().all(|line| !line.contains("timeout")), "{lines:?}");
        assert!(lines.iter().any(|line| line.contains(" class 104")), "{lines:?}");
        assert_eq!(one.nic.patience(), TCP_PATIENCE);
        one.nic.retire(LANE).unwrap();
        other.nic.retire(LANE).unwrap();
        drop((one, other));
        fabric.run("timers off");
        assert_eq!(tries_of(fabric, Lifecycle(8), set), TCP_RETRIES + 1);
        fabric.run("timers on");
    });
}
