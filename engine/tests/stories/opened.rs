//! Memory of devices between two processes of this host, which one of them opens by its driver's handle.
#![allow(unsafe_code)]

use crate::device_memory::Devices;
use crate::helpers::{PATIENCE, content, pattern};
use handfast::{Access, Builder, Engine, Memory, Segment, TransportChoice, TransportKind};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Set for the other process.
const OTHER: &str = "HANDFAST_TEST_OTHER_PROCESS";
/// Two blocks of a device, so that a half has whole ones.
const BYTES: usize = 4 << 20;
/// The answer of a call that fails: `CUDA_ERROR_ILLEGAL_ADDRESS`.
const ILLEGAL_ADDRESS: i32 = 700;

/// The other process: serves memory of a device, or writes into that of the first, by command.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_process_obeys_commands() {
    if std::env::var_os(OTHER).is_none() {
        return;
    }
    let devices = Devices::find().await;
    let _used = devices.use_device(0);
    let engine = shared().start().await.unwrap();
    let memory = devices.memory(0, BYTES);
    let reads = devices.memory(0, BYTES);
    let read_write = || engine.register("cache").access(Access::READ_WRITE);
    let mut served = Some(read_write().serve(memory.whole()).unwrap());
    let half = devices.memory(0, BYTES);
    let register = engine.register("half").access(Access::READ_WRITE);
    let _half = register.serve(half.span(0, BYTES / 2).unwrap()).unwrap();
    let _reads = engine.register("reads").access(Access::READ).serve(reads.whole()).unwrap();
    let mut opened = Vec::new();
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let answer = match line.split_once(' ').unwrap_or((&line, "")) {
            ("address", _) => engine.address().to_string(),
            ("sum", _) => memory.crc32c(0, BYTES).unwrap().to_string(),
            ("drop", _) => {
                drop(served.take());
                until(|| memory.holders() == 1).await;
                "free".to_owned()
            }
            ("write", name) => {
                let segment = engine.open(name).await.unwrap();
                let local = filled(&devices, 1, 6);
                segment.write(&local.whole(), 0).await.unwrap();
                opened.push(segment);
                devices.control.live().opened.to_string()
            }
            ("fail", _) => {
                for call in ["cuIpcCloseMemHandle", "cuMemcpyDtoDAsync"] {
                    devices.control.answer_always(call, ILLEGAL_ADDRESS);
                }
                "failed".to_owned()
            }
            ("try", name) => {
                let segment = engine.open(name).await.unwrap();
                let failed = segment.write(&filled(&devices, 1, 7).whole(), 0).await.is_err();
                format!("{failed} {}", engine.counters().shm.kept)
            }
            (unknown, _) => panic!("{unknown}"),
        };
        writeln!(std::io::stdout(), "\nsaid {answer}").unwrap();
    }
}

/// Lanes over shared memory alone: what is not opened fails.
fn shared() -> Builder {
    Engine::builder().listen("127.0.0.1:0").transport(TransportChoice::Shm)
}

async fn until(mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE);
        sleep(Duration::from_millis(1)).await;
    }
}

fn filled(devices: &Devices, device: i32, seed: u8) -> Memory {
    let memory = devices.memory(device, BYTES);
    memory.copy_in(0, &content(&pattern(BYTES, seed), 0, BYTES)).unwrap();
    memory
}

/// The other process, which ends with this.
struct Other {
    child: Child,
    input: ChildStdin,
    output: Box<dyn Iterator<Item = String> + Send>,
}

