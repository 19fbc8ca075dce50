//! A segment gets other memory while a batch to it runs, on scripted devices.

use crate::helpers::PATIENCE;
use crate::rdma_engine::{pattern, start_at};
use handfast::rdma::RdmaOptions;
use handfast::{
    Access, Cause, Engine, Error, Memory, Registration, Segment, Span, Stage, Transfer,
    TransportChoice,
};
use handfast_fabric_control::{Fabric, Process, is_scripted};

const BYTES: usize = 1 << 20;

/// Runs a story, by its path, in a process with two devices of a profile.
pub(crate) fn on(profile: &str, test: &str, story: impl AsyncFnOnce(Fabric)) {
    on_devices(&format!("rxe0={profile},rxe1={profile}:numbers_from=500"), test, story);
}

/// Runs a story, by its path, in a process with devices.
pub(crate) fn on_devices(devices: &str, test: &str, story: impl AsyncFnOnce(Fabric)) {
    if is_scripted() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        return runtime.block_on(story(Fabric::find().unwrap()));
    }
    let process = Process::new(devices).unwrap();
    let output = process.again().unwrap().args([test, "--exact"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{devices}: {text}");
}

/// A node that serves a segment, which gets other memory.
struct Owner {
    engine: Engine,
    memory: Memory,
    served: Option<Registration>,
}

impl Owner {
    async fn start() -> Self {
        let rdma = RdmaOptions::default().with(|it| it.devices = vec!["rxe1".to_owned()]);
        let builder = Engine::builder().transport(TransportChoice::Rdma).rdma(rdma);
        let engine = builder.listen("127.0.0.1:0").start().await.unwrap();
        let mut owner = Self { engine, memory: Memory::zeroed(BYTES).unwrap(), served: None };
        owner.serve();
        owner
    }

    fn serve(&mut self) {
        self.served = None;
        self.memory = Memory::zeroed(BYTES).unwrap();
        let served = self.engine.register("m").access(Access::READ_WRITE);
        self.served = Some(served.serve(self.memory.whole()).unwrap());
    }

    fn has(&self, block: &Memory) -> bool {
        self.memory.crc32c(0, BYTES).unwrap() == block.crc32c(0, BYTES).unwrap()
    }
}

/// Submits a write whose packets are held.
async fn held(fabric: &Fabric, segment: &Segment, span: &Span) -> Transfer {
    fabric.run("hold packets rxe0 rxe1");
    segment.write(span, 0).timeout(PATIENCE).submit().await.unwrap()
}

/// The batch succeeds in the new memory after one more fetch of the keys and one more lane; without
/// a segment it fails with that.
async fn batch_follows_its_segment(fabric: Fabric) {
    fabric.run("timers off");
    let (mut owner, user) = (Owner::start().await, start_at("rxe0").await);
    let segment = user.open(owner.engine.address()).await.unwrap();
    let block = pattern(BYTES, 1);
    segment.write(&block.whole(), 0).timeout(PATIENCE).await.unwrap();
    assert!(owner.has(&block));

    let transfer = held(&fabric, &segment, &block.whole()).await;
    owner.serve();
    fabric.run("release packets rxe0 rxe1");
    transfer.await.unwrap();
    assert!(owner.has(&block), "the bytes are in the new memory");
    assert_eq!(user.counters().life_cycle.published, 2, "one lane for the refused one");
    assert_eq!(user.counters().keys_refused, 1);

    let transfer = held(&fabric, &segment, &block.whole()).await;
    owner.served = None;
    fabric.run("release packets rxe0 rxe1");
    let error: Error = transfer.await.unwrap_err();
    assert_eq!(error.stage(), Stage::Metadata, "{error}");
    assert!(matches!(error.cause(), Cause::NoSuchSegment { .. }), "{error}");
    let first = error.report().and_then(|report| report.first_error.clone()).unwrap();
    assert!(first.detail.contains("vendor error"), "{first}");
    assert_eq!(user.counters().life_cycle.published, 2, "no lane is made for nothing");
    user.close().await;
}

/// On a device with a status for refused keys.
#[test]
fn batch_follows_its_segment_to_other_memory() {
    let test = "reregistered::batch_follows_its_segment_to_other_memory";
    on("mlx5", test, batch_follows_its_segment);
}

/// On eRDMA, where a refused key is a general error.
#[test]
fn batch_follows_its_segment_on_erdma_compat() {
    let test = "reregistered::batch_follows_its_segment_on_erdma_compat";
    on("erdma-compat", test, batch_follows_its_segment);
}
