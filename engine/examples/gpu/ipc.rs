//! Memory of a device between two processes of this host: the example starts itself as their owner.

use super::{BYTES_OPENED, Devices, content, filled, pattern};
use anyhow::{Context, Result, ensure};
use handfast::{Access, Engine, TransportChoice};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

/// The second argument of the owner.
pub(crate) const OWNER: &str = "owner";

async fn start() -> Result<Engine> {
    let builder = Engine::builder().listen("127.0.0.1:0").transport(TransportChoice::Shm);
    Ok(builder.start().await?)
}

/// Serves an allocation until the input ends, and says its sum for each line.
pub(crate) async fn own(devices: &Devices) -> Result<()> {
    let memory = devices.memory(0, BYTES_OPENED)?;
    let engine = start().await?;
    let _served = engine.register("cache").access(Access::READ_WRITE).serve(memory.whole())?;
    println!("{}/cache", engine.address());
    let mut lines = std::io::stdin().lines();
    while tokio::task::block_in_place(|| lines.next()).transpose()?.is_some() {
        println!("{}", memory.crc32c(0, BYTES_OPENED)?);
    }
    engine.close().await;
    Ok(())
}

/// Writes into the memory of another process and reads it, by the driver alone.
pub(crate) async fn between_processes(devices: &Devices, library: &str) -> Result<()> {
    let mut owner = Command::new(std::env::current_exe()?)
        .args([library, OWNER])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut input = owner.stdin.take().context("its input")?;
    let mut lines = BufReader::new(owner.stdout.take().context("its output")?).lines();
    let mut said = || tokio::task::block_in_place(|| lines.next()).context("it has ended");
    let user = start().await?;
    let segment = user.open(&said()??).await?;
    // An allocation is opened on devices alone that the process uses.
    let back = devices.memory(0, BYTES_OPENED)?;
    let expected = pattern(BYTES_OPENED, 11);
    let here = filled(devices.memory(devices.last, BYTES_OPENED)?, &expected)?;
    segment.write(&here.whole(), 0).await?;
    writeln!(input, "sum")?;
    ensure!(said()?? == here.crc32c(0, BYTES_OPENED)?.to_string(), "the written bytes differ");
    segment.read(&back.span(3, BYTES_OPENED - 5)?, 5).await?;
    let is_equal = content(&back, 3, BYTES_OPENED - 5)? == expected[5..];
    ensure!(is_equal, "the read bytes differ");
    let shm = user.counters().shm;
    let copied = (2 * BYTES_OPENED - 5) as u64;
    ensure!((shm.opened, shm.opened_bytes) == (1, copied), "{shm:?}");
    user.close().await;
    drop(input);
    ensure!(owner.wait()?.success(), "the owner failed");
    Ok(())
}
