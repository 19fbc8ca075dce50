//! Nodes with keys: among themselves, and against everybody else.

use crate::directory::Table;
use crate::helpers::{
    Owner, PATIENCE, Relay, content, counted, failed_open, free_port, port_of, port_that, user,
    write_and_check,
};
use handfast::auth::{Administrators, AuthFailure, AuthRefusal, GrantsRequest, TrustGroups};
use handfast::metadata::MetadataOptions;
use handfast::metrics::HelloRefusal;
use handfast::rdma::RdmaOptions;
use handfast::{
    AuthOptions, Builder, Cause, Engine, EngineLimits, EngineTiming, Error, Grant, Memory, Side,
    Stage, TransportChoice,
};
use handfast_core::auth::AUTH_MAGIC;
use handfast_core::mooncake::{Notification, PROBE_QUESTION};
use handfast_core::wire::{
    Descriptor, DescriptorError, FrameKind, Message, NodeDescriptor, REQUIRED_AUTH, RefusalReason,
    decode_frame, encode_frame,
};
use handfast_diagnosis::ids;
use handfast_transport_tcp::{ACK_BYTES, LANE_MAGIC};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

const OLD: &str = "old 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const NEW: &str = "new f00102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
/// Another secret under the id of an earlier key.
const OTHER: &str = "old 100102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const BYTES: usize = 20_000;

fn keyed(builder: Builder, keys: &[&str]) -> Builder {
    builder.auth(AuthOptions::psk(&keys.join("\n")).unwrap())
}

async fn owner_with(keys: &[&str]) -> Owner {
    Owner::start_from(keyed(Engine::builder().listen("127.0.0.1:0"), keys), BYTES).await
}

async fn user_with(keys: &[&str]) -> Engine {
    keyed(Engine::builder(), keys).start().await.unwrap()
}

async fn owner_behind(relay: &Relay) -> Owner {
    let port = free_port().await;
    relay.lead_to(port);
    let builder = Engine::builder().listen(&format!("127.0.0.1:{port}"));
    Owner::start_from(keyed(builder.advertise(&relay.address), &[OLD]), BYTES).await
}

fn failure(error: &Error) -> AuthFailure {
    match error.cause() {
        Cause::Auth(failure) => {
            assert_eq!(error.side(), Side::Configuration, "{error}");
            assert!(error.hint().is_some(), "{error}");
            *failure
        }
        _ => panic!("{error}"),
    }
}

/// Sends bytes and returns what is answered until the connection ends.
async fn say(address: &str, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut answer = Vec::new();
    let _ = timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("it is closed");
    answer
}

/// Bytes move between nodes with a key, the control channel carries no readable message, and the
/// lane proves its secret.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_with_a_key_move_bytes() {
    let relay = Relay::start().await;
    let owner = owner_behind(&relay).await;
    let user = user_with(&[OLD]).await;
    let segment = user.open(&owner.segment()).await.unwrap();
    write_and_check(&segment, &owner.memory, 10_000, 1).await;
    let beginnings = relay.beginnings();
    assert!(beginnings.len() >= 2);
    for beginning in &beginnings {
        let is_lane = beginning.starts_with(&LANE_MAGIC);
        assert!(is_lane || beginning.starts_with(&AUTH_MAGIC), "{beginning:?}");
        if is_lane {
            assert_eq!(beginning[10..12], [1, 0], "the feature");
            assert_eq!(beginning[16..24], [0; 8], "no token is shown");
        } else {
            let shows = |text: &[u8]| beginning.windows(text.len()).any(|part| part == text);
            assert!(shows(b"old") && !shows(b"handfast") && !shows(b"incarnation"));
        }
    }
    assert_eq!(owner.engine.counters().connections_unproven, 0);
    user.close().await;
}

