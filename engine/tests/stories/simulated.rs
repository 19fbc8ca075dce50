//! The whole engine in a simulated network: crashes, partitions, and the same story twice.

mod net;
#[path = "../sweeps/seeded.rs"]
pub(crate) mod seeded;

use crate::helpers::{content, pattern};
use handfast::runtime::TokioClock;
use handfast::{Access, Cause, Engine, EngineTiming, Memory, Remote, Segment};
use net::SimNet;
use seeded::Seeded;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;
use turmoil::{Builder, Sim};

const PORT: u16 = 7411;
const KIB: usize = 1 << 10;

/// Shared state of one simulation's hosts: its seed, the number of nodes started, and its progress.
#[derive(Clone)]
struct Story {
    seed: u64,
    started: Arc<AtomicU64>,
    chapter: Arc<AtomicU64>,
    trace: Arc<Mutex<Vec<(&'static str, Duration)>>>,
}

type Ended = Result<(), Box<dyn std::error::Error>>;

impl Story {
    fn new(seed: u64) -> Self {
        let (started, chapter) = (Arc::default(), Arc::default());
        Self { seed, started, chapter, trace: Arc::default() }
    }

    fn sim(&self) -> Sim<'static> {
        Builder::new()
            .rng_seed(self.seed)
            .tick_duration(Duration::from_millis(1))
            .simulation_duration(Duration::from_secs(120))
            .min_message_latency(Duration::from_millis(1))
            .max_message_latency(Duration::from_millis(8))
            .build()
    }

    /// A node that listens at its host's name.
    async fn node(&self, host: &str) -> Engine {
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        let random = Seeded::new(self.seed << 8 | number);
        let timing = EngineTiming::default().with(|it| {
            it.call_timeout = Duration::from_millis(300);
            it.lane_timeout = Duration::from_millis(1_000);
        });
        Engine::builder()
            .listen(&format!("0.0.0.0:{PORT}"))
            .advertise(host)
            .timing(timing)
            .start_on(SimNet, TokioClock::new(), random)
            .await
            .unwrap()
    }

    /// A host that serves `cache` and outlives crashes under its name.
    fn owner(&self, sim: &mut Sim<'_>, host: &'static str) {
        let story = self.clone();
        sim.host(host, move || {
            let story = story.clone();
            async move {
                let node = story.node(host).await;
                let memory = Memory::zeroed(512 * KIB)?;
                let _served =
                    node.register("cache").access(Access::READ_WRITE).serve(memory.whole())?;
                std::future::pending().await
            }
        });
    }

    fn turn(&self, chapter: u64) {
        self.chapter.store(chapter, Ordering::Relaxed);
    }

