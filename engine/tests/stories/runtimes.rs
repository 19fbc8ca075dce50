//! An engine lives on the runtime that it was started on, and users may be on another.

use crate::helpers::{Owner, PATIENCE, Relay, pattern, user, write_and_check};
use handfast::Cause;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

const MIB: usize = 1 << 20;

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

#[test]
fn an_engine_whose_runtime_ends_tells_who_waits_and_goes_with_its_memory() {
    let (theirs, ours) = (runtime(), runtime());
    let relay = theirs.block_on(Relay::start());
    let owner = theirs.block_on(Owner::start_behind(&relay, 64 * MIB));
    let block = pattern(32 * MIB, 1);
    let (engine, segment, transfer) = ours.block_on(async {
        let engine = user().await;
        let segment = engine.open(&owner.segment()).await.unwrap();
        write_and_check(&segment, &owner.memory, 1_000, 1).await;
        relay.stop();
        let transfer = segment.write(&block.whole(), 0).submit().await.unwrap();
        (engine, segment, transfer)
    });
    drop(ours);
    let ended = theirs.block_on(async { timeout(PATIENCE, transfer).await });
    assert_eq!(ended.expect("nobody waits for ever").unwrap_err().cause(), &Cause::Closed);
    let later =
        theirs.block_on(async { timeout(PATIENCE, segment.write(&block.whole(), 0)).await });
    let error = later.expect("nobody waits for ever").unwrap_err();
    assert_eq!(error.cause(), &Cause::Closed);
    drop((engine, segment));
    assert_eq!(block.holders(), 1, "nothing of what was under way holds it");
}
