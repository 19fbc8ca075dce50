//! Packets of a link that wait: stories of what is under way, on scripted devices.

use crate::helpers::{PATIENCE, RecordedEngine, Server, skipped, until};
use crate::links::Link;
use crate::rdma_engine::{
    BYTES, ONLY_HERE, Owner, builder, cause, packets, pattern, write_and_check,
};
use handfast::rdma::RdmaOptions;
use handfast::{Cause, Remote, Segment, Span, Transfer};
use handfast_fabric_control::{Fabric, is_scripted};
use handfast_transport_rdma::{Connecting, discover, root};
use rustix::process::Signal;
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// More packets than those of a first slice.
const SOME: u64 = 16;
/// Connections in sequence that end between their acceptance and the connect of the lane.
const ENDED_EARLY: u64 = 3;

/// Writes that leave one side of a link wait, and no device gives up, until this is dropped. A read that opens
/// a lane passes.
pub(crate) struct Held {
    fabric: Fabric,
    from: String,
    to: String,
}

impl Held {
    pub(crate) fn new(link: &Link, side: u32) -> Self {
        let fabric = Fabric::find().unwrap();
        let (from, to) = (link.device(side), link.device(1 - side));
        fabric.run("timers off");
        fabric.run(&format!("hold packets {from} {to} writes"));
        Self { fabric, from, to }
    }

    /// Waits until something is under way.
    pub(crate) fn until_under_way(&self) {
        let held = format!("held {} {}", self.from, self.to);
        until("something is under way", || self.fabric.run(&held) != "0");
    }

    /// Waits until the device of the other side has no queue pair: its process has ended.
    pub(crate) fn until_other_side_is_gone(&self) {
        let pairs = format!("pairs {}", self.to);
        until("the queue pairs of an ended process are gone", || {
            self.fabric.run(&pairs).is_empty()
        });
    }

    /// Lets some packets arrive that are sent meanwhile.
    fn let_some_pass(&self) {
        let before = packets(&self.to);
        until("packets arrive", || {
            self.fabric.run(&format!("arrive {}", self.from));
            packets(&self.to) > before + SOME
        });
    }

    /// The devices give up what is not answered. Its packets still wait.
    pub(crate) fn give_up(&self) {
        self.fabric.run("timers on");
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // A story that has failed has given its reason, and the devices end with it.
        if !std::thread::panicking() {
            self.fabric.run(&format!("release packets {} {}", self.from, self.to));
            self.fabric.run("timers on");
        }
    }
}

/// Whether a device has the timers of RoCE.
pub(crate) fn has_timers(device: &str) -> bool {
    let found = discover(&root()).unwrap();
    let found = found.iter().find(|found| found.name == device).unwrap();
    found.recognise().profile.connecting == Connecting::OutOfBand
}

/// The options without timers for a device that has none.
pub(crate) fn without_missing_timers(rdma: RdmaOptions) -> RdmaOptions {
    if rdma.devices.iter().all(|device| has_timers(device)) {
        return rdma;
    }
    rdma.with(|it| (it.timeout_exponent, it.retries) = (None, None))
}

/// Connections of a link that are accepted and not established, until this is dropped.
struct Accepted<'a> {
    fabric: Fabric,
    link: &'a Link,
}

impl<'a> Accepted<'a> {
    fn new(link: &'a Link) -> Self {
        let accepted = Self { fabric: Fabric::find().unwrap(), link };
        accepted.on_both("hold");
        accepted
    }

    fn on_both(&self, verb: &str) {
        for side in 0..2 {
            self.fabric.run(&format!("manager {verb} {} ESTABLISHED", self.link.device(side)));
        }
    }

    /// Ends the next connection that either side accepts.
    fn end_next(&self) {
        let accepted = |side| {
            let device = self.link.device(side);
            let list = self.fabric.run(&format!("manager list {device}"));
            let line = list.lines().find(|line| line.contains(" accepted "))?;
            Some(format!("{device} {}", line.split(' ').next()?))
        };
        // The other connection of a lane that ends may be gone by then.
        let ends = |connection: String| {
            self.fabric.execute(&format!("manager disconnect {connection}")).is_ok()
        };
        until("a connection is accepted and ended", || {
            accepted(0).or_else(|| accepted(1)).is_some_and(ends)
        });
    }
}

