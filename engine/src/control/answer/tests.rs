//! Rights of callers at the moment of an answer.

use super::*;
use crate::control::auth::Channel;
use crate::data::regions::{DeviceKeys, ServedRegion};
use crate::time::{OsEntropy, TokioClock};
use crate::{AuthOptions, Engine, Memory, Registration};
use handfast_core::auth::Outbound;
use handfast_core::policy::{
    AUDIT_REPORTS_PER_SECOND, Access, GRANTS_MAX, Grants, KEY_RETRY_INTERVAL, TrustGroups,
};
use handfast_core::transport::Side;
use handfast_core::wire::GrantsRefusalReason as Reason;
use handfast_transport::RegionCache;
use handfast_transport_tcp::Look;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};
use tokio::net::TcpStream;

const KEY: &str = "k 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const OTHER_KEY: &str = "other 101112131415161718191a1b1c1d1e1f000102030405060708090a0b0c0d0e0f";
const BYTES: usize = 4096;

fn options() -> AuthOptions {
    AuthOptions::psk(KEY).unwrap()
}

/// An owner with memory that `peers` may read.
async fn owner(peers: &str) -> (Engine, Registration) {
    let builder = Engine::builder().listen("127.0.0.1:0").auth(options());
    let engine = builder.start().await.unwrap();
    let memory = Memory::zeroed(BYTES).unwrap();
    let register = engine.register("cache").grant(Grant::read(peers).unwrap());
    let served = register.serve(memory.whole()).unwrap();
    (engine, served)
}

fn question(engine: &Engine) -> Checksum {
    let regions = &engine.shared().answers.regions;
    let [region] = &regions.describe(Reach::ByKey, Requester::Own)[..] else { panic!("one") };
    let RegionDescriptor { key, address, bytes, .. } = *region;
    Checksum { key, address, bytes, answer: None }
}

/// A holder of a key that allows the owner's name calls with this name and the owner's incarnation,
/// which peers know: it gets what the grants give to the name. The owner itself reaches all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn owner_over_the_network_is_a_peer_by_its_name() {
    let (engine, served) = owner("trainer").await;
    let answers = &engine.shared().answers;
    let keys = Keys::of(Some(&options()), &answers.name, answers.incarnation).unwrap();
    let asked =
        NodeDescriptor { checksum: Some(question(&engine)), ..answers.describe(Vec::new()) };
    let ask = async || {
        let look = Look::default();
        let stream = TcpStream::connect(engine.address()).await.unwrap();
        let itself = Outbound::new(None).at_own_address(true);
        let Ok(mut channel) = Channel::dial(stream, &keys, itself, &look).await else {
            panic!("the key allows the name")
        };
        channel.send(FrameKind::Metadata, &asked.encode()).await.unwrap();
        let answer = channel.receive(&look, 1 << 20).await.unwrap();
        NodeDescriptor::decode(&answer.text).unwrap()
    };
    let shown = ask().await;
    assert_eq!(shown.regions, [], "memory of others");
    assert!(shown.checksum.unwrap().answer.unwrap().is_err());
    let own = engine.open(&format!("{}/cache", engine.address())).await.unwrap();
    let block = Memory::zeroed(BYTES).unwrap();
    own.read(&block.whole(), 0).await.unwrap();
    let sum = served.span().memory().crc32c(0, BYTES).unwrap();
    assert_eq!(own.checksum(0, BYTES as u64).await.unwrap(), sum);
    served.grant(Grant::read(answers.name.as_str()).unwrap()).unwrap();
    let shown = ask().await;
    assert_eq!(shown.regions.len(), 1);
    assert_eq!(shown.checksum.unwrap().answer, Some(Ok(sum)));
    engine.close().await;
}

/// A checksum whose turn comes after the right to read was revoked says nothing of the bytes.
#[tokio::test]
async fn waiting_checksum_ends_with_its_grant() {
    let (engine, served) = owner("*").await;
    let (answers, question) = (&engine.shared().answers, question(&engine));
    let Ok(turn) = answers.checksums.take(None).await else { panic!("a turn is free") };
    let mut waiting = pin!(answers.checksum(&question, Requester::Anybody, None));
    assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    served.revoke(&Grant::read("*").unwrap()).unwrap();
    drop(turn);
    let error = waiting.await.unwrap_err();
    assert!(error.contains("no region has the key"), "{error}");
    served.grant(Grant::read("*").unwrap()).unwrap();
    let sum = served.span().memory().crc32c(0, BYTES).unwrap();
    assert_eq!(answers.checksum(&question, Requester::Anybody, None).await, Ok(sum));
    engine.close().await;
}

