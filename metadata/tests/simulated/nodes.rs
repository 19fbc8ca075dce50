//! The processes of a run: a node that is found by its name, one that reads from it for long, and one
//! after the other that asks for it for the first time.

use crate::etcd::{self, ETCD, ETCD_PORT};
use crate::net::SimNet;
use crate::plan::{OWNER, USER};
use crate::seeded::Seeded;
use crate::world::{Phase, Story};
use handfast::metadata::MetadataOptions;
use handfast::runtime::TokioClock;
use handfast::{Access, Engine, EngineTiming, Error, Memory, Segment, TransportChoice};
use handfast_metadata::{EtcdOptions, EtcdStore};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};
use turmoil::net::TcpStream;

/// Port of the first process of a node; each has the next.
const PORT: u16 = 7411;
/// Bytes of the owner's segment, which are the number of its process.
const SEGMENT_BYTES: usize = 8;
const SEGMENT: &str = "owner/cache";
/// Timeout of an operation of the store.
const STORE_TIMEOUT: Duration = Duration::from_secs(1);
pub(crate) const LEASE: Duration = Duration::from_secs(3);
/// Pause between reads.
const PACE: Duration = Duration::from_millis(50);
/// Longest time of an open and a read.
const READ_TIMEOUT: Duration = Duration::from_secs(6);
/// Time after which the last task of a store looks for it, and finds it gone: a third of the lease.
const STORE_TASK: Duration = Duration::from_millis(1_200);

type Ended = Result<(), Box<dyn std::error::Error>>;

/// Serves a segment under a name until it is to close.
pub(crate) async fn own(story: Arc<Story>) -> Ended {
    let run = story.owner_run.fetch_add(1, Ordering::Relaxed) + 1;
    story.owner_closes.store(false, Ordering::Relaxed);
    let port = PORT + run as u16;
    let builder = builder(&story).name(OWNER).advertise(OWNER);
    let engine = start(&story, builder.listen(&format!("0.0.0.0:{port}")), run << 8).await?;
    let memory = Memory::zeroed(SEGMENT_BYTES)?;
    memory.copy_in(0, &run.to_le_bytes())?;
    let served = engine.register("cache").access(Access::READ_WRITE).serve(memory.whole())?;
    story.note(&format!("owner {run} serves"));
    while !story.owner_closes.load(Ordering::Relaxed) {
        sleep(Duration::from_millis(1)).await;
    }
    engine.close().await;
    drop((engine, served));
    story.note(&format!("owner {run} has closed"));
    check_tasks(&story, OWNER).await;
    story.owner_is_closed.store(true, Ordering::Relaxed);
    std::future::pending().await
}

/// Reads through one engine, over a segment that it opens again after a failure.
pub(crate) async fn read_on(story: Arc<Story>) -> Ended {
    let engine = start(&story, builder(&story), 1).await?;
    let mut segment = None;
    while story.phase() < Phase::Quiet {
        match timeout(READ_TIMEOUT, read(&story, &engine, &mut segment)).await {
            Ok(Ok(())) => story.settle(USER),
            Ok(Err(_)) => segment = None,
            Err(_) => story.violate("O5", "a read of the user does not end"),
        }
        sleep(PACE).await;
    }
    drop(segment);
    while !story.user_closes.load(Ordering::Relaxed) {
        sleep(Duration::from_millis(1)).await;
    }
    engine.close().await;
    drop(engine);
    check_tasks(&story, USER).await;
    story.user_is_closed.store(true, Ordering::Relaxed);
    std::future::pending().await
}

/// Reads through one engine after the other: each looks the name up in the store.
pub(crate) async fn read_first(story: Arc<Story>) -> Ended {
    for turn in 0_u64.. {
        if story.phase() == Phase::Quiet {
            break;
        }
        let engine = start(&story, builder(&story), 1 << 32 | turn).await?;
        match timeout(READ_TIMEOUT, read(&story, &engine, &mut None)).await {
            Ok(Ok(())) => story.settle(NEWCOMER),
            Ok(Err(error)) => story.note(&format!("newcomer {turn}: {error}")),
            Err(_) => story.violate("O5", "a read of a newcomer does not end"),
        }
        engine.close().await;
        sleep(PACE).await;
    }
    std::future::pending().await
}

pub(crate) const NEWCOMER: &str = "newcomer";

/// Reads the number of the owner's process, which is not older than the begin of the read.
async fn read(story: &Story, engine: &Engine, segment: &mut Option<Segment>) -> Result<(), Error> {
    let before = story.owner_run.load(Ordering::Relaxed);
    let is_closing = story.owner_closes.load(Ordering::Relaxed);
    if segment.is_none() {
        *segment = Some(engine.open(SEGMENT).await?);
    }
    let Some(segment) = segment else { return Ok(()) };
    let block = Memory::zeroed(SEGMENT_BYTES)?;
    segment.read(&block.whole(), 0).timeout(Duration::from_secs(2)).await?;
    let mut bytes = [0; SEGMENT_BYTES];
    block.copy_out(0, &mut bytes)?;
    let (run, now) = (u64::from_le_bytes(bytes), story.owner_run.load(Ordering::Relaxed));
    if !(before..=now).contains(&run) && !is_closing {
        story.violate("O8", &format!("bytes of owner {run} while {before} to {now} live"));
    }
    Ok(())
}

fn builder(story: &Story) -> handfast::Builder {
    let timing = EngineTiming::default().with(|it| {
        it.call_timeout = Duration::from_millis(500);
        it.lane_timeout = Duration::from_secs(1);
        it.close_timeout = Duration::from_secs(2);
    });
    let (name, password) = etcd::USER;
    let options = EtcdOptions {
        user: Some((name.to_owned(), password.to_owned())),
        timeout: STORE_TIMEOUT,
        lease: LEASE,
        ..EtcdOptions::default()
    };
    let dial = |host: String, port| async move { TcpStream::connect((host, port)).await };
    let store = Arc::new(EtcdStore::with_connector(ETCD, ETCD_PORT, options, dial));
    let publish_interval = Duration::from_millis(story.plan.publish_ms);
    let metadata = MetadataOptions::new(store).with(|it| it.publish_interval = publish_interval);
    Engine::builder().transport(TransportChoice::Tcp).timing(timing).metadata(metadata)
}

async fn start(story: &Story, builder: handfast::Builder, number: u64) -> Result<Engine, Error> {
    let random = Seeded::new(story.plan.seed << 40 | number);
    builder.start_on(SimNet, TokioClock::new(), random).await
}

/// A host whose engine has closed has no task left.
async fn check_tasks(story: &Story, host: &str) {
    sleep(STORE_TASK).await;
    let tasks = Handle::current().metrics().num_alive_tasks();
    if tasks > 0 {
        story.violate("leak", &format!("{host} has closed, and {tasks} tasks are left"));
    }
}