/// Somebody on the path leads the call of a node back to the node, which needs no key: the call fails, and
/// the node's own memory is not taken for the peer's. The node still calls itself at its own address.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_that_is_led_back_to_its_node_fails() {
    let relay = Relay::start().await;
    let (node, user) = (owner_with(&[OLD]).await, user_with(&[OLD]).await);
    relay.lead_to(port_of(node.engine.address()));
    let led = format!("{}/cache", relay.address);
    user.open(&*led).await.expect("the relay leads to the node");
    let error = failed_open(&node.engine, &led).await;
    assert_eq!((failure(&error), error.stage()), (AuthFailure::Itself, Stage::Metadata));
    assert_eq!(error.diagnosis_id(), ids::AUTH_NAME);
    let failures = node.engine.warm(&[&relay.address]).await;
    assert_eq!(failures.iter().map(failure).collect::<Vec<_>>(), [AuthFailure::Itself]);
    assert_eq!(content(&node.memory, 0, BYTES), vec![0; BYTES]);
    let segment = node.engine.open(&node.segment()).await.unwrap();
    write_and_check(&segment, &node.memory, 10_000, 1).await;
    user.close().await;
}

/// A node without keys is refused by one with keys, with the reason, and the other way round.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_without_keys_is_refused_both_ways() {
    let (owner, plain) = (owner_with(&[OLD]).await, Owner::start(BYTES).await);
    let error = failed_open(&user().await, &owner.segment()).await;
    assert_eq!(failure(&error), AuthFailure::Required);
    assert_eq!(error.diagnosis_id(), ids::AUTH_REQUIRED);
    // The caller has the refusal before it is counted.
    counted(&owner.engine, "the refusal", |it| it.connections_unproven == 1).await;
    let error = failed_open(&user_with(&[OLD]).await, &plain.segment()).await;
    assert_eq!(failure(&error), AuthFailure::Refused(AuthRefusal::NoKeys));
    assert_eq!(error.diagnosis_id(), ids::AUTH_REQUIRED);
    assert!(error.to_string().contains("start the peer with the keys"), "{error}");
}

/// An earlier version and a Mooncake node close the connection: no plain call follows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn earlier_version_is_not_called_plain() {
    let (first, mut firsts) = tokio::sync::mpsc::unbounded_channel();
    let address = port_that(move |mut stream| {
        let first = first.clone();
        async move {
            let mut magic = [0; 8];
            stream.read_exact(&mut magic).await.unwrap();
            first.send(magic).unwrap();
        }
    })
    .await;
    let error = failed_open(&user_with(&[OLD]).await, &format!("{address}/cache")).await;
    assert_eq!(failure(&error), AuthFailure::Unproven);
    assert_eq!(firsts.recv().await, Some(AUTH_MAGIC));
    assert!(firsts.try_recv().is_err(), "it was called once");
}

