//! Attacks on queue pairs and keys, with their outcome: each is stopped, seen or neither.

use crate::helpers::*;
use handfast_transport_sim::verbs::*;

/// Keys that a member tries.
const KEYS_TRIED: u32 = 1_000_000;
/// The protection domain of a member's lanes, and that of another trust group.
const MEMBERS: u32 = 1;
const OTHERS: u32 = 2;

/// A member's device and an owner's, which has a region for another trust group.
struct Owner {
    fabric: Fabric,
    own: Keys,
    secret: Keys,
}

const A: usize = 0;
const B: usize = 1;

impl Owner {
    fn new(profile: &'static Profile) -> Self {
        let mut fabric = Fabric::default();
        assert_eq!([fabric.add_nic(profile), fabric.add_nic(profile)], [A, B]);
        let mut register = |nic, domain, fill| {
            fabric.register_in(nic, domain, BASE, vec![fill; SIZE], Access::ALL).expect("room")
        };
        let own = register(A, 0, 0xaa);
        let secret = register(B, OTHERS, 0xcc);
        let probes = fabric.register_in(B, MEMBERS, BASE, vec![0xbb; SIZE], Access::LOCAL);
        assert!(probes.is_ok(), "the member's domain has memory of the owner alone");
        Self { fabric, own, secret }
    }

    /// A lane of the member, whose end at the owner is in a domain. One request is its whole life.
    fn tries(&mut self, domain: u32, kind: SendKind) -> Status {
        let number = self.fabric.create_queue_pair(A, DEPTH, DEPTH).expect("room");
        let own = End { nic: A, number, keys: self.own };
        let number = self.fabric.create_queue_pair_in(B, domain, DEPTH, DEPTH).expect("room");
        let theirs = End { nic: B, number, keys: self.secret };
        connect(&mut self.fabric, own, theirs, 1, 2).expect("a is connected");
        connect(&mut self.fabric, theirs, own, 2, 1).expect("b is connected");
        let lkey = self.own.lkey;
        let request = WorkRequest { wr_id: 1, kind, lkey, local: BASE, length: 8, signalled: true };
        self.fabric.post_send(A, own.number, request).expect("posted");
        self.fabric.run();
        let status = self.fabric.poll(A).expect("it ends").status;
        for end in [own, theirs] {
            self.fabric.modify(end.nic, end.number, &Attributes::to(QpState::Err)).expect("ended");
            while self.fabric.poll(end.nic).is_some() {}
            self.fabric.destroy_queue_pair(end.nic, end.number).expect("destroyed");
        }
        status
    }

    fn bytes(&self, nic: usize, keys: Keys) -> &[u8] {
        self.fabric.memory(nic, keys).expect("registered")
    }
}

/// A key is of no use to a queue pair of another protection domain, at either side, on any device.
#[test]
fn key_of_another_domain_moves_no_byte() {
    for profile in connectable() {
        let mut owner = Owner::new(profile);
        let Keys { rkey, .. } = owner.secret;
        for kind in
            [SendKind::Write { rkey, address: BASE }, SendKind::Read { rkey, address: BASE }]
        {
            let refused = owner.tries(MEMBERS, kind);
            assert_eq!(refused, profile.statuses.remote_access, "{}", profile.name);
        }
        assert_eq!(owner.bytes(B, owner.secret), [0xcc; SIZE], "{}", profile.name);
        assert_eq!(owner.bytes(A, owner.own), [0xaa; SIZE], "{}", profile.name);
        let own = owner.own;
        let elsewhere = owner.fabric.register_in(A, OTHERS, BASE, vec![0xdd; SIZE], Access::ALL);
        owner.own = elsewhere.expect("room");
        let refused = owner.tries(OTHERS, SendKind::Write { rkey, address: BASE });
        assert_eq!(refused, profile.statuses.local_key, "{}", profile.name);
        assert_eq!(owner.bytes(B, owner.secret), [0xcc; SIZE], "{}", profile.name);
        owner.own = own;
        let done = owner.tries(OTHERS, SendKind::Write { rkey, address: BASE });
        assert_eq!(done, Status::Success, "{}", profile.name);
        assert_eq!(owner.bytes(B, owner.secret)[..8], [0xaa; 8], "{}", profile.name);
    }
}

/// A member that tries a million keys of a device, among them that of another trust group, moves no
/// byte if its lanes are in another domain. Each try costs it a lane.
#[test]
fn million_keys_of_another_domain_move_no_byte() {
    let mut owner = Owner::new(&MLX5);
    assert!(owner.secret.rkey < KEYS_TRIED, "it is among them");
    for tried in 0..KEYS_TRIED {
        // One of 101 is the right one, for reads and for writes.
        let rkey = if tried % 101 == 0 { owner.secret.rkey } else { tried };
        let kind = match tried % 2 {
            0 => SendKind::Write { rkey, address: BASE },
            _ => SendKind::Read { rkey, address: BASE },
        };
        assert_eq!(owner.tries(MEMBERS, kind), Status::RemoteAccess, "{kind:?}");
    }
    assert_eq!(owner.bytes(B, owner.secret), [0xcc; SIZE], "nothing was written");
    assert_eq!(owner.bytes(A, owner.own), [0xaa; SIZE], "nothing was read");
}

/// Two connected ends, and a packet to the second that claims to come from the first.
fn forged(duo: &Duo, psn: u32, body: PacketBody) -> Packet {
    let (from, to) = (duo.a.nic as u16, duo.b.nic as u16);
    Packet { from, to, dest_number: duo.b.number, psn, body }
}

fn forged_write(rkey: u32) -> PacketBody {
    let bytes = vec![0xee; 8];
    PacketBody::Write { rkey, address: BASE, reach: 8, bytes, last: true }
}

