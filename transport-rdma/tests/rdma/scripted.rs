//! Stories in which a device is held, fails or dies, on scripted devices. Each has a process of its own.

mod pool;

use crate::support::{LANE, PATIENCE, Site, config, connect_lane, pattern};
use handfast_core::Lifecycle;
use handfast_core::transport::Side;
use handfast_fabric_control::{Fabric, Process, is_scripted};
use handfast_transport::{CompletionStatus, Direction};
use handfast_transport_rdma::{DeviceEvent, NicConfig};
use std::time::{Duration, Instant};

/// `errno` of a device that fails.
const EIO: i32 = 5;
const RETRY_EXCEEDED: i32 = 12;

/// Runs a story in a process with two devices of each of these profiles.
fn on(profiles: &[&str], name: &str, story: impl Fn(&Fabric)) {
    if is_scripted() {
        let fabric = Fabric::find().unwrap();
        story(&fabric);
        // A story that plants a fault releases it; a broken law is the backend's fault.
        assert_eq!(fabric.run("laws"), "");
        return;
    }
    for profile in profiles {
        let devices = format!("rxe0={profile},rxe1={profile}:numbers_from=500");
        let process = Process::new(&devices).unwrap();
        let test = format!("scripted::{name}");
        let output = process.again().unwrap().args([&*test, "--exact"]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{profile}: {text}");
    }
}

/// The profiles that connect out of band.
const EVERY: [&str; 6] = ["strict", "rxe", "mlx5", "irdma", "erdma-compat", "erdma-rocev2"];

fn sites() -> (Site, Site) {
    let patient = |device| NicConfig { timeout_exponent: 20, ..config(device) };
    (Site::new(patient("rxe0")), Site::new(patient("rxe1")))
}

/// Waits until a command has this answer.
fn until(fabric: &Fabric, ask: &str, answer: &str) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let present = fabric.run(ask);
        if present == answer {
            return;
        }
        assert!(Instant::now() < deadline, "{ask}: {present}, not {answer}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A queue pair that the device does not destroy keeps its lane and its slices, and the second retire
/// ends both.
#[test]
fn undestroyed_queue_pair_keeps_lane_and_slices() {
    on(&EVERY, "undestroyed_queue_pair_keeps_lane_and_slices", |fabric| {
        let (one, other) = sites();
        connect_lane(&one, &other, LANE, 2);
        fabric.run("hold completions rxe0");
        one.post_all(&other, Direction::Write, 2);
        fabric.run(&format!("fail call rxe0 ibv_destroy_qp {EIO}"));
        let impatient = Instant::now();
        let error = one.nic.retire(LANE).unwrap_err();
        assert_eq!(error.code, EIO, "{error}");
        assert_eq!(one.nic.lanes(), 1, "the lane is kept");
        assert!(one.told.ends(0).is_empty(), "its slices are not reported");
        assert!(one.nic.retire(LANE).is_err(), "a second retire asks the device again");
        println!("two retires took {} ms", impatient.elapsed().as_millis());
        fabric.run("pass");
        fabric.run("release completions rxe0");
        one.nic.retire(LANE).unwrap();
        assert_eq!((one.nic.lanes(), one.told.ends(2).len()), (0, 2));
        other.nic.retire(LANE).unwrap();
    });
}

/// No completion queue is polled while a queue pair on it is destroyed: a provider frees there what the
/// poll reads. The library reports a poll and a destroy at the same time as a broken law.
#[test]
fn poll_waits_for_a_destroy_on_its_queue() {
    on(&["erdma-compat", "mlx5"], "poll_waits_for_a_destroy_on_its_queue", |fabric| {
        let (one, other) = sites();
        let (gone, left) = (Lifecycle(8), LANE);
        connect_lane(&one, &other, left, 1);
        connect_lane(&one, &other, gone, 1);
        fabric.run("hold call rxe0 ibv_destroy_qp");
        std::thread::scope(|scope| {
            let retired = scope.spawn(|| one.nic.retire(gone));
            until(fabric, "waiting rxe0 ibv_destroy_qp", "1");
            // A completion wakes the poller, which must wait.
            let write = one.posting(&other, 1, Direction::Write, 0, 64);
            one.nic.post(left, &mut vec![write]);
            std::thread::sleep(Duration::from_millis(20));
            fabric.run("release call rxe0 ibv_destroy_qp");
            retired.join().unwrap().unwrap();
        });
        assert_eq!(one.told.ends(1), [CompletionStatus::Done]);
    });
}

/// After an overrun the completion queue gets no new lane: its lanes fail, and the next uses another.
#[test]
fn overrun_queue_gets_no_new_lane() {
    on(&["strict", "mlx5"], "overrun_queue_gets_no_new_lane", |fabric| {
        let (one, other) = sites();
        connect_lane(&one, &other, LANE, 1);
        fabric.run("overrun rxe0");
        one.told.wait("the failure of the lane", |told| !told.failures.is_empty());
        let (lane, error) = one.told.failures().remove(0);
        assert_eq!((lane, error.side), (LANE, Side::Local), "{error}");
        let next = Lifecycle(8);
        connect_lane(&one, &other, next, 1);
        one.memory.copy_in(0, &pattern(1)).unwrap();
        one.nic.post(next, &mut vec![one.posting(&other, 1, Direction::Write, 0, 4_096)]);
        assert_eq!(one.told.ends(1), [CompletionStatus::Done]);
        assert!(other.bytes()[..4_096] == pattern(1)[..4_096]);
    });
}

/// The cause of a failure is its completion's, though the device also reports it as an event.
#[test]
fn completion_gives_the_cause_before_the_event() {
    on(&["mlx5", "irdma"], "completion_gives_the_cause_before_the_event", |fabric| {
        let (one, other) = sites();
        connect_lane(&one, &other, LANE, 1);
        fabric.run("timers off");
        fabric.run("cut rxe0 rxe1");
        one.post_all(&other, Direction::Write, 1);
        let pairs = fabric.run("pairs rxe0");
        let number = pairs.split(' ').next().unwrap();
        fabric.run(&format!("exhaust rxe0 {number}"));
        one.told.wait("the failure of the lane", |told| !told.failures.is_empty());
        assert_eq!(one.told.failures()[0].1.code, RETRY_EXCEEDED);
        fabric.run("mend rxe0 rxe1");
        fabric.run("timers on");
    });
}

/// A device that dies fails its lanes at once, and is reported; a NIC that is opened after its return works.
#[test]
fn device_that_dies_is_told_and_reopened() {
    on(&["strict", "mlx5"], "device_that_dies_is_told_and_reopened", |fabric| {
        let (one, other) = sites();
        connect_lane(&one, &other, LANE, 1);
        let died = Instant::now();
        fabric.run("die rxe0");
        let lost = |told: &crate::support::Told| told.events.contains(&DeviceEvent::DeviceLost);
        one.told.wait("the loss of the device", lost);
        one.told.wait("the failure of the lane", |told| !told.failures.is_empty());
        println!("reported after {} ms", died.elapsed().as_millis());
        assert!(one.nic.create(Lifecycle(8), &[1]).is_err(), "a dead device takes no lane");
        drop(one);
        fabric.run("revive rxe0");
        let one = Site::new(config("rxe0"));
        let next = Lifecycle(9);
        connect_lane(&one, &other, next, 1);
        one.nic.post(next, &mut vec![one.posting(&other, 1, Direction::Write, 0, 64)]);
        assert_eq!(one.told.ends(1), [CompletionStatus::Done]);
    });
}

/// The n-th creation of a queue pair fails: the lane is not made, and leaves nothing.
#[test]
fn failed_creation_leaves_nothing() {
    on(&["rxe", "erdma-compat"], "failed_creation_leaves_nothing", |fabric| {
        let one = Site::new(config("rxe0"));
        fabric.run("fail call rxe0 ibv_create_qp 12 after 2 times 1");
        let error = one.nic.create(LANE, &[1, 2, 3]).unwrap_err();
        assert_eq!((error.call, error.code), ("ibv_create_qp", 12), "{error}");
        assert_eq!((fabric.run("pairs rxe0"), one.nic.lanes()), (String::new(), 0));
        one.nic.create(LANE, &[1, 2, 3]).unwrap();
    });
}