/// Each kind of plain frame is refused in a form that its sender takes for an error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_frames_are_refused_in_their_senders_terms() {
    let owner = owner_with(&[OLD]).await;
    let at = owner.engine.address();
    let answer = say(at, &encode_frame(FrameKind::Metadata, "{}")).await;
    let text = decode_frame(&answer, answer.len()).unwrap().text.to_owned();
    assert_eq!(NodeDescriptor::decode(&text), Err(DescriptorError::Required(REQUIRED_AUTH)));
    assert!(!text.contains("cache"), "nothing is described: {text}");

    let plain = r#"{"local_nic_path":"m@rxe0","peer_nic_path":"o@rxe0","qp_num":[1]}"#;
    for kind in [FrameKind::Connection, FrameKind::Untyped] {
        let answer = say(at, &encode_frame(kind, plain)).await;
        let text = decode_frame(&answer, answer.len()).unwrap().text.to_owned();
        assert!(Descriptor::decode(&text).unwrap().reply_msg.contains("prove a key"), "{text}");
    }
    let key = format!(
        r#"{{"address":"a:1","incarnation":"{:032x}","lifecycle":1,"op":"request","version":1}}"#,
        7
    );
    let paths = format!(r#""local_nic_path":"p@tcp","peer_nic_path":"{at}@tcp""#);
    let request = format!(r#"{{"handfast":{key},{paths}}}"#);
    let answer = say(at, &encode_frame(FrameKind::Connection, &request)).await;
    let text = decode_frame(&answer, answer.len()).unwrap().text.to_owned();
    let refusal = Message::decode(&text).unwrap().refusal.unwrap();
    assert_eq!(refusal.reason, RefusalReason::Protection);

    let note = Notification { name: "n".into(), message: "m".into() };
    let answer = say(at, &encode_frame(FrameKind::Notify, &note.encode())).await;
    let text = decode_frame(&answer, answer.len()).unwrap().text.to_owned();
    assert!(!Notification::decode(&text).unwrap().is_accepted());
    assert!(say(at, &encode_frame(FrameKind::Probe, PROBE_QUESTION)).await.is_empty());
    counted(&owner.engine, "each is counted", |it| it.connections_unproven == 6).await;
    assert_eq!(owner.engine.counters().life_cycle.published, 0, "no lane was begun");
}

/// Keys must agree by id and secret; the first key is dialled with, and all are accepted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_rotate_and_other_keys_are_refused() {
    let (before, during, after) =
        (owner_with(&[OLD]).await, owner_with(&[OLD, NEW]).await, owner_with(&[NEW]).await);
    for (keys, owner, seed) in [
        (&[OLD][..], &before, 1),
        (&[OLD], &during, 2),
        (&[OLD, NEW], &before, 3),
        (&[NEW, OLD], &during, 4),
        (&[NEW], &during, 5),
        (&[NEW, OLD], &after, 6),
    ] {
        let user = user_with(keys).await;
        let segment = user.open(&owner.segment()).await.unwrap();
        write_and_check(&segment, &owner.memory, 10_000, seed).await;
        user.close().await;
    }
    let refused = |keys: &'static [&'static str], owner: &Owner| {
        let segment = owner.segment();
        async move {
            let error = failed_open(&user_with(keys).await, &segment).await;
            assert_eq!(error.diagnosis_id(), ids::AUTH_KEY, "{error}");
            failure(&error)
        }
    };
    let unknown = AuthFailure::Refused(AuthRefusal::UnknownKey);
    assert_eq!(refused(&[OLD], &after).await, unknown, "the old key is gone");
    assert_eq!(refused(&[OLD, NEW], &after).await, unknown, "the first is dialled with");
    let unopened = AuthFailure::Refused(AuthRefusal::Unopened);
    assert_eq!(refused(&[OTHER], &before).await, unopened);
}

/// A key binds its holders to the names in the file, and a lost name is not found at its address.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_binds_its_holders_to_names() {
    let bound = format!("{OLD} gpu-*");
    let owner = owner_with(&[&bound]).await;
    let named = |name: &str| keyed(Engine::builder().name(name), &[OLD]).start();
    let user = named("gpu-1").await.unwrap();
    let segment = user.open(&owner.segment()).await.unwrap();
    write_and_check(&segment, &owner.memory, 10_000, 1).await;
    let error = failed_open(&named("cpu-1").await.unwrap(), &owner.segment()).await;
    assert_eq!(failure(&error), AuthFailure::Refused(AuthRefusal::Name));
    assert_eq!(error.diagnosis_id(), ids::AUTH_NAME);
    let strict = Engine::builder().name("gpu-2");
    let strict = keyed(strict, &[&bound]).start().await.unwrap();
    let error = failed_open(&strict, &owner.segment()).await;
    assert_eq!(failure(&error), AuthFailure::Name, "the owner's name is its address");
}

