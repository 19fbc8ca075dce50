//! Lists of a thread that are used again.

use std::cell::RefCell;

/// Maximum lists that a thread keeps.
const LISTS_MAX: usize = 8;
/// Maximum bytes of a list that is kept: room for the encoding of a fleet.
const BYTES_MAX: usize = 1 << 22;

/// Empty lists.
pub(crate) struct Spare<T>(RefCell<Vec<Vec<T>>>);

impl<T> Spare<T> {
    pub(crate) const fn new() -> Self {
        Self(RefCell::new(Vec::new()))
    }

    pub(crate) fn take(&self) -> Vec<T> {
        self.0.borrow_mut().pop().unwrap_or_default()
    }

    pub(crate) fn keep(&self, mut list: Vec<T>) {
        let mut lists = self.0.borrow_mut();
        if lists.len() < LISTS_MAX && list.capacity() * size_of::<T>() <= BYTES_MAX {
            list.clear();
            lists.push(list);
        }
    }
}