/// One checksum more than may wait is refused at once, and those that wait are computed.
#[tokio::test]
async fn checksum_past_the_limit_is_refused() {
    let (engine, served) = owner("*").await;
    let (answers, question) = (&engine.shared().answers, question(&engine));
    let Ok(turn) = answers.checksums.take(None).await else { panic!("a turn is free") };
    let mut waiting: Vec<_> = (0..CHECKSUMS_WAITING_MAX)
        .map(|_| Box::pin(answers.checksum(&question, Requester::Anybody, None)))
        .collect();
    let mut context = Context::from_waker(Waker::noop());
    assert!(waiting.iter_mut().all(|one| one.as_mut().poll(&mut context).is_pending()));
    let error = answers.checksum(&question, Requester::Anybody, None).await.unwrap_err();
    assert!(error.contains("32 checksums are pending"), "{error}");
    drop(turn);
    let sum = served.span().memory().crc32c(0, BYTES).unwrap();
    for one in waiting {
        assert_eq!(one.await, Ok(sum));
    }
    assert_eq!(answers.checksum(&question, Requester::Anybody, None).await, Ok(sum));
    engine.close().await;
}

/// A peer whose checksums fill every place keeps out no peer with another key: that one gets a place of
/// the first, and the next turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checksums_of_one_key_leave_room_for_others() {
    let both = format!("{KEY}\n{OTHER_KEY}");
    let builder = Engine::builder().listen("127.0.0.1:0").auth(AuthOptions::psk(&both).unwrap());
    let engine = builder.start().await.unwrap();
    let memory = Memory::zeroed(BYTES).unwrap();
    let register = engine.register("cache").grant(Grant::read("*").unwrap());
    let served = register.serve(memory.whole()).unwrap();
    let (answers, question) = (&engine.shared().answers, question(&engine));
    let Ok(turn) = answers.checksums.take(None).await else { panic!("a turn is free") };
    let greedy = Some(Member::of_key("k"));
    let mut waiting: Vec<_> = (0..CHECKSUMS_WAITING_MAX)
        .map(|_| Box::pin(answers.checksum(&question, Requester::Anybody, greedy.clone())))
        .collect();
    let mut context = Context::from_waker(Waker::noop());
    assert!(waiting.iter_mut().all(|one| one.as_mut().poll(&mut context).is_pending()));
    let peer = Engine::builder().auth(AuthOptions::psk(OTHER_KEY).unwrap());
    let peer = peer.start().await.unwrap();
    let segment = peer.open(&format!("{}/cache", engine.address())).await.unwrap();
    let asking = tokio::spawn(async move { segment.checksum(0, BYTES as u64).await });
    let refused = waiting.pop().unwrap().await.unwrap_err();
    assert!(refused.contains("32 checksums are pending"), "{refused}");
    // The turn of the first of the greedy peer comes, and then that of the other peer.
    drop(turn);
    let sum = served.span().memory().crc32c(0, BYTES).unwrap();
    assert_eq!(waiting.remove(0).await, Ok(sum));
    // None of the others of the greedy peer, which nobody polls, is over before.
    assert_eq!(asking.await.unwrap().unwrap(), sum);
    drop(waiting);
    peer.close().await;
    engine.close().await;
}

/// Grants that are set again take nothing from peers: the table of regions is as it was.
#[tokio::test]
async fn equal_grants_change_nothing() {
    let (engine, served) = owner("decode-*").await;
    let version = || {
        let regions = &engine.shared().answers.regions;
        RegionCache::new(regions.table.clone(), None).version()
    };
    let before = version();
    served.set_grants(served.grants()).unwrap();
    served.grant(Grant::read("decode-*").unwrap()).unwrap();
    served.revoke(&Grant::write("decode-*").unwrap()).unwrap();
    served.revoke(&Grant::read("trainer").unwrap()).unwrap();
    assert_eq!(version(), before);
    served.revoke(&Grant::read("decode-*").unwrap()).unwrap();
    assert!(version() > before && served.grants().is_empty());
    engine.close().await;
}

