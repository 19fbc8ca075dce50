//! Devices that fail as their drivers do: each failure leads to its page, by the call and its number
//! as the engine hands them on, and by the line that a log has of it.

use crate::fabric::*;
use handfast_diagnosis::explain::{Explanation, explain};
use handfast_diagnosis::{AfterReset, Id, of_call, of_completion};
use handfast_transport_sim::verbs::*;

fn id_of(error: &VerbsError) -> &'static str {
    of_call(&error.call.to_string(), error.code, "").map_or("NONE", Id::as_str)
}

fn first_of(log: &str) -> &'static str {
    explain(log).first.map_or("NONE", |first| first.id.as_str())
}

/// The message of an engine for a failed step: the words of the returned number.
fn line(device: &str, step: &str, code: i32) -> String {
    let words = std::io::Error::from_raw_os_error(code).to_string();
    let words = words.split(" (os error").next().unwrap().to_owned();
    format!(
        "E1121 10:00:00.000001  2212 rdma_endpoint.cpp:460] [{device}] Failed to {step}: {words} [{code}]"
    )
}

/// Takes `a` towards `b` and says which step failed.
fn connect_a(duo: &mut Duo) -> Result<(), VerbsError> {
    let (a, b) = (duo.a, duo.b);
    connect(&mut duo.fabric, a, b, 1, 2)
}

#[test]
fn gid_index_beyond_the_table_fails_at_rtr() {
    for profile in connectable() {
        let mut duo = fresh(profile);
        let (_, dgid) = gid(&duo.fabric, duo.b.nic);
        let (a, to) = (duo.a, duo.b.number);
        duo.fabric.modify(a.nic, a.number, &Attributes::to_init(Access::ALL)).unwrap();
        let wrong = Attributes::to_rtr(200, dgid, to, 7);
        let error = duo.fabric.modify(a.nic, a.number, &wrong).unwrap_err();
        assert_eq!(id_of(&error), "QP-RTR", "{}", profile.name);
        assert_eq!(first_of(&line("mlx5_0", "modify QP to RTR", error.code)), "QP-RTR");
        assert_eq!(connect_a(&mut fresh(profile)), Ok(()), "{}", profile.name);
    }
}

#[test]
fn unresolvable_peer_fails_at_rtr_after_a_second() {
    for profile in connectable() {
        let mut duo = fresh(profile);
        duo.fabric.set_port(duo.b.nic, false);
        let error = connect_a(&mut duo).unwrap_err();
        assert!(error.blocked_ms >= 1_000, "{}: {error:?}", profile.name);
        assert_eq!(id_of(&error), "QP-RTR-TIMEOUT", "{}", profile.name);
        let log = line("mlx5_0", "modify QP to RTR, check mtu, gid, peer lid", error.code);
        assert_eq!(first_of(&log), "QP-RTR-TIMEOUT");
        let mut duo = fresh(profile);
        duo.fabric.set_port(duo.b.nic, true);
        assert_eq!(connect_a(&mut duo), Ok(()), "{}", profile.name);
    }
}

#[test]
fn erdma_standard_mode_fails_at_rts() {
    let mut duo = fresh(&ERDMA_STANDARD);
    let dgid = duo.fabric.nic(duo.b.nic).gids()[0].unwrap();
    let a = duo.a;
    let mut step = |step: Attributes| duo.fabric.modify(a.nic, a.number, &step);
    step(Attributes::to_init(Access::ALL)).unwrap();
    step(Attributes::to_rtr(0, dgid, 1, 0)).unwrap();
    let error = step(Attributes::to_rts(0)).unwrap_err();
    assert_eq!(id_of(&error), "QP-RTS");
    // A log that names the device has a more exact diagnosis.
    let of = |device| first_of(&line(device, "modify QP to RTS", error.code));
    assert_eq!((of("mlx5_0"), of("erdma_0")), ("QP-RTS", "ERDMA-STANDARD-MODE"));
    assert_eq!(connect_a(&mut fresh(&ERDMA_COMPAT)), Ok(()));
}

#[test]
fn exhausted_queue_pairs_are_reported_until_one_is_freed() {
    for profile in PROFILES {
        let mut fabric = Fabric::default();
        let nic = fabric.add_nic(profile);
        for _ in 0..profile.queue_pairs_max {
            fabric.create_queue_pair(nic, 1, 1).unwrap();
        }
        let error = fabric.create_queue_pair(nic, 1, 1).unwrap_err();
        assert_eq!(id_of(&error), "QP-NOMEM", "{}", profile.name);
        assert_eq!(first_of(&line("mlx5_0", "create QP", error.code)), "QP-NOMEM");
        let (first, _) = fabric.nic(nic).queue_pairs().next().unwrap();
        fabric.destroy_queue_pair(nic, first).unwrap();
        assert!(fabric.create_queue_pair(nic, 1, 1).is_ok(), "{}", profile.name);
    }
}

