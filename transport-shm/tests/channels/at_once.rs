//! A batch that is copied within its submission, and whose process is stopped or killed between two of
//! its requests.

use crate::processes::{KEY, REUSED, Spoken, WRITTEN, say};
use crate::support::{Node, Setup, wait_until};
use handfast_core::wire::Body;
use handfast_core::{Incarnation, Lifecycle, Pair};
use handfast_transport::{Access, AtOnce, DataPath, Direction, Memory, RemoteSpan};
use std::cell::Cell;
use std::io::Write;

/// Set for the child.
const CHILD: &str = "HANDFAST_TEST_AT_ONCE";
/// Bytes of a request, and of the two of the batch.
const REQUEST: usize = 64 << 10;
const BYTES: usize = 2 * REQUEST;
/// Time at which the batch looks at its second request to copy it; it has looked twice to begin.
const TO_COPY: u32 = 3;

/// The process of the initiator: stops itself between the two requests of a batch.
#[test]
fn initiator_copies_at_once_for_a_parent() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let node = Node::start(1, &Setup::default());
    let body = runtime.block_on(node.create());
    say(&mut std::io::stdout(), &body.shared_memory.clone().unwrap());
    let mut lines = std::io::stdin().lines();
    let mut line = || lines.next().unwrap().unwrap();
    let theirs = Body { shared_memory: Some(line().into()), ..body };
    let address: u64 = line().parse().unwrap();
    let owner = Pair { incarnation: Incarnation(2), lifecycle: Lifecycle(12) };
    runtime.block_on(node.connect(owner, theirs)).unwrap();
    wait_until(|| node.transport.is_shared(node.pair.lifecycle));
    // A slice maps the region.
    let byte = Memory::zeroed(1).unwrap();
    assert_eq!(node.transfer(Direction::Read, byte.whole(), KEY, address), crate::DONE);
    let here = Memory::zeroed(BYTES).unwrap();
    here.copy_in(0, &[WRITTEN; BYTES]).unwrap();
    let halves = [0, 1].map(|half| here.span(half * REQUEST, REQUEST).unwrap());
    let looks = Cell::new(0);
    let request = |number: usize| {
        if number == 1 {
            looks.set(looks.get() + 1);
            if looks.get() == TO_COPY {
                // SAFETY: stops this process, until its parent continues or kills it.
                unsafe { libc::raise(libc::SIGSTOP) };
            }
        }
        let remote = RemoteSpan { key: KEY, address: address + (number * REQUEST) as u64 };
        (Direction::Write, &halves[number], remote)
    };
    let handle = node.transport.handle(node.pair.lifecycle).unwrap();
    assert_eq!(handle.copy_at_once(2, &request), AtOnce::Copied);
    say(&mut std::io::stdout(), "copied");
    // The region is gone: nothing of a second batch begins.
    wait_until(|| handle.copy_at_once(1, &request) == AtOnce::NotBegun);
    say(&mut std::io::stdout(), "refused");
    line();
}

/// An owner, and the child that is stopped in the middle of its batch.
struct Story {
    owner: Node,
    memory: Memory,
    spoken: Spoken,
}

impl Story {
    fn start(runtime: &tokio::runtime::Runtime) -> Self {
        let owner = Node::start(2, &Setup::default());
        let memory = Memory::shared(BYTES).unwrap();
        let address = owner.serve(&memory, Access::READ_WRITE, KEY).address();
        let mut spoken =
            Spoken::start("at_once::initiator_copies_at_once_for_a_parent", CHILD, "1");
        let theirs = spoken.output.next().unwrap();
        let body = runtime.block_on(owner.create());
        writeln!(spoken.input, "{}\n{address}", body.shared_memory.clone().unwrap()).unwrap();
        let initiator = Pair { incarnation: Incarnation(1), lifecycle: Lifecycle(11) };
        let theirs = Body { shared_memory: Some(theirs.into()), ..body };
        runtime.block_on(owner.connect(initiator, theirs)).unwrap();
        let story = Self { owner, memory, spoken };
        story.await_stop();
        story
    }

    /// Waits until the child has stopped itself.
    fn await_stop(&self) {
        let (process, mut status) = (self.process(), 0);
        // SAFETY: waits for a state of the child and writes to a local.
        let waited = unsafe { libc::waitpid(process, &raw mut status, libc::WUNTRACED) };
        assert!(waited == process && libc::WIFSTOPPED(status), "{status}");
    }

    fn process(&self) -> libc::pid_t {
        self.spoken.child.id() as libc::pid_t
    }

    fn signal(&self, signal: i32) {
        // SAFETY: signals the child, which is not reaped before the story ends.
        assert_eq!(unsafe { libc::kill(self.process(), signal) }, 0);
    }

    /// Checks the bytes of both requests.
    fn has(&self, bytes: [u8; 2]) {
        let mut found = vec![0; BYTES];
        self.memory.copy_out(0, &mut found).unwrap();
        for (half, byte) in found.chunks(REQUEST).zip(bytes) {
            assert!(half.iter().all(|found| *found == byte), "{byte:#x}");
        }
    }

    /// Unregisters the region while the child is stopped: it keeps the memory.
    fn unregister(&self) {
        self.has([WRITTEN, 0]);
        drop(self.owner.regions.unregister(KEY));
        assert!(self.memory.holders() > 1, "a stopped process has not let go");
    }

    /// Gives the memory another use.
    fn reuse(&self) {
        self.memory.copy_in(0, &[REUSED; BYTES]).unwrap();
    }
}

/// The memory of a batch that is stopped in its middle stays with the initiator until that continues:
/// both requests are there when it is back, and nothing lands after.
#[test]
fn stopped_batch_keeps_memory_until_it_continues() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut story = Story::start(&runtime);
    story.unregister();
    story.signal(libc::SIGCONT);
    wait_until(|| story.memory.holders() == 1);
    story.has([WRITTEN, WRITTEN]);
    story.reuse();
    assert_eq!(story.spoken.output.next().as_deref(), Some("copied"));
    assert_eq!(story.spoken.output.next().as_deref(), Some("refused"));
    writeln!(story.spoken.input, "end").unwrap();
    assert!(story.spoken.child.wait().unwrap().success());
    story.has([REUSED, REUSED]);
}

/// The memory of a batch whose process is killed in its middle comes back at the death, with the bytes
/// of the first request, and nothing lands after.
#[test]
fn killed_batch_gives_memory_back() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut story = Story::start(&runtime);
    story.unregister();
    story.signal(libc::SIGKILL);
    wait_until(|| story.memory.holders() == 1);
    story.has([WRITTEN, 0]);
    story.reuse();
    story.spoken.child.wait().unwrap();
    story.has([REUSED, REUSED]);
}
