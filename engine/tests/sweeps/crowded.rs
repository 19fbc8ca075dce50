//! More callers than an owner has lanes, each at work all the time.

use crate::ledger::Story;
use crate::net::SimNet;
use crate::plan::{Plan, Skew};
use crate::seeded::Seeded;
use handfast::runtime::TokioClock;
use handfast::{Access, Engine, EngineLimits, Memory, TransportChoice};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;
use turmoil::Builder;

const CALLERS: usize = 4;
/// Lanes of the owner.
const LANES_MAX: usize = 2;
const OWNER: &str = "owner";
const LISTEN: &str = "0.0.0.0:7411";
/// Time of the callers at work.
const WORK: Duration = Duration::from_secs(6);
const RUN_MAX: Duration = Duration::from_secs(60);

/// With more callers than lanes each gets its turn, at a bounded rate of evictions, although every lane shows use
/// each time the owner looks at it.
#[test]
fn busy_callers_take_turns_at_the_lane_limit() {
    let story = Arc::new(Story::new(calm()));
    let (owner, done) = <(Arc<Mutex<Option<Engine>>>, Arc<Mutex<Vec<u32>>>)>::default();
    let mut sim = Builder::new()
        .rng_seed(1)
        .tick_duration(Duration::from_millis(1))
        .simulation_duration(RUN_MAX)
        .max_message_latency(Duration::from_millis(2))
        .build();
    let (engine, of_owner) = (owner.clone(), story.clone());
    sim.host(OWNER, move || {
        let (engine, story) = (engine.clone(), of_owner.clone());
        async move {
            let limits = EngineLimits::default().with(|it| it.lanes_max = LANES_MAX);
            let own = start(&story, CALLERS, OWNER, limits).await;
            let memory = Memory::zeroed(1_000)?;
            let _served = own.register("cache").access(Access::READ_WRITE).serve(memory.whole())?;
            *engine.lock().unwrap() = Some(own);
            std::future::pending().await
        }
    });
    for caller in 0..CALLERS {
        let (story, done) = (story.clone(), done.clone());
        sim.client(format!("n{caller}"), async move {
            let name = format!("n{caller}");
            let engine = start(&story, caller, &name, EngineLimits::default()).await;
            let segment = engine.open(&format!("{OWNER}:7411/cache")).await?;
            let (block, until, mut writes) = (Memory::zeroed(1_000)?, Instant::now() + WORK, 0);
            while Instant::now() < until {
                writes += u32::from(segment.write(&block.whole(), 0).await.is_ok());
            }
            done.lock().unwrap().push(writes);
            engine.close().await;
            Ok(())
        });
    }
    sim.run().unwrap();
    let done = done.lock().unwrap();
    assert!(done.len() == CALLERS && done.iter().all(|writes| *writes > 0), "{done:?}");
    let evicted = owner.lock().unwrap().as_ref().unwrap().counters().lanes_evicted;
    // A lane is held for 0.25, 0.25, 0.5, 0.5 and then 1 s: at most nine times in [`WORK`].
    assert!((2..=2 * 9).contains(&evicted), "{evicted}");
}

/// A smooth network without a fault.
fn calm() -> Plan {
    let nodes = CALLERS + 1;
    Plan {
        seed: 1,
        nodes,
        peers: vec![Vec::new(); nodes],
        skews: vec![Skew { offset_seconds: 0, rate_percent: 100 }; nodes],
        latency_max_ms: 2,
        pace_max_ms: 1,
        load_ms: 0,
        store: None,
        has_legacy: false,
        is_rough: false,
        is_tight: false,
        has_stranger: false,
        disturbances: Vec::new(),
    }
}

async fn start(story: &Arc<Story>, node: usize, name: &str, limits: EngineLimits) -> Engine {
    let builder = Engine::builder()
        .listen(LISTEN)
        .advertise(name)
        .limits(limits)
        // A device is opened by a thread of its own, whose time the simulation does not know.
        .transport(TransportChoice::Tcp);
    let number = node as u64;
    let (net, random) = (SimNet::new(story, node, number), Seeded::new(number));
    builder.start_on(net, TokioClock::new(), random).await.unwrap()
}
