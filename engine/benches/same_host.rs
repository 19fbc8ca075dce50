//! Speed of transfers between two processes of this host, next to copies of as many bytes between two
//! maps and to calls of the kernel, in turns. The owner of the memory is a second process of this program.
//!
//! Prints a line of JSON. Each figure is the median of the rounds' own. No two copies in turn touch the
//! same bytes: the second would find them in the caches.
#![allow(unsafe_code, reason = "the limits are raw copies")]
#![allow(clippy::disallowed_types, clippy::float_arithmetic, reason = "it measures time")]

use handfast::{Access, Direction, Engine, Memory, Segment, Span, TransportChoice, TransportKind};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::ptr;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// Set for the process of the owner.
const OWNER: &str = "HANDFAST_BENCH_OWNER";
/// Bytes of each block, which copies go through in turn.
const BLOCK: usize = 32 << 20;
const LOADS: [(usize, usize); 6] =
    [(4 << 10, 1), (4 << 10, 32), (64 << 10, 1), (64 << 10, 32), (1 << 20, 1), (1 << 20, 32)];
/// Measurements of a load, and the time of each.
const ROUNDS: usize = 32;
const TIME: Duration = Duration::from_millis(8);
/// Rounds of single writes, and the writes of each.
const ALONE_ROUNDS: usize = 21;
const ALONE: usize = 4_000;
/// New peers for the first transfer.
const FIRST_TRANSFERS: usize = 41;
const FIRST_BYTES: usize = 4 << 10;
/// Most writes until a lane copies.
const WRITES_MAX: usize = 100_000;

fn main() {
    let runtime = Runtime::new().expect("a runtime");
    if std::env::var_os(OWNER).is_some() {
        return runtime.block_on(own());
    }
    let owner = Owner::start();
    let user = runtime.block_on(user(TransportChoice::Auto));
    let open = |name: &str| runtime.block_on(copying(&user, &owner, name));
    let limit = Memory::shared(BLOCK).expect("memory");
    let limit = Memory::of_peer(descriptor(&limit), true, BLOCK).expect("a map of it");
    let ends = Ends {
        runtime: &runtime,
        here: touched(user.allocate(BLOCK).expect("memory")).whole(),
        limit: touched(limit).whole(),
        shared: open("shared"),
        private: open("private"),
        process: owner.process.id() as libc::pid_t,
        private_address: owner.private_address,
    };
    let alone = ends.alone();
    let before = (owner.processor_time(), Instant::now());
    let rows: Vec<Value> = [1, 4]
        .into_iter()
        .flat_map(|threads| LOADS.map(|(bytes, batch)| Load { bytes, batch, threads }))
        .flat_map(|load| [Direction::Write, Direction::Read].map(|way| ends.row(&load, way)))
        .collect();
    let spent = owner.processor_time().saturating_sub(before.0);
    let share = spent.as_secs_f64() / before.1.elapsed().as_secs_f64();
    let first = |choice| runtime.block_on(first_transfers(&owner.address, choice));
    let result = json!({ "same_host": {
        "alone": alone,
        "rows": rows,
        "owner_processor_share": share,
        "huge_page_bytes": owner.huge_page_bytes,
        "first_transfer_us": {
            "shm": first(TransportChoice::Shm),
            "auto": first(TransportChoice::Auto),
        },
    }});
    println!("{result}");
}

async fn user(choice: TransportChoice) -> Engine {
    Engine::builder().transport(choice).start().await.expect("an engine")
}

fn descriptor(memory: &Memory) -> std::os::fd::OwnedFd {
    memory.descriptor(true).expect("a descriptor").expect("shared memory")
}

fn touched(memory: Memory) -> Memory {
    memory.copy_in(0, &vec![7; memory.len()]).expect("its own length");
    memory
}

/// Serves memory until its standard input ends.
async fn own() {
    let engine = Engine::builder().listen("127.0.0.1:0").start().await.expect("an engine");
    let shared = touched(engine.allocate(BLOCK).expect("memory"));
    let private = touched(Memory::zeroed(BLOCK).expect("memory"));
    let served = [("shared", &shared), ("private", &private)].map(|(name, memory)| {
        let region = engine.register(name).access(Access::READ_WRITE);
        region.serve(memory.whole()).expect("a region")
    });
    let huge = shared.huge_page_bytes().expect("a report of the kernel");
    println!("{} {} {huge}", engine.address(), private.address());
    let ended = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
    let _ = ended.await;
    drop(served);
    engine.close().await;
}

