//! Numbers for values of the caller, which are checked at each use.

use crate::failure::{Cause, Failure};
use crate::process::{PerProcess, Process};
use parking_lot::RwLock;
use std::sync::Arc;

/// Bits of a handle that are the slot.
const SLOT_BITS: u32 = 20;
/// Most values that have a slot, one after the other: the handles of a slot would begin again. The slot is not
/// used any more.
const GENERATIONS_MAX: u64 = (1 << (DEPTH_SHIFT - SLOT_BITS)) - 1;
/// The first bit of an engine's handle that is the depth of its process.
const DEPTH_SHIFT: u32 = 58;
/// Set in every engine's handle: no program has memory at such an address, so that no pointer is a
/// handle.
const ENGINE: u64 = 1 << 62;

/// Maximum engines of a process.
pub const ENGINES_MAX: usize = 1_024;

struct Slot<T> {
    /// Number of values that had the slot.
    generation: u64,
    value: Option<T>,
}

/// Values by handle: a number above 0 and below 2^63, which is never given again.
pub struct Handles<T> {
    slots: Vec<Slot<T>>,
    free: Vec<usize>,
    limit: Cause,
}

impl<T> Handles<T> {
    /// Room for `max` values.
    pub const fn new(name: &'static str, max: usize, cure: &'static str) -> Self {
        assert!(max <= 1 << SLOT_BITS);
        Self { slots: Vec::new(), free: Vec::new(), limit: Cause::Limit { name, max, cure } }
    }

    /// Gives a value a handle.
    ///
    /// # Errors
    /// [`Cause::Limit`].
    pub fn insert(&mut self, value: T) -> Result<u64, Failure> {
        let place = match (self.free.pop(), &self.limit) {
            (Some(place), _) => place,
            (None, Cause::Limit { max, .. }) if self.slots.len() >= *max => {
                return Err(self.limit.clone().into());
            }
            _ => {
                self.slots.push(Slot { generation: 0, value: None });
                self.slots.len() - 1
            }
        };
        let slot = &mut self.slots[place];
        slot.generation += 1;
        slot.value = Some(value);
        Ok(slot.generation << SLOT_BITS | place as u64)
    }

    /// Returns the value of a handle.
    pub fn get(&self, handle: u64) -> Option<&T> {
        let slot = self.slots.get(place_of(handle))?;
        slot.value.as_ref().filter(|_| slot.generation == handle >> SLOT_BITS)
    }

    /// Takes the value of a handle, which is unknown from then on.
    pub fn remove(&mut self, handle: u64) -> Option<T> {
        self.get(handle)?;
        let place = place_of(handle);
        if self.slots[place].generation < GENERATIONS_MAX {
            self.free.push(place);
        }
        self.slots[place].value.take()
    }

    /// The values.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|slot| slot.value.as_ref())
    }
}

fn place_of(handle: u64) -> usize {
    (handle & ((1 << SLOT_BITS) - 1)) as usize
}

/// The engines of the program by handle. A child of a fork has none of its parent's.
pub struct Engines<T>(PerProcess<RwLock<Handles<Arc<T>>>>);

impl<T> Engines<T> {
    /// No engine yet.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Self {
        Self(PerProcess::new())
    }

    fn table(&self) -> Result<&RwLock<Handles<Arc<T>>>, Failure> {
        self.0.get(|| {
            let cure = "close engines that are not used";
            RwLock::new(Handles::new("ENGINES_MAX", ENGINES_MAX, cure))
        })
    }

    /// Gives an engine a handle.
    ///
    /// # Errors
    /// [`ENGINES_MAX`].
    pub fn insert(&self, engine: Arc<T>) -> Result<u64, Failure> {
        let handle = self.table()?.write().insert(engine)?;
        Ok(ENGINE | (Process::this().depth() as u64) << DEPTH_SHIFT | handle)
    }

    /// Returns the engine of a handle.
    ///
    /// # Errors
    /// [`Cause::NoSuchEngine`]; [`Cause::Forked`] for a handle of the parent.
    pub fn find(&self, handle: u64) -> Result<Arc<T>, Failure> {
        let found = self.table()?.read().get(own(handle)?).cloned();
        found.ok_or(Cause::NoSuchEngine(handle).into())
    }

    /// Takes the engine of a handle, which is unknown from then on.
    ///
    /// # Errors
    /// As of [`Engines::find`].
    pub fn take(&self, handle: u64) -> Result<Arc<T>, Failure> {
        let found = self.table()?.write().remove(own(handle)?);
        found.ok_or(Cause::NoSuchEngine(handle).into())
    }
}

