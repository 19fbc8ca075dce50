//! Cost of a slice in the transfer machine: batches of 32 requests of 4 KiB, one slice each, from
//! submission to report, with every completion a success.

#![allow(clippy::disallowed_types, reason = "a benchmark reads the clock")]

use handfast_core::transfer::{
    Completion, CompletionStatus, Direction, LocalSpan, RemoteSpan, Request, SliceId,
    TransferInput, TransferLimits, TransferOutput, Transfers,
};
use handfast_core::{Duration, Instant, Lifecycle};
use std::hint::black_box;

const REQUESTS_PER_BATCH: u64 = 32;
const REQUEST_BYTES: u64 = 4096;
const LANES: u64 = 4;
const ROUNDS: u64 = 100_000;
const REPEATS: u32 = 5;

fn main() {
    for batches_outstanding in [1, 16, 1024] {
        let runs = (0..REPEATS).map(|_| nanoseconds_per_slice(batches_outstanding));
        let best = runs.min().expect("at least one run");
        println!("{batches_outstanding:>5} batches outstanding: {best} ns per slice");
    }
}

fn nanoseconds_per_slice(batches_outstanding: u64) -> u128 {
    let mut transfers = Transfers::new(TransferLimits::default());
    for lane in 1..=LANES {
        let up = TransferInput::LaneUp { lane: Lifecycle(lane), depth: 64 };
        transfers.handle_input(Instant(0), up).expect("there is room for the lane");
    }
    let requests: Vec<Request> = (0..REQUESTS_PER_BATCH).map(request).collect();
    for _ in 0..batches_outstanding {
        submit(&mut transfers, Instant(0), &requests);
    }
    let mut posted: Vec<SliceId> = Vec::new();
    let (mut finished, mut slices) = (0, 0);
    let start = std::time::Instant::now();
    while finished < ROUNDS {
        let now = Instant(finished);
        while let Some(output) = transfers.poll_output() {
            match black_box(output) {
                TransferOutput::Post { slice, .. } => posted.push(slice),
                TransferOutput::Finished { .. } => {
                    finished += 1;
                    submit(&mut transfers, now, &requests);
                }
                output => unreachable!("{output:?} in an undisturbed run"),
            }
        }
        for slice in posted.drain(..) {
            slices += 1;
            let done =
                TransferInput::Completion(Completion { slice, status: CompletionStatus::Done });
            transfers.handle_input(now, done).expect("a completion is always accepted");
        }
    }
    start.elapsed().as_nanos() / slices
}

fn submit(transfers: &mut Transfers, now: Instant, requests: &[Request]) {
    let deadline = now + Duration::from_millis(1000);
    transfers.submit(now, requests, Some(deadline)).expect("there is room for the batch");
}

fn request(index: u64) -> Request {
    let offset = index * REQUEST_BYTES;
    Request {
        direction: if index.is_multiple_of(2) { Direction::Read } else { Direction::Write },
        local: LocalSpan { region: 0, offset },
        remote: RemoteSpan { key: 1, address: offset },
        length: REQUEST_BYTES,
    }
}
