//! Memory that a device does not register in time.

use super::{BLOCK, CLOSE_TIMEOUT, passes};
use handfast::metadata::{MetadataOptions, Store};
use handfast::mooncake::MooncakeOptions;
use handfast::rdma::RdmaOptions;
use handfast::{
    Access, AuthOptions, Cause, Engine, EngineLimits, EngineTiming, Grant, Memory, Stage,
    TransportChoice,
};
use handfast_fabric_control::{Fabric, is_scripted};
use handfast_metadata::{HttpServer, HttpStore, ServerLimits};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::time::timeout;

const KEY: &str = "fleet 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
/// Long enough for anything that has a deadline of its own.
const PATIENCE: Duration = Duration::from_secs(30);
/// Connections at an owner's port, and the time of a call there, shorter than that of its callers.
const PLACES: usize = 2;
const CALL_TIMEOUT: Duration = Duration::from_secs(1);

/// The deadline of a batch bounds the registration of its memory too: a device may take seconds for large
/// memory, and a broken one for ever.
#[test]
fn deadline_bounds_the_registration_of_memory() {
    if !is_scripted() {
        return passes("registering::deadline_bounds_the_registration_of_memory");
    }
    let fabric = Fabric::find().unwrap();
    let runtime = Runtime::new().unwrap();
    let builder = |device: &str| {
        let devices = vec![device.to_owned()];
        let rdma = RdmaOptions::default().with(|it| it.devices = devices);
        Engine::builder().transport(TransportChoice::Rdma).rdma(rdma)
    };
    let error = runtime.block_on(async {
        let owner = builder("peer0").listen("127.0.0.1:0").start().await.unwrap();
        let memory = Memory::zeroed(BLOCK).unwrap();
        let register = owner.register("m").access(Access::READ_WRITE);
        let _served = register.serve(memory.whole()).unwrap();
        let user = builder("own0").start().await.unwrap();
        let (known, unknown) = (Memory::zeroed(BLOCK).unwrap(), Memory::zeroed(BLOCK).unwrap());
        let segment = user.open(owner.address()).await.unwrap();
        segment.write(&known.whole(), 0).await.unwrap();
        fabric.run("hold call own0 ibv_reg_mr");
        let batch = segment.write(&unknown.whole(), 0).timeout(CLOSE_TIMEOUT);
        let submitted = timeout(PATIENCE, batch.submit()).await;
        submitted.expect("it ends at its deadline").unwrap_err()
    });
    // A drop would wait for the call that is held.
    runtime.shutdown_background();
    assert_eq!((error.stage(), error.cause()), (Stage::Registration, &Cause::DeadlinePassed));
}

