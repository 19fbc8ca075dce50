//! Memory for some peers only: chosen by name, changed at run time.

use crate::helpers::{Owner, PATIENCE, content, counted, failed_open, pattern, write_and_check};
use crate::share::exchange;
use handfast::auth::{GRANTS_MAX, RegionError};
use handfast::error::RefusalReason;
use handfast::{
    Access, AuthOptions, Builder, Cause, Direction, Engine, EngineLimits, Error, Event, Grant,
    GrantError, Memory, Registration, Segment, Side, TransportChoice,
};
use handfast_core::wire::{Body, Message, Op};
use handfast_core::{Incarnation, Lifecycle, NicPath, NodeName, Pair};
use tokio::time::timeout;

const KEY: &str = "fleet 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const BYTES: usize = 20_000;

fn keyed(builder: Builder, transport: TransportChoice) -> Builder {
    builder.auth(AuthOptions::psk(KEY).unwrap()).transport(transport)
}

async fn member(name: &str, transport: TransportChoice) -> Engine {
    keyed(Engine::builder().name(name), transport).start().await.unwrap()
}

/// An owner with memory for decoders to read and one trainer to write, and memory for nobody else.
struct Granting {
    engine: Engine,
    memory: Memory,
    cache: Registration,
    _private: Registration,
}

impl Granting {
    async fn start(transport: TransportChoice) -> Self {
        let builder = keyed(Engine::builder().listen("127.0.0.1:0"), transport);
        let engine = builder.start().await.unwrap();
        let memory = pattern(BYTES, 3);
        let register = engine.register("cache").grant(Grant::read("decode-*").unwrap());
        let register = register.grant(Grant::write("trainer-1").unwrap());
        let cache = register.serve(memory.whole()).unwrap();
        let private = engine.register("private").grant(Grant::read_write("nobody").unwrap());
        let _private = private.serve(Memory::zeroed(BYTES).unwrap().whole()).unwrap();
        Self { engine, memory, cache, _private }
    }

    async fn opened_by(&self, user: &Engine) -> Segment {
        user.open(&format!("{}/cache", self.engine.address())).await.unwrap()
    }

    async fn shown_to(&self, user: &Engine) -> Vec<(String, bool, bool)> {
        let segments = user.segments(self.engine.address()).await.unwrap();
        segments.into_iter().map(|it| (it.name, it.readable, it.writable)).collect()
    }
}

async fn read(segment: &Segment) -> Result<Vec<u8>, Error> {
    let block = Memory::zeroed(BYTES).unwrap();
    let read = timeout(PATIENCE, segment.read(&block.whole(), 0)).await;
    read.expect("the read ends in time").map(|_| content(&block, 0, BYTES))
}

async fn write(segment: &Segment, seed: u8) -> Result<(), Error> {
    let block = pattern(BYTES, seed);
    let written = timeout(PATIENCE, segment.write(&block.whole(), 0)).await;
    written.expect("the write ends in time").map(drop)
}

/// The error of an access after a revocation: of the first one, but on one host of the first one after the
/// user's thread has let the memory go, for which a revocation waits 20 ms at most.
async fn refused(transport: TransportChoice, access: impl AsyncFn() -> Result<(), Error>) -> Error {
    let repeated = timeout(PATIENCE, async {
        loop {
            let accessed = access().await;
            if let Err(error) = accessed {
                return error;
            }
            assert_eq!(transport, TransportChoice::Auto, "the first access is refused");
        }
    });
    repeated.await.expect("an access is refused")
}

fn is_hidden(error: &Error) -> bool {
    matches!(error.cause(), Cause::NoSuchSegment { served, .. } if served.is_empty())
}

