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

    /// Which store it is, for messages.
    fn name(&self) -> &str;
}
