//! An initiator in a process of its own that is stopped or killed while it copies.

use crate::support::{Node, Setup, wait_until};
use handfast_core::wire::Body;
use handfast_core::{Incarnation, Lifecycle, Pair};
use handfast_transport::{Access, Direction, Memory};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

/// Set for the child.
const CHILD: &str = "HANDFAST_TEST_INITIATOR";
const BYTES: usize = 8 << 20;
pub(crate) const KEY: u64 = 5;
/// The byte that the child writes, and the one of a later use of the memory.
pub(crate) const WRITTEN: u8 = 0xC5;
pub(crate) const REUSED: u8 = 0x3A;

/// The process of the initiator: writes to the parent's region until it is refused.
#[test]
fn initiator_writes_for_a_parent() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let node = Node::start(1, &Setup::default());
    let body = runtime.block_on(node.create());
    say(&mut std::io::stdout(), &body.shared_memory.clone().unwrap());
    let mut lines = std::io::stdin().lock().lines();
    let mut line = || lines.next().unwrap().unwrap();
    let theirs = Body { shared_memory: Some(line().into()), ..body };
    let address: u64 = line().parse().unwrap();
    let owner = Pair { incarnation: Incarnation(2), lifecycle: Lifecycle(12) };
    runtime.block_on(node.connect(owner, theirs)).unwrap();
    wait_until(|| node.transport.is_shared(node.pair.lifecycle));
    let here = Memory::zeroed(BYTES).unwrap();
    here.copy_in(0, &vec![WRITTEN; BYTES]).unwrap();
    while node.posted_below() == 0 {
        node.transfer(Direction::Write, here.whole(), KEY, address);
    }
    say(&mut std::io::stdout(), "refused");
    // The parent ends it, so that its maps would stay if it had any.
    line();
}

pub(crate) fn say(to: &mut impl Write, line: &str) {
    // The test's own output shares the stream.
    writeln!(to, "\nsaid {line}").unwrap();
    to.flush().unwrap();
}

/// A process of this program, and what it says.
pub(crate) struct Spoken {
    pub(crate) child: Child,
    pub(crate) input: ChildStdin,
    pub(crate) output: Box<dyn Iterator<Item = String>>,
}

impl Spoken {
    pub(crate) fn start(test: &str, variable: &str, value: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(variable, value)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let output = lines.filter_map(|line| line.strip_prefix("said ").map(str::to_owned));
        let input = child.stdin.take().unwrap();
        Self { child, input, output: Box::new(output) }
    }
}

/// An owner, and the child that writes to its region.
struct Story {
    owner: Node,
    memory: Memory,
    child: Child,
    input: ChildStdin,
    output: Box<dyn Iterator<Item = String>>,
}

impl Story {
    fn start(runtime: &tokio::runtime::Runtime) -> Self {
        let owner = Node::start(2, &Setup::default());
        let memory = Memory::shared(BYTES).unwrap();
        let address = owner.serve(&memory, Access::READ_WRITE, KEY).address();
        let Spoken { child, mut input, mut output } =
            Spoken::start("processes::initiator_writes_for_a_parent", CHILD, "1");
        let theirs = output.next().unwrap();
        let body = runtime.block_on(owner.create());
        writeln!(input, "{}\n{address}", body.shared_memory.clone().unwrap()).unwrap();
        let initiator = Pair { incarnation: Incarnation(1), lifecycle: Lifecycle(11) };
        let theirs = Body { shared_memory: Some(theirs.into()), ..body };
        runtime.block_on(owner.connect(initiator, theirs)).unwrap();
        let story = Self { owner, memory, child, input, output };
        wait_until(|| story.first() == WRITTEN);
        story
    }

    fn first(&self) -> u8 {
        let mut byte = [0];
        self.memory.copy_out(0, &mut byte).unwrap();
        byte[0]
    }

    fn signal(&self, signal: i32) {
        let process = self.child.id() as libc::pid_t;
        // SAFETY: signals the child, which is not reaped before the story ends.
        assert_eq!(unsafe { libc::kill(process, signal) }, 0);
    }