/// A recorded connection that is repeated gets nothing served, and a lane without a proof does not
/// begin. The lane that exists is not disturbed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_and_forged_bytes_open_nothing() {
    let relay = Relay::start().await;
    let owner = owner_behind(&relay).await;
    let user = user_with(&[OLD]).await;
    let segment = user.open(&owner.segment()).await.unwrap();
    write_and_check(&segment, &owner.memory, 10_000, 1).await;
    let beginnings = relay.beginnings();
    let created = owner.engine.counters().life_cycle.published;
    let calls = beginnings.iter().filter(|bytes| bytes.starts_with(&AUTH_MAGIC));
    for (at, call) in calls.enumerate() {
        let answer = say(owner.engine.address(), call).await;
        // The answer to the hello, with a key of its own, under which the records do not open.
        assert!(answer.starts_with(&AUTH_MAGIC) && answer.len() < 400, "{}", answer.len());
        let refused = at as u64 + 1;
        counted(&owner.engine, "it is counted", |it| it.connections_unproven == refused).await;
    }
    assert_eq!(owner.engine.counters().life_cycle.published, created);

    let hello = beginnings.iter().find(|bytes| bytes.starts_with(&LANE_MAGIC)).unwrap();
    let hello = &hello[..104 + 32];
    let answer = say(owner.engine.address(), hello).await;
    assert_eq!(answer.len(), ACK_BYTES + 64, "a challenge, and then the end");
    let refused = |reason| {
        let engine = owner.engine.clone();
        async move { counted(&engine, "refused", |it| it.tcp.refused(reason) == 1).await }
    };
    refused(HelloRefusal::Proof).await;
    // The challenge, sent back as a proof.
    let mut stream = TcpStream::connect(owner.engine.address()).await.unwrap();
    stream.write_all(&hello[..104]).await.unwrap();
    let mut challenge = [0; ACK_BYTES + 64];
    stream.read_exact(&mut challenge).await.unwrap();
    stream.write_all(&challenge[ACK_BYTES + 32..]).await.unwrap();
    assert_eq!(stream.read(&mut [0; 8]).await.unwrap(), 0);
    counted(&owner.engine, "refused", |it| it.tcp.refused(HelloRefusal::Proof) == 2).await;
    let mut plain = hello[..72].to_vec();
    plain[10] = 0;
    let answer = say(owner.engine.address(), &plain).await;
    assert_eq!(u16::from_le_bytes([answer[8], answer[9]]), HelloRefusal::Unproven as u16);
    refused(HelloRefusal::Unproven).await;
    write_and_check(&segment, &owner.memory, 10_000, 2).await;
    assert_eq!(owner.engine.counters().tcp.lanes_started, 1);
    assert_eq!(owner.engine.counters().tcp.lanes_failed, 0);
    user.close().await;
}

/// A peer that restarts without keys is not spoken to again, neither by calls nor over lanes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peer_that_restarts_without_keys_is_refused() {
    let relay = Relay::start().await;
    let owner = owner_behind(&relay).await;
    let user = user_with(&[OLD]).await;
    let name = owner.segment();
    let segment = user.open(&name).await.unwrap();
    write_and_check(&segment, &owner.memory, 10_000, 1).await;
    owner.engine.close().await;
    let plain = Owner::start_behind(&relay, BYTES).await;
    let block = handfast::Memory::zeroed(10_000).unwrap();
    let written = timeout(PATIENCE, segment.write(&block.whole(), 0)).await;
    assert!(written.expect("it ends").is_err());
    let error = failed_open(&user, &name).await;
    assert_eq!(failure(&error), AuthFailure::Refused(AuthRefusal::NoKeys));
    assert_eq!(plain.engine.counters().tcp.lanes_started, 0);
    assert!(relay.beginnings().iter().all(|bytes| {
        bytes.is_empty() || bytes.starts_with(&AUTH_MAGIC) || bytes.starts_with(&LANE_MAGIC)
    }));
    user.close().await;
}

