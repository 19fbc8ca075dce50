//! Each way to fail, and what either side sees.

use crate::helpers::*;
use handfast_transport_sim::verbs::*;

/// Connects, spoils something, posts one request that the spoiling is about, and lets it run.
fn outcome(profile: &'static Profile, spoil: impl Fn(&mut Duo) -> WorkRequest) -> (Status, Duo) {
    let mut duo = connected(profile);
    let request = spoil(&mut duo);
    duo.post(request).expect("posted");
    duo.fabric.run();
    if duo.fabric.waiting(duo.a.nic).next().is_some() {
        duo.fabric.exhaust(duo.a.nic, duo.a.number);
    }
    let ends = duo.ends(duo.a);
    assert_eq!(ends.len(), 1, "{}: {ends:?}", profile.name);
    (ends[0].1, duo)
}

/// The status by cause: of the specification, of soft-RoCE where it differs, of eRDMA.
fn check(
    cause: &str,
    expected: [Status; 3],
    both_fail: bool,
    spoil: impl Fn(&mut Duo) -> WorkRequest,
) {
    for profile in connectable() {
        let column = match profile.name {
            "rxe" => 1,
            name if name.starts_with("erdma") => 2,
            _ => 0,
        };
        let (status, duo) = outcome(profile, &spoil);
        assert_eq!(status, expected[column], "{}: {cause}", profile.name);
        assert_eq!(duo.state(duo.a), QpState::Err, "{}: {cause}", profile.name);
        let peer = if both_fail { QpState::Err } else { QpState::Rts };
        assert_eq!(duo.state(duo.b), peer, "{}: {cause}", profile.name);
    }
}

#[test]
fn a_wrong_key_or_address_at_the_peer_is_a_remote_access_error() {
    let expected = [Status::RemoteAccess, Status::RemoteAccess, Status::General];
    check("another key", expected, true, |duo| {
        let kind = SendKind::Write { rkey: duo.b.keys.rkey + 0x100, address: BASE };
        duo.request(1, kind, 8)
    });
    check("beyond the end", expected, true, |duo| duo.write_request(1, SIZE as u64 - 4, 8));
    check("before the start", expected, true, |duo| {
        let kind = SendKind::Read { rkey: duo.b.keys.rkey, address: BASE - 1 };
        duo.request(1, kind, 8)
    });
    check("deregistered on the way", expected, true, |duo| {
        duo.fabric.deregister(duo.b.nic, duo.b.keys).expect("there");
        duo.write_request(1, 0, 8)
    });
    for (right, write) in [(Access::LOCAL, true), (Access::LOCAL, false)] {
        check("a region without the right", expected, true, move |duo| {
            duo.b.keys = duo.fabric.register(duo.b.nic, BASE, vec![0; SIZE], right).expect("room");
            if write { duo.write_request(1, 0, 8) } else { duo.read_request(1, 0, 8) }
        });
    }
}

#[test]
fn a_write_that_straddles_the_end_changes_no_byte() {
    let (_, duo) = outcome(&STRICT, |duo| duo.write_request(1, SIZE as u64 - 2_000, 3_000));
    assert_eq!(duo.at_b(SIZE - 2_000, 2_000), [0xbb; 2_000]);
}

#[test]
fn a_queue_pair_without_the_right_refuses_the_request() {
    for profile in connectable().filter(|profile| profile.checks_attributes) {
        let mut duo = fresh(profile);
        let (index, dgid) = gid(&duo.fabric, duo.a.nic);
        connect(&mut duo.fabric, duo.a, duo.b, 1, 2).expect("connected");
        for step in [
            Attributes::to_init(Access::LOCAL),
            Attributes::to_rtr(index, dgid, duo.a.number, 1),
            Attributes::to_rts(2),
        ] {
            duo.fabric.modify(duo.b.nic, duo.b.number, &step).expect("connected");
        }
        duo.write(1, 0, 8);
        duo.fabric.run();
        let expected = profile.statuses.remote_invalid;
        assert_eq!(duo.ends(duo.a), [(1, expected)], "{}", profile.name);
    }
}