    /// Stops the child, and returns once it is stopped.
    fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let mut status = 0;
        let process = self.child.id() as libc::pid_t;
        // SAFETY: waits for a state of the child and writes to a local.
        let waited = unsafe { libc::waitpid(process, &raw mut status, libc::WUNTRACED) };
        assert!(waited == process && libc::WIFSTOPPED(status));
    }

    /// Unregisters the region while the child is stopped: it keeps the memory.
    fn unregister(&self) {
        drop(self.owner.regions.unregister(KEY));
        assert!(self.memory.holders() > 1, "a stopped process has not let go");
        std::thread::sleep(Duration::from_millis(50));
        assert!(self.memory.holders() > 1, "nor does it with time");
    }

    /// Gives the memory another use once it is back, and checks that nothing else is written to it.
    fn reuse(&self) {
        wait_until(|| self.memory.holders() == 1);
        self.memory.copy_in(0, &vec![REUSED; BYTES]).unwrap();
    }

    fn check_reused(&self) {
        let mut bytes = vec![0; BYTES];
        self.memory.copy_out(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == REUSED), "nothing lands after the memory is back");
    }
}

/// A stopped initiator keeps the memory it was writing. It comes back when the process continues and
/// has finished its piece, and nothing lands after that.
#[test]
fn stopped_initiator_keeps_memory_until_it_continues() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut story = Story::start(&runtime);
    story.stop();
    story.unregister();
    story.signal(libc::SIGCONT);
    story.reuse();
    assert_eq!(story.output.next().as_deref(), Some("refused"));
    story.check_reused();
    writeln!(story.input, "end").unwrap();
    assert!(story.child.wait().unwrap().success());
}

/// The memory of an initiator that is killed while it is stopped in a copy comes back at its death.
#[test]
fn killed_initiator_gives_memory_back() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut story = Story::start(&runtime);
    story.stop();
    story.unregister();
    story.signal(libc::SIGKILL);
    story.reuse();
    story.child.wait().unwrap();
    story.check_reused();
    let retired = story.owner.transport.clone();
    let lane = story.owner.pair.lifecycle;
    runtime.block_on(handfast_transport::Endpoints::retire(&retired, lane)).unwrap();
}

/// A lane to a stopped process does not retire: its memory could still be written. It does once the
/// process is dead.
#[test]
fn lane_to_a_stopped_process_stays() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut story = Story::start(&runtime);
    story.stop();
    let (transport, lane) = (story.owner.transport.clone(), story.owner.pair.lifecycle);
    let retire = || runtime.block_on(handfast_transport::Endpoints::retire(&transport, lane));
    let error = retire().unwrap_err();
    assert!(error.detail.contains("stopped"), "{error}");
    story.signal(libc::SIGKILL);
    retire().unwrap();
    story.child.wait().unwrap();
    drop(story.input);
}

/// Set for a child that owns memory, to its kind.
const OWNER: &str = "HANDFAST_TEST_OWNER";

/// The process of an owner: serves memory to its parent until that ends it.
#[test]
fn owner_serves_a_parent() {
    let Some(kind) = std::env::var_os(OWNER) else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let node = Node::start(2, &Setup::default());
    let memory = match kind == "shared" {
        true => Memory::shared(BYTES).unwrap(),
        false => Memory::zeroed(BYTES).unwrap(),
    };
    memory.copy_in(0, &vec![WRITTEN; BYTES]).unwrap();
    let address = node.serve(&memory, Access::READ_WRITE, KEY).address();
    let body = runtime.block_on(node.create());
    say(&mut std::io::stdout(), &body.shared_memory.clone().unwrap());
    say(&mut std::io::stdout(), &address.to_string());
    let mut lines = std::io::stdin().lock().lines();
    let theirs = lines.next().unwrap().unwrap();
    let theirs = Body { shared_memory: Some(theirs.into()), ..body };
    let initiator = Pair { incarnation: Incarnation(1), lifecycle: Lifecycle(11) };
    runtime.block_on(node.connect(initiator, theirs)).unwrap();
    // The parent ends this process.
    lines.next();
}

