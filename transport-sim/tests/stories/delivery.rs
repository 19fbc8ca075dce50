//! Packets: in order, late, doubled, lost, behind, ahead, and at the wrong door.

use crate::helpers::*;
use handfast_transport_sim::verbs::*;

#[test]
fn writes_and_reads_move_bytes_on_every_device_that_connects() {
    for profile in connectable() {
        let mut duo = connected(profile);
        duo.write(1, 8, 3_000);
        duo.fabric.run();
        assert_eq!(duo.at_b(8, 3_000), [0xaa; 3_000], "{}", profile.name);
        assert_eq!(duo.at_b(0, 8), [0xbb; 8], "{}", profile.name);
        duo.post(duo.read_request(2, 3_008, 16)).expect("posted");
        duo.fabric.run();
        let memory = duo.fabric.memory(duo.a.nic, duo.a.keys).expect("registered");
        assert_eq!(memory[..16], [0xbb; 16], "{}", profile.name);
        let ends = duo.ends(duo.a);
        assert_eq!(ends, [(1, Status::Success), (2, Status::Success)], "{}", profile.name);
        duo.retire(duo.a);
        assert_eq!(duo.fabric.take_broken_laws(), [], "{}", profile.name);
    }
}

#[test]
fn the_peers_process_takes_no_part_and_need_not_be_in_rts() {
    let mut duo = fresh(&STRICT);
    connect(&mut duo.fabric, duo.a, duo.b, 1, 2).expect("connected");
    let (index, dgid) = gid(&duo.fabric, duo.a.nic);
    for step in [Attributes::to_init(Access::ALL), Attributes::to_rtr(index, dgid, duo.a.number, 1)]
    {
        duo.fabric.modify(duo.b.nic, duo.b.number, &step).expect("to RTR");
    }
    duo.write(1, 0, 8);
    duo.fabric.run();
    assert_eq!(duo.ends(duo.a), [(1, Status::Success)]);
}

/// A packet before the peer is ready is dropped and resent.
#[test]
fn early_packet_is_dropped_and_resent() {
    let mut duo = fresh(&STRICT);
    connect(&mut duo.fabric, duo.a, duo.b, 1, 2).expect("connected");
    duo.write(1, 0, 8);
    duo.fabric.run();
    assert_eq!(duo.ends(duo.a), []);
    connect(&mut duo.fabric, duo.b, duo.a, 2, 1).expect("connected");
    duo.fabric.expire(duo.a.nic, duo.a.number);
    duo.fabric.run();
    assert_eq!(duo.ends(duo.a), [(1, Status::Success)]);
}

#[test]
fn a_message_that_is_cut_half_way_leaves_its_first_packets() {
    let mut duo = connected(&STRICT);
    duo.write(1, 0, 3 * 1_024);
    duo.fabric.deliver(0);
    duo.fabric.deliver(0);
    duo.fabric.lose(0);
    duo.fabric.exhaust(duo.a.nic, duo.a.number);
    assert_eq!(duo.ends(duo.a), [(1, Status::RetryExceeded)]);
    assert_eq!(duo.at_b(0, 2_048), [0xaa; 2_048]);
    assert_eq!(duo.at_b(2_048, 1_024), [0xbb; 1_024]);
}

/// Reordered packets wait for a retry, and duplicates do no harm.
#[test]
fn reordered_packets_wait_for_a_retry() {
    let mut duo = connected(&STRICT);
    duo.write(1, 0, 2 * 1_024);
    duo.fabric.deliver(1);
    assert_eq!(duo.at_b(1_024, 8), [0xbb; 8], "a gap is not filled from behind");
    duo.fabric.duplicate(0);
    duo.fabric.expire(duo.a.nic, duo.a.number);
    duo.fabric.run();
    assert_eq!(duo.ends(duo.a), [(1, Status::Success)]);
    assert_eq!(duo.at_b(0, 2 * 1_024), [0xaa; 2 * 1_024]);
}

#[test]
fn a_write_that_arrives_twice_is_done_once() {
    let mut duo = connected(&STRICT);
    duo.write(1, 0, 8);
    duo.fabric.duplicate(0);
    let (nic, keys) = (duo.b.nic, duo.b.keys);
    duo.fabric.memory_mut(nic, keys).expect("registered")[..8].fill(0x11);
    duo.fabric.run();
    assert_eq!(duo.at_b(0, 8), [0x11; 8]);
    assert_eq!(duo.ends(duo.a), [(1, Status::Success)]);
}

