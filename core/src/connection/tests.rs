//! Tests of the machine and of its private data.

use super::*;
use alloc::vec::Vec;

const ID: ConnectionId = ConnectionId { lifecycle: Lifecycle(7), place: 2 };

fn announced(incarnation: u128, token: u128, asks: bool) -> Announced {
    let pair =
        Pair { incarnation: Incarnation(incarnation), lifecycle: Lifecycle(incarnation as u64) };
    Announced { pair, place: 2, number: 0x12_3456, token: Token(token), asks }
}

/// A node of incarnation 10 with a queue pair, announced.
fn node(asks: bool) -> (Connections, Announced) {
    let mut node = Connections::new(Incarnation(10));
    let own = node.announce(ID, 0xab_cdef, Token(99), asks).unwrap();
    (node, own)
}

fn outputs(node: &mut Connections) -> Vec<ConnectionOutput> {
    core::iter::from_fn(|| node.poll_output()).collect()
}

fn request(from: &Announced, to: &Announced) -> [u8; PRIVATE_DATA_BYTES] {
    PrivateData::new(from, to, Content::Request).encode()
}

fn refusals(node: &mut Connections) -> Vec<Option<Content>> {
    let refusal = |output| match output {
        ConnectionOutput::Reject { data, .. } => data.map(|data| data.content),
        other => panic!("{other:?}"),
    };
    outputs(node).into_iter().map(refusal).collect()
}

/// The lower pair dials and verifies the answer.
#[test]
fn lower_pair_dials_and_verifies_the_answer() {
    let (mut node, own) = node(false);
    let peer = announced(20, 1, false);
    node.connect(ID, peer);
    let data = PrivateData::new(&own, &peer, Content::Request);
    assert_eq!(outputs(&mut node), [ConnectionOutput::Dial { id: ID, data }]);
    let mut other = node.clone();
    node.handle_established(ID, &PrivateData::new(&peer, &own, Content::Accept).encode());
    assert_eq!(outputs(&mut node), [ConnectionOutput::Established { id: ID }]);
    assert_eq!(node.peer(ID), Some(peer));
    let false_token = Announced { token: Token(98), ..own };
    other.handle_established(ID, &PrivateData::new(&peer, &false_token, Content::Accept).encode());
    let failed = ConnectionOutput::Failed { id: ID, cause: Cause::Unproven };
    let ended =
        [failed, ConnectionOutput::Disconnect { id: ID }, ConnectionOutput::Drain { id: ID }];
    assert_eq!(outputs(&mut other), ended);
}

/// A request is accepted for the lifecycle, the token and the peer that it names, and once.
#[test]
fn request_is_accepted_for_what_it_names() {
    let (mut node, own) = node(false);
    let peer = announced(5, 1, false);
    node.connect(ID, peer);
    assert_eq!(outputs(&mut node), []);
    let stranger = announced(6, 1, false);
    let elsewhere = Announced { place: 3, ..own };
    let guessed = Announced { token: Token(0), ..own };
    let before = node.clone();
    node.handle_request(RequestId(1), &request(&stranger, &own));
    node.handle_request(RequestId(2), &request(&Announced { place: 3, ..peer }, &elsewhere));
    node.handle_request(RequestId(3), &request(&peer, &guessed));
    node.handle_request(RequestId(4), &[0; PRIVATE_DATA_BYTES]);
    let answer = PrivateData::new(&peer, &own, Content::Accept).encode();
    node.handle_request(RequestId(7), &answer);
    let reasons = [Refusal::NotMeant, Refusal::NotMeant, Refusal::Token].map(Content::Refusal);
    let refusals_of_requests = refusals(&mut node);
    assert_eq!(refusals_of_requests[..3], reasons.map(Some));
    assert_eq!(refusals_of_requests[3..], [None, None]);
    assert_eq!(node, before);
    node.handle_request(RequestId(5), &request(&peer, &own));
    let data = PrivateData::new(&own, &peer, Content::Accept);
    assert_eq!(
        outputs(&mut node),
        [ConnectionOutput::Accept { id: ID, request: RequestId(5), data }]
    );
    node.handle_request(RequestId(6), &request(&peer, &own));
    assert_eq!(refusals(&mut node), [Some(Content::Refusal(Refusal::Taken))]);
    node.handle_established(ID, &[]);
    assert_eq!(outputs(&mut node), [ConnectionOutput::Established { id: ID }]);
}

