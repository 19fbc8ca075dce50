//! The bytes of a region: held by the fabric, or the memory of a process.

use std::borrow::Cow;
use std::fmt::Debug;
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;

/// Memory of a process, which a device reads and writes in place.
pub trait Mapped: Debug + Send + Sync {
    /// Returns its length in bytes.
    fn length(&self) -> usize;
    /// Returns a copy of a range within the length.
    fn read(&self, range: Range<usize>) -> Vec<u8>;
    /// Replaces the bytes at an offset; they end within the length.
    fn write(&self, offset: usize, bytes: &[u8]);
}

/// The bytes of a region.
#[derive(Clone, Debug)]
pub enum Bytes {
    /// Held by the fabric. A clone of the fabric has bytes of its own.
    Held(Arc<Vec<u8>>),
    /// Memory of a process. Every clone of the fabric has the same.
    Mapped(Arc<dyn Mapped>),
}

impl Bytes {
    /// Returns the length in bytes.
    pub fn length(&self) -> usize {
        match self {
            Self::Held(bytes) => bytes.len(),
            Self::Mapped(memory) => memory.length(),
        }
    }

    /// Returns a range within the length.
    pub(super) fn read(&self, range: Range<usize>) -> Cow<'_, [u8]> {
        match self {
            Self::Held(bytes) => Cow::Borrowed(&bytes[range]),
            Self::Mapped(memory) => Cow::Owned(memory.read(range)),
        }
    }

    pub(super) fn write(&mut self, offset: usize, bytes: &[u8]) {
        match self {
            Self::Held(held) => {
                Arc::make_mut(held)[offset..offset + bytes.len()].copy_from_slice(bytes);
            }
            Self::Mapped(memory) => memory.write(offset, bytes),
        }
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Held(Arc::new(bytes))
    }
}

impl PartialEq for Bytes {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Held(one), Self::Held(other)) => one == other,
            (Self::Mapped(one), Self::Mapped(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}

impl Eq for Bytes {}

/// Held bytes count by their content. Memory of a process counts by its length alone: its content
/// changes without the fabric.
impl Hash for Bytes {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self {
            Self::Held(bytes) => bytes.hash(state),
            Self::Mapped(memory) => memory.length().hash(state),
        }
    }
}