#[test]
fn errors_on_our_side_leave_the_peer_alone() {
    let key = [Status::LocalProtection, Status::LocalQueuePair, Status::LocalAccess];
    check("a wrong local key", key, false, |duo| WorkRequest {
        lkey: 0x7777,
        ..duo.write_request(1, 0, 8)
    });
    let bounds = [Status::LocalProtection, Status::LocalProtection, Status::LocalAccess];
    check("beyond our region", bounds, false, |duo| WorkRequest {
        local: BASE + SIZE as u64 - 4,
        ..duo.write_request(1, 0, 8)
    });
    check("a read to a wrong key", bounds, false, |duo| WorkRequest {
        lkey: 0x7777,
        ..duo.read_request(1, 0, 8)
    });
}

#[test]
fn silence_exceeds_the_retries() {
    let expected = [Status::RetryExceeded; 3];
    check("the way there is cut", expected, false, |duo| {
        duo.fabric.cut(duo.a.nic, duo.b.nic);
        duo.write_request(1, 0, 8)
    });
    for profile in connectable() {
        let (status, duo) = outcome(profile, |duo| {
            duo.fabric.cut(duo.b.nic, duo.a.nic);
            duo.write_request(1, 0, 8)
        });
        assert_eq!(status, Status::RetryExceeded, "{}", profile.name);
        assert_eq!(duo.at_b(0, 8), [0xaa; 8], "{}: only the answer was lost", profile.name);
    }
}

#[test]
fn a_peer_that_is_destroyed_dead_or_in_error_is_silent() {
    let ends: [fn(&mut Duo); 3] = [
        |duo| duo.fabric.destroy_queue_pair(duo.b.nic, duo.b.number).expect("there"),
        |duo| duo.fabric.crash(duo.b.nic, Rebirth::GoesOn),
        |duo| duo.fabric.break_queue_pair(duo.b.nic, duo.b.number),
    ];
    for profile in connectable() {
        for end in ends {
            let (status, _) = outcome(profile, |duo| {
                end(duo);
                duo.write_request(1, 0, 8)
            });
            assert_eq!(status, Status::RetryExceeded, "{}", profile.name);
        }
    }
}

#[test]
fn a_packet_longer_than_the_responder_expects_is_refused() {
    let mut duo = fresh(&STRICT);
    let (index, dgid) = gid(&duo.fabric, duo.a.nic);
    connect(&mut duo.fabric, duo.a, duo.b, 1, 2).expect("connected");
    let rtr = Attributes::to_rtr(index, dgid, duo.a.number, 1);
    for step in [
        Attributes::to_init(Access::ALL),
        Attributes { path_mtu: Some(256), ..rtr },
        Attributes::to_rts(2),
    ] {
        duo.fabric.modify(duo.b.nic, duo.b.number, &step).expect("connected");
    }
    duo.write(1, 0, 256);
    duo.fabric.run();
    assert_eq!(duo.ends(duo.a), [(1, Status::Success)], "small ones pass");
    duo.write(2, 0, 1_024);
    duo.fabric.run();
    assert_eq!(duo.ends(duo.a), [(2, Status::RemoteInvalid)]);
}

#[test]
fn a_send_without_a_receive_waits_as_often_as_allowed() {
    for profile in connectable() {
        let mut duo = connected(profile);
        let mut tries = 0;
        let send = duo.request(1, SendKind::Send, 8);
        duo.post(send).expect("posted");
        let ends = loop {
            duo.fabric.run();
            let ends = duo.ends(duo.a);
            if !ends.is_empty() {
                break ends;
            }
            tries += 1;
            duo.fabric.expire(duo.a.nic, duo.a.number);
        };
        let erdma = profile.name.starts_with("erdma");
        let expected = if erdma { (0, Status::General) } else { (2, Status::RnrExceeded) };
        assert_eq!((tries, ends), (expected.0, vec![(1, expected.1)]), "{}", profile.name);
        assert_eq!(duo.state(duo.b), QpState::Rts, "{}", profile.name);
    }
}

#[test]
fn a_send_meets_a_receive_that_is_posted_later() {
    let mut duo = connected(&STRICT);
    let send = duo.request(1, SendKind::Send, 2_000);
    duo.post(send).expect("posted");
    duo.fabric.run();
    duo.receive(5, 2_000).expect("posted");
    duo.fabric.expire(duo.a.nic, duo.a.number);
    duo.fabric.run();
    assert_eq!(duo.ends(duo.a), [(1, Status::Success)]);
    assert_eq!(duo.ends(duo.b), [(5, Status::Success)]);
    assert_eq!(duo.at_b(0, 2_000), [0xaa; 2_000]);
}

