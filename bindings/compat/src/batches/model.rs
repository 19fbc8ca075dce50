//! Every sequence of calls of [`Batches`] and their parts, up to a length: the state of a batch is that of its
//! parts, its number is its own, and it is freed once, when no part is under way.

use super::*;

/// Calls of a sequence.
const CALLS: usize = 7;
/// Requests of a batch, each a part of its own.
const CAPACITY: usize = 2;
/// Batches of a sequence.
const NUMBERS: usize = 2;

/// A call; the number is that of a batch, in the order of their allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Allocate,
    Reserve(usize),
    /// The reserved part is not started after all.
    GiveBack(usize),
    /// The reserved part is started.
    Add(usize),
    /// The oldest part that was started ends, well or not.
    End(usize, bool),
    Free(usize),
}

/// A batch as its documentation describes it.
#[derive(Default)]
struct Expected {
    id: BatchId,
    batch: Option<Arc<Batch>>,
    reserved: usize,
    /// Parts that were started and have not ended.
    started: Vec<usize>,
    ended: usize,
    has_failed: bool,
    is_freed: bool,
}

impl Expected {
    fn is_pending(&self) -> bool {
        self.reserved + self.started.len() > 0
    }

    fn parts(&self) -> usize {
        self.reserved + self.started.len() + self.ended
    }

    /// The calls that its owner may make now. A freed batch has a number alone.
    fn calls(&self, number: usize) -> Vec<Call> {
        let mut calls = vec![Call::Free(number)];
        if self.is_freed {
            return calls;
        }
        calls.push(Call::Reserve(number));
        if self.reserved > 0 {
            calls.extend([Call::GiveBack(number), Call::Add(number)]);
        }
        if !self.started.is_empty() {
            calls.extend([Call::End(number, true), Call::End(number, false)]);
        }
        calls
    }
}

#[derive(Default)]
struct Run {
    batches: Batches,
    expected: Vec<Expected>,
}

impl Run {
    fn take(&mut self, call: Call) {
        match call {
            Call::Allocate => {
                let (id, batch) = self.batches.allocate(CAPACITY).unwrap();
                assert!(self.expected.iter().all(|other| other.id != id), "{id} is given twice");
                self.expected.push(Expected { id, batch: Some(batch), ..Expected::default() });
            }
            Call::Reserve(number) => {
                let it = &mut self.expected[number];
                let has_room = it.parts() < CAPACITY;
                let reserved = it.batch.as_ref().unwrap().reserve(1);
                assert_eq!(reserved.is_ok(), has_room, "{reserved:?}");
                it.reserved += usize::from(has_room);
            }
            Call::GiveBack(number) => {
                let it = &mut self.expected[number];
                it.batch.as_ref().unwrap().give_back(1);
                it.reserved -= 1;
            }
            Call::Add(number) => {
                let it = &mut self.expected[number];
                let request =
                    Request { direction: Direction::Write, local: 1, remote: 1, bytes: 4 };
                let part = it.batch.as_ref().unwrap().add(&[Share::all("a", &[request])]);
                it.reserved -= 1;
                it.started.push(part);
            }
            Call::End(number, is_well) => {
                let it = &mut self.expected[number];
                let part = it.started.remove(0);
                let outcome = if is_well { Ok(()) } else { Err(Failure::argument("gone")) };
                it.batch.as_ref().unwrap().end(part, None, outcome);
                it.ended += 1;
                it.has_failed |= !is_well;
            }
            Call::Free(number) => {
                let it = &mut self.expected[number];
                let freed = self.batches.free(it.id);
                match freed.as_ref().map_err(Failure::cause) {
                    Ok(()) => assert!(!it.is_freed && !it.is_pending(), "{call:?}"),
                    Err(Cause::NoSuchBatch(id)) => assert!(it.is_freed && *id == it.id),
                    Err(Cause::Unfinished(id)) => assert!(it.is_pending() && *id == it.id),
                    Err(cause) => panic!("{cause:?}"),
                }
                if freed.is_ok() {
                    (it.is_freed, it.batch) = (true, None);
                }
            }
        }
        self.expected.iter().for_each(|it| self.check(it));
    }

    /// Compares a batch, found by its number, with what is expected of it.
    fn check(&self, it: &Expected) {
        let found = self.batches.get(it.id);
        assert_eq!(found.is_err(), it.is_freed, "{}", it.id);
        let (Ok(found), Some(own)) = (found, &it.batch) else { return };
        assert!(Arc::ptr_eq(&found, own), "the number is of another batch");
        match found.state() {
            BatchState::Pending => assert!(it.is_pending()),
            BatchState::Done { bytes } => {
                assert!(!it.is_pending() && !it.has_failed);
                assert_eq!(bytes, 4 * it.ended as u64);
            }
            BatchState::Failed { .. } => assert!(!it.is_pending() && it.has_failed),
        }
    }
}

/// Plays every sequence that goes on from `calls`, each from its start; returns their number.
fn search(calls: &mut Vec<Call>) -> u64 {
    let mut run = Run::default();
    calls.iter().for_each(|call| run.take(*call));
    if calls.len() == CALLS {
        return 1;
    }
    let of_batches = run.expected.iter().enumerate().flat_map(|(number, it)| it.calls(number));
    let mut next: Vec<Call> = of_batches.collect();
    if run.expected.len() < NUMBERS {
        next.push(Call::Allocate);
    }
    let mut sequences = 1;
    for call in next {
        calls.push(call);
        sequences += search(calls);
        calls.pop();
    }
    sequences
}

/// A number is of one batch, which is freed once, when no part is under way: in every sequence of calls.
#[test]
fn number_is_of_one_batch_in_every_sequence() {
    let sequences = search(&mut Vec::new());
    assert_eq!(sequences, 8_453);
}
