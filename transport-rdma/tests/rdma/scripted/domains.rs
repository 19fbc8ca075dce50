//! Protection domains, one for each trust group of peers.

use super::{EVERY, on};
use crate::support::{BYTES, Site, config, pattern};
use handfast_core::policy::TrustGroup;
use handfast_core::transport::Side;
use handfast_core::{Lifecycle, NicPath};
use handfast_transport::{Access, CompletionStatus, Direction, Memory};
use handfast_transport_rdma::{Nic, NicConfig, RegisterOptions};

const GROUPS: [TrustGroup; 2] = [TrustGroup(0), TrustGroup(1)];

fn sites() -> (Site, Site) {
    let site = |device| {
        let groups = NicConfig { trust_groups: GROUPS.len(), ..config(device) };
        Site::new(NicConfig { timeout_exponent: 20, ..groups })
    };
    (site("rxe0"), site("rxe1"))
}

/// A wired lane, whose ends are in the domains of these groups.
fn connect(one: &Site, other: &Site, lane: Lifecycle, groups: [TrustGroup; 2]) {
    let peer = NicPath::parse("peer@nic").unwrap();
    let psns = |end: u32| [0x00a0_0000 + 0x1_0000 * lane.0 as u32 + end];
    let mine = one.nic.create_in(groups[0], &peer, lane, &psns(1)).unwrap();
    let theirs = other.nic.create_in(groups[1], &peer, lane, &psns(2)).unwrap();
    // The connection manager accepts a request whose announcement is known.
    other.nic.note_request(Some(&peer), &mine);
    one.nic.note_request(Some(&peer), &theirs);
    one.nic.connect(lane, &theirs).unwrap();
    other.nic.connect(lane, &mine).unwrap();
}

/// The end of a write of one page, and that of a read.
fn moves(one: &Site, other: &Site, lanes: [Lifecycle; 2]) -> [CompletionStatus; 2] {
    one.told.forget();
    for (at, direction) in [Direction::Write, Direction::Read].into_iter().enumerate() {
        let posting = one.posting(other, at as u64, direction, at * 8_192, 4_096);
        one.nic.post(lanes[at], &mut vec![posting]);
    }
    let ends = one.told.ends(2);
    [ends[0].clone(), ends[1].clone()]
}

/// A member that knows the key, the address and the rights of memory of another trust group moves no byte
/// of it: the device of the owner refuses, since the lane is of another domain. The same requests of a
/// member of the group are done, and probes work in each domain.
#[test]
fn key_of_another_group_is_refused_by_the_device() {
    on(&EVERY, "domains::key_of_another_group_is_refused_by_the_device", |_| {
        let (one, other) = sites();
        one.memory.copy_in(0, &pattern(1)).unwrap();
        other.memory.copy_in(0, &pattern(2)).unwrap();
        let strangers = [Lifecycle(8), Lifecycle(9)];
        for lane in strangers {
            connect(&one, &other, lane, [GROUPS[0], GROUPS[1]]);
            one.nic.probe(lane, None, crate::support::PATIENCE).unwrap();
        }
        for end in moves(&one, &other, strangers) {
            assert!(matches!(end, CompletionStatus::Refused(_)), "{end:?}");
        }
        assert!(other.bytes() == pattern(2), "nothing was written");
        assert!(one.bytes() == pattern(1), "nothing was read");
        let members = [Lifecycle(10), Lifecycle(11)];
        for lane in members {
            connect(&one, &other, lane, [GROUPS[0], GROUPS[0]]);
        }
        assert_eq!(moves(&one, &other, members), [CompletionStatus::Done, CompletionStatus::Done]);
        assert!(other.bytes()[..4_096] == pattern(1)[..4_096], "it was written");
        assert!(one.bytes()[8_192..12_288] == pattern(2)[8_192..12_288], "it was read");
    });
}

/// Local memory is named in the domains that it is registered in alone, and a group that the NIC was not
/// opened for is an error of the configuration, which leaves nothing.
#[test]
fn memory_and_lanes_are_of_the_groups_of_a_nic() {
    on(&EVERY, "domains::memory_and_lanes_are_of_the_groups_of_a_nic", |_| {
        let (one, other) = sites();
        let lane = Lifecycle(8);
        connect(&one, &other, lane, [GROUPS[1], GROUPS[0]]);
        one.nic.post(lane, &mut vec![one.posting(&other, 1, Direction::Write, 0, 64)]);
        let CompletionStatus::Refused(error) = one.told.ends(1).remove(0) else { panic!("it is") };
        assert!(error.detail.contains("not all registered with this NIC"), "{error}");
        let options = RegisterOptions { trust_group: GROUPS[1], ..Default::default() };
        let nobody = Access { remote_read: false, remote_write: false };
        let again = one.nic.register_with(one.memory.whole(), nobody, options).unwrap();
        let mut posting = one.posting(&other, 2, Direction::Write, 0, BYTES);
        posting.memory = Some(again.memory().clone());
        one.told.forget();
        one.nic.post(lane, &mut vec![posting]);
        assert_eq!(one.told.ends(1), [CompletionStatus::Done]);

        let (third, peer) = (TrustGroup(2), NicPath::parse("peer@nic").unwrap());
        let lanes = one.nic.load();
        let error = one.nic.create_in(third, &peer, Lifecycle(9), &[1]).unwrap_err();
        assert_eq!((error.side, error.call), (Side::Configuration, "bring_up"));
        assert!(error.detail.contains("no trust group 2: the NIC was opened for 2"), "{error}");
        let options = RegisterOptions { trust_group: third, ..Default::default() };
        let memory = Memory::zeroed(64).unwrap();
        let error = one.nic.register_with(memory.whole(), nobody, options).err().unwrap();
        assert_eq!((error.side, error.call), (Side::Configuration, "ibv_reg_mr"));
        let load = one.nic.load();
        assert_eq!((load.lanes, load.queue_pairs), (lanes.lanes, lanes.queue_pairs));
        let none = NicConfig { trust_groups: 0, ..config("rxe0") };
        assert!(Nic::open(none, one.told.clone()).err().unwrap().detail.contains("trust_groups"));
    });
}