/// Registrations that are not made, since one before them panicked, have failed: they are tried again
/// after the pause.
#[tokio::test]
async fn registrations_after_a_panic_are_tried_again() {
    let regions = Regions::new(4, true, TrustGroups::default());
    let mut grants = Grants::everybody(Access::READ);
    grants.add(Grant::write("trainer").unwrap()).unwrap();
    let name = NodeName::new("trainer").unwrap();
    let trainer = Requester::Peer(&name);
    let mut served = Vec::new();
    for segment in ["a", "b"] {
        let keys = DeviceKeys::new((&grants, TrustGroups::default()), true, |_| Ok(None)).unwrap();
        let span = Memory::zeroed(BYTES).unwrap().whole();
        let region = ServedRegion {
            span,
            grants: grants.clone(),
            keys,
            reach: Reach::ByKey,
            location: None,
        };
        served.push(regions.register(segment, region, &OsEntropy).unwrap());
    }
    let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
    let now = clock.now();
    let keys = regions.missing_keys(trainer, now);
    assert_eq!(keys.len(), 2);
    assert!(regions.missing_keys(trainer, now).is_empty() && regions.lacks_keys(trainer, now));
    let missing = Missing { keys, regions: regions.clone(), clock: clock.clone() };
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        let _missing = missing;
        std::panic::resume_unwind(Box::new("a registration"));
    }));
    assert!(panicked.is_err());
    assert!(!regions.lacks_keys(trainer, clock.now()), "a pause");
    let later = clock.now() + KEY_RETRY_INTERVAL;
    assert_eq!(regions.missing_keys(trainer, later).len(), 2);
}

/// A request for a lane of a node that encrypts its lanes or does not, as one of an earlier version, which
/// cannot, is refused where the sides differ: with the reason, and without this node's own secret.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn difference_in_encryption_is_refused_with_the_reason() {
    let start = async |seals| {
        let builder = Engine::builder().listen("127.0.0.1:0").auth(options()).encrypt_lanes(seals);
        builder.start().await.unwrap()
    };
    let name = NodeName::new("peer").unwrap();
    for (seals, end, refused) in [
        (true, "", Some("the peer encrypts its lanes and this node does not")),
        (false, "+sealed", Some("this node encrypts its lanes and the peer does not")),
        (true, "+sealed", None),
        (false, "", None),
    ] {
        let engine = start(seals).await;
        let answers = &engine.shared().answers;
        let keys = Keys::of(Some(&options()), &name, Incarnation(7)).unwrap();
        let look = Look::default();
        let stream = TcpStream::connect(engine.address()).await.unwrap();
        let peer = Outbound::new(None);
        let Ok(mut channel) = Channel::dial(stream, &keys, peer, &look).await else {
            panic!("the key is accepted")
        };
        let request = Message {
            op: Op::Request,
            from: nic_path(&name),
            to: nic_path(&answers.name),
            sender: Pair { incarnation: Incarnation(7), lifecycle: Lifecycle(1) },
            echo: None,
            body: Body { token: "ab".repeat(32) + end, ..Body::default() },
            refusal: None,
        };
        channel.send(FrameKind::Connection, &request.encode()).await.unwrap();
        let answer = channel.receive(&look, 1 << 20).await.unwrap();
        let answer = Message::decode(&answer.text).unwrap();
        match (refused, answer.refusal) {
            (Some(words), Some(Refusal { reason: RefusalReason::Encryption, detail })) => {
                assert!(detail.contains(words) && detail.contains("--encrypt-lanes"), "{detail}");
                assert_eq!(answer.body.token, "", "an earlier version reads the answer");
            }
            (None, None) => assert_eq!((answer.op, answer.body.is_sealed()), (Op::Reply, seals)),
            (_, refusal) => panic!("{seals} {end}: {refusal:?}"),
        }
        engine.close().await;
    }
}

