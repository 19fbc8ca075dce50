//! Memory that a device does not register in time.

use super::{BLOCK, CLOSE_TIMEOUT, passes};
use handfast::rdma::RdmaOptions;
use handfast::{
    Access, AuthOptions, Cause, Engine, EngineLimits, EngineTiming, Grant, Memory, Stage,
    TransportChoice,
};
use handfast_fabric_control::{Fabric, is_scripted};
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
/// registration goes on, and a later look-up has the key.
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
        // It moves bytes with the key alone.
        let user = builder("trainer-2", "own1", TransportChoice::Rdma).start().await.unwrap();
        let segment = user.open(owner.address()).await.unwrap();
        let block = Memory::zeroed(BLOCK).unwrap();
        block.copy_in(0, &[7; BLOCK]).unwrap();
        segment.write(&block.whole(), 0).await.unwrap();
        let mut bytes = vec![0; BLOCK];
        memory.copy_out(0, &mut bytes).unwrap();
        assert_eq!(bytes, [7; BLOCK]);
        assert_eq!(owner.counters().memory.registrations, 2, "one for each group");
        for engine in [user, trainer, decoder, owner] {
            engine.close().await;
        }
    });
}
