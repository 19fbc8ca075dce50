//! The cost of a slice over verbs on a scripted device, in counts that do not depend on the
//! machine's speed. They may fall and not rise. The device answers within the call that posts, and
//! every thread but the one that submits and waits stands still: it takes its completions itself.
//!
//! Closes while a device holds a lane.

#![cfg(target_arch = "x86_64")]

#[path = "verbs/gpu.rs"]
mod gpu;
#[path = "verbs/grants.rs"]
mod grants;
#[path = "verbs/mixed.rs"]
mod mixed;
#[path = "verbs/registering.rs"]
mod registering;
#[path = "verbs/withdrawn.rs"]
mod withdrawn;

use handfast::rdma::RdmaOptions;
use handfast::{
    Access, BatchOutcome, Cause, Engine, EngineTiming, Error, Memory, Remote, Segment, Span,
    TransportChoice,
};
use handfast_fabric_control::{Fabric, Process, cost, is_scripted};
use std::process::Command;
use std::time::Duration;
use tokio::runtime::Runtime;

const BLOCK: usize = 4_096;
/// Batches within which the lanes over all NICs are up, seconds in all.
const BATCHES_UNTIL_UP: usize = 100_000;
/// Sizes of batches.
const MANY: usize = 32;
const FEW: usize = 16;
/// Sizes of batches whose instructions are counted, which takes some microseconds each.
const STEPPED: [usize; 2] = [2, 6];
/// Batches before the first that counts: tables grow to their working size.
const WARM_UP: usize = 50;
/// Long enough for the threads of the NIC, which poll for 100 us, to sleep.
const QUIET: Duration = Duration::from_millis(100);

/// Most instructions of a slice outside of libc, as tests are built: without optimisation of the engine and the
/// backend.
const INSTRUCTIONS_PER_SLICE: u64 = 7_600;
/// Most locked instructions of a slice, and of a batch besides: locks taken and given back, and
/// changes of counts that threads share.
const LOCKED_PER_SLICE: u64 = 6;
const LOCKED_PER_BATCH: u64 = 80;
/// Allocations of a batch: the list of its requests, which doubles from 16 to 32, its report with
/// the channel that brings it, and the caller's future.
const ALLOCATIONS: [u64; 2] = [5, 6];

/// Less than a drain of a lane takes.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(100);

/// The profile whose cost is counted. Its queue pairs connect out of band.
const COUNTED: &str = "mlx5";
/// Profiles whose queue pairs the connection manager alone connects: eRDMA in standard mode, soft-iWARP and other
/// NICs of iWARP.
const MANAGED: [&str; 3] = ["erdma-standard:retry_ms=2", "siw", "iwarp"];
/// Stories that run on [`COUNTED`] alone, for these reasons.
const OUT_OF_BAND: [(&str, &[&str]); 3] = [
    (
        "a Mooncake node connects out of band alone: one with such a device publishes no key for it",
        &[
            "mixed::changed_grants_leave_mooncake_nodes_a_key",
            "registering::publication_waits_for_no_slow_registration",
        ],
    ),
    (
        "counts of queue pairs without the reads behind writes, which iWARP adds",
        &["slice_allocates_nothing_over_verbs", "two_nics_ring_a_doorbell_for_16_slices"],
    ),
    (
        "a lane ends with its disconnect, which no hold of the step to ERR keeps",
        &["transfer_on_a_lane_that_stays_has_no_report"],
    ),
];
/// The addresses of the devices, in a network of the process's own.
const NETWORK: &str = "ip link set lo up && for host in 1 2 3 4; do \
    ip address add 10.0.0.$host/8 dev lo || exit; done && exec \"$0\" \"$@\"";

/// A process with two devices of each side.
fn devices(profile: &str) -> Process {
    let devices = [("own0", 0), ("own1", 500), ("peer0", 1000), ("peer1", 1500)];
    let device = |(name, from)| match from {
        0 => format!("{name}={profile}"),
        from => format!("{name}={profile}:numbers_from={from}"),
    };
    Process::new(&devices.map(device).join(",")).unwrap()
}

/// The command that runs a story on the devices of a process, in a network with their addresses if the connection
/// manager connects them.
fn story(process: &Process, is_managed: bool, name: &str) -> Command {
    let mut command = if is_managed {
        let mut command = process.program("unshare".as_ref());
        command.args(["-rn", "sh", "-c", NETWORK]).arg(std::env::current_exe().unwrap());
        command
    } else {
        process.again().unwrap()
    };
    command.args([name, "--exact", "--nocapture"]);
    command
}

/// Whether a process can have a network of its own, which the addresses of managed devices need.
fn has_networks() -> bool {
    let ended = Command::new("unshare").args(["-rn", "true"]).status();
    let has = ended.is_ok_and(|ended| ended.success());
    if !has {
        println!("skipped on {}: it needs a network of its own", MANAGED.join(", "));
    }
    has
}

