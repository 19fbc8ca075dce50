//! Memory of the program, as a device reaches it.
#![allow(unsafe_code)]

use handfast_transport_sim::verbs::Mapped;
use std::ops::Range;

/// A registered range of the program's memory.
#[derive(Debug)]
pub(crate) struct ProcessMemory {
    address: usize,
    length: usize,
}

impl ProcessMemory {
    /// # Safety
    /// The range stays mapped until its registration ends, as the rules of `ibv_reg_mr` ask. The
    /// program and the device may change it at the same time; which bytes are read then is the
    /// program's matter, as with a real device.
    pub(crate) unsafe fn new(address: usize, length: usize) -> Self {
        Self { address, length }
    }

    fn pointer(&self, offset: usize) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut::<u8>(self.address).wrapping_add(offset)
    }
}

impl Mapped for ProcessMemory {
    fn length(&self) -> usize {
        self.length
    }

    fn read(&self, range: Range<usize>) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(range.len());
        // SAFETY: the caller stays within the length, which is mapped by the promise of `new`; the
        // vector has room for as many bytes and is another allocation.
        unsafe {
            self.pointer(range.start).copy_to_nonoverlapping(bytes.as_mut_ptr(), range.len());
            bytes.set_len(range.len());
        }
        bytes
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        // SAFETY: as above, in the other direction.
        unsafe { self.pointer(offset).copy_from(bytes.as_ptr(), bytes.len()) }
    }
}