impl Drop for Accepted<'_> {
    fn drop(&mut self) {
        // A story that has failed has given its reason.
        if !std::thread::panicking() {
            self.on_both("release");
        }
    }
}

/// A link for one test alone that holds packets.
pub(crate) fn scripted_link(number: u32) -> Option<Link> {
    if !is_scripted() {
        skipped("it needs scripted devices, to hold packets");
        return None;
    }
    Some(Link::new(number))
}

/// A node at side 0 with 32 KiB under way on a lane at most.
async fn start_shallow(link: &Link) -> RecordedEngine {
    let builder = builder(link.device(0), None).adjust(|limits, _| {
        limits.slice_bytes_max = 8 << 10;
        limits.lane_depth = 4;
    });
    RecordedEngine::start(builder).await
}

/// Submits a write, of which some arrives and more is under way.
async fn under_way(segment: &Segment, span: &Span, held: &Held) -> Transfer {
    let transfer = segment.write(span, 0).timeout(PATIENCE).submit().await.unwrap();
    held.let_some_pass();
    held.until_under_way();
    transfer
}

/// An attempt that began while the server was stopped may fail after it goes on.
async fn fenced_at_last(segment: &Segment) {
    let since = Instant::now();
    while let Err(error) = timeout(PATIENCE, segment.fence()).await.unwrap() {
        assert!(since.elapsed() < PATIENCE, "{error}");
    }
}

/// A write that is cancelled, dropped or late ends once, releases its memory last and costs no
/// lane.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn given_up_write_releases_memory_and_keeps_its_lane() {
    let Some(link) = scripted_link(1) else { return };
    let (owner, user) = (Owner::start(&link, None).await, start_shallow(&link).await);
    let segment = owner.opened_by(&user).await;
    write_and_check(&segment, &owner, BYTES, 1).await;
    // A busy machine may have given an attempt up before this lane came up.
    let ends = |user: &RecordedEngine| {
        let counters = user.counters();
        let published = counters.life_cycle.published;
        (counters.rdma.lanes_failed, counters.rdma.lanes_retired, published)
    };
    let before = ends(&user);
    let block = pattern(BYTES, 2);
    let prepared = user.prepare(&block.whole()).await.unwrap();
    let unused = block.holders();

    let held = Held::new(&link, 0);
    let cancelled = under_way(&segment, &block.whole(), &held).await;
    cancelled.cancel();
    assert!(block.holders() > unused, "the device still reads it");
    drop(held);
    assert_eq!(cause(timeout(PATIENCE, cancelled).await.unwrap()), Cause::Cancelled);
    assert_eq!(block.holders(), unused, "nothing reads it after the end");

    let held = Held::new(&link, 0);
    drop(under_way(&segment, &block.whole(), &held).await);
    assert!(block.holders() > unused, "the device still reads it");
    drop(held);
    until("the memory is free", || block.holders() == unused);

    let (held, limit) = (Held::new(&link, 0), Duration::from_secs(1));
    let late = segment.write(&block.whole(), 0).timeout(limit).submit().await.unwrap();
    tokio::time::sleep(limit).await;
    assert!(block.holders() > unused, "the device still reads it");
    drop(held);
    assert_eq!(cause(timeout(PATIENCE, late).await.unwrap()), Cause::DeadlinePassed);
    assert_eq!(block.holders(), unused);

    write_and_check(&segment, &owner, BYTES, 3).await;
    assert_eq!(ends(&user), before, "the lane is in use still");
    drop(prepared);
    until("the device forgets the memory", || block.holders() == ONLY_HERE);
    user.close().await;
}

