//! Writes and reads against perftest's, on two NICs of one machine, in turns. In the guest, which
//! has `ib_write_bw` and `ib_read_bw`: `cargo xtask guest -- target/release/examples/speed [PAIRS
//! [write|read]]`.
//!
//! Both keep the same number of requests outstanding on one queue pair with the same path MTU, post
//! and poll for completions on one thread, and do not sleep. In an emulated guest only the ratio
//! means anything. The output also counts repeated requests of either device, as soft-RoCE sends
//! them when packets are lost or reordered.

use handfast_core::Lifecycle;
use handfast_core::transport::TransportError;
use handfast_transport::{
    Access, Completion, CompletionStatus, Direction, LaneSink, Memory, Posting, SliceId,
};
use handfast_transport_rdma::{Nic, NicConfig, NicSink, Polling, Registration};
use std::error::Error;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const LANE: Lifecycle = Lifecycle(1);
const PATIENCE: Duration = Duration::from_secs(60);
/// Both ends of perftest meet here.
const PORT: &str = "18600";
const DUPLICATES: &str = "/sys/class/infiniband/rxe1/ports/1/hw_counters/duplicate_request";
/// The guest's wires carry packets of this many bytes.
const MTU: u32 = 1024;
/// Of both: in a guest that is starved, answers take longer than the usual half second.
const TIMEOUT_EXPONENT: u8 = 18;
/// Pairs of runs, first the one and then the other, in turns.
const PAIRS_DEFAULT: usize = 7;

/// Measured shapes: bytes of a request, requests outstanding, requests in all.
const SHAPES: [(usize, u32, usize); 3] =
    [(64 << 10, 16, 400), (1 << 20, 4, 32), (4 << 10, 32, 4_000)];

/// Keeps requests outstanding: what ends is followed by the next from within the NIC's own thread.
/// All but the first of the first ones are posted there as well, when that has ended: soft-RoCE moves
/// packets on the processor of who posts, and with posts on two they overtake each other.
#[derive(Default)]
struct Load {
    work: Mutex<Option<Work>>,
}

struct Work {
    nic: Weak<Nic>,
    /// Every request is the same but for its name.
    request: Posting,
    posted: usize,
    done: usize,
    count: usize,
    depth: usize,
    over: Sender<()>,
}

impl Work {
    /// As many more requests as are outstanding at most, of those there are to make.
    fn next(&mut self) -> Vec<Posting> {
        let next = (self.done + self.depth).min(self.count);
        let name = |n: usize| SliceId::from_bits(n as u64);
        let named = |n| Posting { slice: name(n), ..self.request.clone() };
        let postings = (self.posted..next).map(named).collect();
        self.posted = next;
        postings
    }
}

impl LaneSink for Load {
    fn on_completions(&self, _: Lifecycle, completions: &mut Vec<Completion>) {
        if completions.iter().any(|completion| completion.status != CompletionStatus::Done) {
            println!("a request failed: {completions:?}");
            // The receiver sees the channel close.
            *self.work.lock().expect("nobody panics with the lock") = None;
            return;
        }
        let ended = completions.len();
        completions.clear();
        let (nic, mut next) = {
            let mut work = self.work.lock().expect("nobody panics with the lock");
            let Some(work) = work.as_mut() else { return };
            work.done += ended;
            if work.done == work.count {
                // Fails when the program is over.
                let _ = work.over.send(());
            }
            (work.nic.upgrade(), work.next())
        };
        if let Some(nic) = nic.filter(|_| !next.is_empty()) {
            nic.post(LANE, &mut next);
        }
    }
    fn on_lane_failed(&self, _: Lifecycle, error: TransportError) {
        println!("the lane failed: {error}");
    }
}

impl NicSink for Load {}

/// One end, with memory that both sides may use.
struct End {
    nic: Arc<Nic>,
    load: Arc<Load>,
    registration: Registration,
}

impl End {
    fn open(device: &str, polling: Polling, depth: u32, bytes: usize) -> Result<Self> {
        let load = Arc::new(Load::default());
        let timeout_exponent = TIMEOUT_EXPONENT;
        let mtu_max = MTU;
        let config =
            NicConfig { depth, polling, mtu_max, timeout_exponent, ..NicConfig::new(device) };
        let nic = Arc::new(Nic::open(config, load.clone())?);
        let memory = Memory::zeroed(bytes)?;
        let registration = nic.register(memory.whole(), Access::READ_WRITE)?;
        Ok(Self { nic, load, registration })
    }
}

