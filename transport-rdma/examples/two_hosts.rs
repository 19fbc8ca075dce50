//! Two hosts, each with its own kernel: `cargo xtask guest --hosts 2 -- two_hosts` runs it on both.
//!
//! Host 0 writes a mebibyte into host 1, which compares it. Then host 1 leaves the network without
//! a word, and host 0 must hear of it from its own NIC.

use handfast_core::transport::{Side, TransportError};
use handfast_core::wire::{Message, Op};
use handfast_core::{Incarnation, Lifecycle, NicPath, Pair};
use handfast_transport::{
    Access, Completion, CompletionStatus, Direction, LaneSink, Memory, Posting, RemoteSpan, SliceId,
};
use handfast_transport_rdma::{Nic, NicConfig, NicSink, Registration};
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const BYTES: usize = 1 << 20;
const SLICES: usize = 16;
const LANE: Lifecycle = Lifecycle(1);
const PORT: u16 = 18_515;
const PATIENCE: Duration = Duration::from_secs(30);
/// Of `ibv_wc_status`.
const RETRY_EXCEEDED: i32 = 12;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

struct Completions(Mutex<Sender<CompletionStatus>>);

impl LaneSink for Completions {
    fn on_completions(&self, _: Lifecycle, completions: &mut Vec<Completion>) {
        let ends = self.0.lock().expect("nobody panics with the lock");
        // Fails when the program is over.
        completions.drain(..).for_each(|completion| drop(ends.send(completion.status)));
    }
    fn on_lane_failed(&self, _: Lifecycle, error: TransportError) {
        println!("the lane failed: {error}");
    }
}

impl NicSink for Completions {}

/// The other host, by lines of text.
struct Other {
    lines: BufReader<TcpStream>,
}

impl Other {
    fn meet(host: u8) -> Result<Self> {
        let address = ("10.0.0.1", PORT);
        let stream = if host == 0 {
            TcpListener::bind(address)?.accept()?.0
        } else {
            let deadline = Instant::now() + PATIENCE;
            loop {
                match TcpStream::connect(address) {
                    Ok(stream) => break stream,
                    Err(error) if Instant::now() > deadline => return Err(error.into()),
                    Err(_) => std::thread::sleep(Duration::from_millis(100)),
                }
            }
        };
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { lines: BufReader::new(stream) })
    }

    fn say(&mut self, line: &str) -> Result<()> {
        Ok(self.lines.get_mut().write_all(format!("{}\n", line.trim_end()).as_bytes())?)
    }

    fn hear(&mut self) -> Result<String> {
        let mut line = String::new();
        self.lines.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    /// Both say so; neither goes on before.
    fn both(&mut self, word: &str) -> Result<()> {
        self.say(word)?;
        let heard = self.hear()?;
        if heard == word { Ok(()) } else { Err(format!("'{heard}' instead of '{word}'").into()) }
    }
}

fn main() -> Result<()> {
    let host: u8 = std::env::var("HANDFAST_HOST")?.parse()?;
    let (sender, ends) = channel();
    let config = NicConfig { timeout_exponent: 16, retries: 2, ..NicConfig::new("rxe0") };
    let nic = Nic::open(config, Arc::new(Completions(Mutex::new(sender))))?;
    let memory = Memory::zeroed(BYTES)?;
    let local = nic.register(memory.whole(), Access::READ_WRITE)?;
    let mut other = Other::meet(host)?;
    let body = nic.create(LANE, &[0x0051_0000 + u32::from(host), 0x00a7_0000])?;
    let path = |host| NicPath::parse(&format!("host-{host}@rxe0"));
    let message = Message {
        op: Op::Request,
        from: path(host)?,
        to: path(1 - host)?,
        sender: Pair { incarnation: Incarnation(u128::from(host) + 1), lifecycle: LANE },
        echo: None,
        body,
        refusal: None,
    };
    other.say(&message.encode())?;
    let peer = Message::decode(&other.hear()?)?.body;
    other.say(&format!("{} {}", local.remote_key(), memory.address()))?;
    let place = other.hear()?;
    let (key, address) = place.split_once(' ').ok_or("no place was told")?;
    let remote = RemoteSpan { key: key.parse()?, address: address.parse()? };
    nic.connect(LANE, &peer)?;
    other.both("wired")?;
    match host {
        0 => write(&nic, &memory, &local, remote, &ends, &mut other),
        _ => receive(&memory, &mut other),
    }
}

fn write(
    nic: &Nic,
    memory: &Memory,
    local: &Registration,
    remote: RemoteSpan,
    ends: &Receiver<CompletionStatus>,
    other: &mut Other,
) -> Result<()> {
    let length = BYTES / SLICES;
    let posting = |slice: usize| Posting {
        slice: SliceId::from_bits(slice as u64),
        direction: Direction::Write,
        span: memory.span(slice * length, length).expect("a slice of the memory"),
        remote: RemoteSpan { address: remote.address + (slice * length) as u64, ..remote },
        memory: Some(local.memory().clone()),
        region_key: None,
    };
    memory.copy_in(0, &pattern())?;
    nic.post(LANE, &mut (0..SLICES).map(posting).collect());
    for _ in 0..SLICES {
        let end = ends.recv_timeout(PATIENCE)?;
        if end != CompletionStatus::Done {
            return Err(format!("a write ended as {end:?}").into());
        }
    }
    other.both("written")?;
    other.both("leaving")?;
    // The other cuts its link after the last word; what goes out now or before must fail in time.
    let deadline = Instant::now() + PATIENCE;
    let first = loop {
        nic.post(LANE, &mut vec![posting(0)]);
        match ends.recv_timeout(PATIENCE)? {
            CompletionStatus::Done if Instant::now() < deadline => {}
            CompletionStatus::Failed(error) => break error,
            end => return Err(format!("instead of a failure: {end:?}").into()),
        }
    };
    if (first.side, first.code) != (Side::Peer, RETRY_EXCEEDED) {
        return Err(format!("not the error of a silent peer: {first:?}").into());
    }
    nic.retire(LANE)?;
    println!("host 0: the host that left was noticed: {first}");
    Ok(())
}

fn receive(memory: &Memory, other: &mut Other) -> Result<()> {
    other.both("written")?;
    let mut bytes = vec![0; BYTES];
    memory.copy_out(0, &mut bytes)?;
    if bytes != pattern() {
        return Err("what arrived is not what was written".into());
    }
    println!("host 1: {BYTES} bytes arrived");
    other.both("leaving")?;
    // The other has our word, or will not need it.
    std::thread::sleep(Duration::from_millis(500));
    let down = Command::new("ip").args(["link", "set", "eth0", "down"]).status()?;
    if down.success() { Ok(()) } else { Err(format!("the link stays: {down}").into()) }
}

fn pattern() -> Vec<u8> {
    (0..BYTES).map(|n| (n as u8).wrapping_mul(29) ^ (n >> 9) as u8).collect()
}