/// The other process.
struct Owner {
    process: Child,
    address: String,
    private_address: u64,
    huge_page_bytes: u64,
}

impl Owner {
    fn start() -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.env(OWNER, "1").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("this program again");
        let mut line = String::new();
        let output = process.stdout.take().expect("its output");
        BufReader::new(output).read_line(&mut line).expect("a line of it");
        let mut words = line.split_whitespace();
        let mut word = || words.next().expect("three words");
        let (address, private, huge) = (word().to_owned(), word(), word());
        let number = |word: &str| word.parse().expect("a number");
        Self { process, address, private_address: number(private), huge_page_bytes: number(huge) }
    }

    /// Processor time of all its threads.
    fn processor_time(&self) -> Duration {
        let tasks = format!("/proc/{}/task", self.process.id());
        let tasks = std::fs::read_dir(tasks).expect("its threads").flatten();
        let nanos = tasks.filter_map(|task| {
            let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
            text.split(' ').next()?.parse::<u64>().ok()
        });
        Duration::from_nanos(nanos.sum())
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A segment of the owner, once its lane copies.
async fn copying(user: &Engine, owner: &Owner, name: &str) -> Segment {
    let segment = user.open(&format!("{}/{name}", owner.address)).await.expect("a segment");
    let block = Memory::zeroed(64).expect("memory");
    for _ in 0..WRITES_MAX {
        segment.write(&block.whole(), 0).await.expect("a write");
        if segment.transport_kind() == Some(TransportKind::Shm) {
            return segment;
        }
    }
    panic!("the lane to {name} does not copy");
}

/// One workload: bytes of a request, requests of a batch, threads.
#[derive(Clone, Copy)]
struct Load {
    bytes: usize,
    batch: usize,
    threads: usize,
}

/// Memory of both ends.
struct Ends<'a> {
    runtime: &'a Runtime,
    here: Span,
    /// A map of this process's own memory.
    limit: Span,
    shared: Segment,
    private: Segment,
    process: libc::pid_t,
    private_address: u64,
}

impl Ends<'_> {
    /// The times of single writes of 4 KiB from the submission to the report, in nanoseconds.
    fn alone(&self) -> Value {
        let load = Load { bytes: 4 << 10, batch: 1, threads: 1 };
        let mut rounds = Vec::new();
        for _ in 0..ALONE_ROUNDS {
            let (mut own, mut raw) = (Vec::new(), Vec::new());
            self.runtime.block_on(async {
                for at in 0..ALONE {
                    let begun = Instant::now();
                    self.submit(&self.shared, &load, Direction::Write, 2 * at).await;
                    own.push(begun.elapsed());
                    let begun = Instant::now();
                    self.copy(&load, Direction::Write, 2 * at + 1);
                    raw.push(begun.elapsed());
                }
            });
            let of = |times: &mut Vec<Duration>, percent: usize| {
                times.sort_unstable();
                times[times.len() * percent / 100].as_nanos() as f64
            };
            rounds.push([50, 99].map(|percent| (of(&mut own, percent), of(&mut raw, percent))));
        }
        let figure = |place: usize, of: fn((f64, f64)) -> f64| {
            median(rounds.iter().map(|round| of(round[place])).collect())
        };
        json!({
            "p50_ns": figure(0, |(own, _)| own),
            "p99_ns": figure(1, |(own, _)| own),
            "memcpy_p50_ns": figure(0, |(_, raw)| raw),
            "memcpy_p99_ns": figure(1, |(_, raw)| raw),
            "over_p50_ns": figure(0, |(own, raw)| own - raw),
            "over_p99_ns": figure(1, |(own, raw)| own - raw),
        })
    }

    /// Rates of one load in GiB/s, and the ratios to the limits of the same round.
    fn row(&self, load: &Load, way: Direction) -> Value {
        let submit =
            |segment, at| self.runtime.handle().block_on(self.submit(segment, load, way, at));
        let measure = |what: usize| match what {
            0 => rate(load, &|at| submit(&self.shared, at)),
            1 => rate(load, &|at| self.copy(load, way, at)),
            2 => rate(load, &|at| submit(&self.private, at)),
            _ => rate(load, &|at| self.call(load, way, at)),
        };
        let mut rounds = Vec::new();
        for round in 0..ROUNDS {
            let mut found = [0.0; 4];
            in_turn(round).into_iter().for_each(|what| found[what] = measure(what));
            rounds.push(found);
        }
        let rates = |place: usize| rounds.iter().map(|round| round[place]).collect();
        let ratio = |one: usize, other: usize| {
            median(rounds.iter().map(|round| round[one] / round[other]).collect())
        };
        json!({
            "operation": if way == Direction::Write { "write" } else { "read" },
            "size": load.bytes, "batch": load.batch, "threads": load.threads,
            "gib_per_s": median(rates(0)), "memcpy_gib_per_s": median(rates(1)),
            "ratio": ratio(0, 1),
            "foreign_gib_per_s": median(rates(2)), "call_gib_per_s": median(rates(3)),
            "foreign_ratio": ratio(2, 3),
        })
    }

    async fn submit(&self, segment: &Segment, load: &Load, way: Direction, at: usize) {
        let mut batch = segment.batch();
        for number in 0..load.batch {
            let offset = place(load, at + number);
            let span = self.here.slice(offset, load.bytes).expect("within the block");
            batch = match way {
                Direction::Write => batch.write(&span, offset as u64),
                Direction::Read => batch.read(&span, offset as u64),
            };
        }
        batch.submit().await.expect("a batch").await.expect("a transfer");
    }

    /// The same by a copy between two maps.
    fn copy(&self, load: &Load, way: Direction, at: usize) {
        for number in 0..load.batch {
            let offset = place(load, at + number);
            let pointer = |span: &Span| span.host_ptr().expect("host memory").wrapping_add(offset);
            let (here, there) = (pointer(&self.here), pointer(&self.limit));
            let (from, to) = match way {
                Direction::Write => (here, there),
                Direction::Read => (there, here),
            };
            // SAFETY: both blocks have the bytes and are held by `self`; no reference to them exists.
            unsafe { ptr::copy_nonoverlapping(from, to, load.bytes) };
        }
    }

    /// The same by a call of the kernel for each request.
    fn call(&self, load: &Load, way: Direction, at: usize) {
        for number in 0..load.batch {
            let offset = place(load, at + number) as u64;
            let piece = |address: u64| libc::iovec {
                iov_base: ptr::without_provenance_mut((address + offset) as usize),
                iov_len: load.bytes,
            };
            let (here, there) = (piece(self.here.address()), piece(self.private_address));
            let call = match way {
                Direction::Write => libc::process_vm_writev,
                Direction::Read => libc::process_vm_readv,
            };
            // SAFETY: the block has the bytes and is held by `self`; no reference to them exists. The
            // kernel checks those of the other process.
            let copied = unsafe { call(self.process, &raw const here, 1, &raw const there, 1, 0) };
            assert_eq!(copied, load.bytes as isize);
        }
    }
}

