//! Memory on scripted devices whose driver lets peers write to every registration.

use crate::helpers::PATIENCE;
use crate::rdma_engine::pattern;
use crate::reregistered::on;
use handfast::rdma::RdmaOptions;
use handfast::{Access, Engine, Memory, Side, Stage, TransportChoice};

const BYTES: usize = 64 << 10;

async fn start(device: &str, accepts_exposed_memory: bool) -> Engine {
    let rdma = RdmaOptions::default().with(|it| {
        it.devices = vec![device.to_owned()];
        it.accepts_exposed_memory = accepts_exposed_memory;
    });
    let builder = Engine::builder().transport(TransportChoice::Rdma).rdma(rdma);
    builder.listen("127.0.0.1:0").start().await.unwrap()
}

/// Read-only memory is not served, and nothing stays registered after its transfer, unless that is
/// accepted.
#[test]
fn exposing_driver_keeps_and_serves_nothing_read_only() {
    let test = "exposed::exposing_driver_keeps_and_serves_nothing_read_only";
    on("erdma-compat:grants_remote_write", test, async |_| {
        for accepts in [false, true] {
            let (owner, user) = (start("rxe1", accepts).await, start("rxe0", accepts).await);
            let memory = Memory::zeroed(BYTES).unwrap();
            let read_only = owner.register("r").access(Access::READ).serve(memory.whole());
            assert_eq!(read_only.is_ok(), accepts);
            if let Err(error) = read_only {
                assert_eq!(
                    (error.side(), error.stage()),
                    (Side::Configuration, Stage::Registration)
                );
                assert!(error.to_string().contains("--accept-exposed-memory"), "{error}");
            }
            let _served =
                owner.register("m").access(Access::READ_WRITE).serve(memory.whole()).unwrap();
            let segment = user.open(&format!("{}/m", owner.address())).await.unwrap();
            let block = pattern(BYTES, 1);
            for transfers in 1..=2 {
                let half = block.span(0, BYTES / 2).unwrap();
                segment.write(&half, 0).timeout(PATIENCE).await.unwrap();
                let counters = user.counters().memory;
                let expected = if accepts { (1, BYTES as u64) } else { (transfers, 0) };
                assert_eq!((counters.registrations, counters.kept_bytes), expected);
            }
            user.close().await;
            owner.close().await;
        }
    });
}