#[test]
fn a_stale_sequence_number_is_a_success_with_nothing_written() {
    for profile in connectable() {
        let mut duo = fresh(profile);
        let (a, b) = (duo.a, duo.b);
        connect(&mut duo.fabric, a, b, 1_000, 2_000).expect("connected");
        connect(&mut duo.fabric, b, a, 2_000, 5_000)
            .expect("connected, and expects a later number");
        duo.write(1, 0, 8);
        duo.fabric.run();
        // Some acknowledge what they executed last, which is nothing yet.
        let acknowledged = profile.duplicate_ack == DuplicateAck::Its;
        let expected = acknowledged.then_some((1, Status::Success));
        assert_eq!(duo.ends(duo.a), Vec::from_iter(expected), "{}", profile.name);
        let ignored = profile.psn_source == PsnSource::Constant;
        let landed = duo.at_b(0, 8) == [0xaa; 8];
        assert_eq!(landed, ignored, "{}", profile.name);
    }
}

/// A stale write completes with success once the responder has executed a later one.
#[test]
fn stale_write_succeeds_after_a_later_one() {
    let mut duo = fresh(&RXE);
    let (a, b) = (duo.a, duo.b);
    connect(&mut duo.fabric, a, b, 1_000, 2_000).expect("connected");
    connect(&mut duo.fabric, b, a, 2_000, 5_000).expect("connected, and expects a later number");
    // A second queue pair of the same host sends with the number that is expected.
    let second = End { number: duo.create(duo.a.nic), ..duo.a };
    connect(&mut duo.fabric, second, b, 5_000, 2_000).expect("connected");
    let request = duo.write_request(1, 64, 8);
    duo.fabric.post_send(second.nic, second.number, request).expect("posted");
    duo.fabric.run();
    assert_eq!(duo.at_b(64, 8), [0xaa; 8]);
    duo.write(2, 0, 8);
    duo.fabric.run();
    assert_eq!(duo.ends(duo.a), [(2, Status::Success)]);
    assert_eq!(duo.at_b(0, 8), [0xbb; 8]);
}

/// A read with a lost response is answered again from present memory.
#[test]
fn lost_read_response_is_read_again() {
    for profile in connectable() {
        let mut duo = connected(profile);
        duo.post(duo.read_request(1, 0, 8)).expect("posted");
        duo.fabric.deliver(0);
        duo.fabric.lose(0);
        let (nic, keys) = (duo.b.nic, duo.b.keys);
        duo.fabric.memory_mut(nic, keys).expect("registered")[..8].fill(0x11);
        duo.fabric.expire(duo.a.nic, duo.a.number);
        duo.fabric.run();
        assert_eq!(duo.ends(duo.a), [(1, Status::Success)], "{}", profile.name);
        let memory = duo.fabric.memory(duo.a.nic, duo.a.keys).expect("registered");
        assert_eq!(memory[..8], [0x11; 8], "{}", profile.name);
    }
}

/// A stale read is answered from memory or dropped silently.
#[test]
fn stale_read_is_answered_or_dropped() {
    for profile in connectable().filter(|profile| profile.psn_source == PsnSource::Attributes) {
        let mut duo = fresh(profile);
        let (a, b) = (duo.a, duo.b);
        connect(&mut duo.fabric, a, b, 1_000, 2_000).expect("connected");
        connect(&mut duo.fabric, b, a, 2_000, 5_000)
            .expect("connected, and expects a later number");
        duo.post(duo.read_request(1, 0, 8)).expect("posted");
        duo.fabric.run();
        duo.fabric.exhaust(duo.a.nic, duo.a.number);
        let dropped = profile.duplicate_read == DuplicateRead::Dropped;
        let expected = if dropped { Status::RetryExceeded } else { Status::Success };
        assert_eq!(duo.ends(duo.a), [(1, expected)], "{}", profile.name);
    }
}

#[test]
fn a_sequence_number_ahead_is_as_good_as_silence() {
    for profile in connectable().filter(|profile| profile.psn_source == PsnSource::Attributes) {
        let mut duo = fresh(profile);
        let (a, b) = (duo.a, duo.b);
        connect(&mut duo.fabric, a, b, 5_000, 2_000).expect("connected");
        connect(&mut duo.fabric, b, a, 2_000, 1_000)
            .expect("connected, and expects an earlier number");
        duo.write(1, 0, 8);
        duo.fabric.run();
        duo.fabric.exhaust(duo.a.nic, duo.a.number);
        assert_eq!(duo.ends(duo.a), [(1, Status::RetryExceeded)], "{}", profile.name);
        assert_eq!(duo.at_b(0, 8), [0xbb; 8], "{}", profile.name);
    }
}

#[test]
fn sequence_numbers_go_round() {
    let mut duo = fresh(&STRICT);
    duo.connect(0x00ff_ffff, 0x0100_0000);
    duo.write(1, 0, 3_000);
    duo.fabric.run();
    assert_eq!(duo.ends(duo.a), [(1, Status::Success)]);
    assert_eq!(duo.at_b(0, 3_000), [0xaa; 3_000]);
}

