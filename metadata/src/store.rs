//! What a store does.

use crate::error::StoreError;
use std::future::Future;
use std::pin::Pin;

/// Longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 1_024;
/// Longest value, in bytes: as long as the longest frame that carries a descriptor by default.
pub const VALUE_BYTES_MAX: usize = 1 << 20;

/// The end of an operation on a store.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Texts under keys, seen by every node of a fleet. Operations are bounded in time and cancel-safe:
/// one that was dropped has happened or has not.
pub trait Store: Send + Sync + 'static {
    /// Reads; `None` if there is nothing under the key.
    fn get<'a>(&'a self, key: &'a str) -> Pending<'a, Option<String>>;

    /// Writes, whatever was there before. Where the store can tell that a writer is gone, what it
    /// wrote goes with it; a writer that lives writes again now and then.
    fn put<'a>(&'a self, key: &'a str, value: &'a str) -> Pending<'a, ()>;

    /// Removes; nothing to remove is no error.
    fn remove<'a>(&'a self, key: &'a str) -> Pending<'a, ()>;

    /// Follows what happens under keys that begin with `prefix`; `None` where a store cannot tell.
    fn watch(&self, _prefix: &str) -> Option<Box<dyn Changes>> {
        None
    }

    /// Which store it is, for messages.
    fn name(&self) -> &str;
}

/// One word of a store that is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Written.
    Put {
        /// The key.
        key: String,
        /// What is under it now.
        value: String,
    },
    /// Removed, or gone with its writer.
    Removed {
        /// The key.
        key: String,
    },
    /// From here on everything is told; what happened before may not have been.
    Missed,
}

/// What happens in a store, in order.
pub trait Changes: Send {
    /// The next change. The first is [`Change::Missed`], and so is the one after an error, which is
    /// when the store is connected to again. Cancel-safe: nothing is lost.
    fn next(&mut self) -> Pending<'_, Change>;
}