/// A request that overtakes the peer's announcement waits for it; a second one does not.
#[test]
fn early_request_waits_for_the_announcement() {
    let (mut node, own) = node(false);
    let peer = announced(5, 1, false);
    node.handle_request(RequestId(1), &request(&peer, &own));
    assert_eq!(outputs(&mut node), []);
    node.handle_request(RequestId(2), &request(&peer, &own));
    assert_eq!(refusals(&mut node), [Some(Content::Refusal(Refusal::Taken))]);
    let (mut dialler, mut retired) = (node.clone(), node.clone());
    node.connect(ID, peer);
    let accepts = |output: &ConnectionOutput| {
        matches!(output, ConnectionOutput::Accept { request: RequestId(1), .. })
    };
    assert!(outputs(&mut node).iter().all(accepts));
    dialler.connect(ID, announced(20, 1, false));
    assert!(matches!(dialler.poll_output(), Some(ConnectionOutput::Dial { .. })));
    assert_eq!(refusals(&mut dialler), [Some(Content::Refusal(Refusal::WrongSide))]);
    retired.retire(ID);
    let refused = retired.poll_output();
    assert!(matches!(refused, Some(ConnectionOutput::Reject { request: RequestId(1), .. })));
}

/// The side that cannot reach its peer asks it to dial; two that ask do not connect.
#[test]
fn side_that_is_asked_dials() {
    let asked = |own: bool, peer: &Announced| {
        let (mut node, _) = node(own);
        node.connect(ID, *peer);
        node.poll_output()
    };
    assert_eq!(asked(true, &announced(20, 1, false)), None);
    let dial = asked(false, &announced(5, 1, true));
    assert!(matches!(dial, Some(ConnectionOutput::Dial { .. })));
    let cause = Cause::NeitherReaches;
    let failed = asked(true, &announced(20, 1, true));
    assert_eq!(failed, Some(ConnectionOutput::Failed { id: ID, cause }));
    let (mut node, own) = node(false);
    node.connect(ID, own);
    let failed = ConnectionOutput::Failed { id: ID, cause: Cause::Itself };
    assert_eq!(node.poll_output(), Some(failed));
}

/// A token is a secret: its digits are in no message.
#[test]
fn token_is_not_shown() {
    assert_eq!(alloc::format!("{:?}", Token(99)), "Token(..)");
}

/// Every end is disconnect, drain, destroy; a disconnect does not stand for the drain.
#[test]
fn disconnect_is_followed_by_drain_and_destroy() {
    let (mut node, own) = node(false);
    let peer = announced(20, 1, false);
    node.connect(ID, peer);
    node.handle_established(ID, &PrivateData::new(&peer, &own, Content::Accept).encode());
    outputs(&mut node);
    node.handle_timeout(ID);
    assert_eq!(outputs(&mut node), [], "a connected queue pair has no timer");
    node.handle_disconnected(ID);
    let failed = ConnectionOutput::Failed { id: ID, cause: Cause::Disconnected };
    let ends =
        [failed, ConnectionOutput::Disconnect { id: ID }, ConnectionOutput::Drain { id: ID }];
    assert_eq!(outputs(&mut node), ends);
    node.handle_disconnected(ID);
    node.handle_established(ID, &[]);
    node.handle_request(RequestId(1), &request(&peer, &own));
    assert_eq!(refusals(&mut node), [Some(Content::Refusal(Refusal::NotMeant))]);
    assert!(!node.is_empty());
    node.handle_drained(ID);
    assert_eq!(outputs(&mut node), [ConnectionOutput::Destroy { id: ID }]);
    assert!(node.is_empty());
    node.handle_drained(ID);
    assert_eq!(outputs(&mut node), []);
}

/// A refusal reaches the dialler with its reason; another's private data has none.
#[test]
fn refusal_reaches_the_dialler_with_its_reason() {
    let peer = announced(20, 1, false);
    let cause = |change: fn(&mut PrivateData)| {
        let (mut node, own) = node(false);
        node.connect(ID, peer);
        outputs(&mut node);
        let request = PrivateData::new(&own, &peer, Content::Request);
        let mut refused = request.refused(peer.pair.incarnation, Refusal::Taken);
        change(&mut refused);
        node.handle_rejected(ID, &refused.encode());
        node.poll_output()
    };
    let failed = |cause| Some(ConnectionOutput::Failed { id: ID, cause });
    assert_eq!(cause(|_| {}), failed(Cause::Refused(Refusal::Taken)));
    assert_eq!(cause(|data| data.receiver = Lifecycle(8)), failed(Cause::Rejected));
}

