//! Memory of a device, which a peer opens by a handle of the device's driver.
//!
//! A handle opens a whole allocation for reads and writes, in every process that has it, and cannot be taken
//! back: what is open reaches the memory until it is closed or its process has ended. So an owner passes a
//! handle to peers alone that may read and write the whole allocation, and memory that was granted by handle is
//! in reach of the peer until the peer has acknowledged the revocation, or is proven dead, like all memory that is
//! granted. A peer acknowledges after its process has closed the allocation. Several lanes of a process open
//! an allocation once: [`Openings`] counts them.

use super::{Offered, Sharing};
use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry;

/// Maximum allocations of other processes that a process has open.
pub const OPENINGS_MAX: usize = 1_024;
/// Bytes of a driver's handle.
pub const HANDLE_BYTES: usize = 64;
/// Bytes of the blocks that a driver maps for a peer. Smaller allocations share one, and a peer that opens one
/// of them has the others mapped.
pub const DEVICE_BLOCK_BYTES: u64 = 2 << 20;

/// A driver's handle of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle(pub [u8; HANDLE_BYTES]);

/// An allocation on a device, as the driver of its owner describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Allocation {
    /// First byte, in the owner's addresses.
    pub start: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Reasons to stage a device's memory through the host instead of opening it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum Staged {
    /// The region is a part of an allocation, or in several.
    #[error("the region is not one whole allocation, and a handle opens all of one")]
    NotWhole,
    /// The peer may not both read and write.
    #[error("the peer may not both read and write the region, and a handle permits both")]
    NotReadWrite,
    /// The allocation shares a block with others.
    #[error(
        "the allocation is not in whole blocks of {DEVICE_BLOCK_BYTES} bytes, and a handle maps the rest of a \
         block as well"
    )]
    SharedBlock,
    /// The owner's driver makes no handle: of memory in a pool or in segments that grow, or an old driver.
    #[error("the owner's driver makes no handle of the memory")]
    NoHandle,
    /// The initiator's process has no driver.
    #[error("this process has not loaded the device's driver")]
    NoDriver,
    /// The initiator's process does not see the device.
    #[error("this process does not see the peer's device")]
    OtherDevice,
    /// [`OPENINGS_MAX`] allocations are open.
    #[error("{OPENINGS_MAX} allocations of other processes are open already")]
    Full,
    /// An earlier allocation with the same handle is open: the driver would return that one.
    #[error("an earlier allocation with the same handle is open")]
    Earlier,
    /// The initiator's driver refused the handle.
    #[error("the driver of this process does not open the handle")]
    NotOpened,
    /// The initiator's process does not use the device: opening would start a context there.
    #[error("this process has no context on the peer's device")]
    NoContext,
    /// The owner does not know the answer of a process that cannot close the allocation: it would use the
    /// memory again.
    #[error("the peer is of an earlier version, which takes no word of memory that stays open")]
    EarlierOwner,
}

impl Staged {
    /// Every reason.
    pub const ALL: [Self; 11] = [
        Self::NotWhole,
        Self::NotReadWrite,
        Self::SharedBlock,
        Self::NoHandle,
        Self::NoDriver,
        Self::OtherDevice,
        Self::Full,
        Self::Earlier,
        Self::NotOpened,
        Self::NoContext,
        Self::EarlierOwner,
    ];
}

impl Sharing {
    /// Decides whether the peer may have a handle of the allocation at the start of a region on a device.
    ///
    /// # Errors
    /// The reason to stage it.
    pub fn offer_handle(&self, offered: &Offered, allocation: &Allocation) -> Result<(), Staged> {
        let is_whole = (offered.address, offered.bytes) == (allocation.start, allocation.bytes);
        if !is_whole {
            return Err(Staged::NotWhole);
        }
        if !(offered.readable && offered.writable) {
            return Err(Staged::NotReadWrite);
        }
        let mut edges = [allocation.start, allocation.bytes].into_iter();
        match edges.all(|edge| edge.is_multiple_of(DEVICE_BLOCK_BYTES)) {
            true => Ok(()),
            false => Err(Staged::SharedBlock),
        }
    }
}

/// The answer to [`Openings::open`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Opening {
    /// The driver is to open it; a failure is [`Openings::on_failed`].
    First,
    /// It is open.
    Again,
}

/// Allocations of other processes that this process has open. Every holder of one must
/// [close](Openings::close) it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Openings {
    open: BTreeMap<Handle, Open>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Open {
    /// The owner's number of the allocation.
    allocation: u64,
    holders: u32,
}

impl Openings {
    /// A process that has nothing open.
    pub const fn new() -> Self {
        Self { open: BTreeMap::new() }
    }

