//! Tries what handfast does with the memory of CUDA devices on this machine, and measures its copies: one
//! line of JSON for each check and rate.
//!
//! ```sh
//! cargo run --release -p handfast --example gpu
//! ```
//!
//! The first argument is the driver's library, else `libcuda.so.1`. `cargo xtask gpu` runs it on the real
//! driver and on the scripted one, and compares.

// Rates are only reported.
#![allow(clippy::float_arithmetic)]
#![allow(unsafe_code)]

#[path = "gpu/ipc.rs"]
mod ipc;

use anyhow::{Context, Result, bail, ensure};
use handfast::accelerators::{
    Driver, DriverError, MemoryKind, PINNED_BUFFERS_MAX, STAGING_BYTES, Staging, pass_in, pass_out,
};
use handfast::{Access, Engine, Memory, Registration, Segment, TransportChoice};
use serde_json::json;
use std::ffi::OsString;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

const BYTES: usize = 5 * STAGING_BYTES + 4_099;
/// Bytes of one measurement, of which there are [`ROUNDS`].
const RATE_BYTES: usize = 64 << 20;
const ROUNDS: usize = 7;
/// Bytes of an allocation that another process opens: whole blocks of a device.
const BYTES_OPENED: usize = 4 << 20;
/// Bytes that no device has.
const TOO_MANY_BYTES: usize = 1 << 50;
const PATIENCE: Duration = Duration::from_secs(60);

/// The devices: the first and the last are one where there is no other.
struct Devices {
    driver: Arc<Driver>,
    last: u32,
}

impl Devices {
    fn memory(&self, device: u32, bytes: usize) -> Result<Memory> {
        Ok(self.driver.allocate(device, bytes)?)
    }
}

fn pattern(bytes: usize, seed: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 7 + seed + at / 251) as u8).collect()
}

fn filled(memory: Memory, content: &[u8]) -> Result<Memory> {
    memory.copy_in(0, content)?;
    Ok(memory)
}

fn content(memory: &Memory, offset: usize, bytes: usize) -> Result<Vec<u8>> {
    let mut content = vec![0; bytes];
    memory.copy_out(offset, &mut content)?;
    Ok(content)
}

/// A node that serves some memory, and one that reaches it over TCP.
struct Nodes {
    owner: Engine,
    user: Engine,
    segment: Segment,
    _served: Registration,
}

impl Nodes {
    async fn start(memory: &Memory) -> Result<Self> {
        let start = || {
            let builder = Engine::builder().listen("127.0.0.1:0");
            builder.transport(TransportChoice::Tcp).start()
        };
        let (owner, user) = (start().await?, start().await?);
        let served = owner.register("cache").access(Access::READ_WRITE).serve(memory.whole())?;
        let segment = user.open(&format!("{}/cache", owner.address())).await?;
        Ok(Self { owner, user, segment, _served: served })
    }

    async fn end(self) {
        self.user.close().await;
        self.owner.close().await;
    }
}

async fn copies(devices: &Devices) -> Result<()> {
    let expected = pattern(BYTES, 1);
    let device = filled(devices.memory(0, BYTES)?, &expected)?;
    ensure!(device.kind() != MemoryKind::Host, "it is host memory");
    ensure!(device.whole().host_ptr().is_none(), "it has a pointer");
    let host = filled(Memory::zeroed(BYTES)?, &expected)?;
    ensure!(device.crc32c(0, BYTES)? == host.crc32c(0, BYTES)?, "the sums differ");
    let other = devices.memory(devices.last, BYTES)?;
    device.span(3, BYTES - 7)?.copy_to(&other.span(5, BYTES - 7)?)?;
    ensure!(content(&other, 5, BYTES - 7)? == expected[3..BYTES - 4], "the copy differs");
    let from_thread = std::thread::scope(|scope| {
        scope.spawn(|| content(&device, BYTES - 10, 10)).join().map_err(|_| ()).ok()
    });
    let bytes = from_thread.context("the thread failed")??;
    ensure!(bytes == expected[BYTES - 10..], "a thread without a context reads other bytes");
    Ok(())
}