/// A peer whose proven name is an administrator's lists and changes grants, and no other, nor one without
/// a name; the answer has what is in force.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grants_are_changed_by_administrators_alone() {
    let administrators = Administrators::new(["admin-*"]).unwrap();
    let builder = Engine::builder().listen("127.0.0.1:0").auth(options());
    let engine = builder.administrators(administrators).start().await.unwrap();
    let memory = Memory::zeroed(BYTES).unwrap();
    let register = engine.register("cache").grant(Grant::read("a").unwrap());
    let served = register.serve(memory.whole()).unwrap();
    let user =
        async |name: &str| Engine::builder().name(name).auth(options()).start().await.unwrap();
    let (admin, other) = (user("admin-1").await, user("other").await);
    let node = engine.address().to_string();
    let grant = || Grant::write("b-*").unwrap();
    let cache = || "cache".to_owned();
    let add = || GrantsRequest::Add { segment: cache(), grant: grant() };
    for request in [GrantsRequest::List { segment: None }, add()] {
        let error = other.administer(&node, request).await.unwrap_err();
        assert_eq!(refused(&error), (Side::Protection, Reason::NoAdministrator, "SEG-PERMISSION"));
        assert!(error.to_string().contains("'other' is no administrator of"), "{error}");
        assert!(error.to_string().contains("--administrators"), "{error}");
    }
    assert_eq!(served.grants().len(), 1, "nothing changed");
    let listed = admin.administer(&node, GrantsRequest::List { segment: None }).await.unwrap();
    assert_eq!(listed, SegmentGrants::from([(cache(), vec![Grant::read("a").unwrap()])]));
    for _ in 0..2 {
        let added = admin.administer(&node, add()).await.unwrap();
        assert_eq!(added[&cache()], served.grants());
        assert_eq!(served.grants(), [Grant::read("a").unwrap(), grant()]);
    }
    let revoke = || GrantsRequest::Revoke { segment: cache(), grant: grant() };
    for _ in 0..2 {
        let revoked = admin.administer(&node, revoke()).await.unwrap();
        assert_eq!(revoked[&cache()], [Grant::read("a").unwrap()]);
    }
    admin.administer(&node, add()).await.unwrap();
    for peers in ["b-1", "*"] {
        let grant = Grant::write(peers).unwrap();
        let revoke = GrantsRequest::Revoke { segment: cache(), grant };
        let error = admin.administer(&node, revoke).await.unwrap_err();
        assert_eq!(refused(&error), (Side::Peer, Reason::Other, "CONFIG-INVALID"));
        assert!(error.to_string().contains("write for b-* stays"), "{error}");
    }
    admin.administer(&node, revoke()).await.unwrap();
    for place in 1..GRANTS_MAX {
        let grant = Grant::read(&format!("p{place}")).unwrap();
        let add = GrantsRequest::Add { segment: cache(), grant };
        admin.administer(&node, add).await.unwrap();
    }
    let full = admin.administer(&node, add()).await.unwrap_err();
    assert!(full.to_string().contains("at most 64 patterns"), "{full}");
    assert_eq!(refused(&full), (Side::Peer, Reason::Limit, "ENGINE-LIMIT"));
    let none = GrantsRequest::List { segment: Some("none".into()) };
    let none = admin.administer(&node, none).await.unwrap_err();
    assert!(none.to_string().contains("no segment 'none'"), "{none}");
    assert_eq!(refused(&none), (Side::Peer, Reason::NoSegment, "SEG-NAME"));
    drop(served);
    let gone = admin.administer(&node, add()).await.unwrap_err().to_string();
    assert!(gone.contains("no segment 'cache'"), "{gone}");
    for node in [engine, admin, other] {
        node.close().await;
    }
}

/// Side, reason and id of a refusal.
fn refused(error: &Error) -> (Side, Reason, &'static str) {
    let Cause::GrantsRefused(refusal) = error.cause() else { panic!("{error}") };
    (error.side(), refusal.reason, error.diagnosis_id().as_str())
}

/// A clock that stands still.
#[derive(Clone)]
struct Still;

impl Clock for Still {
    fn now(&self) -> handfast_core::Instant {
        handfast_core::Instant(0)
    }

    fn sleep_until(
        &self,
        _at: handfast_core::Instant,
    ) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(std::future::pending())
    }
}

/// Every refused administration counts, and as many as the pace allows are reported in a second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_administrations_are_reported_at_a_pace() {
    let builder = Engine::builder().listen("127.0.0.1:0").auth(options());
    let net = handfast_transport_tcp::TokioNet;
    let engine = builder.start_on(net, Still, OsEntropy).await.unwrap();
    let answers = &engine.shared().answers;
    let own = Inbound::default();
    let max = u64::from(AUDIT_REPORTS_PER_SECOND);
    for count in 1..max {
        let refused = answers.administer(GrantsRequest::List { segment: None }, &own).await;
        assert!(refused.0.is_err());
        assert_eq!(engine.counters().messages_refused, count);
    }
    assert_eq!(answers.refused(), Some(0), "the last one of this second");
    let refused = answers.administer(GrantsRequest::List { segment: None }, &own).await;
    assert!(refused.0.is_err());
    assert_eq!(answers.refused(), None, "past the limit");
    assert_eq!(engine.counters().messages_refused, max + 2);
}