/// Private data of another version is named as such: to its sender by a refusal, and where it is the answer.
/// Zeros, with which InfiniBand fills what has no private data, are of no version.
#[test]
fn another_version_is_named_on_both_sides() {
    let (mut listener, own) = node(true);
    let peer = announced(20, 1, false);
    let of_version = |version| {
        let mut bytes = request(&peer, &own);
        bytes[0] = version;
        bytes
    };
    listener.handle_request(RequestId(1), &of_version(2));
    let Some(ConnectionOutput::Reject { request: RequestId(1), data: Some(refusal) }) =
        listener.poll_output()
    else {
        panic!("a refusal with its reason");
    };
    assert_eq!(refusal.content, Content::Refusal(Refusal::Version));
    listener.handle_request(RequestId(2), &[0; PRIVATE_DATA_BYTES]);
    assert_eq!(refusals(&mut listener), [None]);
    listener.connect(ID, peer);
    listener.handle_request(RequestId(3), &request(&peer, &own));
    assert!(matches!(listener.poll_output(), Some(ConnectionOutput::Accept { .. })));

    let end = |answer: fn(&mut Connections, &[u8]), bytes: &[u8]| {
        let (mut dialler, _) = node(false);
        dialler.connect(ID, peer);
        outputs(&mut dialler);
        answer(&mut dialler, bytes);
        dialler.poll_output()
    };
    let rejected: fn(&mut Connections, &[u8]) = |node, bytes| node.handle_rejected(ID, bytes);
    let accepted: fn(&mut Connections, &[u8]) = |node, bytes| node.handle_established(ID, bytes);
    let failed = |cause| Some(ConnectionOutput::Failed { id: ID, cause });
    let version = Cause::Refused(Refusal::Version);
    assert_eq!(end(rejected, &refusal.encode()), failed(version));
    assert_eq!(end(rejected, &of_version(2)), failed(version));
    assert_eq!(end(rejected, &[0; 148]), failed(Cause::Rejected));
    assert_eq!(end(accepted, &of_version(2)), failed(version));
    assert_eq!(end(accepted, &[0; 148]), failed(Cause::Unproven));
}

/// The table has a limit, and takes another queue pair when one is destroyed.
#[test]
fn table_of_connections_has_a_limit() {
    let mut node = Connections::new(Incarnation(1));
    let id = |number| ConnectionId { lifecycle: Lifecycle(number), place: 0 };
    let announce = |node: &mut Connections, number| node.announce(id(number), 1, Token(1), false);
    for number in 0..CONNECTIONS_MAX as u64 {
        announce(&mut node, number).unwrap();
    }
    let past = CONNECTIONS_MAX as u64;
    assert_eq!(announce(&mut node, 0), Err(AnnounceError::Announced));
    assert_eq!(announce(&mut node, past), Err(AnnounceError::Full));
    node.retire(id(0));
    assert_eq!(announce(&mut node, past), Err(AnnounceError::Full));
    node.handle_drained(id(0));
    assert!(announce(&mut node, past).is_ok());
    assert_eq!(node.len(), CONNECTIONS_MAX);
}

/// The bytes of each kind are those of the table in `private_data.rs`.
#[test]
fn private_data_has_golden_bytes() {
    let incarnation = Incarnation(0x0001_0203_0405_0607_0809_0a0b_0c0d_0e0f);
    let data = |content| PrivateData {
        content,
        place: 0x0102,
        token: Token(0xf0f1_f2f3_f4f5_f6f7_f8f9_fafb_fcfd_feff),
        sender: Pair { incarnation, lifecycle: Lifecycle(0x1011_1213_1415_1617) },
        receiver: Lifecycle(0x2021_2223_2425_2627),
        number: 0x31_3233,
    };
    let golden = |kind: u8, reason: u8| {
        let mut bytes = Vec::from([1, kind, 1, 2]);
        bytes.extend(0xf0..=0xff_u8);
        bytes.extend(0x00..=0x17_u8);
        bytes.extend(0x20..=0x27_u8);
        bytes.extend([reason, 0x31, 0x32, 0x33]);
        bytes
    };
    let kinds = [(Content::Request, 1, 0), (Content::Accept, 2, 0)];
    let refusals = Refusal::ALL.map(|refusal| (Content::Refusal(refusal), 3, refusal as u8));
    for (content, kind, reason) in kinds.into_iter().chain(refusals) {
        let bytes = golden(kind, reason);
        assert_eq!(data(content).encode()[..], bytes);
        assert_eq!(PrivateData::decode(&bytes), Ok(data(content)));
        let padded: Vec<u8> = bytes.iter().copied().chain([0; 140]).collect();
        assert_eq!(PrivateData::decode(&padded), Ok(data(content)));
        let short = PrivateDataError::Short { bytes: 55 };
        assert_eq!(PrivateData::decode(&bytes[..55]), Err(short));
    }
    for (at, value, error) in [
        (0, 2, PrivateDataError::Version(2)),
        (1, 0, PrivateDataError::Kind),
        (1, 3, PrivateDataError::Kind),
        (52, 1, PrivateDataError::Kind),
    ] {
        let mut bytes = golden(1, 0);
        bytes[at] = value;
        assert_eq!(PrivateData::decode(&bytes), Err(error));
    }
}