/// The order of a round. Over eight rounds each measurement is as often in each place, and as often before
/// another one as after it.
fn in_turn(round: usize) -> [usize; 4] {
    let mut order = [0, 1, 2, 3];
    order.rotate_left(round / 2 % 4);
    if !round.is_multiple_of(2) {
        order.reverse();
    }
    order
}

fn place(load: &Load, number: usize) -> usize {
    (number * load.bytes) % BLOCK
}

/// Runs a load on its threads for a time, each in its own part of the block; in GiB/s.
fn rate(load: &Load, act: &(impl Fn(usize) + Sync)) -> f64 {
    let begun = Instant::now();
    let part = BLOCK / load.bytes / load.threads;
    let batches: usize = std::thread::scope(|scope| {
        let run = move |thread: usize| {
            let mut count = 0;
            while begun.elapsed() < TIME {
                act(thread * part + count * load.batch);
                count += 1;
            }
            count
        };
        let threads: Vec<_> =
            (0..load.threads).map(|thread| scope.spawn(move || run(thread))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread")).sum()
    });
    let bytes = (batches * load.batch * load.bytes) as f64;
    bytes / begun.elapsed().as_secs_f64() / f64::from(1_u32 << 30)
}

/// The median time from the opening of a segment by a new engine to the end of its first write.
async fn first_transfers(address: &str, choice: TransportChoice) -> f64 {
    let block = touched(Memory::zeroed(FIRST_BYTES).expect("memory"));
    let mut times = Vec::new();
    for _ in 0..FIRST_TRANSFERS {
        let (user, span) = (user(choice).await, block.whole());
        let address = format!("{address}/shared");
        // A task of the runtime, as in an application.
        let first = tokio::spawn(async move {
            let begun = Instant::now();
            let segment = user.open(&address).await.expect("a segment");
            segment.write(&span, 0).await.expect("a write");
            let took = begun.elapsed();
            user.close().await;
            took
        });
        times.push(first.await.expect("a transfer").as_secs_f64() * 1e6);
    }
    median(times)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