/// A stale queue pair writes into a successor of the same number without an error.
#[test]
fn stale_queue_pair_writes_into_a_successor() {
    let mut duo = connected(&STRICT);
    let stale = duo.a;
    duo.retire(duo.b);
    let reborn = duo.create(duo.b.nic);
    assert_eq!(reborn, duo.b.number, "the number is born again");
    // A second queue pair of the same host is connected to it, with a number that is behind.
    let second = End { number: duo.create(duo.a.nic), ..duo.a };
    connect(&mut duo.fabric, second, duo.b, 1_000, 2_000).expect("connected");
    connect(&mut duo.fabric, duo.b, second, 2_000, 1_000).expect("connected");
    duo.write(1, 0, 8);
    duo.fabric.run();
    assert_eq!(duo.at_b(0, 8), [0xaa; 8], "nothing in the packet says whose it is");
    duo.fabric.exhaust(stale.nic, stale.number);
    assert_eq!(duo.ends(duo.a), [(1, Status::RetryExceeded)], "the answer went to the neighbour");
}

#[test]
fn a_queue_pair_takes_nothing_from_another_address() {
    let mut duo = connected(&STRICT);
    let nic = duo.fabric.add_nic(&STRICT);
    let keys = duo.fabric.register(nic, BASE, vec![0xcc; SIZE], Access::ALL).expect("room");
    let third = End { nic, number: duo.create(nic), keys };
    connect(&mut duo.fabric, third, duo.b, 1_000, 2_000).expect("connected");
    let mut request = duo.write_request(1, 0, 8);
    request.lkey = keys.lkey;
    duo.fabric.post_send(nic, third.number, request).expect("posted");
    duo.fabric.run();
    assert_eq!(duo.at_b(0, 8), [0xbb; 8]);
}

/// A write in flight while both ends are retired and connected again under the same numbers.
fn late_write(profile: &'static Profile, psn_a: u32) -> Duo {
    let mut duo = connected(profile);
    duo.write(1, 0, 8);
    duo.retire(duo.a);
    duo.retire(duo.b);
    for nic in [duo.a.nic, duo.b.nic] {
        duo.fabric.crash(nic, Rebirth::Anew);
    }
    for (end, fill) in [(duo.a, 0x22), (duo.b, 0xbb)] {
        let keys = duo.fabric.register(end.nic, BASE, vec![fill; SIZE], Access::ALL).expect("room");
        assert_eq!(keys, end.keys, "keys are born again");
        assert_eq!(duo.create(end.nic), end.number, "numbers are born again");
    }
    duo.connect(psn_a, 2_000);
    duo
}

/// A late write lands in the next connection if its sequence number fits.
#[test]
fn late_write_lands_if_its_psn_fits() {
    for profile in connectable() {
        let mut duo = late_write(profile, 1_000);
        duo.fabric.run();
        assert_eq!(duo.at_b(0, 8), [0xaa; 8], "{}", profile.name);
        duo.write(2, 0, 8);
        duo.fabric.run();
        assert_eq!(duo.ends(duo.a), [(2, Status::Success)], "{}", profile.name);
        assert_eq!(duo.at_b(0, 8), [0xaa; 8], "{}: the new write is a duplicate", profile.name);
    }
}

/// Fresh sequence numbers keep late writes out, except on devices that ignore them.
#[test]
fn fresh_psns_keep_late_writes_out() {
    for profile in connectable() {
        let mut duo = late_write(profile, 0x0055_5555);
        duo.fabric.run();
        let ignored = profile.psn_source == PsnSource::Constant;
        assert_eq!(duo.at_b(0, 8) == [0xaa; 8], ignored, "{}", profile.name);
        duo.write(2, 0, 8);
        duo.fabric.run();
        assert_eq!(duo.at_b(0, 8) == [0x22; 8], !ignored, "{}", profile.name);
    }
}

/// An acknowledgement does not complete an earlier read.
#[test]
fn ack_does_not_complete_an_earlier_read() {
    let mut duo = connected(&STRICT);
    duo.post(duo.read_request(1, 64, 8)).expect("posted");
    duo.write(2, 0, 8);
    duo.fabric.deliver(0);
    duo.fabric.deliver(0);
    let answers: Vec<bool> = duo
        .fabric
        .packets()
        .iter()
        .map(|packet| matches!(packet.body, PacketBody::ReadResponse { .. }))
        .collect();
    assert_eq!(answers, [true, false]);
    duo.fabric.deliver(1);
    assert_eq!(duo.ends(duo.a), [], "the write is not done before the read");
    duo.fabric.deliver(0);
    assert_eq!(duo.ends(duo.a), [(1, Status::Success)]);
}
