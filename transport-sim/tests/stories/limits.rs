//! Tables and queues at their limits, retry budgets, ports and address tables.

use crate::helpers::*;
use handfast_transport_sim::verbs::*;

#[test]
fn a_full_table_of_queue_pairs_or_regions_says_so() {
    for profile in PROFILES {
        let mut fabric = Fabric::default();
        let nic = fabric.add_nic(profile);
        for _ in 0..profile.queue_pairs_max {
            fabric.create_queue_pair(nic, 1, 1).expect("room");
        }
        let error = fabric.create_queue_pair(nic, 1, 1).unwrap_err();
        assert_eq!((error.call, error.code), (Call::CreateQueuePair, 12), "{}", profile.name);
        let (first, _) = fabric.nic(nic).queue_pairs().next().expect("many");
        fabric.destroy_queue_pair(nic, first).expect("there");
        fabric.create_queue_pair(nic, 1, 1).expect("room again");

        for _ in 0..profile.regions_max {
            fabric.register(nic, BASE, vec![0], Access::ALL).expect("room");
        }
        let error = fabric.register(nic, BASE, vec![0], Access::ALL).unwrap_err();
        let expected = if profile.name.starts_with("erdma") { 28 } else { 12 };
        assert_eq!((error.call, error.code), (Call::Register, expected), "{}", profile.name);
    }
}

#[test]
fn a_full_send_queue_refuses_with_the_sign_of_the_driver() {
    for profile in connectable() {
        let mut duo = connected(profile);
        (0..u64::from(DEPTH)).for_each(|wr_id| duo.write(wr_id, 0, 8));
        let error = duo.post(duo.write_request(99, 0, 8)).unwrap_err();
        let expected = if profile.name.starts_with("erdma") { -12 } else { 12 };
        assert_eq!(error.code, expected, "{}", profile.name);
        duo.fabric.run();
        duo.write(99, 0, 8);
    }
}

#[test]
fn erdma_wants_room_in_both_queues() {
    let mut fabric = Fabric::default();
    let nic = fabric.add_nic(&ERDMA_COMPAT);
    assert_eq!(fabric.create_queue_pair(nic, 4, 0).unwrap_err().code, 22);
    let nic = fabric.add_nic(&STRICT);
    fabric.create_queue_pair(nic, 4, 0).expect("a queue pair that receives nothing");
}

#[test]
fn completions_that_find_no_room_are_lost_with_an_event_each() {
    let mut duo = connected(&STRICT);
    duo.fabric.limit_completions(duo.a.nic, 3);
    (1..=5).for_each(|wr_id| duo.write(wr_id, 0, 8));
    duo.fabric.run();
    assert_eq!(duo.ends(duo.a).len(), 3);
    let lost = Some(AsyncEvent::CompletionQueueError);
    let nic = duo.a.nic;
    let events = [duo.fabric.next_event(nic), duo.fabric.next_event(nic)];
    assert_eq!(events, [lost, lost]);
    assert_eq!(duo.fabric.next_event(nic), None);
}

#[test]
fn a_dead_peer_is_given_up_after_the_retries_of_the_device() {
    let tries = |profile: &'static Profile| {
        let mut duo = connected(profile);
        duo.fabric.cut(duo.a.nic, duo.b.nic);
        duo.write(1, 0, 8);
        let mut tries = 0;
        while duo.state(duo.a) == QpState::Rts && tries < 100 {
            duo.fabric.run();
            duo.fabric.expire(duo.a.nic, duo.a.number);
            tries += 1;
        }
        tries
    };
    for profile in connectable() {
        let expected = if profile.name.starts_with("erdma") { 25 } else { 7 };
        assert_eq!(tries(profile), expected, "{}", profile.name);
    }
}