#[test]
fn a_send_longer_than_the_receive_fails_on_both_sides() {
    for profile in connectable() {
        let statuses = &profile.statuses;
        let (status, mut duo) = outcome(profile, |duo| {
            duo.receive(5, 8).expect("posted");
            duo.request(1, SendKind::Send, 16)
        });
        assert_eq!(status, statuses.remote_operation, "{}", profile.name);
        assert_eq!(duo.ends(duo.b), [(5, statuses.receive_too_short)], "{}", profile.name);
    }
}

/// A post with the local port down fails at once on soft-RoCE only.
#[test]
fn port_down_fails_posts_on_soft_roce_only() {
    for profile in connectable() {
        let (status, _) = outcome(profile, |duo| {
            duo.fabric.set_port(duo.a.nic, false);
            duo.write_request(1, 0, 8)
        });
        let at_once = profile.name == "rxe";
        let expected = if at_once { Status::LocalQueuePair } else { Status::RetryExceeded };
        assert_eq!(status, expected, "{}", profile.name);
    }
}

#[test]
fn five_writes_of_which_the_third_is_bad_end_in_order() {
    for profile in connectable() {
        for signalled in [true, false] {
            let mut duo = connected(profile);
            for wr_id in 1..=5 {
                let mut request = duo.write_request(wr_id, 64 * wr_id, 8);
                request.signalled = signalled;
                if wr_id == 3 {
                    request.kind = SendKind::Write { rkey: 0x7777, address: BASE };
                }
                duo.post(request).expect("posted");
            }
            duo.fabric.run();
            let good = [(1, Status::Success), (2, Status::Success)];
            let bad = profile.statuses.remote_access;
            let rest = [(3, bad), (4, Status::Flushed), (5, Status::Flushed)];
            let silent = if signalled { &good[..] } else { &[] };
            assert_eq!(duo.ends(duo.a), [silent, &rest].concat(), "{}", profile.name);
        }
    }
}

/// In ERR sends and receives are flushed in the order of posting.
#[test]
fn flushes_keep_the_order_of_posting() {
    for profile in connectable() {
        let mut duo = connected(profile);
        duo.fabric.cut(duo.a.nic, duo.b.nic);
        (1..=3).for_each(|wr_id| duo.write(wr_id, 0, 8));
        (4..=6).for_each(|wr_id| {
            let receive = Receive { wr_id, lkey: duo.a.keys.lkey, local: BASE, length: 8 };
            duo.fabric.post_receive(duo.a.nic, duo.a.number, receive).expect("posted");
        });
        duo.modify(duo.a, QpState::Err).expect("put in error");
        let flushed = (1..=6).map(|wr_id| (wr_id, Status::Flushed));
        assert_eq!(duo.ends(duo.a), flushed.collect::<Vec<_>>(), "{}", profile.name);
    }
}

#[test]
fn a_read_of_depth_zero_never_ends() {
    let mut duo = fresh(&RXE);
    duo.connect(1, 2);
    duo.retire(duo.a);
    duo.a.number = duo.create(duo.a.nic);
    let (index, _) = gid(&duo.fabric, duo.a.nic);
    let (_, dgid) = gid(&duo.fabric, duo.b.nic);
    for step in [
        Attributes::to_init(Access::ALL),
        Attributes::to_rtr(index, dgid, duo.b.number, 2),
        Attributes { max_rd_atomic: Some(0), retry_count: Some(7), ..Attributes::to_rts(1) },
    ] {
        duo.fabric.modify(duo.a.nic, duo.a.number, &step).expect("connected");
    }
    duo.post(duo.read_request(1, 0, 8)).expect("posted");
    duo.fabric.run();
    duo.fabric.exhaust(duo.a.nic, duo.a.number);
    assert_eq!(duo.ends(duo.a), []);
    assert_eq!(duo.state(duo.a), QpState::Rts);
}

#[test]
fn an_error_raises_an_event_on_hardware_and_none_on_soft_roce() {
    for profile in connectable() {
        let (_, mut duo) = outcome(profile, |duo| duo.write_request(1, SIZE as u64, 8));
        let event = duo.fabric.next_event(duo.a.nic);
        let expected = profile.error_event.then_some(AsyncEvent::QueuePairFatal(duo.a.number));
        assert_eq!(event, expected, "{}", profile.name);
    }
}