/// An owner that is killed in the middle of copies takes nothing of the initiator with it: a read that
/// completes has the owner's bytes, the slices after it take the lane below, and the lane retires.
#[test]
fn killed_owner_ends_copies_in_order() {
    for kind in ["shared", "private"] {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let node = Node::start(1, &Setup::default());
        let body = runtime.block_on(node.create());
        let Spoken { mut child, mut input, mut output } =
            Spoken::start("processes::owner_serves_a_parent", OWNER, kind);
        let theirs = Some(output.next().unwrap().into());
        let address: u64 = output.next().unwrap().parse().unwrap();
        writeln!(input, "{}", body.shared_memory.clone().unwrap()).unwrap();
        let owner = Pair { incarnation: Incarnation(2), lifecycle: Lifecycle(12) };
        let theirs = Body { shared_memory: theirs, ..body };
        runtime.block_on(node.connect(owner, theirs)).unwrap();
        wait_until(|| node.transport.is_shared(node.pair.lifecycle));
        let here = Memory::zeroed(BYTES).unwrap();
        let mut bytes = vec![0; BYTES];
        let mut completed = 0_u64;
        let process = child.id() as libc::pid_t;
        std::thread::scope(|scope| {
            while node.posted_below() == 0 {
                if completed == 3 {
                    // SAFETY: signals the child, which is not reaped before the end of the test.
                    scope.spawn(move || {
                        assert_eq!(unsafe { libc::kill(process, libc::SIGKILL) }, 0)
                    });
                }
                here.copy_in(0, &vec![REUSED; BYTES]).unwrap();
                let ended = node.transfer(Direction::Read, here.whole(), KEY, address);
                if ended == crate::DONE {
                    completed += 1;
                    here.copy_out(0, &mut bytes).unwrap();
                    assert!(bytes.iter().all(|byte| *byte == WRITTEN), "{kind}");
                }
            }
        });
        assert!(completed >= 3, "{kind}: the owner lived until then");
        let lane = node.pair.lifecycle;
        runtime.block_on(handfast_transport::Endpoints::retire(&node.transport, lane)).unwrap();
        child.wait().unwrap();
    }
}

/// A forked child has the sockets of a channel. What it drops ends nothing for its parent, whose lane
/// goes on and retires while the child lives.
#[test]
fn forked_child_ends_no_channel() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let directory = std::env::temp_dir().join(format!("handfast-fork-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let setup = Setup { directory: Some(directory.clone()), ..Setup::default() };
    let (first, second) = runtime.block_on(crate::support::nodes(&setup));
    let there = Memory::shared(4_096).unwrap();
    let region = second.serve(&there, Access::READ_WRITE, KEY);
    let here = Memory::zeroed(4_096).unwrap();
    assert_eq!(first.write(here.whole(), &region), crate::DONE);
    let sockets = || std::fs::read_dir(&directory).unwrap().count();
    assert_eq!(sockets(), 2);
    let (mut dropped, mut drops) = std::os::unix::net::UnixStream::pair().unwrap();
    // SAFETY: the child drops a node, which does nothing there, and waits for its end.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: the child never uses the original.
        drop(unsafe { std::ptr::read(&raw const first) });
        drops.write_all(&[1]).unwrap();
        loop {
            // SAFETY: waits for a signal.
            unsafe { libc::pause() };
        }
    }
    assert!(child > 0);
    dropped.read_exact(&mut [0]).unwrap();
    here.copy_in(0, &[WRITTEN; 4_096]).unwrap();
    assert_eq!(first.write(here.whole(), &region), crate::DONE);
    assert_eq!((sockets(), first.posted_below()), (2, 0));
    for node in [&first, &second] {
        let retired = handfast_transport::Endpoints::retire(&node.transport, node.pair.lifecycle);
        runtime.block_on(retired).unwrap();
    }
    drop(region);
    second.regions.unregister(KEY);
    wait_until(|| there.holders() == 1);
    // SAFETY: ends the child, which is not reaped before.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    drop((first, second));
    std::fs::remove_dir_all(&directory).unwrap();
}