/// KiB per second of this crate.
fn ours(direction: Direction, (bytes, depth, count): (usize, u32, usize)) -> Result<u64> {
    let one = End::open("rxe0", Polling::Busy, depth, bytes)?;
    let other = End::open("rxe1", Polling::Event, depth, bytes)?;
    let mine = one.nic.create(LANE, &[0x0012_0000])?;
    let theirs = other.nic.create(LANE, &[0x0034_0000])?;
    // Through the connection manager, the side that waits accepts a request that it knows.
    other.nic.note_request(None, &mine);
    one.nic.note_request(None, &theirs);
    other.nic.connect(LANE, &mine)?;
    one.nic.connect(LANE, &theirs)?;
    let remote = other.registration.remote_span();
    let request = Posting {
        slice: SliceId::from_bits(0),
        direction,
        span: one.registration.span().clone(),
        remote,
        memory: Some(one.registration.memory().clone()),
        region_key: None,
    };
    let (over, ended) = channel();
    let nic = Arc::downgrade(&one.nic);
    let depth = depth as usize;
    let mut first = vec![request.clone()];
    let work = Work { nic, request, posted: 1, done: 0, count, depth, over };
    let started = Instant::now();
    *one.load.work.lock().expect("nobody panics with the lock") = Some(work);
    one.nic.post(LANE, &mut first);
    ended.recv_timeout(PATIENCE)?;
    let microseconds = started.elapsed().as_micros().max(1);
    // Its request holds a registration of the NIC, which holds the load.
    *one.load.work.lock().expect("nobody panics with the lock") = None;
    Ok(u64::try_from((bytes * count) as u128 * 1_000_000 / 1024 / microseconds)?)
}

/// KiB per second of perftest's.
fn perftest(direction: Direction, (bytes, depth, count): (usize, u32, usize)) -> Result<u64> {
    let name = if direction == Direction::Write { "ib_write_bw" } else { "ib_read_bw" };
    let end = |device: &str, peer: Option<&str>| {
        let mut command = Command::new(name);
        command.args(["-d", device, "-x", "1", "-p", PORT, "-F", "-m", &MTU.to_string()]);
        command.args(["-s", &bytes.to_string(), "-t", &depth.to_string()]);
        command.args(["-n", &count.to_string(), "-Q", "1", "-u", &TIMEOUT_EXPONENT.to_string()]);
        if direction == Direction::Read {
            command.args(["-o", "16"]);
        }
        command.args(peer);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let mut server = end("rxe1", None).spawn()?;
    // It listens once its device is set up; there is no word of that to wait for.
    std::thread::sleep(Duration::from_millis(1_000));
    let client = end("rxe0", Some("10.0.0.2")).output()?;
    let text = String::from_utf8_lossy(&client.stdout).into_owned();
    // Lines of numbers: bytes, iterations, peak, average in MiB per second, messages.
    let average = text.lines().find_map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        let is_result = words.len() >= 4 && words[0] == bytes.to_string();
        is_result.then(|| hundredths(words[3])).flatten()
    });
    let Some(average) = average else {
        let _ = server.kill();
        let _ = server.wait();
        return Err(format!(
            "{name} told no result: {text}{}",
            String::from_utf8_lossy(&client.stderr)
        )
        .into());
    };
    server.wait()?;
    Ok(average * 1024 / 100)
}

/// Requests that came to the second NIC again so far.
fn asked_again() -> Result<u64> {
    let text = std::fs::read_to_string(DUPLICATES)?;
    Ok(text.trim().parse()?)
}

/// The speed that is measured, and the requests that came again meanwhile.
fn with_repeats(measured: impl FnOnce() -> Result<u64>) -> Result<(u64, u64)> {
    let before = asked_again()?;
    Ok((measured()?, asked_again()? - before))
}

/// A number with two digits after the point, in hundredths.
fn hundredths(text: &str) -> Option<u64> {
    let (whole, part) = text.split_once('.')?;
    let part = part.get(..2)?.parse::<u64>().ok()?;
    Some(whole.parse::<u64>().ok()? * 100 + part)
}

fn main() -> Result<()> {
    let pairs = std::env::args().nth(1).map_or(Ok(PAIRS_DEFAULT), |count| count.parse())?;
    let only = std::env::args().nth(2);
    println!("ratio of our bytes per second to perftest's, {pairs} pairs in turns");
    for (direction, name) in [(Direction::Write, "write"), (Direction::Read, "read")] {
        if only.as_ref().is_some_and(|only| only != name) {
            continue;
        }
        for shape in SHAPES {
            let mut ratios = Vec::with_capacity(pairs);
            let mut repeats = (0, 0);
            for _ in 0..pairs {
                let (one, again) = with_repeats(|| ours(direction, shape))?;
                repeats.0 += again;
                let (other, again) = with_repeats(|| perftest(direction, shape))?;
                repeats.1 += again;
                // On a busy machine perftest may have measured zero.
                match (100 * one).checked_div(other) {
                    Some(ratio) => ratios.push(ratio),
                    None => println!("perftest told a speed of 0; this pair is left out"),
                }
            }
            ratios.sort_unstable();
            if ratios.is_empty() {
                return Err("perftest told no speed at all".into());
            }
            let (bytes, depth, _) = shape;
            println!(
                "{name:<5} {bytes:>7} bytes, {depth:>2} outstanding: median {} %, from {} % to {} %; \
                 asked again {} times, perftest {}",
                ratios[ratios.len() / 2],
                ratios[0],
                ratios[ratios.len() - 1],
                repeats.0,
                repeats.1,
            );
        }
    }
    Ok(())
}