async fn transfers(devices: &Devices) -> Result<()> {
    let there = devices.memory(devices.last, BYTES + 100)?;
    let nodes = Nodes::start(&there).await?;
    let expected = pattern(BYTES, 3);
    let here = filled(devices.memory(0, BYTES)?, &expected)?;
    nodes.segment.write(&here.whole(), 97).await?;
    ensure!(content(&there, 97, BYTES)? == expected, "the written bytes differ");
    let back = devices.memory(0, BYTES)?;
    nodes.segment.read(&back.whole(), 97).await?;
    ensure!(content(&back, 0, BYTES)? == expected, "the read bytes differ");
    let host = Memory::zeroed(1_001)?;
    nodes.segment.read(&host.whole(), 110).await?;
    ensure!(content(&host, 0, 1_001)? == expected[13..1_014], "bytes in host memory differ");
    nodes.end().await;
    Ok(())
}

async fn small_requests(devices: &Devices) -> Result<()> {
    let there = devices.memory(0, 64 << 10)?;
    let nodes = Nodes::start(&there).await?;
    let expected = pattern(32 << 10, 5);
    let host = filled(Memory::zeroed(32 << 10)?, &expected)?;
    let device = filled(devices.memory(devices.last, 32 << 10)?, &expected)?;
    let mut batch = nodes.segment.batch();
    for number in 0..256_usize {
        let from = if number % 2 == 0 { &host } else { &device };
        batch = batch.write(&from.span(number * 100, 100)?, number as u64 * 128);
    }
    batch.submit().await?.await?;
    for number in 0..256_usize {
        let is_equal = content(&there, number * 128, 100)? == expected[number * 100..][..100];
        ensure!(is_equal, "request {number} differs");
    }
    nodes.end().await;
    Ok(())
}

async fn own_memory(devices: &Devices) -> Result<()> {
    let there = devices.memory(0, BYTES)?;
    let nodes = Nodes::start(&there).await?;
    let segment = nodes.owner.open(&format!("{}/cache", nodes.owner.address())).await?;
    let here = filled(devices.memory(devices.last, BYTES)?, &pattern(BYTES, 8))?;
    segment.write(&here.whole(), 0).await?;
    ensure!(content(&there, 0, BYTES)? == pattern(BYTES, 8), "the bytes differ");
    nodes.end().await;
    Ok(())
}

async fn exhausted_pool(devices: &Devices) -> Result<()> {
    let there = devices.memory(0, BYTES)?;
    let span = there.whole();
    let nodes = Nodes::start(&there).await?;
    let taken: Vec<_> = (0..=PINNED_BUFFERS_MAX).map_while(|_| Staging::take(&span)).collect();
    ensure!(taken.len() == PINNED_BUFFERS_MAX, "{} buffers", taken.len());
    let host = filled(Memory::zeroed(BYTES)?, &pattern(BYTES, 9))?;
    nodes.segment.write(&host.whole(), 0).await?;
    ensure!(content(&there, 0, BYTES)? == pattern(BYTES, 9), "the bytes differ");
    nodes.end().await;
    Ok(())
}

async fn too_many_bytes(devices: &Devices) -> Result<()> {
    match devices.driver.allocate(0, TOO_MANY_BYTES) {
        Ok(_) => bail!("the device has 1 PiB"),
        Err(error) => {
            ensure!(error.to_string().contains("OUT_OF_MEMORY"), "{error}");
            devices.memory(0, 1)?;
            Ok(())
        }
    }
}

async fn default_stream(devices: &Devices) -> Result<()> {
    for stream in 0..=2 {
        // SAFETY: a default stream.
        let point = unsafe { devices.driver.stream_point(stream, Some(devices.last)) }?;
        let started = Instant::now();
        while !point.is_done()? {
            ensure!(started.elapsed() < PATIENCE, "stream {stream} is never done");
            sleep(Duration::from_millis(1)).await;
        }
    }
    Ok(())
}

async fn export(devices: &Devices) -> Result<()> {
    let memory = devices.memory(0, BYTES)?;
    let exported = memory.span(100, 4_096)?.export()?;
    ensure!(exported.is_some(), "host memory");
    Ok(())
}

