//! The cost of a call, for `docs/bench/calls.py`, which makes the same calls from Python.
//!
//! The arguments are a peer and an address of its memory. Each line of standard input is a length and
//! a number of pieces, and is answered with the mean time of a call that writes them, in nanoseconds.

use handfast_compat::{Direction, Options, Request, TransferEngine};
use std::error::Error;
use std::io::{BufRead, stdin};
use std::time::{Duration, Instant};

/// Time of the calls of one line.
const CALLED: Duration = Duration::from_millis(20);
/// Calls between two looks at the clock.
const CALLS: u128 = 8;
/// Memory that the pieces are of, at both ends.
const BLOCK: u64 = 64 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [peer, remote] = arguments.as_slice() else { return Err("usage: PEER ADDRESS".into()) };
    let remote: u64 = remote.parse()?;
    let options = Options::of_mooncake("127.0.0.1", "P2PHANDSHAKE", "tcp", "")?;
    let engine = TransferEngine::start(&options)?;
    let local = engine.allocate_managed(BLOCK as usize)?;
    // Pages that were never written are all the same one, which a processor's nearest cache keeps.
    engine.copy_in(local, &vec![1; BLOCK as usize])?;
    println!("ready");
    for line in stdin().lock().lines() {
        let line = line?;
        let (bytes, count) = line.split_once(' ').ok_or("expected a length and a number")?;
        let (bytes, count): (u64, u64) = (bytes.parse()?, count.parse()?);
        let request = |place: u64| {
            let offset = place * bytes % BLOCK;
            let (local, remote) = (local + offset, remote + offset);
            Request { direction: Direction::Write, local, remote, bytes }
        };
        let requests: Vec<_> = (0..count).map(request).collect();
        let write = || engine.transfer(peer, &requests, None, None, &mut || false);
        write()?;
        let (mut calls, start) = (0, Instant::now());
        while start.elapsed() < CALLED {
            for _ in 0..CALLS {
                write()?;
            }
            calls += CALLS;
        }
        println!("{}", start.elapsed().as_nanos() / calls);
    }
    Ok(())
}
