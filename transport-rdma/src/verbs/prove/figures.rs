//! Rates. No profile assumes any: they are for its reader.

use super::Observed;
use super::bench::{ALL, Bench, Wiring};
use super::steps::Outcome;
use crate::verbs::objects::bare::{BareKind, BareQueuePair, BareRequest};
use handfast_transport::Memory;
use std::time::{Duration, Instant};

/// Duration of a measurement.
const TIME: Duration = Duration::from_millis(300);
/// Bytes of a small write, and how many are outstanding.
const SMALL_BYTES: u32 = 64;
const SMALL_OUTSTANDING: u32 = 16;
/// Bytes of a large request, and how many are outstanding.
const LARGE_BYTES: u32 = 1 << 20;
const LARGE_OUTSTANDING: u32 = 2;

pub(super) fn small_writes(bench: &Bench) -> Outcome {
    let pair = bench.pair(&Wiring::default()).map_err(|refused| refused.words())?;
    let request = bench.request(BareKind::Write, SMALL_BYTES);
    let (count, took) = run(bench, &pair.requester, &request, SMALL_OUTSTANDING)?;
    Ok(Observed::RequestsPerSecond(per_second(count, took)))
}

pub(super) fn large(bench: &Bench, is_write: bool) -> Outcome {
    let memory = || Memory::zeroed(LARGE_BYTES as usize).map_err(|error| error.to_string());
    let (own, peer) = (memory()?, memory()?);
    let [first, second] = &bench.sites;
    let own_region = first.nic.register(own.whole(), ALL).map_err(|error| error.to_string())?;
    let peer_region = second.nic.register(peer.whole(), ALL).map_err(|error| error.to_string())?;
    let pair = bench.pair(&Wiring::default()).map_err(|refused| refused.words())?;
    let kind = if is_write { BareKind::Write } else { BareKind::Read };
    let request = BareRequest {
        address: own.address(),
        local_key: own_region.keys().0,
        remote_address: peer.address(),
        remote_key: peer_region.keys().1,
        ..bench.request(kind, LARGE_BYTES)
    };
    let (count, took) = run(bench, &pair.requester, &request, LARGE_OUTSTANDING)?;
    Ok(Observed::MibPerSecond(per_second(count, took)))
}

/// Repeats a request, as many outstanding, and returns how many ended in which time.
fn run(
    bench: &Bench,
    queue_pair: &BareQueuePair,
    request: &BareRequest,
    outstanding_max: u32,
) -> Result<(u64, Duration), String> {
    let began = Instant::now();
    let (mut outstanding, mut count) = (0, 0);
    loop {
        let is_over = began.elapsed() >= TIME;
        if is_over && outstanding == 0 {
            return Ok((count, began.elapsed()));
        }
        while !is_over && outstanding < outstanding_max {
            let returned = queue_pair.post(request);
            if returned != 0 {
                return Err(format!("ibv_post_send returned {returned}"));
            }
            outstanding += 1;
        }
        match bench.sites[0].nic.poll().map_err(|error| error.to_string())? {
            Some(completion) if completion.status == 0 => {
                outstanding -= 1;
                count += 1;
            }
            Some(completion) => return Err(format!("a request ended with {}", completion.status)),
            None if bench.left().is_zero() => return Err("a request did not end".to_owned()),
            None => std::hint::spin_loop(),
        }
    }
}

fn per_second(count: u64, took: Duration) -> u64 {
    let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1);
    count.saturating_mul(1_000_000) / micros
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rate is a whole number, without a division by zero.
    #[test]
    fn rate_is_a_whole_number() {
        assert_eq!(per_second(300, Duration::from_millis(300)), 1_000);
        assert_eq!(per_second(1, Duration::ZERO), 1_000_000);
        assert_eq!(per_second(1, Duration::from_secs(3)), 0);
    }
}
