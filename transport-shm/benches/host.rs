//! Speed of copies through a channel, next to memcpy between two maps and calls of the kernel, in turns.
//! Lines are ratios and medians; the process is owner and initiator at once.
#![allow(unsafe_code, reason = "the limits are raw copies")]
#![allow(clippy::float_arithmetic, reason = "ratios in a report")]

#[path = "../tests/channels/support.rs"]
#[allow(dead_code, reason = "shared with the tests")]
mod support;

use handfast_transport::{Access, DataPath, Direction, LaneHandle, Memory, Posting, RemoteSpan};
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{Node, Setup, nodes};

/// Bytes of the memory that copies go through in turn.
const BLOCK: usize = 32 << 20;
const ROUNDS: usize = 40;
const TIME: Duration = Duration::from_millis(15);
const KEY: u64 = 5;

/// One workload: bytes of a slice, slices posted together, threads.
struct Load {
    bytes: usize,
    batch: usize,
    threads: usize,
}

fn main() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (first, second) = runtime.block_on(nodes(&Setup::default()));
    let there = Memory::shared(BLOCK).unwrap();
    let here = Memory::shared(BLOCK).unwrap();
    let raw = Memory::of_peer(there.descriptor(true).unwrap().unwrap(), true, BLOCK).unwrap();
    for memory in [&here, &raw] {
        memory.copy_in(0, &vec![7; BLOCK]).unwrap();
    }
    let region = second.serve(&there, Access::READ_WRITE, KEY);
    let foreign = Memory::zeroed(BLOCK).unwrap();
    foreign.copy_in(0, &vec![7; BLOCK]).unwrap();
    let foreign_region = second.serve(&foreign, Access::READ_WRITE, KEY + 1);
    first.write(here.span(0, 4096).unwrap(), &region);
    first.write(here.span(0, 4096).unwrap(), &foreign_region);
    let handle = first.transport.handle(first.pair.lifecycle).unwrap();
    let ours = Ours { node: &first, handle, here: &here };
    latency(&ours, &raw, region.address());
    let loads =
        [(4 << 10, 1), (4 << 10, 32), (64 << 10, 1), (64 << 10, 32), (1 << 20, 1), (1 << 20, 32)];
    for threads in [1, 4] {
        for (bytes, batch) in loads {
            let load = Load { bytes, batch, threads };
            let mapped = compare(
                &load,
                |at| ours.write(&load, at, KEY, region.address()),
                |at| raw_copy(&load, &here, &raw, at),
            );
            let by_calls = compare(
                &load,
                |at| ours.write(&load, at, KEY + 1, foreign_region.address()),
                |at| raw_call(&load, &here, &foreign, at),
            );
            println!(
                "{bytes:>8} x {batch:<2} threads {threads}: {:.2} GiB/s, {:.2} of memcpy; foreign \
                 {:.2} GiB/s, {:.2} of process_vm_writev",
                mapped.0, mapped.1, by_calls.0, by_calls.1
            );
        }
    }
}

struct Ours<'a> {
    node: &'a Node,
    handle: Arc<dyn LaneHandle>,
    here: &'a Memory,
}

impl Ours<'_> {
    fn write(&self, load: &Load, at: usize, key: u64, address: u64) {
        let mut postings: Vec<_> = (0..load.batch)
            .map(|number| {
                let offset = place(load, at + number);
                Posting {
                    slice: self.node.next_slice(),
                    direction: Direction::Write,
                    span: self.here.span(offset, load.bytes).unwrap(),
                    remote: RemoteSpan { key, address: address + offset as u64 },
                    memory: None,
                }
            })
            .collect();
        let slices: Vec<_> = postings.iter().map(|posting| posting.slice).collect();
        self.handle.post(&mut postings);
        self.handle.advance();
        for slice in slices.into_iter().rev() {
            self.node.sink.ended(slice);
        }
    }
}

fn place(load: &Load, number: usize) -> usize {
    (number * load.bytes) % BLOCK
}

fn raw_copy(load: &Load, here: &Memory, there: &Memory, at: usize) {
    for number in 0..load.batch {
        let offset = place(load, at + number);
        let [from, to] = [here, there].map(|it| it.span(offset, load.bytes).unwrap());
        let [Some(from), Some(to)] = [from.host_ptr(), to.host_ptr()] else {
            unreachable!("both are in host memory")
        };
        // SAFETY: both blocks have the bytes, and no reference to them exists.
        unsafe { ptr::copy_nonoverlapping(from, to, load.bytes) };
    }
}

fn raw_call(load: &Load, here: &Memory, there: &Memory, at: usize) {
    for number in 0..load.batch {
        let offset = place(load, at + number) as u64;
        let piece = |address: u64| libc::iovec {
            iov_base: ptr::without_provenance_mut((address + offset) as usize),
            iov_len: load.bytes,
        };
        let (ours, theirs) = (piece(here.address()), piece(there.address()));
        // SAFETY: both blocks have the bytes, and no reference to them exists.
        let copied = unsafe {
            libc::process_vm_writev(libc::getpid(), &raw const ours, 1, &raw const theirs, 1, 0)
        };
        assert_eq!(copied, load.bytes as isize);
    }
}

/// Runs both in turns and returns the median speed of the first, and of its ratio to the second.
fn compare(load: &Load, ours: impl Fn(usize) + Sync, limit: impl Fn(usize) + Sync) -> (f64, f64) {
    let (mut speeds, mut ratios) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (one, other) = (speed(load, &ours), speed(load, &limit));
        speeds.push(one);
        ratios.push(one / other);
    }
    (median(&mut speeds), median(&mut ratios))
}

fn speed(load: &Load, act: &(impl Fn(usize) + Sync)) -> f64 {
    let begun = Instant::now();
    let done: usize = std::thread::scope(|scope| {
        let run = |thread: usize| {
            let mut count = 0;
            while begun.elapsed() < TIME {
                act(thread * 1_000 + count * load.batch);
                count += 1;
            }
            count
        };
        let threads: Vec<_> =
            (0..load.threads).map(|thread| scope.spawn(move || run(thread))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    let bytes = (done * load.batch * load.bytes) as f64;
    bytes / begun.elapsed().as_secs_f64() / f64::from(1_u32 << 30)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The time of single writes of 4 KiB from the posting to the completion, next to memcpy's.
fn latency(ours: &Ours<'_>, raw: &Memory, address: u64) {
    let load = Load { bytes: 4 << 10, batch: 1, threads: 1 };
    let (mut mine, mut limit) = (Vec::new(), Vec::new());
    for at in 0..40_000 {
        let begun = Instant::now();
        ours.write(&load, at, KEY, address);
        mine.push(begun.elapsed().as_nanos() as u64);
        let begun = Instant::now();
        raw_copy(&load, ours.here, raw, at);
        limit.push(begun.elapsed().as_nanos() as u64);
    }
    mine.sort_unstable();
    limit.sort_unstable();
    let of = |times: &[u64], percent: usize| times[times.len() * percent / 100];
    println!(
        "4096 alone: p50 {} ns, p99 {} ns; memcpy p50 {} ns, p99 {} ns",
        of(&mine, 50),
        of(&mine, 99),
        of(&limit, 50),
        of(&limit, 99)
    );
}
