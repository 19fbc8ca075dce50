//! The interface of a metadata store.

use crate::error::StoreError;
use std::future::Future;
use std::pin::Pin;

/// Longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 1_024;
/// Longest value, in bytes: the default bound of a frame with a descriptor.
pub const VALUE_BYTES_MAX: usize = 1 << 20;

/// The future of an operation on a store.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Texts under keys, shared by the nodes of a fleet. Operations are bounded in time and cancel-safe: a
/// dropped one has either happened or not.
pub trait Store: Send + Sync + 'static {
    /// Reads an entry; `None` if there is none.
    fn get<'a>(&'a self, key: &'a str) -> Pending<'a, Option<String>>;

    /// Writes an entry or replaces it. A store that detects a dead writer removes its entries; a live
    /// writer repeats its writes from time to time.
    fn put<'a>(&'a self, key: &'a str, value: &'a str) -> Pending<'a, ()>;

    /// Removes an entry; a missing one is not an error.
    fn remove<'a>(&'a self, key: &'a str) -> Pending<'a, ()>;

    /// Watches the keys that begin with `prefix`; `None` if the store does not support it.
    fn watch(&self, _prefix: &str) -> Option<Box<dyn Changes>> {
        None
    }

    /// Returns the store's name, for messages.
    fn name(&self) -> &str;
}

/// A change in a watched store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// An entry was written.
    Put {
        /// The key.
        key: String,
        /// The new value.
        value: String,
    },
    /// An entry was removed, or expired with its writer.
    Removed {
        /// The key.
        key: String,
    },
    /// Changes before this point may be missing; later ones are complete.
    Missed,
}

/// The changes of a store, in order.
pub trait Changes: Send {
    /// Returns the next change. The first is [`Change::Missed`], and so is the first after an error and a
    /// reconnection. Cancel-safe: no change is lost.
    fn next(&mut self) -> Pending<'_, Change>;
}
