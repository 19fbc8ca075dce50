//! Reads from a node ten times a second, and says when the outcome changes: a look at what a fault of a
//! device does to two nodes.
//!
//! ```sh
//! cargo build -p handfast-cli -p handfast-fabric-verbs -p handfast --features verbs --bins --lib --examples
//! target/debug/handfast fabric run --script fabric/races/gen-13.txt -- target/debug/examples/steady 10
//! ```
//!
//! A read that failed has ended, so its buffer is used again: bytes that arrive there later are reported
//! too. `fabric/races/two_nodes.py` does the same with nodes of Mooncake.

use handfast::rdma::RdmaOptions;
use handfast::{Access, Engine, Error, Memory, Segment, TransportChoice};
use std::collections::BTreeMap;
use std::error::Error as _;
use std::time::Duration;
use tokio::time::Instant;

const BYTES: usize = 60_000;
const PLACES: usize = 256;
const INTERVAL: Duration = Duration::from_millis(100);
/// As Mooncake's shortest.
const TIME_LIMIT: Duration = Duration::from_secs(5);

async fn start(device: &str) -> Result<Engine, Error> {
    let devices = vec![device.to_owned()];
    let rdma = RdmaOptions::default().with(|it| it.devices = devices);
    let builder = Engine::builder().listen("127.0.0.1:0").transport(TransportChoice::Rdma);
    builder.rdma(rdma).start().await
}

/// The reading side.
struct Reader {
    segment: Segment,
    memory: Memory,
    content: Vec<u8>,
    is_written: bool,
    place: usize,
    /// Buffers of failed reads, with what their next user put there.
    used: BTreeMap<usize, Vec<u8>>,
}

impl Reader {
    async fn round(&mut self) -> Result<String, Error> {
        if !self.is_written {
            self.memory.copy_in(0, &self.content)?;
            let write = self.segment.write(&self.memory.span(0, BYTES)?, 0).timeout(TIME_LIMIT);
            if let Err(error) = write.await {
                return Ok(format!("the write fails: {}", causes(&error)));
            }
            self.is_written = true;
        }
        self.used.remove(&self.place);
        self.memory.copy_in(self.place, &vec![0; BYTES])?;
        let target = self.memory.span(self.place, BYTES)?;
        if let Err(error) = self.segment.read(&target, 0).timeout(TIME_LIMIT).await {
            let mark = vec![0x80; BYTES];
            self.memory.copy_in(self.place, &mark)?;
            self.used.insert(self.place, mark);
            self.place = self.place % (BYTES * PLACES) + BYTES;
            return Ok(format!("the read fails: {}", causes(&error)));
        }
        let is_same = self.bytes(self.place)? == self.content;
        Ok(if is_same { "the bytes are read" } else { "OTHER BYTES are read" }.to_owned())
    }

    fn bytes(&self, place: usize) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; BYTES];
        self.memory.copy_out(place, &mut bytes)?;
        Ok(bytes)
    }

    /// Whether bytes arrived in a buffer whose read had failed.
    fn is_overwritten(&self) -> Result<bool, Error> {
        for (place, mark) in &self.used {
            if self.bytes(*place)? != *mark {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn causes(error: &Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(&format!(": {cause}"));
        next = cause.source();
    }
    text
}

/// Runs for a time and returns how often each outcome was seen.
pub(crate) async fn steady(time: Duration) -> Result<BTreeMap<String, u32>, Error> {
    let owner = start("rxe0").await?;
    let memory = Memory::zeroed(BYTES)?;
    let _served = owner.register("bytes").access(Access::READ_WRITE).serve(memory.whole())?;
    let user = start("rxe1").await?;
    let mut reader = Reader {
        segment: user.open(&format!("{}/bytes", owner.address())).await?,
        memory: Memory::zeroed(BYTES * (PLACES + 1))?,
        content: (0..BYTES).map(|at| (at % 251) as u8).collect(),
        is_written: false,
        place: BYTES,
        used: BTreeMap::new(),
    };
    let (began, mut told, mut counts) = (Instant::now(), String::new(), BTreeMap::new());
    let say = |text: &str| println!("{:6.2} s  {text}", began.elapsed().as_secs_f64());
    while began.elapsed() < time {
        let outcome = reader.round().await?;
        *counts.entry(outcome.clone()).or_default() += 1;
        if outcome != told {
            say(&outcome);
            told = outcome;
        }
        if reader.is_overwritten()? {
            say("BYTES ARRIVED in a buffer whose read had failed");
            reader.used.clear();
        }
        tokio::time::sleep(INTERVAL).await;
    }
    user.close().await;
    owner.close().await;
    Ok(counts)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let seconds = std::env::args().nth(1).map_or(Ok(10.0), |seconds| seconds.parse())?;
    for (outcome, count) in steady(Duration::from_secs_f64(seconds)).await? {
        println!("{count} x {outcome}");
    }
    Ok(())
}