impl Other {
    fn start() -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "opened::other_process_obeys_commands", "--nocapture"])
            .env(OTHER, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let output = lines.filter_map(|line| line.strip_prefix("said ").map(str::to_owned));
        let input = child.stdin.take().unwrap();
        Self { child, input, output: Box::new(output) }
    }

    /// Sends it a command, and returns its answer. It blocks the thread.
    fn command(&mut self, line: &str) -> String {
        writeln!(self.input, "{line}").unwrap();
        tokio::task::block_in_place(|| self.output.next()).expect("the other process answers")
    }

    fn sum(&mut self) -> u32 {
        self.command("sum").parse().unwrap()
    }

    async fn segment(&mut self, user: &Engine, name: &str) -> Segment {
        let address = self.command("address");
        user.open(&format!("{address}/{name}")).await.unwrap()
    }

    fn signal(&self, signal: i32) {
        let process = self.child.id() as libc::pid_t;
        // SAFETY: signals the child, which is not reaped before the end of this.
        assert_eq!(unsafe { libc::kill(process, signal) }, 0);
    }

    /// Stops it, and returns once it is stopped.
    fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let (mut status, process) = (0, self.child.id() as libc::pid_t);
        // SAFETY: waits for a state of the child and writes to a local.
        let waited = unsafe { libc::waitpid(process, &raw mut status, libc::WUNTRACED) };
        assert!(waited == process && libc::WIFSTOPPED(status));
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A whole allocation is opened once and copied by the driver, from device to device and through the host,
/// and is closed before its owner has it back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whole_allocation_is_opened_by_its_peer() {
    let devices = Devices::find().await;
    let _used = devices.use_device(0);
    let mut other = Other::start();
    let user = shared().start().await.unwrap();
    let segment = other.segment(&user, "cache").await;
    for (device, seed) in [(1, 3), (0, 4)] {
        let local = filled(&devices, device, seed);
        segment.write(&local.whole(), 0).await.unwrap();
        assert_eq!(other.sum(), local.crc32c(0, BYTES).unwrap());
        let back = devices.memory(device, BYTES);
        segment.read(&back.span(5, BYTES - 9).unwrap(), 9).await.unwrap();
        assert_eq!(content(&back, 5, BYTES - 9), content(&local, 9, BYTES - 9));
    }
    let host = pattern(BYTES, 5);
    segment.write(&host.whole(), 0).await.unwrap();
    assert_eq!(other.sum(), host.crc32c(0, BYTES).unwrap());
    assert_eq!(segment.transport_kind(), Some(TransportKind::Shm));
    let shm = user.counters().shm;
    assert!(shm.opened == 1 && shm.staged == 0 && shm.rerouted == 0, "{shm:?}");
    assert_eq!(shm.opened_bytes, (5 * BYTES - 18) as u64);
    assert_eq!(devices.control.live().opened, 1);
    assert!(user.fallbacks().is_empty(), "{:?}", user.fallbacks());
    assert_eq!(other.command("drop"), "free");
    assert_eq!(devices.control.live().opened, 0, "it is closed before its owner has it back");
    segment.write(&host.whole(), 0).await.unwrap_err();
    user.close().await;
}

/// A half of an allocation, one to be read alone, and one on a device that the process does not use are staged
/// over the lane below, and each counts once and has its reason reported.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_regions_are_staged_for_a_reason() {
    let devices = Devices::find().await;
    let mut other = Other::start();
    let user = Engine::builder().listen("127.0.0.1:0").start().await.unwrap();
    let target = devices.memory(1, BYTES / 2);
    for (number, name) in (1..).zip(["half", "reads", "cache"]) {
        let segment = other.segment(&user, name).await;
        let started = Instant::now();
        // The first transfers may end before the channel is there.
        while user.counters().shm.staged < number {
            segment.read(&target.whole(), 0).await.unwrap();
            assert!(started.elapsed() < PATIENCE, "{:?}", user.counters().shm);
        }
        segment.read(&target.whole(), 0).await.unwrap();
        assert_eq!(content(&target, 0, BYTES / 2), vec![0; BYTES / 2]);
    }
    let shm = user.counters().shm;
    assert_eq!((shm.staged, shm.opened, shm.opened_bytes), (3, 0, 0), "{shm:?}");
    // A region counts as staged before its reason is reported.
    for reason in ["not one whole allocation", "not both read and write", "no context on"] {
        until(|| user.fallbacks().iter().any(|it| it.to_string().contains(reason))).await;
    }
    user.close().await;
}