/// An engine that writes to another.
struct Ends {
    runtime: Runtime,
    segment: Segment,
    pieces: Vec<(Span, u64)>,
    _held: Box<dyn std::any::Any>,
}

impl Ends {
    fn start(nics: usize) -> Self {
        let mut workers = tokio::runtime::Builder::new_multi_thread();
        let runtime = workers.worker_threads(1).enable_all().build().unwrap();
        let builder = |side: &str| {
            let rdma = RdmaOptions::default().with(|it| {
                it.devices = (0..nics).map(|nic| format!("{side}{nic}")).collect();
            });
            Engine::builder().transport(TransportChoice::Rdma).rdma(rdma)
        };
        let (segment, pieces, held) = runtime.block_on(async {
            let owner = builder("peer").listen("127.0.0.1:0").start().await.unwrap();
            let memory = Memory::zeroed(MANY * BLOCK).unwrap();
            let served = owner.register("m").access(Access::READ_WRITE).serve(memory.whole());
            let user = builder("own").start().await.unwrap();
            let block = Memory::zeroed(MANY * BLOCK).unwrap();
            let prepared = user.prepare(&block.whole()).await.unwrap();
            let segment = user.open(owner.address()).await.unwrap();
            let piece = |n: usize| (block.span(n * BLOCK, BLOCK).unwrap(), (n * BLOCK) as u64);
            let pieces = (0..MANY).map(piece).collect();
            (segment, pieces, Box::new((owner, user, served.unwrap(), prepared)))
        });
        let ends = Self { runtime, segment, pieces, _held: held };
        let fabric = Fabric::find().unwrap();
        (0..nics).for_each(|nic| drop(fabric.run(&format!("instant own{nic}"))));
        (0..WARM_UP).for_each(|_| ends.batch(MANY));
        ends
    }

    fn batch(&self, requests: usize) {
        let pieces = self.pieces[..requests].iter();
        let batch = pieces.fold(self.segment.batch(), |batch, (span, at)| batch.write(span, *at));
        self.runtime.block_on(async { batch.submit().await.unwrap().await }).unwrap();
    }
}

/// A slice makes no system call, and no more instructions and locked ones than before.
#[test]
fn slice_makes_no_system_call_and_few_instructions() {
    if is_scripted() {
        let ends = Ends::start(1);
        std::thread::sleep(QUIET);
        cost::ready().unwrap();
        // The first batch wakes the threads of the NIC, which do not come.
        ends.batch(FEW);
        cost::mark();
        for requests in STEPPED {
            for _ in 0..2 {
                ends.batch(requests);
                cost::mark();
            }
        }
        return;
    }
    let name = "slice_makes_no_system_call_and_few_instructions";
    let process = devices(COUNTED);
    let costs = match cost::costs(story(&process, false, name), 2) {
        Ok(costs) => costs,
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            return println!("skipped: this machine permits no tracing: {error}");
        }
        Err(error) => panic!("{error}"),
    };
    println!("{costs:?}");
    assert!(costs.iter().all(|it| it.system_calls == 0), "{costs:?}");
    let instructions = costs[1].instructions.saturating_sub(costs[0].instructions);
    let of_slice = instructions / (STEPPED[1] - STEPPED[0]) as u64;
    println!("a slice takes {of_slice} instructions");
    assert!(of_slice <= INSTRUCTIONS_PER_SLICE, "{of_slice}");
    let [few, many] = [0, 1].map(|section: usize| costs[section].locked);
    let of_slice = many.saturating_sub(few) / (STEPPED[1] - STEPPED[0]) as u64;
    let of_batch = few.saturating_sub(of_slice * STEPPED[0] as u64);
    println!("a slice takes {of_slice} locked instructions, and a batch {of_batch} besides");
    assert!(of_slice <= LOCKED_PER_SLICE && of_batch <= LOCKED_PER_BATCH, "{of_slice}, {of_batch}");
}

/// A slice takes no memory, on the thread that submits and waits: only the list of requests grows.
#[test]
fn slice_allocates_nothing_over_verbs() {
    if !is_scripted() {
        return passes("slice_allocates_nothing_over_verbs");
    }
    let ends = Ends::start(1);
    let allocations = |requests| allocation_counter::measure(|| ends.batch(requests)).count_total;
    let most = |requests| (0..WARM_UP).map(|_| allocations(requests)).max().unwrap();
    let (few, many) = (most(FEW), most(MANY));
    println!("allocations of a batch: {few} with {FEW} slices, {many} with {MANY}");
    assert!(few <= ALLOCATIONS[0] && many <= ALLOCATIONS[1], "{few}, {many}");
}

