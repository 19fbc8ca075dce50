//! Channels of one host: what an end answers while it closes, and what it says of single regions.

use handfast_core::sharing::{
    Begun, Frame, GrantId, Offered, Sharing, SharingOutput, Unshared, Wanted,
};
use handfast_core::transfer::Direction;

const OFFERED: Offered = Offered { address: 4_096, bytes: 64, readable: true, writable: true };

fn wanted(key: u64, address: u64, length: u64) -> Wanted {
    Wanted { key, address, length, direction: Direction::Write }
}

fn outputs(end: &mut Sharing) -> Vec<SharingOutput> {
    std::iter::from_fn(|| end.poll_output()).collect()
}

fn sent(end: &mut Sharing) -> Vec<Frame> {
    let frame = |output| match output {
        SharingOutput::Send(frame) => Some(frame),
        _ => None,
    };
    outputs(end).into_iter().filter_map(frame).collect()
}

/// An end that has asked for these keys, and was granted each by its own number.
fn granted(keys: &[u64]) -> Sharing {
    let mut end = Sharing::new();
    for key in keys {
        assert_eq!(end.begin(&wanted(*key, OFFERED.address, 1)), Begun::Asked);
        end.handle_frame(Frame::Grant { key: *key, grant: GrantId(*key), offered: OFFERED });
    }
    outputs(&mut end);
    end
}

/// The end of a region is counted from its first byte.
#[test]
fn copy_past_the_end_of_a_region_is_refused() {
    let mut end = granted(&[1]);
    end.on_mapped(GrantId(1), true);
    let last = OFFERED.address + OFFERED.bytes - 1;
    let grant = GrantId(1);
    assert_eq!(end.begin(&wanted(1, last, 1)), Begun::Copy { grant, offset: OFFERED.bytes - 1 });
    for (address, length) in [(last, 2), (OFFERED.address, OFFERED.bytes + 1), (last + 1, 1)] {
        let refused = end.begin(&wanted(1, address, length));
        assert_eq!(refused, Begun::Unshared(Unshared::NotAllowed), "{length} at {address}");
    }
}

/// An end that closes begins no copy and grants no region, while the connection is still there.
#[test]
fn closing_end_begins_and_grants_nothing() {
    let mut end = granted(&[1]);
    end.on_mapped(GrantId(1), true);
    end.close();
    outputs(&mut end);
    for key in [1, 2] {
        let begun = end.begin(&wanted(key, OFFERED.address, 1));
        assert_eq!(begun, Begun::Unshared(Unshared::Closing));
    }
    let mut owner = Sharing::new();
    owner.close();
    outputs(&mut owner);
    assert_eq!((owner.grant(1, OFFERED), owner.granted()), (None, 0));
    assert_eq!(sent(&mut owner), []);
}

/// A map belongs to its grant, whatever the order of the answers.
#[test]
fn maps_may_be_made_in_any_order() {
    let mut end = granted(&[1, 2]);
    end.on_mapped(GrantId(2), true);
    assert_eq!(end.begin(&wanted(1, OFFERED.address, 1)), Begun::Asked);
    let second = Begun::Copy { grant: GrantId(2), offset: 0 };
    assert_eq!(end.begin(&wanted(2, OFFERED.address, 1)), second);
}

/// A grant that was not asked for is acknowledged as taken back, and mapped by nobody.
#[test]
fn grant_that_was_not_asked_for_is_returned() {
    let mut end = Sharing::new();
    let grant = GrantId(1);
    end.handle_frame(Frame::Grant { key: 7, grant, offered: OFFERED });
    assert_eq!(outputs(&mut end), [SharingOutput::Send(Frame::Revoked { grant })]);
}

/// A region is held, revoked and kept by its own key.
#[test]
fn regions_of_other_keys_stay_as_they_are() {
    let mut owner = Sharing::new();
    let [one, other] = [1, 2].map(|key| owner.grant(key, OFFERED).expect("there is room"));
    assert!(owner.holds(1) && owner.holds(2) && !owner.holds(3));
    outputs(&mut owner);
    owner.revoke(1);
    assert_eq!(sent(&mut owner), [Frame::Revoke { grant: one }]);
    owner.revoke(1);
    assert_eq!(sent(&mut owner), [], "it is revoked already");
    owner.handle_frame(Frame::Revoked { grant: one });
    assert!(!owner.holds(1) && owner.holds(2));
    owner.handle_frame(Frame::Kept { grant: other });
    outputs(&mut owner);
    owner.handle_frame(Frame::Ask { key: 1 });
    assert_eq!(outputs(&mut owner), [SharingOutput::Asked { key: 1 }], "nobody keeps this one");
}

/// The death of a peer is to be proven only where it hung up with a region.
#[test]
fn peer_without_regions_needs_no_proof() {
    let mut owner = Sharing::new();
    let grant = owner.grant(1, OFFERED).expect("there is room");
    assert!(!owner.is_unproven(), "it is connected");
    owner.handle_frame(Frame::Revoked { grant });
    owner.on_hung_up();
    assert!(!owner.is_unproven());
}