/// Returns the handle in the table of its process, which is this one.
fn own(handle: u64) -> Result<u64, Failure> {
    let (depth, this) = ((handle & !ENGINE) >> DEPTH_SHIFT, Process::this().depth() as u64);
    match handle & ENGINE != 0 {
        true if depth == this => Ok(handle & ((1 << DEPTH_SHIFT) - 1)),
        true if depth < this => Err(Cause::Forked.into()),
        _ => Err(Cause::NoSuchEngine(handle).into()),
    }
}

#[cfg(test)]
mod model;

#[cfg(test)]
mod tests {
    use super::*;

    /// A handle is above 0, below 2^63, and unknown once its value is removed, also when another
    /// value has its slot.
    #[test]
    fn handle_of_a_removed_value_is_unknown() {
        let mut handles = Handles::new("VALUES_MAX", 2, "remove some");
        let first = handles.insert('a').unwrap();
        assert!(first > 0 && first < 1 << 63);
        assert_eq!((handles.remove(first), handles.remove(first)), (Some('a'), None));
        let second = handles.insert('b').unwrap();
        assert_ne!(first, second);
        for unknown in [first, 0, 1, u64::MAX, 1 << 63] {
            assert_eq!(handles.get(unknown), None);
        }
        assert_eq!(handles.get(second), Some(&'b'));
        handles.insert('c').unwrap();
        let error = handles.insert('d').unwrap_err();
        assert!(matches!(error.cause(), Cause::Limit { name: "VALUES_MAX", .. }), "{error}");
        assert_eq!(handles.values().collect::<String>(), "bc");
    }

    /// A slot whose handles are used up is left, and no handle is given twice.
    #[test]
    fn slot_without_further_handles_is_left() {
        let mut handles = Handles::new("VALUES_MAX", 2, "remove some");
        let first = handles.insert('a').unwrap();
        handles.slots[0].generation = GENERATIONS_MAX - 1;
        handles.slots[0].value = None;
        handles.free.push(0);
        let last = handles.insert('b').unwrap();
        assert!(last > first && last < 1 << DEPTH_SHIFT);
        assert_eq!(handles.remove(last), Some('b'));
        let next = handles.insert('c').unwrap();
        assert_eq!((place_of(next), handles.get(last)), (1, None));
        assert!(handles.insert('d').is_err(), "one of two slots is left");
    }

    #[test]
    fn engine_past_the_limit_is_refused() {
        static ENGINES: Engines<()> = Engines::new();
        let insert = || ENGINES.insert(Arc::new(()));
        let handles: Vec<_> = (0..ENGINES_MAX).map(|_| insert().unwrap()).collect();
        let error = insert().unwrap_err();
        assert!(matches!(error.cause(), Cause::Limit { name: "ENGINES_MAX", .. }), "{error}");
        for handle in handles {
            assert!(handle > 1 << 62 && handle < 1 << 63);
            ENGINES.find(handle).unwrap();
            ENGINES.take(handle).unwrap();
            assert!(ENGINES.find(handle).is_err() && ENGINES.take(handle).is_err());
        }
        for unknown in [0, 1, 1 << 62, u64::MAX] {
            let error = ENGINES.find(unknown).unwrap_err();
            assert!(matches!(error.cause(), Cause::NoSuchEngine(_)), "{error}");
        }
        insert().and_then(|handle| ENGINES.take(handle)).unwrap();
    }

    fn is_forked(outcome: Result<Arc<u8>, Failure>) -> bool {
        outcome.is_err_and(|failure| matches!(failure.cause(), Cause::Forked))
    }

    /// A child whose parent held the table at the fork is refused, and has engines of its own.
    #[test]
    #[allow(unsafe_code)]
    fn child_of_a_fork_does_not_wait_for_the_parents_table() {
        static ENGINES: Engines<u8> = Engines::new();
        let handle = ENGINES.insert(Arc::new(1)).unwrap();
        let held = ENGINES.table().unwrap().write();
        // SAFETY: the child makes the calls of the test, and exits without destructors.
        match unsafe { libc::fork() } {
            0 => {
                // SAFETY: ends the child if it waits.
                unsafe { libc::alarm(20) };
                let refused = is_forked(ENGINES.find(handle)) && is_forked(ENGINES.take(handle));
                let own = ENGINES.insert(Arc::new(2)).unwrap();
                let found = own != handle && ENGINES.find(own).is_ok_and(|it| *it == 2);
                // SAFETY: ends the child.
                unsafe { libc::_exit(if refused && found { 0 } else { 1 }) }
            }
            child => {
                let mut status = 0;
                // SAFETY: waits for the child.
                assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
                assert_eq!(status, 0);
            }
        }
        drop(held);
        assert_eq!(*ENGINES.find(handle).unwrap(), 1);
    }
}
