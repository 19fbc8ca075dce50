//! Every sequence of calls of [`Handles`] with two slots, up to a length, compared with the set of handles that
//! were given; and wrong tables that are found.

use super::*;
use std::collections::BTreeMap;

const VALUES_MAX: usize = 2;
/// Calls of a sequence.
const CALLS: usize = 8;

/// The shipping table, or a wrong one around it.
struct Table {
    inner: Handles<u32>,
    wrong: Option<Wrong>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    /// A slot gives the same handle to each of its values.
    GivesAgain,
    /// A removed handle finds the value that has its slot now.
    FindsTheNext,
    /// A removed handle removes the value that has its slot now.
    RemovesTheNext,
    /// A removed value is still found.
    KeepsRemoved,
}

impl Table {
    fn new(wrong: Option<Wrong>) -> Self {
        Self { inner: Handles::new("VALUES_MAX", VALUES_MAX, "remove some"), wrong }
    }

    /// The handle of the value that has the slot of a handle now.
    fn present(&self, handle: u64) -> u64 {
        let slot = &self.inner.slots[place_of(handle)];
        slot.generation << SLOT_BITS | place_of(handle) as u64
    }

    fn insert(&mut self, value: u32) -> Option<u64> {
        let handle = self.inner.insert(value).ok()?;
        match self.wrong {
            Some(Wrong::GivesAgain) => Some(1 << SLOT_BITS | place_of(handle) as u64),
            _ => Some(handle),
        }
    }

    fn get(&self, handle: u64) -> Option<u32> {
        let finds = matches!(self.wrong, Some(Wrong::FindsTheNext | Wrong::GivesAgain));
        let handle = if finds { self.present(handle) } else { handle };
        self.inner.get(handle).copied()
    }

    fn remove(&mut self, handle: u64) -> Option<u32> {
        match self.wrong {
            Some(Wrong::RemovesTheNext | Wrong::GivesAgain) => {
                self.inner.remove(self.present(handle))
            }
            Some(Wrong::KeepsRemoved) => self.inner.get(handle).copied(),
            _ => self.inner.remove(handle),
        }
    }
}

/// A call: the insertion of a value, or the removal of the handle that was given so many insertions ago.
#[derive(Clone, Copy, Debug)]
enum Call {
    Insert,
    Remove(usize),
}

/// A sequence of calls, and the handles that it gave.
struct Run {
    table: Table,
    /// Each handle that was given, with its value until it is removed.
    given: Vec<(u64, Option<u32>)>,
}

impl Run {
    fn play(wrong: Option<Wrong>, calls: &[Call]) -> Result<Self, &'static str> {
        let mut run = Self { table: Table::new(wrong), given: Vec::new() };
        calls.iter().try_for_each(|call| run.take(*call))?;
        Ok(run)
    }

    fn take(&mut self, call: Call) -> Result<(), &'static str> {
        match call {
            Call::Insert => {
                let value = self.given.len() as u32;
                let present = self.given.iter().filter(|(_, value)| value.is_some()).count();
                match self.table.insert(value) {
                    Some(_) if present >= VALUES_MAX => return Err("the limit is passed"),
                    None if present < VALUES_MAX => return Err("a value is refused"),
                    Some(handle) if self.given.iter().any(|(it, _)| *it == handle) => {
                        return Err("a handle is given twice");
                    }
                    Some(handle) if handle == 0 || handle >= 1 << DEPTH_SHIFT => {
                        return Err("a handle is out of its range");
                    }
                    Some(handle) => self.given.push((handle, Some(value))),
                    None => {}
                }
            }
            Call::Remove(index) => {
                let (handle, value) = &mut self.given[index];
                if self.table.remove(*handle) != value.take() {
                    return Err("a removal returns another value");
                }
            }
        }
        let found: BTreeMap<u64, Option<u32>> =
            self.given.iter().map(|(handle, _)| (*handle, self.table.get(*handle))).collect();
        let is_right = self.given.iter().all(|(handle, value)| found[handle] == *value);
        if is_right { Ok(()) } else { Err("a handle finds another value") }
    }
}

/// Plays every sequence that goes on from `calls`; returns the first that breaks a law, or their number.
fn search(wrong: Option<Wrong>, calls: &mut Vec<Call>) -> Result<u64, (Vec<Call>, &'static str)> {
    let run = Run::play(wrong, calls).map_err(|law| (calls.clone(), law))?;
    if calls.len() == CALLS {
        return Ok(1);
    }
    let mut sequences = 1;
    let removals = (0..run.given.len()).map(Call::Remove);
    for call in std::iter::once(Call::Insert).chain(removals) {
        calls.push(call);
        sequences += search(wrong, calls)?;
        calls.pop();
    }
    Ok(sequences)
}

/// A handle means its own value until it is removed, and nothing after that, in every sequence of calls.
#[test]
fn handle_means_its_own_value() {
    let sequences = search(None, &mut Vec::new()).unwrap_or_else(|found| panic!("{found:?}"));
    assert_eq!(sequences, 3_076);
}

#[test]
fn wrong_table_of_handles_is_found() {
    for wrong in
        [Wrong::GivesAgain, Wrong::FindsTheNext, Wrong::RemovesTheNext, Wrong::KeepsRemoved]
    {
        let found = search(Some(wrong), &mut Vec::new());
        assert!(found.is_err(), "{wrong:?} is not found");
    }
}
