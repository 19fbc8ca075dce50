//! The end of writes into memory whose owner sees them late.
//!
//! A NIC acknowledges a write before the accelerator behind its bus has the bytes. A read of the same
//! memory on the same queue pair is answered behind them, so its completion says that they are there. The
//! caller posts each read of [`Unseen::poll_read`], and ends its writes when it has completed.
//!
//! On iWARP a write completes at its sender before the peer has accepted it. The same read proves it, and
//! [`Refusals`] says who is charged for a refusal that no completion reports.

use alloc::vec::Vec;

/// Writes that the device has completed, and that their owner may not see yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Unseen<W>(Vec<Write<W>>);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Write<W> {
    pair: usize,
    region: u64,
    write: W,
}

/// A read that shows writes to their owner.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ShowingRead<W> {
    /// The queue pair.
    pub pair: usize,
    /// The key of the region.
    pub region: u64,
    /// The writes that end with the read; at least one.
    pub writes: Vec<W>,
}

impl<W> Default for Unseen<W> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<W> Unseen<W> {
    /// Whether no write waits for a read.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Keeps a write of a queue pair to a region, which has completed.
    pub fn on_written(&mut self, pair: usize, region: u64, write: W) {
        self.0.push(Write { pair, region, write });
    }

    /// Takes the next read to post: one for all writes of a queue pair to one region. The region's memory
    /// is on one device: a read says nothing of writes on their way to others.
    pub fn poll_read(&mut self) -> Option<ShowingRead<W>> {
        let last = self.0.last()?;
        let (pair, region) = (last.pair, last.region);
        let is_of_read = |it: &mut Write<W>| (it.pair, it.region) == (pair, region);
        let writes = self.0.extract_if(.., is_of_read).map(|it| it.write).collect();
        Some(ShowingRead { pair, region, writes })
    }
}

/// Answered writes after which queue pairs of new lanes take several slices at a time again.
const APART_WRITES: u32 = 256;

/// The slice that is charged for a refusal that no completion reports, on a device that completes writes before they
/// have arrived.
///
/// The peer answers nothing behind the request that it refuses. A read behind several writes does not say
/// which of them that was: the lane charges nobody, and queue pairs of the next lanes take one slice at a
/// time. The first that they lose is the refused one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Refusals {
    /// Writes to be answered one at a time.
    apart: u32,
}

impl Refusals {
    /// Whether queue pairs of a new lane take one slice at a time.
    pub const fn are_apart(&self) -> bool {
        self.apart > 0
    }

    /// A queue pair has lost its first request without a cause. Returns whether the slices of that request
    /// are charged. `is_apart`: its queue pairs take one slice at a time. `has_other_cause`: this node has
    /// ended the lane, or another queue pair of it has lost a request before.
    pub const fn on_first_lost(&mut self, is_apart: bool, has_other_cause: bool) -> bool {
        self.apart = APART_WRITES;
        is_apart && !has_other_cause
    }

    /// The peer has answered the read behind a write that was alone.
    pub const fn on_answered(&mut self) {
        self.apart = self.apart.saturating_sub(1);
    }
}