/// A peer is shown what it may do, and nothing else; it can do that and nothing more.
async fn peer_does_what_it_is_granted(transport: TransportChoice) {
    let owner = Granting::start(transport).await;
    let (decoder, trainer, other) = (
        member("decode-7", transport).await,
        member("trainer-1", transport).await,
        member("trainer-12", transport).await,
    );
    assert_eq!(owner.shown_to(&decoder).await, [("cache".into(), true, false)]);
    assert_eq!(owner.shown_to(&trainer).await, [("cache".into(), false, true)]);
    assert_eq!(owner.shown_to(&other).await, []);

    let reading = owner.opened_by(&decoder).await;
    assert_eq!(read(&reading).await.unwrap(), content(&owner.memory, 0, BYTES));
    let error = write(&reading, 1).await.unwrap_err();
    assert_eq!(*error.cause(), Cause::Permission(Direction::Write));
    let writing = owner.opened_by(&trainer).await;
    assert_eq!(*read(&writing).await.unwrap_err().cause(), Cause::Permission(Direction::Read));
    write_and_check(&writing, &owner.memory, BYTES, 2).await;
    for name in ["cache", "private", "absent"] {
        let error = failed_open(&other, &format!("{}/{name}", owner.engine.address())).await;
        assert!(is_hidden(&error), "memory of others is like none: {error}");
    }
    let sum = reading.checksum(0, BYTES as u64).await.unwrap();
    assert_eq!(sum, owner.memory.crc32c(0, BYTES).unwrap());
    for engine in [decoder, trainer, other] {
        engine.close().await;
    }
}

