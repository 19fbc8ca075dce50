//! Stories in which a device is held, fails or dies, on scripted devices. Each has a process of its own.

mod addresses;
mod blame;
mod children;
mod domains;
mod drivers;
mod early;
mod legacy;
pub(crate) mod managed;
mod order;
mod partitions;
mod pool;

use crate::support::{BYTES, LANE, PATIENCE, Site, config, connect_lane, pattern};
use handfast_core::Lifecycle;
use handfast_core::transport::Side;
use handfast_fabric_control::{Fabric, Process, is_scripted};
use handfast_transport::{Access, CompletionStatus, Direction, Memory};
use handfast_transport_rdma::{DeviceEvent, Nic, NicConfig, Polling};
use std::time::{Duration, Instant};

/// `errno` of a device that fails, and of a command that its firmware does not answer.
const EIO: i32 = 5;
const ETIME: i32 = 62;
const RETRY_EXCEEDED: i32 = 12;

/// Runs a story in a process with two devices of each of these profiles.
fn on(profiles: &[&str], name: &str, story: impl Fn(&Fabric)) {
    let pairs: Vec<_> = profiles.iter().map(|profile| [*profile; 2]).collect();
    on_pairs(&pairs, name, story);
}

/// Runs a story in a process with a device of each profile of a pair.
fn on_pairs(pairs: &[[&str; 2]], name: &str, story: impl Fn(&Fabric)) {
    if is_scripted() {
        return on_devices("", name, story);
    }
    for [one, other] in pairs {
        on_devices(&format!("rxe0={one},rxe1={other}:numbers_from=500"), name, &story);
    }
}