/// A copy that the driver fails ends a read with the driver's call, and a write as one that may have landed;
/// the lane, or a later one, carries the next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_copy_names_the_call_of_the_driver() {
    let devices = Devices::find().await;
    let _used = devices.use_device(0);
    let mut other = Other::start();
    let user = shared().start().await.unwrap();
    let segment = other.segment(&user, "cache").await;
    let local = filled(&devices, 1, 3);
    segment.write(&local.whole(), 0).await.unwrap();
    devices.control.answer("cuMemcpyDtoDAsync", ILLEGAL_ADDRESS);
    let failed = segment.read(&local.whole(), 0).await.unwrap_err();
    assert!(failed.to_string().contains("cuMemcpyDtoDAsync"), "{failed}");
    let second = filled(&devices, 1, 4);
    devices.control.answer("cuMemcpyDtoDAsync", ILLEGAL_ADDRESS);
    // Another lane carries it, or its error names the call.
    if let Err(failed) = segment.write(&second.whole(), 0).await {
        assert!(failed.to_string().contains("cuMemcpyDtoDAsync"), "{failed}");
    }
    segment.write(&second.whole(), 0).await.unwrap();
    assert_eq!(other.sum(), second.crc32c(0, BYTES).unwrap());
    user.close().await;
}

/// An owner that is killed during a copy takes nothing of the user along: the copy ends, what was open is
/// closed, and later transfers fail.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_owner_is_let_go() {
    let devices = Devices::find().await;
    let _used = devices.use_device(0);
    let mut other = Other::start();
    let user = shared().start().await.unwrap();
    let segment = other.segment(&user, "cache").await;
    let local = filled(&devices, 1, 3);
    segment.write(&local.whole(), 0).await.unwrap();
    assert_eq!(devices.control.live().opened, 1);
    devices.control.hold(true);
    let (held, of) = (segment.clone(), local.clone());
    let write = tokio::spawn(async move { held.write(&of.whole(), 0).await });
    devices.until_copying(1).await;
    other.signal(libc::SIGKILL);
    other.child.wait().unwrap();
    devices.control.hold(false);
    // Its bytes are in memory that nobody else has, or it has failed.
    let _ = write.await.unwrap();
    until(|| devices.control.live().opened == 0).await;
    segment.write(&local.whole(), 0).await.unwrap_err();
    user.close().await;
}

/// Memory that a stopped process has open stays with it after the end of the registration, and comes back
/// when the process continues, or is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_peer_keeps_what_it_has_open() {
    let devices = Devices::find().await;
    for is_killed in [false, true] {
        let mut other = Other::start();
        let owner = shared().start().await.unwrap();
        let memory = devices.memory(0, BYTES);
        let register = owner.register("cache").access(Access::READ_WRITE);
        let served = register.serve(memory.whole()).unwrap();
        let opened = other.command(&format!("write {}/cache", owner.address()));
        assert_eq!(opened, "1");
        assert_eq!(content(&memory, 0, BYTES), content(&pattern(BYTES, 6), 0, BYTES));
        other.stop();
        drop(served);
        sleep(Duration::from_millis(50)).await;
        assert!(memory.holders() > 1, "a stopped process has it open");
        other.signal(if is_killed { libc::SIGKILL } else { libc::SIGCONT });
        until(|| memory.holders() == 1).await;
        owner.close().await;
    }
}

/// A peer whose driver fails for ever closes nothing. The owner keeps that memory until the peer's process ends, and
/// nothing else: its lane to the peer ends, and later ones carry its writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peer_that_cannot_close_keeps_the_memory_alone() {
    let devices = Devices::find().await;
    let _used = devices.use_device(0);
    let mut other = Other::start();
    let owner = shared().start().await.unwrap();
    let memory = devices.memory(0, BYTES);
    let served = owner.register("cache").access(Access::READ_WRITE).serve(memory.whole()).unwrap();
    assert_eq!(other.command(&format!("write {}/cache", owner.address())), "1");
    assert_eq!(other.command("fail"), "failed");
    // The write ends its lane, whose end closes the allocation.
    let tried = other.command(&format!("try {}/cache", owner.address()));
    assert!(tried.starts_with("true"), "{tried}");
    drop(served);
    until(|| owner.counters().shm.held == 1).await;
    let segment = other.segment(&owner, "cache").await;
    let local = filled(&devices, 1, 3);
    let started = Instant::now();
    while let Err(failed) = segment.write(&local.whole(), 0).await {
        assert!(started.elapsed() < PATIENCE, "{failed}");
    }
    assert_eq!(other.sum(), local.crc32c(0, BYTES).unwrap());
    assert!(memory.holders() > 1, "the peer has it open");
    other.signal(libc::SIGKILL);
    other.child.wait().unwrap();
    until(|| memory.holders() == 1).await;
    owner.close().await;
}