/// Two NICs that are equally near, each with two queue pairs, ring one doorbell for 16 slices.
#[test]
fn two_nics_ring_a_doorbell_for_16_slices() {
    if !is_scripted() {
        return passes("two_nics_ring_a_doorbell_for_16_slices");
    }
    let ends = Ends::start(2);
    let fabric = Fabric::find().unwrap();
    let posts = || -> [u64; 2] {
        let count = |nic| fabric.run(&format!("count own{nic} ibv_post_send")).parse().unwrap();
        [0, 1].map(count)
    };
    // The lane over one NIC may be up before that over the other.
    let both_are_up = (0..BATCHES_UNTIL_UP).any(|_| {
        ends.batch(MANY);
        !posts().contains(&0)
    });
    assert!(both_are_up, "{:?}", posts());
    let before = posts();
    (0..WARM_UP).for_each(|_| ends.batch(MANY));
    let after = posts();
    let doorbells = [0, 1].map(|nic| after[nic] - before[nic]);
    println!("doorbells of {WARM_UP} batches: {doorbells:?}");
    assert!(doorbells.iter().all(|count| *count > 0), "{doorbells:?}");
    assert!(doorbells.iter().sum::<u64>() * 16 <= (WARM_UP * MANY) as u64, "{doorbells:?}");
}

/// A close gives up waiting before the device has ended a lane. The transfer on it ends after the
/// lane, with a report: the device may read the memory until then.
#[test]
fn transfer_that_a_close_ends_outlives_its_lane() {
    if !is_scripted() {
        return passes("transfer_that_a_close_ends_outlives_its_lane");
    }
    let ended = closed(true);
    let report = ended.report().expect("its lane has ended");
    assert!(matches!(report.outcome, BatchOutcome::Failed(_)), "{report:?}");
    assert_eq!(ended.remote(), Some(Remote::Indeterminate));
    let pairs = Fabric::find().unwrap().run("pairs own0");
    let busy = pairs.lines().filter(|pair| !pair.ends_with(" 0")).count();
    assert_eq!(busy, 0, "{pairs}");
}

/// The device never ends the lane: the transfer ends at the limit, without a report.
#[test]
fn transfer_on_a_lane_that_stays_has_no_report() {
    if !is_scripted() {
        return passes("transfer_on_a_lane_that_stays_has_no_report");
    }
    let ended = closed(false);
    assert_eq!(*ended.cause(), Cause::Closed);
    assert!(ended.report().is_none());
    let fabric = Fabric::find().unwrap();
    assert_eq!(fabric.run("waiting own0 ibv_modify_qp(ERR)"), "1");
    release(&fabric);
}

/// Lets the device end its lanes.
fn release(fabric: &Fabric) {
    fabric.run("pass");
    fabric.run("release call own0 ibv_modify_qp(ERR)");
}

/// Closes an engine during a write whose packets and lane the device holds, and returns the end of the
/// write. With `is_released` the device ends the lane after the close.
fn closed(is_released: bool) -> Error {
    let fabric = Fabric::find().unwrap();
    let runtime = Runtime::new().unwrap();
    let builder = |device: &str| {
        let devices = vec![device.to_owned()];
        let rdma = RdmaOptions::default().with(|it| it.devices = devices);
        // A lane that ends has 15 times as long.
        let close_timeout = if is_released { 20 * CLOSE_TIMEOUT } else { CLOSE_TIMEOUT };
        let timing = EngineTiming::default().with(|it| it.close_timeout = close_timeout);
        Engine::builder().transport(TransportChoice::Rdma).rdma(rdma).timing(timing)
    };
    let ended = runtime.block_on(async {
        let owner = builder("peer0").listen("127.0.0.1:0").start().await.unwrap();
        let memory = Memory::zeroed(BLOCK).unwrap();
        let register = owner.register("m").access(Access::READ_WRITE);
        let _served = register.serve(memory.whole()).unwrap();
        let user = builder("own0").start().await.unwrap();
        let block = Memory::zeroed(BLOCK).unwrap();
        let segment = user.open(owner.address()).await.unwrap();
        let write = || segment.batch().write(&block.whole(), 0);
        write().await.unwrap();
        fabric.run("hold packets own0 peer0");
        fabric.run("hold call own0 ibv_modify_qp(ERR)");
        let mut transfer = write().submit().await.unwrap();
        user.close().await;
        let early = tokio::time::timeout(CLOSE_TIMEOUT, &mut transfer).await;
        if is_released {
            release(&fabric);
        }
        match early {
            Ok(ended) => ended.unwrap_err(),
            Err(_) => transfer.await.unwrap_err(),
        }
    });
    // A drop would wait for the call that is held.
    runtime.shutdown_background();
    ended
}

/// Runs a story in a process of its own on each profile.
fn passes(name: &str) {
    passes_on(COUNTED, name);
    let mut reasons = OUT_OF_BAND.iter().filter(|(_, stories)| stories.contains(&name));
    if let Some((why, _)) = reasons.next() {
        println!("skipped on {}: {why}", MANAGED.join(", "));
    } else if has_networks() {
        MANAGED.iter().for_each(|profile| passes_on(profile, name));
    }
}

/// Runs a story in a process with devices of a profile.
fn passes_on(profile: &str, name: &str) {
    let process = devices(profile);
    let output = story(&process, MANAGED.contains(&profile), name).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{profile}: {text}{errors}");
    println!("{profile}: {text}");
}