/// Runs a story in a process with these devices.
fn on_devices(devices: &str, name: &str, story: impl Fn(&Fabric)) {
    if is_scripted() {
        let fabric = Fabric::find().unwrap();
        story(&fabric);
        // A story that plants a fault releases it; a broken law is the backend's fault.
        assert_eq!(fabric.run("laws"), "");
        return;
    }
    let process = Process::new(devices).unwrap();
    let test = format!("scripted::{name}");
    let output = process.again().unwrap().args([&*test, "--exact"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{devices}: {text}");
}

/// The profiles that connect out of band.
const OUT_OF_BAND: [&str; 6] = ["strict", "rxe", "mlx5", "irdma", "erdma-compat", "erdma-rocev2"];
/// The same, and those that the connection manager alone connects.
const EVERY: [&str; 9] = [
    "strict",
    "rxe",
    "mlx5",
    "irdma",
    "erdma-compat",
    "erdma-rocev2",
    "erdma-standard",
    "siw",
    "iwarp",
];

fn sites() -> (Site, Site) {
    let patient = |device| NicConfig { timeout_exponent: 20, ..config(device) };
    (Site::new(patient("rxe0")), Site::new(patient("rxe1")))
}

/// Waits until a command has this answer.
fn until(fabric: &Fabric, ask: &str, answer: &str) {
    assert!(is_answered(fabric, ask, answer), "{ask}: {}, not {answer}", fabric.run(ask));
}

/// Whether a command has this answer in time.
fn is_answered(fabric: &Fabric, ask: &str, answer: &str) -> bool {
    let deadline = Instant::now() + PATIENCE;
    while fabric.run(ask) != answer {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

/// A firmware that did not answer a command takes no more of them: the device is lost although it still
/// answers what its driver knows. A device whose commands do not end with that error is not.
#[test]
fn unanswered_command_loses_an_erdma_device() {
    on(
        &["erdma-compat", "erdma-rocev2", "mlx5"],
        "unanswered_command_loses_an_erdma_device",
        |fabric| {
            let (one, other) = sites();
            connect_lane(&one, &other, LANE, 1);
            fabric.run(&format!("fail call rxe0 ibv_reg_mr {ETIME} times 1"));
            let memory = Memory::zeroed(64).unwrap();
            let error = one.nic.register(memory.whole(), Access::READ_WRITE).err().unwrap();
            assert_eq!(error.code, ETIME, "{error}");
            let is_erdma = one.nic.recognised().profile.name.starts_with("erdma");
            assert_eq!(one.nic.lost().map(|lost| lost.code), is_erdma.then_some(ETIME));
            if is_erdma {
                one.told.wait("the loss", |told| told.events.contains(&DeviceEvent::DeviceLost));
                assert_eq!(one.told.failures().len(), 1);
            }
            one.nic.retire(LANE).unwrap();
            other.nic.retire(LANE).unwrap();
        },
    );
}

/// A completion queue that reports no completions any more fails with its lanes. The poller takes what is left of them
/// without an event.
#[test]
fn lanes_of_a_queue_that_cannot_be_armed_end() {
    on(&["rxe", "mlx5", "erdma-compat"], "lanes_of_a_queue_that_cannot_be_armed_end", |fabric| {
        let (timeout_exponent, drain, idle_probe) = (20, 2 * PATIENCE, None);
        let patient = |config| NicConfig { timeout_exponent, drain, idle_probe, ..config };
        let site = |device| Site::new(patient(config(device)));
        let (one, other, answered) = (site("rxe0"), site("rxe1"), Lifecycle(8));
        one.nic.create(LANE, &[1]).unwrap();
        // It does not connect, and drops every packet.
        let theirs = other.nic.create(LANE, &[2]).unwrap();
        one.nic.connect(LANE, &theirs).unwrap();
        connect_lane(&one, &other, answered, 1);
        one.post_all(&other, Direction::Write, 4);
        let started = Instant::now();
        while fabric.run("count rxe0 ibv_req_notify_cq") == "0" {
            assert!(started.elapsed() < PATIENCE, "the poller does not arm the queue");
        }
        fabric.run(&format!("fail call rxe0 ibv_req_notify_cq {EIO}"));
        let began = Instant::now();
        let posting = one.posting(&other, 4, Direction::Write, 0, 64);
        one.nic.post(answered, &mut vec![posting]);
        assert_eq!(one.told.end(4), CompletionStatus::Done, "its completion raised the event");
        one.told.wait("the failures", |told| told.failures.len() == 2);
        let failed = one.told.failures();
        assert!(failed.iter().all(|(_, error)| error.side == Side::Local), "{failed:?}");
        for lane in [LANE, answered] {
            one.nic.retire(lane).unwrap();
            other.nic.retire(lane).unwrap();
        }
        assert_eq!(one.told.ends(5).len(), 5);
        assert!(began.elapsed() < PATIENCE, "the lanes drain");
        fabric.run("pass");
        one.told.forget();
        connect_lane(&one, &other, Lifecycle(9), 1);
    });
}

/// A queue pair that the device does not destroy keeps its lane and its slices, and the second retire
/// ends both, where the driver has left the queue pair whole.
#[test]
fn undestroyed_queue_pair_keeps_lane_and_slices() {
    let whole = ["strict", "rxe", "mlx5", "erdma-compat", "erdma-rocev2"];
    on(&whole, "undestroyed_queue_pair_keeps_lane_and_slices", |fabric| {
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

/// A queue pair that the device did not destroy, and that must not be destroyed again, keeps its lane and its
/// slices until its work has completed. It touches no memory then: the next retire leaves it to the kernel,
/// and it counts in the limit. The other queue pairs of the lane, and other lanes, end as ever.
#[test]
fn half_destroyed_queue_pair_goes_once_its_work_ends() {
    on(&["siw", "irdma"], "half_destroyed_queue_pair_goes_once_its_work_ends", |fabric| {
        let drain = Duration::from_millis(100);
        let site = |device| NicConfig { drain, timeout_exponent: 20, ..config(device) };
        let (one, other) = (Site::new(site("rxe0")), Site::new(site("rxe1")));
        let calls = || fabric.run("count rxe0 ibv_destroy_qp").parse::<u64>().unwrap();
        let pairs = one.nic.load().queue_pairs;
        connect_lane(&one, &other, LANE, 2);
        fabric.run("hold completions rxe0");
        one.post_all(&other, Direction::Write, 4);
        let before = calls();
        fabric.run(&format!("fail call rxe0 ibv_destroy_qp {EIO} times 1"));
        for _ in 0..2 {
            let error = one.nic.retire(LANE).unwrap_err();
            assert!(error.detail.contains("1 of 2 queue pairs are left"), "{error}");
            assert_eq!((one.nic.lanes(), one.told.ends(0).len()), (1, 0));
        }
        fabric.run("release completions rxe0");
        let released = Instant::now();
        // Its thread may take longer than the drain to come to the completions.
        while let Err(error) = one.nic.retire(LANE) {
            assert!(released.elapsed() < PATIENCE, "{error}");
        }
        assert_eq!((one.nic.lanes(), one.told.ends(4).len()), (0, 4));
        assert_eq!(one.nic.load().queue_pairs, pairs + 1, "the kernel has it");
        assert_eq!(calls() - before, 2, "each once");
        other.nic.retire(LANE).unwrap();
        managed::another_lane_works(&one, &other, Lifecycle(8));
    });
}

/// No completion queue is polled while a queue pair on it is destroyed: a provider frees there what the
/// poll reads. The library reports a poll and a destroy at the same time as a broken law.
#[test]
fn poll_waits_for_a_destroy_on_its_queue() {
    on(&EVERY, "poll_waits_for_a_destroy_on_its_queue", |fabric| {
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
    on(&EVERY, "overrun_queue_gets_no_new_lane", |fabric| {
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
    on(&EVERY, "device_that_dies_is_told_and_reopened", |fabric| {
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
    on(&EVERY, "failed_creation_leaves_nothing", |fabric| {
        let one = Site::new(config("rxe0"));
        fabric.run("fail call rxe0 ibv_create_qp 12 after 2 times 1");
        let error = one.nic.create(LANE, &[1, 2, 3]).unwrap_err();
        assert_eq!((error.call, error.code), ("ibv_create_qp", 12), "{error}");
        assert_eq!((fabric.run("pairs rxe0"), one.nic.lanes()), (String::new(), 0));
        one.nic.create(LANE, &[1, 2, 3]).unwrap();
    });
}

/// On InfiniBand a lane is in a partition of its port; another is refused with the keys that there are.
#[test]
fn partition_of_a_lane_is_one_of_its_port() {
    on(&["mlx5:infiniband"], "partition_of_a_lane_is_one_of_its_port", |_| {
        let of = |device, key: &str| {
            let partition_key = key.parse().unwrap();
            NicConfig { partition_key, ..config(device) }
        };
        let (one, other) = (Site::new(of("rxe0", "0xffff")), Site::new(of("rxe1", "0xffff")));
        connect_lane(&one, &other, LANE, 1);
        one.nic.post(LANE, &mut vec![one.posting(&other, 1, Direction::Write, 0, 64)]);
        assert_eq!(one.told.ends(1), [CompletionStatus::Done]);
        let told = one.told.clone();
        let error = Nic::open(of("rxe0", "0x8001"), told).err().unwrap();
        assert_eq!((error.side, error.call), (Side::Configuration, "ibv_query_pkey"));
        assert!(error.detail.contains("0xffff") && error.detail.contains("0x8001"), "{error}");
    });
}

/// A peer that guesses the key of local memory writes to it where the driver grants that to
/// everyone, for as long as it is registered; elsewhere its write is refused.
#[test]
fn guessed_key_reaches_memory_while_it_is_registered() {
    const GRANTING: &str = "erdma-compat:grants_remote_write";
    on(&[GRANTING, "mlx5"], "guessed_key_reaches_memory_while_it_is_registered", |_| {
        let (one, other) = sites();
        let grants = other.nic.recognised().profile.grants_remote_write;
        let local = Memory::zeroed(4_096).unwrap();
        let nobody = Access { remote_read: false, remote_write: false };
        let registration = other.nic.register(local.whole(), nobody).unwrap();
        let secret = registration.remote_span();
        assert_eq!(secret.address, local.whole().address(), "it is not drawn");
        if grants {
            let announced = other.registration.remote_span().key;
            assert_eq!(secret.key, announced + 256, "the next index, and a byte of zero");
        }
        one.memory.copy_in(0, &pattern(1)).unwrap();
        let write = |lane: Lifecycle, slice| {
            connect_lane(&one, &other, lane, 1);
            let mut write = one.posting(&other, slice, Direction::Write, 0, 4_096);
            write.remote = secret;
            one.nic.post(lane, &mut vec![write]);
            let ended = one.told.ends(1).remove(0);
            one.told.forget();
            ended
        };
        let mut bytes = [0; 4_096];
        let guessed = write(Lifecycle(8), 1);
        local.copy_out(0, &mut bytes).unwrap();
        if grants {
            assert_eq!((guessed, bytes == pattern(1)[..4_096]), (CompletionStatus::Done, true));
        } else {
            assert!(matches!(guessed, CompletionStatus::Refused(_)), "{guessed:?}");
            assert_eq!(bytes, [0; 4_096]);
        }
        assert!(registration.end());
        local.copy_in(0, &[7; 4_096]).unwrap();
        let late = write(Lifecycle(9), 2);
        assert!(matches!(late, CompletionStatus::Refused(_)), "{late:?}");
        local.copy_out(0, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 4_096]);
    });
}

/// A peer whose own key lets it read writes with the key of another group, which it has learned: the lanes
/// of a device are in one protection domain. It moves no byte past the end of that registration, and its
/// own key does not end with it.
#[test]
fn key_of_another_group_works_until_it_ends() {
    let profiles = ["mlx5", "strict", "erdma-standard", "siw", "iwarp"];
    on(&profiles, "key_of_another_group_works_until_it_ends", |_| {
        let (one, other) = sites();
        let shared = Memory::zeroed(4_096).unwrap();
        let may = |remote_read, remote_write| Access { remote_read, remote_write };
        let of_own = other.nic.register(shared.whole(), may(true, false)).unwrap();
        let of_others = other.nic.register(shared.whole(), may(true, true)).unwrap();
        let (own, stolen) = (of_own.remote_span(), of_others.remote_span());
        assert_ne!(own.key, stolen.key);
        one.memory.copy_in(0, &pattern(1)).unwrap();
        let mut lanes = 30..;
        let mut ended = |direction, remote| {
            let number = lanes.next().unwrap();
            let lane = Lifecycle(number);
            connect_lane(&one, &other, lane, 1);
            let mut posting = one.posting(&other, number, direction, 0, 4_096);
            posting.remote = remote;
            one.nic.post(lane, &mut vec![posting]);
            let ended = one.told.ends(1).remove(0);
            one.told.forget();
            ended
        };
        let bytes = || {
            let mut bytes = vec![0; 4_096];
            shared.copy_out(0, &mut bytes).unwrap();
            bytes
        };
        let refused = ended(Direction::Write, own);
        assert!(matches!(refused, CompletionStatus::Refused(_)), "{refused:?}");
        assert_eq!(bytes(), [0; 4_096], "its own key does not write");
        assert_eq!(ended(Direction::Write, stolen), CompletionStatus::Done);
        assert_eq!(bytes(), pattern(1)[..4_096], "the stolen one does");
        assert!(of_others.end());
        shared.copy_in(0, &[7; 4_096]).unwrap();
        for direction in [Direction::Write, Direction::Read] {
            let late = ended(direction, stolen);
            assert!(matches!(late, CompletionStatus::Refused(_)), "{direction:?}: {late:?}");
        }
        assert_eq!(bytes(), [7; 4_096], "nothing was written");
        assert_eq!(ended(Direction::Read, own), CompletionStatus::Done);
    });
}

/// Interval of idle checks in the story below.
const IDLE_PROBE: Duration = Duration::from_millis(20);

/// Devices that refuse an empty read cost one idle lane, and those that refuse a byte too another
/// one; later lanes idle for as long as they like.
#[test]
fn refused_probes_cost_one_lane_each() {
    // On iWARP an empty read is not assumed: none is sent.
    let refusing = |lies: &str| OUT_OF_BAND.map(|profile| format!("{profile}:lies={lies}"));
    let (once, twice) = (refusing("empty_read"), refusing("empty_read+byte_read"));
    let all: Vec<&str> = once.iter().chain(&twice).map(String::as_str).collect();
    on(&all, "refused_probes_cost_one_lane_each", |_| {
        let idle_probe = Some(IDLE_PROBE);
        let one = Site::new(NicConfig { idle_probe, ..config("rxe0") });
        let other = Site::new(NicConfig { idle_probe: None, ..config("rxe1") });
        let refuses_bytes = std::env::var("HANDFAST_FABRIC").unwrap().contains("byte_read");
        let expected = ["refuse an empty read", "refuse a read of a byte too"];
        let expected = &expected[..if refuses_bytes { 2 } else { 1 }];
        for (lane, words) in (20..).map(Lifecycle).zip(expected) {
            connect_lane(&one, &other, lane, 2);
            one.told.wait("the failure of the lane", |told| !told.failures.is_empty());
            let (failed, error) = one.told.failures().remove(0);
            assert_eq!((failed, error.side), (lane, Side::Peer), "{error}");
            assert!(error.detail.contains(words), "{error}");
            one.nic.retire(lane).unwrap();
            other.nic.retire(lane).unwrap();
            one.told.forget();
        }
        connect_lane(&one, &other, LANE, 2);
        let (probes, begun) = (one.nic.counters().probes, Instant::now());
        if refuses_bytes {
            assert!(!one.nic.can_probe(LANE));
            let error = one.nic.probe(LANE, None, PATIENCE).unwrap_err();
            assert_eq!(error.side, Side::Configuration, "{error}");
            assert!(error.detail.ends_with("use TCP for this peer"), "{error}");
            std::thread::sleep(5 * IDLE_PROBE);
            assert_eq!(one.nic.counters().probes, probes, "no read is left");
        } else {
            while one.nic.counters().probes < probes + 6 {
                assert!(begun.elapsed() < PATIENCE, "{:?}", one.nic.counters());
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        assert_eq!(one.told.failures(), []);
        assert_eq!(one.nic.counters().lanes_failed, expected.len() as u64);
        one.nic.post(LANE, &mut vec![one.posting(&other, 1, Direction::Write, 0, 64)]);
        assert_eq!(one.told.ends(1), [CompletionStatus::Done]);
    });
}

/// An instant device moves the bytes without its tables, however completions are waited for. A request with
/// a wrong key goes to the tables, which refuse it.
#[test]
fn instant_device_moves_bytes_and_refuses_wrong_key() {
    on(&EVERY, "instant_device_moves_bytes_and_refuses_wrong_key", |fabric| {
        for polling in [Polling::Event, Polling::Busy] {
            let patient = |device| NicConfig { timeout_exponent: 20, polling, ..config(device) };
            let (one, other) = (Site::new(patient("rxe0")), Site::new(patient("rxe1")));
            connect_lane(&one, &other, LANE, 2);
            fabric.run("instant rxe0 copying");
            let packets = fabric.run("packets rxe1");
            one.memory.copy_in(0, &pattern(1)).unwrap();
            one.post_all(&other, Direction::Write, 16);
            assert_eq!(one.told.ends(16), [const { CompletionStatus::Done }; 16]);
            assert!(other.bytes() == pattern(1));
            one.told.forget();
            other.memory.copy_in(0, &pattern(2)).unwrap();
            one.post_all(&other, Direction::Read, 16);
            assert_eq!(one.told.ends(16), [const { CompletionStatus::Done }; 16]);
            assert!(one.bytes() == pattern(2));
            assert_eq!(fabric.run("packets rxe1"), packets, "the tables moved nothing");
            one.told.forget();
            let mut wrong = one.posting(&other, 1, Direction::Write, 0, 64);
            wrong.remote.key ^= 1 << 12;
            one.nic.post(LANE, &mut vec![wrong]);
            assert_ne!(one.told.ends(1), [CompletionStatus::Done]);
            fabric.run("instant rxe0 off");
        }
    });
}

/// While an instant device copies, the peer's deregistration waits: the memory may be unmapped once
/// it returns. A post after it finds no memory.
#[test]
fn deregistration_waits_for_a_copy_of_the_peer() {
    on(&["mlx5"], "deregistration_waits_for_a_copy_of_the_peer", |fabric| {
        let (one, other) = sites();
        connect_lane(&one, &other, LANE, 1);
        one.memory.copy_in(0, &pattern(1)).unwrap();
        let write = |slice| one.posting(&other, slice, Direction::Write, 0, BYTES);
        let (first, second) = (write(1), write(2));
        fabric.run("instant rxe0 copying held");
        let Site { nic: _open, memory, registration, .. } = other;
        let (is_held, waits) = std::thread::scope(|scope| {
            let nic = &one.nic;
            scope.spawn(move || nic.post(LANE, &mut vec![first]));
            let is_held = is_answered(fabric, "waiting rxe0 ibv_post_send", "1");
            let ended = scope.spawn(move || drop(registration));
            let waits = is_answered(fabric, "waiting rxe1 ibv_dereg_mr", "1");
            let has_ended = ended.is_finished();
            // The threads end however this was.
            fabric.run("instant rxe0 copying");
            (is_held, waits && !has_ended)
        });
        assert!(is_held && waits, "the copy is held: {is_held}, the deregistration waits: {waits}");
        assert_eq!(one.told.ends(1), [CompletionStatus::Done]);
        assert_eq!(memory.crc32c(0, BYTES).unwrap(), one.memory.crc32c(0, BYTES).unwrap());
        one.told.forget();
        one.nic.post(LANE, &mut vec![second]);
        assert_ne!(one.told.ends(1), [CompletionStatus::Done]);
    });
}

/// A test that holds completions has those of an instant device too.
#[test]
fn completion_of_instant_device_is_held() {
    on(&EVERY, "completion_of_instant_device_is_held", |fabric| {
        let (one, other) = sites();
        connect_lane(&one, &other, LANE, 1);
        fabric.run("instant rxe0");
        one.post_all(&other, Direction::Write, 2);
        assert_eq!(one.told.ends(2), [CompletionStatus::Done, CompletionStatus::Done]);
        one.told.forget();
        fabric.run("hold completions rxe0");
        one.post_all(&other, Direction::Write, 1);
        let pairs = fabric.run("pairs rxe0");
        let number = pairs.split(' ').next().unwrap();
        fabric.run(&format!("fail completion rxe0 {number} {RETRY_EXCEEDED}"));
        fabric.run("release completions rxe0");
        assert_ne!(one.told.ends(1), [CompletionStatus::Done]);
    });
}

/// A device that takes a millisecond for each request takes no less for several.
#[test]
fn instant_device_keeps_to_its_rate() {
    on(&["mlx5"], "instant_device_keeps_to_its_rate", |fabric| {
        let (one, other) = sites();
        connect_lane(&one, &other, LANE, 2);
        fabric.run("instant rxe0 every 1000000");
        let begun = Instant::now();
        one.post_all(&other, Direction::Write, 16);
        assert_eq!(one.told.ends(16).len(), 16);
        assert!(begun.elapsed() >= Duration::from_millis(16), "{:?}", begun.elapsed());
    });
}
