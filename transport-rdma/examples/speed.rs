//! Our writes and reads beside perftest's, on two NICs of one machine, in turns. In the guest, which
//! has `ib_write_bw` and `ib_read_bw`: `cargo xtask guest -- target/release/examples/speed
//! [PAIRS [write|read]]`.
//!
//! Both keep the same number of requests outstanding on one queue pair with the same path MTU, and
//! look for completions without sleeping at the end that posts. In an emulated guest only the ratio
//! says anything.

use handfast_core::Lifecycle;
use handfast_core::transfer::SliceId;
use handfast_core::transport::TransportError;
use handfast_memory::{Access, Direction, Memory};
use handfast_transport_rdma::{
    Completion, DeviceEvent, LaneSink, Nic, NicConfig, Polling, Posting, Registration, RemoteSpan,
    SliceEnd,
};
use std::error::Error;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const LANE: Lifecycle = Lifecycle(1);
const PATIENCE: Duration = Duration::from_secs(60);
/// Both ends of perftest meet here.
const PORT: &str = "18600";
/// The guest's wires carry packets of this many bytes.
const MTU: u32 = 1024;
/// Pairs of runs, first the one and then the other, in turns.
const PAIRS_DEFAULT: usize = 7;

/// What is measured: bytes of a request, requests outstanding, requests in all.
const SHAPES: [(usize, u32, usize); 3] =
    [(64 << 10, 16, 400), (1 << 20, 4, 32), (4 << 10, 32, 4_000)];

struct Ends(Mutex<Sender<usize>>);

impl LaneSink for Ends {
    fn on_completions(&self, _: Lifecycle, completions: &mut Vec<Completion>) {
        let done = completions.iter().filter(|c| c.end == SliceEnd::Done).count();
        if done < completions.len() {
            println!("a request failed: {completions:?}");
        }
        completions.clear();
        // Fails when the program is over.
        let _ = self.0.lock().expect("nobody panics with the lock").send(done);
    }
    fn on_lane_failed(&self, _: Lifecycle, error: TransportError) {
        println!("the lane failed: {error}");
    }
    fn on_device_event(&self, _: DeviceEvent) {}
}

/// One end, with memory that both sides may use.
struct End {
    nic: Nic,
    done: Receiver<usize>,
    registration: Registration,
}

impl End {
    fn open(device: &str, polling: Polling, depth: u32, bytes: usize) -> Result<Self> {
        let (sender, done) = channel();
        // Patient: in a guest that is starved, answers take longer than the usual half second.
        let timeout_exponent = 18;
        let mtu_max = MTU;
        let config =
            NicConfig { depth, polling, mtu_max, timeout_exponent, ..NicConfig::new(device) };
        let nic = Nic::open(config, Arc::new(Ends(Mutex::new(sender))))?;
        let memory = Memory::zeroed(bytes)?;
        let registration = nic.register(memory.whole(), Access::READ_WRITE)?;
        Ok(Self { nic, done, registration })
    }
}

/// KiB per second of ours.
fn ours(direction: Direction, (bytes, depth, count): (usize, u32, usize)) -> Result<u64> {
    let one = End::open("rxe0", Polling::Busy, depth, bytes)?;
    let other = End::open("rxe1", Polling::Event, depth, bytes)?;
    let mine = one.nic.bring_up(LANE, &[0x0012_0000])?;
    let theirs = other.nic.bring_up(LANE, &[0x0034_0000])?;
    other.nic.wire(LANE, &mine)?;
    one.nic.wire(LANE, &theirs)?;
    let remote = RemoteSpan {
        key: other.registration.remote_key(),
        address: other.registration.span().address(),
    };
    let local = &one.registration;
    let posting = |n: usize| Posting {
        slice: SliceId::from_bits(n as u64),
        direction,
        local: local.clone(),
        offset: 0,
        length: bytes,
        remote,
    };
    let started = Instant::now();
    let mut posted = count.min(depth as usize);
    one.nic.post(LANE, &mut (0..posted).map(posting).collect());
    let mut done = 0;
    while done < count {
        let ended = one.done.recv_timeout(PATIENCE)?;
        done += ended;
        let next = (posted + ended).min(count);
        if next > posted {
            one.nic.post(LANE, &mut (posted..next).map(posting).collect());
            posted = next;
        }
    }
    let microseconds = started.elapsed().as_micros().max(1);
    Ok(u64::try_from((bytes * count) as u128 * 1_000_000 / 1024 / microseconds)?)
}

/// KiB per second of perftest's.
fn perftest(direction: Direction, (bytes, depth, count): (usize, u32, usize)) -> Result<u64> {
    let name = if direction == Direction::Write { "ib_write_bw" } else { "ib_read_bw" };
    let end = |device: &str, peer: Option<&str>| {
        let mut command = Command::new(name);
        command.args(["-d", device, "-x", "1", "-p", PORT, "-F", "-m", &MTU.to_string()]);
        command.args(["-s", &bytes.to_string(), "-t", &depth.to_string()]);
        command.args(["-n", &count.to_string(), "-Q", "1"]);
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
            for _ in 0..pairs {
                let (one, other) = (ours(direction, shape)?, perftest(direction, shape)?);
                // On a busy machine perftest's clock may have told nothing it can divide by.
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
                "{name:<5} {bytes:>7} bytes, {depth:>2} outstanding: median {} %, from {} % to {} %",
                ratios[ratios.len() / 2],
                ratios[0],
                ratios[ratios.len() - 1],
            );
        }
    }
    Ok(())
}
