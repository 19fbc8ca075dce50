//! Stories of the order that iWARP demands: the side that has dialled sends the first frame.

use super::managed::{Meeting, another_lane_works, meeting, nothing_is_left};
use super::{on, until};
use crate::support::{LANE, PATIENCE, Site, config};
use handfast_core::Lifecycle;
use handfast_fabric_control::Fabric;
use handfast_transport::{CompletionStatus, Direction};
use handfast_transport_rdma::NicConfig;
use std::thread::{Scope, yield_now};
use std::time::{Duration, Instant};

/// The profiles of iWARP, with the order as a law.
const ORDERED: [&str; 3] =
    ["erdma-standard:dialler_sends_first", "siw:dialler_sends_first", "iwarp:dialler_sends_first"];
const SECOND: Lifecycle = Lifecycle(8);
/// Reads of a dial that nobody answers.
const READS_MAX: u64 = 5;

/// Two sites whose dials no slow machine ends.
fn sites() -> (Site, Site) {
    let site =
        |device| Site::new(NicConfig { dial: PATIENCE, timeout_exponent: 20, ..config(device) });
    (site("rxe0"), site("rxe1"))
}

/// The side that has accepted is established with its answer. It sends nothing before the first frame of the side that has
/// dialled, and its connect reads no byte of the peer. Then both write.
#[test]
fn side_that_has_dialled_sends_the_first_frame() {
    on(&ORDERED, "order::side_that_has_dialled_sends_the_first_frame", |fabric| {
        let (one, other) = sites();
        let met = meeting(&one, &other, LANE);
        let second = meeting(&one, &other, SECOND);
        let dialler = met.dials.nic.device();
        fabric.run(&format!("manager hold {dialler} ESTABLISHED"));
        std::thread::scope(|scope| {
            let first = dial(scope, fabric, (&met, LANE), 1);
            // Its request comes behind the first one's event, which is known once it is accepted.
            let then = dial(scope, fabric, (&second, SECOND), 2);
            met.waits.nic.connect(LANE, &met.dials_body).unwrap();
            assert_eq!(fabric.run("laws"), "");
            fabric.run(&format!("manager release {dialler} ESTABLISHED"));
            first.join().unwrap();
            then.join().unwrap();
        });
        for (from, to) in [(met.dials, met.waits), (met.waits, met.dials)] {
            from.nic.post(LANE, &mut vec![from.posting(to, 0, Direction::Write, 0, 4096)]);
            assert_eq!(from.told.ends(1), [CompletionStatus::Done]);
        }
        met.retire(LANE);
        second.retire(SECOND);
        nothing_is_left(fabric);
    });
}

/// A dial whose first read is not answered reads again, up to five times in all, and ends by its time. One that is answered late
/// connects.
#[test]
fn dial_reads_again_until_it_is_answered() {
    on(&ORDERED, "order::dial_reads_again_until_it_is_answered", |fabric| {
        let site = |device, dial| {
            Site::new(NicConfig { dial, timeout_exponent: 20, idle_probe: None, ..config(device) })
        };
        let sites_of = |dial| (site("rxe0", dial), site("rxe1", dial));
        let (one, other) = sites_of(Duration::from_secs(4));
        let met = meeting(&one, &other, LANE);
        let dialler = met.dials.nic.device();
        fabric.run(&format!("hold completions {dialler}"));
        let error = met.dial(LANE, &met.waits_body).unwrap_err();
        assert!(error.detail.contains("did not answer a read in time"), "{error}");
        let reads = met.dials.nic.counters().probes;
        assert!((3..=READS_MAX).contains(&reads), "{reads} reads");
        fabric.run(&format!("release completions {dialler}"));
        met.retire(LANE);
        drop(met);
        drop((one, other));
        let (one, other) = sites_of(PATIENCE);
        let met = meeting(&one, &other, SECOND);
        let dialler = met.dials.nic.device();
        fabric.run(&format!("hold completions {dialler}"));
        std::thread::scope(|scope| {
            let dialled = scope.spawn(|| met.dial(SECOND, &met.waits_body));
            let begun = Instant::now();
            while met.dials.nic.counters().probes < 2 {
                assert!(begun.elapsed() < PATIENCE, "the read is not posted again");
                yield_now();
            }
            fabric.run(&format!("release completions {dialler}"));
            dialled.join().unwrap().unwrap();
        });
        met.retire(SECOND);
        nothing_is_left(fabric);
    });
}

/// The law is one: a device names the side that sends before it has received, as a program does that posts without the
/// `ready` of its peer.
#[test]
fn first_frame_of_the_accepting_side_breaks_the_law() {
    on(&ORDERED, "order::first_frame_of_the_accepting_side_breaks_the_law", |fabric| {
        let (one, other) = sites();
        let met = meeting(&one, &other, LANE);
        let (dialler, listener) = (met.dials.nic.device(), met.waits.nic.device());
        met.waits.nic.connect(LANE, &met.dials_body).unwrap();
        let early = met.waits.posting(met.dials, 0, Direction::Write, 0, 64);
        met.waits.nic.post(LANE, &mut vec![early]);
        fabric.run(&format!("manager hold {dialler} ESTABLISHED"));
        std::thread::scope(|scope| {
            let dialled = scope.spawn(|| met.dials.nic.connect(LANE, &met.waits_body));
            let number = met.waits_body.queue_pairs[0];
            let law = format!("{listener} {number}: sends before the side that has dialled");
            until(fabric, "laws", &law);
            fabric.run(&format!("manager release {dialler} ESTABLISHED"));
            dialled.join().unwrap().unwrap();
        });
        assert_eq!(met.waits.told.ends(1), [CompletionStatus::Done]);
        met.retire(LANE);
        another_lane_works(&one, &other, SECOND);
        nothing_is_left(fabric);
    });
}

/// Dials, and waits until the other side has as many connections.
fn dial<'scope, 'env: 'scope>(
    scope: &'scope Scope<'scope, 'env>,
    fabric: &Fabric,
    (met, lane): (&'env Meeting<'env>, Lifecycle),
    connected: usize,
) -> std::thread::ScopedJoinHandle<'scope, ()> {
    met.waits.nic.note_request(None, &met.dials_body);
    let dialled = scope.spawn(move || met.dials.nic.connect(lane, &met.waits_body).unwrap());
    let list = format!("manager list {}", met.waits.nic.device());
    let begun = Instant::now();
    let count = |text: &str| text.lines().filter(|line| line.contains(" connected ")).count();
    while count(&fabric.run(&list)) < connected {
        assert!(begun.elapsed() < PATIENCE, "no connection of {lane:?}");
        yield_now();
    }
    dialled
}
