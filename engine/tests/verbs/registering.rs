//! Memory that a device does not register in time.

use super::{BLOCK, CLOSE_TIMEOUT, passes};
use handfast::rdma::RdmaOptions;
use handfast::{Access, Cause, Engine, Memory, Stage, TransportChoice};
use handfast_fabric_control::{Fabric, is_scripted};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::time::timeout;

/// Long enough for anything that has a deadline of its own.
const PATIENCE: Duration = Duration::from_secs(30);

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