/// Runs a check, and prints its line.
async fn check(name: &str, run: impl Future<Output = Result<()>>) {
    let outcome = match timeout(PATIENCE, run).await {
        Ok(Ok(())) => "proven".to_owned(),
        Ok(Err(error)) => format!("failed: {error:#}"),
        Err(_) => "failed: no end".to_owned(),
    };
    println!("{}", json!({ "check": name, "outcome": outcome }));
}

/// The median of some durations, as a rate.
fn rate(mut took: Vec<Duration>) -> f64 {
    took.sort_unstable();
    RATE_BYTES as f64 / took[took.len() / 2].as_secs_f64() / f64::from(1 << 30)
}

/// The rates of the raw copies, of the wire, and of staged transfers, measured in turns.
async fn rates(devices: &Devices) -> Result<()> {
    let device = devices.memory(0, RATE_BYTES)?;
    let (from, to) = (Memory::zeroed(RATE_BYTES)?, Memory::zeroed(RATE_BYTES)?);
    from.copy_in(0, &pattern(RATE_BYTES, 1))?;
    let (wire, staged) = (Nodes::start(&to).await?, Nodes::start(&device).await?);
    let mut took: [Vec<Duration>; 5] = Default::default();
    let same = std::convert::identity;
    for round in 0..=ROUNDS {
        let mut ends = Vec::new();
        let started = Instant::now();
        pass_out(&device.whole(), same, |_, _| Ok(()))?;
        ends.push(started.elapsed());
        pass_in(&device.whole(), same, |_, _| Ok(()))?;
        ends.push(started.elapsed());
        wire.segment.write(&from.whole(), 0).await?;
        ends.push(started.elapsed());
        staged.segment.write(&from.whole(), 0).await?;
        ends.push(started.elapsed());
        wire.segment.write(&device.whole(), 0).await?;
        ends.push(started.elapsed());
        let mut before = Duration::ZERO;
        // The first round touches pages and opens lanes.
        for (end, took) in ends.into_iter().zip(&mut took).filter(|_| round > 0) {
            took.push(end - before);
            before = end;
        }
    }
    let [to_host, to_device, tcp, staged_in, staged_out] = took.map(rate);
    for (name, gib_per_s, bound) in [
        ("copy to the host", to_host, None),
        ("copy to the device", to_device, None),
        ("TCP, host to host", tcp, None),
        ("TCP, host to device", staged_in, Some(tcp.min(to_device))),
        ("TCP, device to host", staged_out, Some(tcp.min(to_host))),
    ] {
        let ratio = bound.map(|bound| gib_per_s / bound);
        println!("{}", json!({ "rate": name, "gib_per_s": gib_per_s, "of_slower_part": ratio }));
    }
    wire.end().await;
    staged.end().await;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let library: Option<OsString> = std::env::args_os().nth(1);
    let driver = match Driver::open(library.as_deref()) {
        Err(error @ (DriverError::Absent { .. } | DriverError::Init { .. })) => {
            println!("{}", json!({ "absent": error.to_string() }));
            return Ok(());
        }
        driver => driver?,
    };
    let addresses = driver.pci_addresses();
    let Some(last) = addresses.len().checked_sub(1) else {
        println!("{}", json!({ "absent": "the driver has no device" }));
        return Ok(());
    };
    let devices = Devices { driver, last: u32::try_from(last)? };
    if std::env::args().nth(2).as_deref() == Some(ipc::OWNER) {
        return ipc::own(&devices).await;
    }
    println!("{}", json!({ "devices": addresses }));
    let name = std::env::args().nth(1).unwrap_or_else(|| "libcuda.so.1".to_owned());
    check("copies, sums and other threads", copies(&devices)).await;
    check("transfers between devices and the host over TCP", transfers(&devices)).await;
    check("small requests of both kinds", small_requests(&devices)).await;
    check("a node's own device memory", own_memory(&devices)).await;
    check("transfers without pinned buffers", exhausted_pool(&devices)).await;
    check("too many bytes are refused", too_many_bytes(&devices)).await;
    check("default streams can be marked", default_stream(&devices)).await;
    check("export for RDMA", export(&devices)).await;
    check("allocations between processes (CUDA IPC)", ipc::between_processes(&devices, &name))
        .await;
    rates(&devices).await
}