    /// Adds a holder of an allocation, whose number its owner gives to no other.
    ///
    /// # Errors
    /// [`Staged::Full`] and [`Staged::Earlier`].
    pub fn open(&mut self, handle: Handle, allocation: u64) -> Result<Opening, Staged> {
        let is_full = self.open.len() >= OPENINGS_MAX;
        match self.open.entry(handle) {
            Entry::Occupied(known) if known.get().allocation != allocation => Err(Staged::Earlier),
            Entry::Occupied(mut known) => {
                known.get_mut().holders += 1;
                Ok(Opening::Again)
            }
            Entry::Vacant(_) if is_full => Err(Staged::Full),
            Entry::Vacant(free) => {
                free.insert(Open { allocation, holders: 1 });
                Ok(Opening::First)
            }
        }
    }

    /// Handles a failure of the driver to open what was [`Opening::First`].
    pub fn on_failed(&mut self, handle: Handle) {
        self.open.remove(&handle);
    }

    /// Removes a holder. Returns whether it was the last: the driver is to close the allocation, before the
    /// owner learns that the holder has let it go.
    pub fn close(&mut self, handle: Handle) -> bool {
        let Entry::Occupied(mut known) = self.open.entry(handle) else { return false };
        known.get_mut().holders -= 1;
        let is_last = known.get().holders == 0;
        if is_last {
            known.remove();
        }
        is_last
    }

    /// Number of open allocations.
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Whether none is open.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = DEVICE_BLOCK_BYTES;

    fn handle(number: u64) -> Handle {
        let mut bytes = [0; HANDLE_BYTES];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        Handle(bytes)
    }

    /// A handle is for whole allocations in whole blocks, which the peer may read and write.
    #[test]
    fn handle_opens_what_the_peer_may_have() {
        let machine = Sharing::new();
        let whole = Allocation { start: 4 * BLOCK, bytes: 2 * BLOCK };
        let region =
            Offered { address: whole.start, bytes: whole.bytes, readable: true, writable: true };
        assert_eq!(machine.offer_handle(&region, &whole), Ok(()));
        for (offered, reason) in [
            (Offered { bytes: BLOCK, ..region }, Staged::NotWhole),
            (Offered { bytes: 3 * BLOCK, ..region }, Staged::NotWhole),
            (Offered { address: 5 * BLOCK, bytes: BLOCK, ..region }, Staged::NotWhole),
            (Offered { writable: false, ..region }, Staged::NotReadWrite),
            (Offered { readable: false, ..region }, Staged::NotReadWrite),
        ] {
            assert_eq!(machine.offer_handle(&offered, &whole), Err(reason));
        }
        for (start, bytes) in [(4 * BLOCK, BLOCK + 1), (4 * BLOCK + 4_096, BLOCK)] {
            let region = Offered { address: start, bytes, ..region };
            let odd = Allocation { start, bytes };
            assert_eq!(machine.offer_handle(&region, &odd), Err(Staged::SharedBlock));
        }
    }

    /// An allocation is opened by its first holder and closed by its last, and a later one with the same handle
    /// waits for that.
    #[test]
    fn allocation_is_opened_once_and_closed_once() {
        let mut openings = Openings::new();
        assert_eq!(openings.open(handle(1), 7), Ok(Opening::First));
        assert_eq!(openings.open(handle(1), 7), Ok(Opening::Again));
        assert_eq!(openings.open(handle(1), 8), Err(Staged::Earlier));
        assert!(!openings.close(handle(1)) && !openings.is_empty());
        assert!(openings.close(handle(1)) && openings.is_empty());
        assert!(!openings.close(handle(1)), "it is closed");
        assert_eq!(openings.open(handle(1), 8), Ok(Opening::First));
        openings.on_failed(handle(1));
        assert!(openings.is_empty());
    }

    /// A full table refuses further allocations, and none that is open.
    #[test]
    fn openings_have_a_limit() {
        let mut openings = Openings::new();
        for number in 0..OPENINGS_MAX as u64 {
            assert_eq!(openings.open(handle(number), 1), Ok(Opening::First));
        }
        assert_eq!(openings.open(handle(OPENINGS_MAX as u64), 1), Err(Staged::Full));
        assert_eq!(openings.open(handle(3), 1), Ok(Opening::Again));
        assert!(!openings.close(handle(3)) && openings.close(handle(3)));
        assert_eq!(openings.open(handle(OPENINGS_MAX as u64), 1), Ok(Opening::First));
        assert_eq!(openings.len(), OPENINGS_MAX);
    }
}