/// The first sequence number of `a` in a connected pair.
fn first_psn(profile: &Profile) -> u32 {
    match profile.psn_source {
        PsnSource::Attributes => 1_000,
        PsnSource::Constant => 0,
    }
}

/// A packet with the right numbers and key is as good as the peer's: its bytes land, neither side learns of it,
/// and the next write of the peer counts as its repetition. Neither an address of another host nor a
/// sequence number that is not expected is taken; a device with constant ones expects the first.
#[test]
fn injected_packet_with_the_right_numbers_lands_unseen() {
    for profile in connectable() {
        let mut duo = connected(profile);
        let (write, psn) = (forged_write(duo.b.keys.rkey), first_psn(profile));
        let stranger = duo.fabric.add_nic(profile) as u16;
        let right = forged(&duo, psn, write.clone());
        duo.fabric.put(Packet { from: stranger, ..right.clone() });
        for far in [(1 << 24) - 1, 1, 1_000_000] {
            duo.fabric.put(forged(&duo, (psn + far) % (1 << 24), write.clone()));
        }
        duo.fabric.run();
        assert_eq!(duo.at_b(0, 8), [0xbb; 8], "{}", profile.name);
        duo.fabric.put(right);
        duo.fabric.run();
        assert_eq!(duo.at_b(0, 8), [0xee; 8], "{}", profile.name);
        assert_eq!((duo.ends(duo.a), duo.ends(duo.b)), (vec![], vec![]), "{}", profile.name);
        assert_eq!(duo.fabric.next_event(duo.b.nic), None, "{}", profile.name);
        duo.write(1, 8, 8);
        duo.fabric.run();
        assert_eq!(duo.ends(duo.a), [(1, Status::Success)], "{}", profile.name);
        assert_eq!(duo.at_b(8, 8), [0xbb; 8], "{}: the write of the peer is lost", profile.name);
    }
}

/// A packet with the right numbers and a wrong key ends the queue pair that it came to, and a forged
/// refusal that of the requester. Each is reported by the next request, or by the one under way.
#[test]
fn forged_packet_ends_a_queue_pair_and_is_reported() {
    for profile in connectable() {
        let mut duo = connected(profile);
        let (wrong, psn) = (duo.b.keys.rkey + 0x100, first_psn(profile));
        duo.fabric.put(forged(&duo, psn, forged_write(wrong)));
        duo.fabric.run();
        assert_eq!(duo.state(duo.b), QpState::Err, "{}", profile.name);
        let fatal = AsyncEvent::QueuePairFatal(duo.b.number);
        let event = duo.fabric.next_event(duo.b.nic);
        assert_eq!(event, profile.error_event.then_some(fatal), "{}", profile.name);
        duo.write(1, 0, 8);
        duo.fabric.run();
        duo.fabric.exhaust(duo.a.nic, duo.a.number);
        let silent = profile.statuses.retry_exceeded;
        assert_eq!(duo.ends(duo.a), [(1, silent)], "{}", profile.name);

        let mut duo = connected(profile);
        duo.write(1, 0, 8);
        let (from, to, dest_number) = (duo.b.nic as u16, duo.a.nic as u16, duo.a.number);
        let body = PacketBody::Nak(Refusal::Access);
        duo.fabric.put(Packet { from, to, dest_number, psn, body });
        let refused = profile.statuses.remote_access;
        assert_eq!(duo.ends(duo.a), [(1, refused)], "{}", profile.name);
        assert_eq!(duo.state(duo.a), QpState::Err, "{}", profile.name);
    }
}

/// Packets on the way show bytes, key, address and numbers: what an injection needs.
#[test]
fn packets_show_bytes_keys_and_numbers() {
    for profile in connectable() {
        let mut duo = connected(profile);
        duo.write(1, 16, 8);
        let seen = duo.fabric.packets()[0].clone();
        assert_eq!(
            (seen.dest_number, seen.psn),
            (duo.b.number, first_psn(profile)),
            "{}",
            profile.name
        );
        let PacketBody::Write { rkey, address, bytes, .. } = seen.body else {
            panic!("{}: {:?}", profile.name, seen.body)
        };
        assert_eq!((rkey, address), (duo.b.keys.rkey, BASE + 16), "{}", profile.name);
        assert_eq!(bytes, [0xaa; 8], "{}", profile.name);
    }
}

/// The owner of memory learns nothing of a read or a write of its peer.
#[test]
fn one_sided_requests_leave_no_trace_at_the_owner() {
    for profile in connectable() {
        let mut duo = connected(profile);
        for request in [duo.write_request(1, 0, 8), duo.read_request(2, 0, 8)] {
            duo.post(request).expect("posted");
            duo.fabric.run();
        }
        assert_eq!(duo.ends(duo.a).len(), 2, "{}", profile.name);
        assert_eq!(duo.ends(duo.b), [], "{}", profile.name);
        assert_eq!(duo.fabric.next_event(duo.b.nic), None, "{}", profile.name);
    }
}

/// The keys of a device count on, whichever process registers and after a start of the host as before:
/// one gives away the next.
#[test]
fn keys_of_a_device_count_on() {
    for profile in connectable() {
        let mut fabric = Fabric::default();
        let nic = fabric.add_nic(profile);
        let index = |fabric: &mut Fabric, domain| {
            let keys = fabric.register_in(nic, domain, BASE, vec![0; SIZE], Access::ALL);
            keys.expect("room").rkey >> 8
        };
        let first: Vec<u32> = (1..=3).map(|domain| index(&mut fabric, domain)).collect();
        assert_eq!(first, [first[0], first[0] + 1, first[0] + 2], "{}", profile.name);
        fabric.crash(nic, Rebirth::Anew);
        assert_eq!(index(&mut fabric, 1), first[0], "{}: after a start", profile.name);
    }
}