/// A batch of which one request is not permitted is refused for that, whatever the order of its requests, and a
/// later grant permits the same batch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mixed_batch_is_refused_for_its_permission() {
    let owner = Granting::start(TransportChoice::Tcp).await;
    let decoder = member("decode-7", TransportChoice::Tcp).await;
    let segment = owner.opened_by(&decoder).await;
    let (block, back) = (pattern(64, 9), Memory::zeroed(64).unwrap());
    let mixed = |is_write_first: bool| {
        let batch = segment.batch();
        match is_write_first {
            true => batch.write(&block.whole(), 128).read(&back.whole(), 0),
            false => batch.read(&back.whole(), 0).write(&block.whole(), 128),
        }
    };
    for is_write_first in [true, false] {
        let error = mixed(is_write_first).await.unwrap_err();
        assert_eq!(*error.cause(), Cause::Permission(Direction::Write), "{error}");
        assert_eq!(error.side(), Side::Peer);
    }
    owner.cache.grant(Grant::write("decode-7").unwrap()).unwrap();
    mixed(false).await.unwrap();
    assert_eq!(content(&back, 0, 64), content(&owner.memory, 0, 64));
    assert_eq!(content(&owner.memory, 128, 64), content(&block, 0, 64));
    decoder.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peer_does_what_it_is_granted_over_tcp() {
    peer_does_what_it_is_granted(TransportChoice::Tcp).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peer_does_what_it_is_granted_on_one_host() {
    peer_does_what_it_is_granted(TransportChoice::Auto).await;
}

/// Grants and revocations reach peers that have the segment open, with the next batch. The owner counts
/// and reports what it refused.
async fn grants_change_while_peers_work(transport: TransportChoice) {
    let owner = Granting::start(transport).await;
    let (decoder, trainer) =
        (member("decode-1", transport).await, member("trainer-1", transport).await);
    let (reading, writing) = (owner.opened_by(&decoder).await, owner.opened_by(&trainer).await);
    let mut events = owner.engine.events();
    read(&reading).await.unwrap();
    write(&writing, 4).await.unwrap();
    for seed in 5..8 {
        owner.cache.revoke(&Grant::read("decode-*").unwrap()).unwrap();
        let error = refused(transport, async || read(&reading).await.map(drop)).await;
        assert!(is_hidden(&error), "{error}");
        owner.cache.grant(Grant::read("decode-1").unwrap()).unwrap();
        assert_eq!(read(&reading).await.unwrap(), content(&owner.memory, 0, BYTES));
        owner.cache.grant(Grant::write("decode-1").unwrap()).unwrap();
        write_and_check(&reading, &owner.memory, BYTES, seed).await;
        owner.cache.revoke(&Grant::write("decode-*").unwrap()).unwrap();
        write(&reading, seed).await.expect("another pattern allows it still");
        owner.cache.revoke(&Grant::read_write("decode-1").unwrap()).unwrap();
        owner.cache.grant(Grant::read("decode-*").unwrap()).unwrap();
        let error = refused(transport, async || write(&reading, 99).await).await;
        assert_eq!(*error.cause(), Cause::Permission(Direction::Write), "{error}");
        let before = content(&owner.memory, 0, BYTES);
        write(&reading, 98).await.unwrap_err();
        assert!(content(&owner.memory, 0, BYTES) == before, "nothing was written");
        write(&writing, seed + 1).await.expect("the other peer's grant stays");
    }
    assert!(owner.engine.counters().access.not_granted >= 3);
    let refused = events.recv().await.unwrap();
    let Event::AccessRefused { peer, segment, direction, reason, .. } = refused else {
        panic!("{refused:?}")
    };
    assert_eq!((peer.unwrap().as_str(), segment.as_deref()), ("decode-1", Some("cache")));
    assert_eq!((direction, reason), (Direction::Read, RegionError::NotGranted));
    decoder.close().await;
    trainer.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grants_change_while_peers_work_over_tcp() {
    grants_change_while_peers_work(TransportChoice::Tcp).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grants_change_while_peers_work_on_one_host() {
    grants_change_while_peers_work(TransportChoice::Auto).await;
}

/// Without keys a name proves nothing: grants for everybody alone are taken. With keys the number of
/// patterns is bounded.
#[tokio::test]
async fn grants_are_checked_when_they_are_made() {
    let open = Owner::start(BYTES).await;
    let span = || Memory::zeroed(BYTES).unwrap().whole();
    let register = open.engine.register("m").grant(Grant::read("decode-*").unwrap());
    let error = register.serve(span()).unwrap_err();
    let unproven = GrantError::Unproven { pattern: "decode-*".into() };
    assert_eq!(*error.cause(), Cause::Grant(unproven.clone()), "{error}");
    assert!(error.to_string().contains("--auth"), "{error}");
    let error = open.served.grant(Grant::read("decode-*").unwrap()).unwrap_err();
    assert_eq!(*error.cause(), Cause::Grant(unproven));
    open.served.revoke(&Grant::write("*").unwrap()).unwrap();
    let shown: Vec<_> = open.served.grants().iter().map(Grant::to_string).collect();
    assert_eq!(shown, ["read for *"], "everybody's access changes without keys too");

    let owner = Granting::start(TransportChoice::Tcp).await;
    for at in owner.cache.grants().len()..GRANTS_MAX {
        owner.cache.grant(Grant::read(&format!("n{at}")).unwrap()).unwrap();
    }
    let error = owner.cache.grant(Grant::read("one-more").unwrap()).unwrap_err();
    assert_eq!(*error.cause(), Cause::Grant(GrantError::Full));
    owner.cache.set_grants([Grant::read("a").unwrap()]).unwrap();
    assert_eq!(owner.cache.grants(), [Grant::read("a").unwrap()]);
    let fixed = owner.engine.register("none").access(Access::default()).serve(span()).unwrap();
    assert_eq!(fixed.grants(), [], "memory may be for nobody yet");
}

/// A caller without a key cannot ask for lanes in a peer's name, so it uses up no quota of that peer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forger_without_a_key_fills_no_quota() {
    const QUOTA: usize = 1;
    let limits = EngineLimits::default().with(|it| it.lanes_per_peer_max = QUOTA);
    let builder = Engine::builder().listen("127.0.0.1:0").limits(limits);
    let owner = Owner::start_from(keyed(builder, TransportChoice::Tcp), BYTES).await;
    for nic in 0..4 * QUOTA as u64 {
        let name = |text: &str| NodeName::new(text).unwrap();
        let forged = Message {
            op: Op::Request,
            from: NicPath { node: name("victim"), nic: name(&format!("nic{nic}")) },
            to: NicPath { node: name(owner.engine.name()), nic: name("tcp") },
            sender: Pair { incarnation: Incarnation(7), lifecycle: Lifecycle(1 + nic) },
            echo: None,
            body: Body { token: format!("{nic:016x}"), ..Body::default() },
            refusal: None,
        };
        let refusal = exchange(&owner.engine, &forged).await.refusal.unwrap();
        assert_eq!(refusal.reason, RefusalReason::Protection);
    }
    counted(&owner.engine, "refused", |it| it.connections_unproven == 4 * QUOTA as u64).await;
    assert_eq!(owner.engine.counters().requests_past_share, 0);
    let victim = member("victim", TransportChoice::Tcp).await;
    let segment = victim.open(&owner.segment()).await.unwrap();
    write_and_check(&segment, &owner.memory, 10_000, 1).await;
    victim.close().await;
}