    async fn wait_for(&self, chapter: u64) {
        while self.chapter.load(Ordering::Relaxed) < chapter {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Steps until the story has come to `chapter`.
    fn play_to(&self, sim: &mut Sim<'_>, chapter: u64) {
        while self.chapter.load(Ordering::Relaxed) < chapter {
            assert!(!sim.step().unwrap(), "the story ended before chapter {chapter}");
        }
    }

    fn note(&self, what: &'static str) {
        self.trace.lock().unwrap().push((what, turmoil::elapsed()));
    }

    fn trace(&self) -> Vec<(&'static str, Duration)> {
        self.trace.lock().unwrap().clone()
    }
}

fn cache_at(host: &str) -> String {
    format!("{host}:{PORT}/cache")
}

/// Writes, reads back and compares.
async fn round_trip(segment: &Segment, bytes: usize, seed: u8) -> Result<(), handfast::Error> {
    let block = pattern(bytes, seed);
    segment.write(&block.whole(), 100).await?;
    let back = Memory::zeroed(bytes)?;
    segment.read(&back.whole(), 100).await?;
    assert!(content(&back, 0, bytes) == content(&block, 0, bytes), "the bytes came back");
    Ok(())
}

async fn write_until_it_fails(segment: &Segment) -> handfast::Error {
    let block = pattern(500 * KIB, 2);
    loop {
        let written = segment.write(&block.whole(), 0).await;
        if let Err(error) = written {
            assert_eq!(block.holders(), 1, "nothing of it is held");
            return error;
        }
    }
}

fn a_transfer(seed: u64) -> Vec<(&'static str, Duration)> {
    let story = Story::new(seed);
    let mut sim = story.sim();
    story.owner(&mut sim, "owner");
    let told = story.clone();
    sim.client("user", async move {
        let user = told.node("user").await;
        let segment = user.open(&cache_at("owner")).await?;
        told.note("opened");
        round_trip(&segment, 300 * KIB, 1).await?;
        told.note("written");
        user.close().await;
        told.note("closed");
        Ok(())
    });
    sim.run().unwrap();
    story.trace()
}

#[test]
fn two_nodes_transfer_and_a_seed_tells_the_same_story_twice() {
    let traces: Vec<_> = (1..=6).map(a_transfer).collect();
    let again: Vec<_> = (1..=6).map(a_transfer).collect();
    assert_eq!(traces, again);
    assert!(traces.iter().any(|trace| *trace != traces[0]), "seeds make no difference");
}

/// A peer that crashes mid-transfer is lost, and its next incarnation is reached.
#[test]
fn peer_crashed_mid_transfer_is_reached_again() {
    let mut remotes = Vec::new();
    for seed in 0..4 {
        let story = Story::new(seed);
        let mut sim = story.sim();
        story.owner(&mut sim, "owner");
        let told = story.clone();
        sim.client("user", async move {
            let user = told.node("user").await;
            let segment = user.open(&cache_at("owner")).await?;
            round_trip(&segment, 10 * KIB, 1).await?;
            told.turn(1);
            let error = write_until_it_fails(&segment).await;
            assert!(matches!(error.cause(), Cause::PeerLost(_)), "{error}");
            assert_ne!(error.remote(), Some(Remote::Fenced), "nobody proved anything");
            told.note(match error.remote() {
                Some(Remote::Indeterminate) => "indeterminate",
                _ => "untouched",
            });
            told.turn(2);
            told.wait_for(3).await;
            round_trip(&segment, 10 * KIB, 3).await?;
            told.turn(4);
            Ok(())
        });
        story.play_to(&mut sim, 1);
        for _ in 0..seed * 3 + 2 {
            sim.step().unwrap();
        }
        sim.crash("owner");
        story.play_to(&mut sim, 2);
        sim.bounce("owner");
        story.turn(3);
        sim.run().unwrap();
        assert_eq!(story.chapter.load(Ordering::Relaxed), 4);
        remotes.extend(story.trace().into_iter().map(|(remote, _)| remote));
    }
    assert!(remotes.contains(&"indeterminate"), "never was anything on its way: {remotes:?}");
}

/// A peer that restarts before it is missed is known to have restarted.
#[test]
fn quick_restart_is_recognised() {
    for seed in 0..4 {
        let story = Story::new(seed);
        let mut sim = story.sim();
        story.owner(&mut sim, "owner");
        let told = story.clone();
        sim.client("user", async move {
            let user = told.node("user").await;
            let segment = user.open(&cache_at("owner")).await?;
            round_trip(&segment, 10 * KIB, 1).await?;
            told.turn(1);
            let error = write_until_it_fails(&segment).await;
            assert_eq!(error.cause(), &Cause::PeerRestarted, "{error}");
            assert_ne!(error.remote(), Some(Remote::Indeterminate), "a dead run's lane is fenced");
            round_trip(&segment, 10 * KIB, 3).await?;
            told.turn(2);
            Ok(())
        });
        story.play_to(&mut sim, 1);
        for _ in 0..5 {
            sim.step().unwrap();
        }
        sim.crash("owner");
        sim.bounce("owner");
        sim.run().unwrap();
        assert_eq!(story.chapter.load(Ordering::Relaxed), 2);
    }
}

/// An idle owner that did not notice the crash of its peer answers the peer's next run at once: the
/// end of the old lane leaves the new one alone.
#[test]
fn restarted_peer_reaches_idle_owner_at_once() {
    for seed in 0..4 {
        let story = Story::new(seed);
        let mut sim = story.sim();
        story.owner(&mut sim, "owner");
        let shared = story.clone();
        sim.host("user", move || {
            let story = shared.clone();
            async move {
                let user = story.node("user").await;
                let began = Instant::now();
                let segment = user.open(&cache_at("owner")).await?;
                round_trip(&segment, 10 * KIB, 1).await?;
                let took = began.elapsed();
                assert!(took < Duration::from_millis(200), "seed {}: {took:?}", story.seed);
                story.chapter.fetch_add(1, Ordering::Relaxed);
                std::future::pending().await
            }
        });
        let shared = story.clone();
        sim.client("clock", async move {
            shared.wait_for(2).await;
            Ok(())
        });
        story.play_to(&mut sim, 1);
        for _ in 0..50 {
            sim.step().unwrap();
        }
        // The end of its connections is lost with the network.
        sim.partition("user", "owner");
        sim.crash("user");
        sim.repair("user", "owner");
        sim.bounce("user");
        sim.run().unwrap();
        assert_eq!(story.chapter.load(Ordering::Relaxed), 2);
    }
}

/// A partition costs one peer its deadlines and the others nothing.
#[test]
fn partition_delays_only_one_peer() {
    for seed in 0..3 {
        let story = Story::new(seed);
        let mut sim = story.sim();
        story.owner(&mut sim, "near");
        story.owner(&mut sim, "far");
        let told = story.clone();
        sim.client("user", async move {
            let user = told.node("user").await;
            let near = user.open(&cache_at("near")).await?;
            let far = user.open(&cache_at("far")).await?;
            round_trip(&near, 10 * KIB, 1).await?;
            round_trip(&far, 10 * KIB, 1).await?;
            told.turn(1);
            told.wait_for(2).await;
            tell_apart(&near, &far).await?;
            told.turn(3);
            told.wait_for(4).await;
            let repaired = Instant::now();
            // The lane is dead: the watchdog ends it, and the pair reconnects.
            while let Err(error) = far_write(&far, 300).await {
                assert_eq!(error.cause(), &Cause::DeadlinePassed);
                assert!(repaired.elapsed() < Duration::from_secs(5), "no new lane");
            }
            round_trip(&far, 10 * KIB, 4).await?;
            told.turn(5);
            Ok(())
        });
        story.play_to(&mut sim, 1);
        sim.partition("user", "far");
        story.turn(2);
        story.play_to(&mut sim, 3);
        sim.repair("user", "far");
        story.turn(4);
        sim.run().unwrap();
        assert_eq!(story.chapter.load(Ordering::Relaxed), 5);
    }
}

async fn far_write(far: &Segment, deadline_ms: u64) -> Result<(), handfast::Error> {
    let block = pattern(50 * KIB, 2);
    let deadline = Duration::from_millis(deadline_ms);
    far.write(&block.whole(), 0).timeout(deadline).await.map(|_| ())
}

/// With `far` cut off: its writes end at their deadline, and those to `near` as ever.
async fn tell_apart(near: &Segment, far: &Segment) -> Result<(), handfast::Error> {
    let began = Instant::now();
    let lost = async {
        let error = far_write(far, 400).await.unwrap_err();
        (error, began.elapsed())
    };
    let lively = async {
        let mut slowest = Duration::ZERO;
        while began.elapsed() < Duration::from_millis(400) {
            let began = Instant::now();
            round_trip(near, 10 * KIB, 3).await?;
            slowest = slowest.max(began.elapsed());
        }
        Ok::<_, handfast::Error>(slowest)
    };
    let ((error, took), slowest) = tokio::join!(lost, lively);
    assert_eq!(error.cause(), &Cause::DeadlinePassed);
    assert_eq!(error.remote(), Some(Remote::Indeterminate));
    assert_eq!(error.peer_address(), Some("far:7411"));
    assert!((400..=402).contains(&took.as_millis()), "{took:?}");
    assert!(slowest? < Duration::from_millis(60), "the other peer is delayed");
    Ok(())
}

/// Nodes that open to each other at one instant end with one lane in every seed.
#[test]
fn simultaneous_open_ends_with_one_lane() {
    let mut crossed = 0;
    for seed in 0..24 {
        let story = Story::new(seed);
        let mut sim = story.sim();
        let crossings = Arc::new(AtomicU64::new(0));
        for (host, peer) in [("left", "right"), ("right", "left")] {
            let (told, crossings) = (story.clone(), crossings.clone());
            sim.client(host, async move { meet(told, &crossings, host, peer).await });
        }
        sim.run().unwrap();
        crossed += u64::from(crossings.load(Ordering::Relaxed) == 2);
    }
    assert!(crossed >= 12, "only {crossed} of 24 seeds truly crossed");
}

async fn meet(story: Story, crossings: &AtomicU64, host: &str, peer: &str) -> Ended {
    let node = story.node(host).await;
    let memory = Memory::zeroed(512 * KIB)?;
    let _served = node.register("cache").access(Access::READ_WRITE).serve(memory.whole())?;
    while turmoil::elapsed() < Duration::from_millis(20) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let segment = node.open(&cache_at(peer)).await?;
    story.chapter.fetch_add(1, Ordering::Relaxed);
    story.wait_for(2).await;
    round_trip(&segment, 30 * KIB, 7).await?;
    story.chapter.fetch_add(1, Ordering::Relaxed);
    story.wait_for(4).await;
    // A superseded incarnation has had its time to end.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let counters = node.counters();
    assert_eq!(counters.lanes, 1, "{counters:?}");
    crossings.fetch_add(counters.requests_crossed.min(1), Ordering::Relaxed);
    round_trip(&segment, 30 * KIB, 8).await?;
    assert_eq!(node.counters().life_cycle.published, counters.life_cycle.published);
    story.chapter.fetch_add(1, Ordering::Relaxed);
    story.wait_for(6).await;
    Ok(())
}