#[test]
fn the_time_until_a_peer_is_given_up_follows_timeout_and_count() {
    let budget_ms = |profile: &Profile, timeout, count| {
        Some(profile.retry.budget_ns(timeout, count)? / 1_000_000)
    };
    assert_eq!(budget_ms(&STRICT, 14, 6), Some(469));
    assert_eq!(budget_ms(&STRICT, 14, 7), Some(536), "seven is seven");
    assert_eq!(budget_ms(&RXE, 14, 7), None, "seven is for ever");
    assert_eq!(budget_ms(&RXE, 1, 6), Some(56), "two ticks of the kernel at least");
    assert_eq!(budget_ms(&MLX5, 0, 3), None, "no timeout is for ever");
    assert_eq!(budget_ms(&ERDMA_COMPAT, 14, 0), Some(1_677), "a count of the device");
    // As tcp(7) says: 924.6 seconds, whatever the queue pair asks for.
    let tcp = Profile { retry: TCP_RETRY, ..STRICT };
    assert_eq!(
        [(14, 6), (31, 0)].map(|(it, count)| budget_ms(&tcp, it, count)),
        [Some(924_600); 2]
    );
}

#[test]
fn a_queue_pair_that_tries_for_ever_is_never_exhausted() {
    let mut duo = fresh(&RXE);
    let (index, _) = gid(&duo.fabric, duo.a.nic);
    let (_, dgid) = gid(&duo.fabric, duo.b.nic);
    for step in [
        Attributes::to_init(Access::ALL),
        Attributes::to_rtr(index, dgid, duo.b.number, 2),
        Attributes { retry_count: Some(7), ..Attributes::to_rts(1) },
    ] {
        duo.fabric.modify(duo.a.nic, duo.a.number, &step).expect("connected");
    }
    duo.write(1, 0, 8);
    for _ in 0..100 {
        duo.fabric.run();
        duo.fabric.expire(duo.a.nic, duo.a.number);
    }
    duo.fabric.exhaust(duo.a.nic, duo.a.number);
    assert_eq!(duo.state(duo.a), QpState::Rts);
}

#[test]
fn a_port_that_bounces_is_survived_within_the_retries() {
    for profile in connectable() {
        let mut duo = connected(profile);
        duo.write(1, 0, 8);
        duo.fabric.set_port(duo.b.nic, false);
        duo.fabric.run();
        duo.fabric.set_port(duo.b.nic, true);
        duo.fabric.expire(duo.a.nic, duo.a.number);
        duo.fabric.run();
        assert_eq!(duo.ends(duo.a), [(1, Status::Success)], "{}", profile.name);
        let mut events = Vec::new();
        while let Some(event) = duo.fabric.next_event(duo.b.nic) {
            events.push(event);
        }
        let expected = [AsyncEvent::PortError, AsyncEvent::PortActive, AsyncEvent::PortActive];
        let count = if profile.name == "rxe" { 3 } else { 2 };
        assert_eq!(events, expected[..count], "{}", profile.name);
    }
}

#[test]
fn an_address_that_comes_back_may_have_moved() {
    let mut duo = fresh(&STRICT);
    let (index, own) = gid(&duo.fabric, duo.a.nic);
    duo.fabric.remove_gid(duo.a.nic, usize::from(index));
    let other = Gid { kind: GidKind::Ipv4, host: 9, version: 2 };
    assert_eq!(duo.fabric.add_gid(duo.a.nic, other), Some(1), "holes are filled");
    assert_eq!(duo.fabric.add_gid(duo.a.nic, own), Some(2), "at another index");
    let events = (0..3).map(|_| duo.fabric.next_event(duo.a.nic));
    assert!(events.into_iter().all(|event| event == Some(AsyncEvent::GidChange)));
}

#[test]
fn clones_are_equal_until_something_happens_to_one() {
    let mut duo = connected(&STRICT);
    duo.write(1, 0, 8);
    let before = duo.fabric.clone();
    assert_eq!(before, duo.fabric);
    duo.fabric.run();
    assert_ne!(before, duo.fabric);
    assert_eq!(before.packets().len(), 1, "the clone has kept what it had");
}
