//! Allocations on devices that belong to other processes of this host and are open in this one, once for all
//! lanes.

use handfast_core::sharing::{Handle, Offered, Opening, Openings, Staged};
use handfast_transport::{
    DEVICE_HANDLE_BYTES, DEVICE_UUID_BYTES, DeviceHandle, Memory, MemoryError, OpenDevice,
    OpenDeviceError, Span,
};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

/// Bytes of a handle in the memory that comes with its grant.
const PASSED_BYTES: usize = DEVICE_HANDLE_BYTES + DEVICE_UUID_BYTES + 8;

/// The driver opens an allocation once for the process, whatever lane asks.
static TABLE: Mutex<Table> =
    Mutex::new(Table { openings: Openings::new(), memories: BTreeMap::new() });

struct Table {
    openings: Openings,
    memories: BTreeMap<Handle, Memory>,
}

/// An allocation that a lane holds open.
pub(crate) struct Opened {
    handle: Handle,
    /// Present until the end.
    memory: Option<Memory>,
}

impl Opened {
    /// Opens the allocation whose handle came with a grant.
    pub(crate) fn open(
        passed: OwnedFd,
        offered: &Offered,
        open: Option<OpenDevice>,
    ) -> Result<Self, Staged> {
        let open = open.ok_or(Staged::NoDriver)?;
        let found = read(passed).map_err(|error| {
            tracing::debug!(%error, "the handle of an allocation cannot be read");
            Staged::NotOpened
        })?;
        let length = usize::try_from(offered.bytes).map_err(|_| Staged::NotOpened)?;
        let handle = Handle(found.bytes);
        let mut table = TABLE.lock();
        let memory = match table.openings.open(handle, found.allocation)? {
            Opening::Again => table.memories.get(&handle).filter(|it| it.len() == length).cloned(),
            Opening::First => match open(&found, length) {
                Ok(memory) => {
                    table.memories.insert(handle, memory.clone());
                    Some(memory)
                }
                Err(error) => {
                    table.openings.on_failed(handle);
                    tracing::debug!(%error, "an allocation of the peer is not opened");
                    return Err(match error {
                        OpenDeviceError::NoDriver => Staged::NoDriver,
                        OpenDeviceError::OtherDevice => Staged::OtherDevice,
                        OpenDeviceError::NoContext => Staged::NoContext,
                        OpenDeviceError::Refused(_) => Staged::NotOpened,
                    });
                }
            },
        };
        drop(table);
        let opened = Self { handle, memory };
        match opened.memory.is_some() {
            true => Ok(opened),
            false => Err(Staged::NotOpened),
        }
    }

    /// Bytes of the allocation.
    pub(crate) fn span(&self, offset: usize, length: usize) -> Result<Span, MemoryError> {
        let memory = self.memory.as_ref().ok_or(MemoryError::Null)?;
        memory.span(offset, length)
    }
}

impl Drop for Opened {
    /// The last one closes the allocation, before the peer learns that the lane holds it no more.
    fn drop(&mut self) {
        let mut table = TABLE.lock();
        self.memory = None;
        if table.openings.close(self.handle) {
            table.memories.remove(&self.handle);
        }
    }
}

/// Memory with a handle in it, to pass with a grant.
pub(crate) fn passed(handle: &DeviceHandle) -> Result<Option<OwnedFd>, MemoryError> {
    let memory = Memory::shared(PASSED_BYTES)?;
    memory.copy_in(0, &handle.bytes)?;
    memory.copy_in(DEVICE_HANDLE_BYTES, &handle.device)?;
    memory.copy_in(DEVICE_HANDLE_BYTES + DEVICE_UUID_BYTES, &handle.allocation.to_le_bytes())?;
    memory.descriptor(false)
}

fn read(passed: OwnedFd) -> Result<DeviceHandle, MemoryError> {
    let memory = Memory::of_peer(passed, false, PASSED_BYTES)?;
    let (mut bytes, mut device) = ([0; DEVICE_HANDLE_BYTES], [0; DEVICE_UUID_BYTES]);
    let mut allocation = [0; 8];
    memory.copy_out(0, &mut bytes)?;
    memory.copy_out(DEVICE_HANDLE_BYTES, &mut device)?;
    memory.copy_out(DEVICE_HANDLE_BYTES + DEVICE_UUID_BYTES, &mut allocation)?;
    Ok(DeviceHandle { bytes, device, allocation: u64::from_le_bytes(allocation) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const BYTES: usize = 4_096;
    static CALLS: AtomicUsize = AtomicUsize::new(0);

    fn offered() -> Offered {
        Offered { address: 0, bytes: BYTES as u64, readable: true, writable: true }
    }

    fn handle(number: u8, allocation: u64) -> DeviceHandle {
        DeviceHandle {
            bytes: [number; DEVICE_HANDLE_BYTES],
            device: [1; DEVICE_UUID_BYTES],
            allocation,
        }
    }

    fn opens(handle: &DeviceHandle, length: usize) -> Result<Memory, OpenDeviceError> {
        CALLS.fetch_add(1, Ordering::Relaxed);
        match handle.bytes[0] {
            1 => Ok(Memory::zeroed(length).unwrap()),
            2 => Err(OpenDeviceError::OtherDevice),
            4 => Err(OpenDeviceError::NoContext),
            _ => Err(OpenDeviceError::Refused("no".to_owned())),
        }
    }

    fn open(it: &DeviceHandle, driver: Option<OpenDevice>) -> Result<Opened, Staged> {
        Opened::open(passed(it).unwrap().unwrap(), &offered(), driver)
    }

    /// Lanes share one opening, which ends with the last of them; another allocation with the same handle
    /// waits for that, and what is not opened has its reason.
    #[test]
    fn lanes_share_one_opening() {
        let driver: Option<OpenDevice> = Some(opens);
        assert_eq!(read(passed(&handle(1, 7)).unwrap().unwrap()).unwrap(), handle(1, 7));
        let (first, second) = (open(&handle(1, 7), driver).unwrap(), open(&handle(1, 7), driver));
        let second = second.unwrap();
        assert_eq!(CALLS.load(Ordering::Relaxed), 1);
        second.span(0, BYTES).unwrap().copy_in(9, &[5]).unwrap();
        let mut byte = [0];
        first.span(9, 1).unwrap().copy_out(0, &mut byte).unwrap();
        assert_eq!(byte, [5]);
        assert_eq!(open(&handle(1, 8), driver).err(), Some(Staged::Earlier));
        drop(first);
        assert!(open(&handle(1, 8), driver).is_err(), "the second lane holds it");
        drop(second);
        assert!(TABLE.lock().memories.is_empty());
        assert!(open(&handle(1, 8), driver).is_ok());
        for (number, reason) in [(2, Staged::OtherDevice), (3, Staged::NotOpened), (4, Staged::NoContext)] {
            assert_eq!(open(&handle(number, 1), driver).err(), Some(reason));
        }
        assert_eq!(open(&handle(1, 7), None).err(), Some(Staged::NoDriver));
        assert!(TABLE.lock().openings.is_empty(), "failures leave nothing");
    }
}
