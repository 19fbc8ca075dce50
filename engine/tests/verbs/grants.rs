//! Grants over RDMA: each trust group has a registration with its rights.

use super::{BLOCK, passes};
use handfast::auth::TrustGroups;
use handfast::rdma::RdmaOptions;
use handfast::{AuthOptions, Cause, Direction, Engine, Grant, Memory, TransportChoice};
use handfast_fabric_control::is_scripted;
use tokio::runtime::Runtime;

const KEY: &str = "fleet 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

/// The key of a revoked grant is dead when the revocation returns: the device refuses a write with it,
/// and the peer learns its permissions. The key and the lane of another group stay.
#[test]
fn revoked_key_is_refused_by_the_device() {
    if !is_scripted() {
        return passes("grants::revoked_key_is_refused_by_the_device");
    }
    let builder = |name: &str, device: &str| {
        let devices = vec![device.to_owned()];
        let rdma = RdmaOptions::default().with(|it| it.devices = devices);
        let builder = Engine::builder().transport(TransportChoice::Rdma).rdma(rdma);
        builder.name(name).auth(AuthOptions::psk(KEY).unwrap())
    };
    Runtime::new().unwrap().block_on(async {
        let owner = builder("owner", "peer0").listen("127.0.0.1:0").start().await.unwrap();
        let memory = Memory::zeroed(BLOCK).unwrap();
        let register = owner.register("m").grant(Grant::read("decode-*").unwrap());
        let register = register.grant(Grant::read_write("trainer-1").unwrap());
        let served = register.serve(memory.whole()).unwrap();
        let decoder = builder("decode-1", "own0").start().await.unwrap();
        let trainer = builder("trainer-1", "own1").start().await.unwrap();
        let block = Memory::zeroed(BLOCK).unwrap();
        let written = |seed| block.copy_in(0, &[seed; BLOCK]).unwrap();
        let reading = decoder.open(owner.address()).await.unwrap();
        let writing = trainer.open(owner.address()).await.unwrap();
        assert_eq!(owner.counters().memory.registrations, 2, "one for each group");
        written(1);
        writing.write(&block.whole(), 0).await.unwrap();
        let sink = Memory::zeroed(BLOCK).unwrap();
        let read = async || {
            reading.read(&sink.whole(), 0).await.unwrap();
            let mut bytes = vec![0; BLOCK];
            sink.copy_out(0, &mut bytes).unwrap();
            bytes
        };
        assert_eq!(read().await, [1; BLOCK]);

        served.revoke(&Grant::write("trainer-1").unwrap()).unwrap();
        written(2);
        let error = writing.write(&block.whole(), 0).await.unwrap_err();
        assert_eq!(*error.cause(), Cause::Permission(Direction::Write), "{error}");
        assert_eq!(trainer.counters().keys_refused, 1, "the device has refused the old key");
        assert_eq!(read().await, [1; BLOCK], "nothing was written");
        assert_eq!(owner.counters().memory.registrations, 3, "the group has another key");
        writing.read(&block.whole(), 0).await.expect("it may read still");
        served.grant(Grant::write("trainer-1").unwrap()).unwrap();
        written(3);
        writing.write(&block.whole(), 0).await.unwrap();
        assert_eq!(read().await, [3; BLOCK]);
        assert_eq!(decoder.counters().rdma.lanes_failed, 0, "the other group is not disturbed");
        for engine in [trainer, decoder, owner] {
            engine.close().await;
        }
    });
}

/// Peers of two trust groups, which the same grant covers, have a registration each, in the domain of their
/// lanes. Local memory of transfers is registered for both groups; writes of either side arrive, also after
/// the keys were renewed by a change of grants.
#[test]
fn trust_groups_have_domains_of_their_own() {
    if !is_scripted() {
        return passes("grants::trust_groups_have_domains_of_their_own");
    }
    let mut trust = TrustGroups::default();
    trust.add("train", "trainer-*").unwrap();
    let builder = |name: &str, device: &str| {
        let devices = vec![device.to_owned()];
        let rdma = RdmaOptions::default().with(|it| {
            it.devices = devices;
            it.trust_groups = trust.clone();
        });
        let builder = Engine::builder().transport(TransportChoice::Rdma).rdma(rdma);
        builder.name(name).auth(AuthOptions::psk(KEY).unwrap()).listen("127.0.0.1:0")
    };
    let served = |engine: &Engine| {
        let memory = Memory::zeroed(BLOCK).unwrap();
        let register = engine.register("m").grant(Grant::read_write("*").unwrap());
        (register.serve(memory.whole()).unwrap(), memory)
    };
    Runtime::new().unwrap().block_on(async {
        let owner = builder("owner", "peer0").start().await.unwrap();
        let decoder = builder("decode-1", "own0").start().await.unwrap();
        let trainer = builder("trainer-1", "own1").start().await.unwrap();
        let (at_owner, memory) = served(&owner);
        let (at_trainer, trained) = served(&trainer);
        let block = Memory::zeroed(BLOCK).unwrap();
        let writes = async |from: &Engine, to: &Engine, there: &Memory, seed: u8| {
            block.copy_in(0, &[seed; BLOCK]).unwrap();
            let segment = from.open(to.address()).await.unwrap();
            segment.write(&block.whole(), 0).await.unwrap();
            let mut bytes = vec![0; BLOCK];
            there.copy_out(0, &mut bytes).unwrap();
            assert_eq!(bytes, [seed; BLOCK]);
        };
        assert_eq!(owner.counters().memory.registrations, 1);
        writes(&decoder, &owner, &memory, 1).await;
        assert_eq!(owner.counters().memory.registrations, 1, "it is of the first group");
        writes(&trainer, &owner, &memory, 2).await;
        assert_eq!(owner.counters().memory.registrations, 2, "the other group has its own");
        writes(&owner, &trainer, &trained, 3).await;
        assert_eq!(owner.counters().memory.registrations, 4, "its own memory is in both domains");
        at_owner.revoke(&Grant::read("*").unwrap()).unwrap();
        writes(&decoder, &owner, &memory, 4).await;
        writes(&trainer, &owner, &memory, 5).await;
        assert_eq!(owner.counters().memory.registrations, 6, "each group has another key");
        drop((at_owner, at_trainer));
        for engine in [trainer, decoder, owner] {
            engine.close().await;
        }
    });
}

/// Trust groups rest on proven names.
#[test]
fn trust_groups_need_keys() {
    let mut trust = TrustGroups::default();
    trust.add("train", "trainer-*").unwrap();
    let rdma = RdmaOptions::default().with(|it| it.trust_groups = trust);
    let started = Runtime::new().unwrap().block_on(Engine::builder().rdma(rdma).start());
    let error = started.expect_err("names are not proven").to_string();
    assert!(error.contains("trust groups need keys or certificates"), "{error}");
}