/// No slice ends on a link that loses everything, until its lane is ended for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_is_held_until_the_device_is_done_with_it() {
    let Some(link) = scripted_link(18) else { return };
    let (owner, user) = (Owner::start(&link, None).await, start_shallow(&link).await);
    let segment = owner.opened_by(&user).await;
    let block = pattern(BYTES, 2);
    let _prepared = user.prepare(&block.whole()).await.unwrap();
    for dropped in [false, true] {
        write_and_check(&segment, &owner, BYTES, 1).await;
        let (unused, held) = (block.holders(), Held::new(&link, 0));
        let transfer = under_way(&segment, &block.whole(), &held).await;
        if dropped {
            drop(transfer);
            assert!(block.holders() > unused, "the device still reads what was dropped");
            held.give_up();
            until("the memory is free", || block.holders() == unused);
        } else {
            transfer.cancel();
            assert!(block.holders() > unused, "the device still reads it");
            held.give_up();
            assert_eq!(cause(timeout(PATIENCE, transfer).await.unwrap()), Cause::Cancelled);
            assert_eq!(block.holders(), unused);
        }
    }
    user.close().await;
}

/// The device ends what was posted of a write that is given up, though the process at the far end
/// is stopped. Where no packet is answered, only that process can say that nothing lands any more,
/// and what arrives after that does not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_byte_of_a_given_up_write_lands_after_its_fence() {
    let Some(link) = scripted_link(14) else { return };
    let (at, device) = (format!("{}:0", link.ip(1)), link.device(1));
    let options = ["--transport", "rdma", "--device", &device, "--memory", "m=4M"];
    let server = Server::start_at(&at, &options);
    let user = start_shallow(&link).await;
    let segment = user.open(&server.at("m")).await.unwrap();
    let block = pattern(BYTES, 2);
    // The device's own time for it is none of the write's.
    let _prepared = user.prepare(&block.whole()).await.unwrap();
    for silent in [false, true] {
        segment.write(&pattern(BYTES, 1).whole(), 0).await.unwrap();
        server.process.stop();
        let mut held = Some(Held::new(&link, 0));
        let given_up = under_way(&segment, &block.whole(), held.as_ref().unwrap()).await;
        given_up.cancel();
        match silent {
            true => held.as_ref().unwrap().give_up(),
            false => held = None,
        }
        let error = timeout(PATIENCE, given_up).await.unwrap().unwrap_err();
        let expected = if silent { Remote::Indeterminate } else { Remote::Fenced };
        assert_eq!(error.remote(), Some(expected), "{error}");
        if silent {
            let fenced = timeout(Duration::from_millis(200), segment.fence()).await;
            assert!(
                !matches!(fenced, Ok(Ok(()))),
                "nothing is certain while the server is stopped"
            );
        }
        server.process.signal(Signal::CONT);
        fenced_at_last(&segment).await;
        let landed = segment.checksum(0, BYTES as u64).await.unwrap();
        let before = packets(&device);
        drop(held);
        assert_eq!(packets(&device) > before, silent, "late packets");
        assert_eq!(segment.checksum(0, BYTES as u64).await.unwrap(), landed, "late bytes landed");
        segment.write(&pattern(BYTES, 3).whole(), 0).await.unwrap();
        assert_ne!(segment.checksum(0, BYTES as u64).await.unwrap(), landed);
    }
    user.close().await;
}

/// A lane that its peer has accepted ends before the connect of that peer, again and again: each end costs one lane at
/// most, and the write goes on over the first that is not ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lane_that_ends_before_its_connect_is_opened_again() {
    let Some(link) = scripted_link(20) else { return };
    if has_timers(&link.device(0)) {
        return skipped("its devices connect out of band");
    }
    let (owner, user) = (Owner::start(&link, None).await, start_shallow(&link).await);
    let segment = owner.opened_by(&user).await;
    let accepted = Accepted::new(&link);
    let block = pattern(BYTES, 1);
    let write = segment.write(&block.whole(), 0).timeout(PATIENCE).submit().await.unwrap();
    for _ in 0..ENDED_EARLY {
        accepted.end_next();
    }
    drop(accepted);
    timeout(PATIENCE, write).await.unwrap().unwrap();
    write_and_check(&segment, &owner, BYTES, 2).await;
    for engine in [&user, owner.engine()] {
        let lanes = engine.counters().life_cycle;
        // A lane has as many connections as queue pairs.
        assert!((1..=ENDED_EARLY).contains(&lanes.ended), "{} lanes ended", lanes.ended);
        assert_eq!(lanes.published, 1, "one lane carried all");
    }
    user.close().await;
}