#[test]
fn errno_of_another_call_is_not_believed() {
    // The call before it: a socket that has nothing to read leaves its errno behind.
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_nonblocking(true).unwrap();
    let stale = socket.recv(&mut [0]).unwrap_err().raw_os_error().unwrap();
    let mut duo = fresh(&ERDMA_STANDARD);
    let (a, dgid) = (duo.a, duo.fabric.nic(duo.b.nic).gids()[0].unwrap());
    duo.fabric.modify(a.nic, a.number, &Attributes::to_init(Access::ALL)).unwrap();
    duo.fabric.modify(a.nic, a.number, &Attributes::to_rtr(0, dgid, 1, 0)).unwrap();
    let returned = duo.fabric.modify(a.nic, a.number, &Attributes::to_rts(0)).unwrap_err().code;
    assert_ne!(stale, returned);
    let of = |code| first_of(&line("mlx5_0", "modify QP to RTS", code));
    assert_eq!((of(stale), of(returned)), ("ERRNO-STALE", "QP-RTS"));
}

/// The number of a status and its words, as libibverbs has them.
fn told(status: Status) -> (u32, &'static str) {
    match status {
        Status::Success => (0, "success"),
        Status::Flushed => (5, "Work Request Flushed Error"),
        Status::RetryExceeded => (12, "transport retry counter exceeded"),
        other => panic!("{other:?} does not come from a peer that is gone"),
    }
}

/// A queue of writes to a peer that is there or gone: how each ended, in order.
fn writes(is_there: bool) -> Vec<(u32, &'static str)> {
    let mut duo = connected(&RXE);
    if !is_there {
        duo.fabric.cut(duo.a.nic, duo.b.nic);
    }
    (1..=8).for_each(|wr_id| duo.write(wr_id, 0, 8));
    duo.fabric.run();
    if !is_there {
        duo.fabric.exhaust(duo.a.nic, duo.a.number);
    }
    let a = duo.a;
    duo.ends(a).into_iter().map(|(_, status)| told(status)).collect()
}

/// A log with a line for each that failed, as Mooncake prints it.
fn log(ends: &[(u32, &str)], with_words: bool) -> String {
    let failed = ends.iter().filter(|(status, _)| *status > 0);
    let line = |(number, (_, words)): (usize, &(u32, &str))| {
        let words = if with_words { format!(": {words}") } else { String::new() };
        format!(
            "E1121 10:00:00.{number:06}  2212 worker_pool.cpp:300] Worker: Process failed for slice (opcode: 1, peer_nic: node-b:1@rxe0){words}\n"
        )
    };
    failed.enumerate().map(line).collect()
}

fn flushes(log: &str) -> (u64, &'static str) {
    let Explanation { flushed, first, .. } = explain(log);
    (flushed, first.map_or("NONE", |first| first.id.as_str()))
}

#[test]
fn flush_storm_is_a_consequence_of_the_first_error() {
    let ends = writes(false);
    assert_eq!(ends.len(), 8);
    assert_eq!(of_completion(ends[0].0).as_str(), "WC-RETRY");
    assert!(ends[1..].iter().all(|end| of_completion(end.0).as_str() == "WC-FLUSH-ONLY"));
    assert_eq!(flushes(&log(&ends, true)), (7, "WC-RETRY"));
    // Without a status nothing but the storm is to be seen.
    assert_eq!(first_of(&log(&ends, false)), "WC-STORM");
    let ends = writes(true);
    assert_eq!(ends, [(0, "success"); 8]);
    assert_eq!(first_of(&log(&ends, true)), "NONE");
}

#[test]
fn a_log_that_begins_after_the_first_error_is_known_to_lack_it() {
    let ends = writes(false);
    assert_eq!(flushes(&log(&ends[1..], true)).1, "WC-FLUSH-ONLY");
    assert_eq!(flushes(&log(&ends, true)).1, "WC-RETRY");
}

/// The step `reset` of `handfast smoke`, or the same with new queue pairs.
fn after_reset(profile: &'static Profile, anew: bool) -> AfterReset {
    let mut duo = connected(profile);
    duo.fabric.break_queue_pair(duo.a.nic, duo.a.number);
    let refused = |side, error: VerbsError| AfterReset::Refused { side, error: error.to_string() };
    for (side, end) in [("first", duo.a), ("second", duo.b)] {
        if anew {
            duo.retire(end);
        } else if let Err(error) = duo.modify(end, QpState::Reset) {
            return refused(side, error);
        }
    }
    if anew {
        (duo.a.number, duo.b.number) = (duo.create(duo.a.nic), duo.create(duo.b.nic));
    }
    let (a, b) = (duo.a, duo.b);
    for (side, own, peer, psns) in
        [("first", a, b, (3_000, 4_000)), ("second", b, a, (4_000, 3_000))]
    {
        if let Err(error) = connect(&mut duo.fabric, own, peer, psns.0, psns.1) {
            return refused(side, error);
        }
    }
    let request = duo.write_request(2, 100, 8);
    if let Err(error) = duo.post(request) {
        return AfterReset::Mute { error: error.to_string() };
    }
    duo.fabric.run();
    match duo.at_b(100, 8) == [0xaa; 8] {
        true => AfterReset::Works { bytes: 8 },
        false => AfterReset::Mute { error: format!("a write ended: {:?}", duo.ends(a)) },
    }
}

#[test]
fn erdma_needs_new_queue_pairs_after_an_error() {
    let reset = after_reset(&ERDMA_COMPAT, false).to_string();
    assert_eq!(first_of(&reset), "ERDMA-RESET", "{reset}");
    for (profile, anew) in [(&ERDMA_COMPAT, true), (&RXE, false)] {
        let after = after_reset(profile, anew);
        assert_eq!(after, AfterReset::Works { bytes: 8 }, "{}", profile.name);
        assert_eq!(first_of(&after.to_string()), "NONE");
    }
}