/// Connections that begin to authenticate and go no further are bounded in number and time, and do
/// not keep a peer out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_open_crowd_keeps_no_peer_out() {
    const PLACES: usize = 8;
    let limits = EngineLimits::default().with(|it| it.control_connections_max = PLACES);
    let timing = EngineTiming::default().with(|it| it.call_timeout = Duration::from_secs(3));
    let builder = Engine::builder().listen("127.0.0.1:0").limits(limits).timing(timing);
    let owner = Owner::start_from(keyed(builder, &[OLD]), BYTES).await;
    let mut crowd = Vec::new();
    for at in 0..3 * PLACES {
        let mut stream = TcpStream::connect(owner.engine.address()).await.unwrap();
        stream.write_all(&AUTH_MAGIC[..if at % 2 == 0 { 8 } else { 4 }]).await.unwrap();
        crowd.push(stream);
    }
    let shed = 2 * PLACES as u64;
    counted(&owner.engine, "the oldest are closed", |it| it.connections_shed >= shed).await;
    let user = user_with(&[OLD]).await;
    let segment = user.open(&owner.segment()).await.unwrap();
    write_and_check(&segment, &owner.memory, 10_000, 1).await;
    counted(&owner.engine, "the rest time out", |it| it.connections_overdue > 0).await;
    drop(crowd);
    user.close().await;
}

/// A store that leads to another node's address gets it no change of grants, and none of its answers counts.
#[tokio::test]
async fn store_that_lies_has_no_other_node_administered() {
    let table = Arc::<Table>::default();
    let stored = |name: &str| {
        let builder = Engine::builder().name(name).metadata(MetadataOptions::new(table.clone()));
        keyed(builder, &[OLD])
    };
    let administrators = Administrators::new(["admin"]).unwrap();
    let builder = stored("evil").listen("127.0.0.1:0").administrators(administrators);
    let evil = builder.start().await.unwrap();
    let memory = Memory::zeroed(BYTES).unwrap();
    let grant = || Grant::read("decode-*").unwrap();
    let served = evil.register("cache").grant(grant()).serve(memory.whole()).unwrap();
    evil.publish().await.unwrap();
    let lie = table.entries.lock().unwrap()["mooncake/ram/evil"].clone();
    table.entries.lock().unwrap().insert("mooncake/ram/gpu-1".into(), lie);
    let admin = stored("admin").start().await.unwrap();
    let revoke = || GrantsRequest::Revoke { segment: "cache".into(), grant: grant() };
    let error = admin.administer("gpu-1", revoke()).await.unwrap_err();
    assert_eq!(failure(&error), AuthFailure::Refused(AuthRefusal::Addressed));
    assert_eq!(served.grants(), [grant()], "nothing changed");
    admin.administer("evil", revoke()).await.unwrap();
    assert_eq!(served.grants(), []);
    admin.close().await;
    let closed = admin.administer("evil", revoke()).await.unwrap_err();
    assert_eq!(closed.cause(), &Cause::Closed);
    evil.close().await;
}

/// A node with trust groups names a key whose holders can choose theirs, and none that is bound to one.
#[tokio::test]
async fn key_of_several_trust_groups_is_named() {
    let mut trust = TrustGroups::default();
    trust.add("train", "trainer-*").unwrap();
    for (names, is_named) in [("", true), (" trainer-1 decode-1", true), (" trainer-*", false)] {
        let rdma = RdmaOptions::default().with(|it| it.trust_groups = trust.clone());
        let builder =
            Engine::builder().transport(TransportChoice::Tcp).name("trainer-1").rdma(rdma);
        let engine = keyed(builder, &[&format!("{OLD}{names}")]).start().await.unwrap();
        let warnings = engine.trust_warnings();
        let is_warned =
            warnings.iter().any(|it| it.contains("the key old can choose its trust group"));
        assert_eq!((is_warned, warnings.len()), (is_named, usize::from(is_named)), "'{names}'");
        engine.close().await;
    }
}