/// A look-up is answered, without a key, while the device still registers the memory for the key group of its
/// caller, and gives its place at the port back: a caller of a group that has its key finds one. The
/// registration goes on, and a later look-up has the key, as the first batch on a segment that was opened without.
#[test]
fn look_up_waits_for_no_slow_registration() {
    if !is_scripted() {
        return passes("registering::look_up_waits_for_no_slow_registration");
    }
    let fabric = Fabric::find().unwrap();
    let builder = |name: &str, device: &str, choice: TransportChoice| {
        let devices = vec![device.to_owned()];
        let rdma = RdmaOptions::default().with(|it| it.devices = devices);
        let builder = Engine::builder().transport(choice).rdma(rdma).name(name);
        builder.auth(AuthOptions::psk(KEY).unwrap())
    };
    Runtime::new().unwrap().block_on(async {
        let timing = EngineTiming::default().with(|it| it.call_timeout = CALL_TIMEOUT);
        let limits = EngineLimits::default().with(|it| it.control_connections_max = PLACES);
        let owner = builder("owner", "peer0", TransportChoice::Auto).timing(timing).limits(limits);
        let owner = owner.listen("127.0.0.1:0").start().await.unwrap();
        let memory = Memory::zeroed(BLOCK).unwrap();
        let register = owner.register("m").grant(Grant::read("decode-*").unwrap());
        let register = register.grant(Grant::read_write("trainer-*").unwrap());
        let _served = register.serve(memory.whole()).unwrap();
        let decoder = builder("decode-1", "own0", TransportChoice::Auto).start().await.unwrap();
        let trainer = builder("trainer-1", "own1", TransportChoice::Auto).start().await.unwrap();
        fabric.run("hold call peer0 ibv_reg_mr");
        // It moves bytes with the key alone.
        let early = builder("trainer-2", "own1", TransportChoice::Rdma).start().await.unwrap();
        let without_key = early.open(owner.address()).await;
        let mut opened = Vec::new();
        for _ in 0..=PLACES {
            opened.push(trainer.open(owner.address()).await.map(drop));
        }
        let found = decoder.open(owner.address()).await.map(drop);
        let waiting = fabric.run("waiting peer0 ibv_reg_mr");
        // A failure below would wait for the call.
        fabric.run("release call peer0 ibv_reg_mr");
        assert_eq!(waiting, "1", "the registration was under way");
        opened.into_iter().for_each(|opened| opened.expect("it is answered without a key"));
        found.expect("it finds a place");
        let made = async {
            while owner.counters().memory.registrations < 2 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(PATIENCE, made).await.expect("the registration has gone on");
        let user = builder("trainer-3", "own1", TransportChoice::Rdma).start().await.unwrap();
        let segment = user.open(owner.address()).await.unwrap();
        let block = Memory::zeroed(BLOCK).unwrap();
        let without_key = without_key.expect("it is answered without a key");
        // The first one looks the segment up again.
        for (seed, segment) in [(6, &without_key), (7, &segment)] {
            block.copy_in(0, &[seed; BLOCK]).unwrap();
            segment.write(&block.whole(), 0).await.unwrap();
            let mut bytes = vec![0; BLOCK];
            memory.copy_out(0, &mut bytes).unwrap();
            assert_eq!(bytes, [seed; BLOCK]);
        }
        assert_eq!(owner.counters().memory.registrations, 2, "one for each group");
        for engine in [user, early, trainer, decoder, owner] {
            engine.close().await;
        }
    });
}

/// A publication waits as long as a look-up for memory that a device registers again after a change of grants. The entry
/// has no key then, and is published again with one once the device is done.
#[test]
fn publication_waits_for_no_slow_registration() {
    if !is_scripted() {
        return passes("registering::publication_waits_for_no_slow_registration");
    }
    let fabric = Fabric::find().unwrap();
    Runtime::new().unwrap().block_on(async {
        let server = HttpServer::bind("127.0.0.1:0", None, ServerLimits::default()).await.unwrap();
        let store =
            Arc::new(HttpStore::new(&format!("http://{}/metadata", server.address())).unwrap());
        let server = tokio::spawn(server.run());
        let rdma = RdmaOptions::default().with(|it| it.devices = vec!["peer0".to_owned()]);
        let timing = EngineTiming::default().with(|it| it.call_timeout = CALL_TIMEOUT);
        let metadata = MetadataOptions::new(store.clone());
        // No publication comes by itself but after a change.
        let metadata = metadata.with(|it| it.publish_interval = 100 * PATIENCE);
        let owner = Engine::builder().transport(TransportChoice::Rdma).rdma(rdma).name("owner");
        let owner = owner.mooncake(MooncakeOptions::default()).timing(timing).metadata(metadata);
        let owner = owner.listen("127.0.0.1:0").start().await.unwrap();
        let memory = Memory::zeroed(BLOCK).unwrap();
        let register = owner.register("m").access(Access::READ).mooncake();
        let served = register.serve(memory.whole()).unwrap();
        owner.publish().await.unwrap();
        let key = async || {
            let entry = store.get("mooncake/ram/owner").await.unwrap().unwrap();
            let keys = entry.split_once("\"rkey\":[").map_or("", |(_, keys)| keys);
            keys.split(']').next().unwrap().to_owned()
        };
        assert_ne!(key().await, "", "at first");
        fabric.run("hold call peer0 ibv_reg_mr");
        served.grant(Grant::write("*").unwrap()).unwrap();
        let published = timeout(PATIENCE, owner.publish()).await;
        let meanwhile = key().await;
        let waiting = fabric.run("waiting peer0 ibv_reg_mr");
        // A failure below would wait for the call.
        fabric.run("release call peer0 ibv_reg_mr");
        assert_eq!(waiting, "1", "the registration was under way");
        published.expect("it ends in time").unwrap();
        assert_eq!(meanwhile, "", "there was none");
        let again = async {
            while key().await.is_empty() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(PATIENCE, again).await.expect("it is published again, with its key");
        owner.close().await;
        server.abort();
    });
}
