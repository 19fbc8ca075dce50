//! Allocations on devices that belong to other processes of this host and are open in this one, once for all
//! lanes.

use handfast_core::sharing::{Handle, Offered, Opening, Openings, Staged};
use handfast_transport::{
    DEVICE_HANDLE_BYTES, DEVICE_UUID_BYTES, DeviceHandle, Memory, MemoryError, OpenDevice,
    OpenDeviceError, OpenedMemory, Span,
};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

/// Bytes of a handle in the memory that comes with its grant.
const PASSED_BYTES: usize = DEVICE_HANDLE_BYTES + DEVICE_UUID_BYTES + 8;

/// The driver opens an allocation once for the process, whatever lane asks.
static TABLE: Mutex<Table> =
    Mutex::new(Table { openings: Openings::new(), memories: BTreeMap::new() });

struct Table {
    openings: Openings,
    memories: BTreeMap<Handle, OpenedMemory>,
}

/// An allocation that no lane holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotOpened {
    pub(crate) reason: Staged,
    /// This process has it open until it ends.
    pub(crate) is_kept: bool,
}

impl From<Staged> for NotOpened {
    fn from(reason: Staged) -> Self {
        Self { reason, is_kept: false }
    }
}

/// An allocation that a lane holds open.
pub(crate) struct Opened {
    handle: Handle,
    /// The owner's number of the allocation.
    allocation: u64,
    /// No other lane had it open.
    pub(crate) is_first: bool,
    /// Present until the end.
    memory: Option<Memory>,
    is_let_go: bool,
}

impl Opened {
    /// Opens the allocation whose handle came with a grant.
    pub(crate) fn open(
        passed: OwnedFd,
        offered: &Offered,
        open: Option<OpenDevice>,
    ) -> Result<Self, NotOpened> {
        let open = open.ok_or(Staged::NoDriver)?;
        let found = read(passed).map_err(|error| {
            tracing::debug!(%error, "the handle of an allocation cannot be read");
            Staged::NotOpened
        })?;
        let length = usize::try_from(offered.bytes).map_err(|_| Staged::NotOpened)?;
        let handle = Handle(found.bytes);
        let mut table = TABLE.lock();
        let opening = table.openings.open(handle, found.allocation)?;
        let memory = match opening {
            Opening::Again => {
                let known = table.memories.get(&handle).map(|it| &it.memory);
                known.filter(|it| it.len() == length).cloned()
            }
            Opening::First => match open(&found, length) {
                Ok(opened) => {
                    let memory = opened.memory.clone();
                    table.memories.insert(handle, opened);
                    Some(memory)
                }
                Err(error) => {
                    tracing::debug!(%error, "an allocation of the peer is not opened");
                    let is_kept = matches!(error, OpenDeviceError::Kept(_));
                    if !is_kept {
                        table.openings.on_failed(handle);
                    }
                    let reason = match error {
                        OpenDeviceError::NoDriver => Staged::NoDriver,
                        OpenDeviceError::OtherDevice => Staged::OtherDevice,
                        OpenDeviceError::NoContext => Staged::NoContext,
                        OpenDeviceError::Refused(_) | OpenDeviceError::Kept(_) => Staged::NotOpened,
                    };
                    return Err(NotOpened { reason, is_kept });
                }
            },
        };
        drop(table);
        let is_first = opening == Opening::First;
        let opened =
            Self { handle, allocation: found.allocation, is_first, memory, is_let_go: false };
        match opened.memory.is_some() {
            true => Ok(opened),
            false => Err(Staged::NotOpened.into()),
        }
    }

    /// Bytes of the allocation.
    pub(crate) fn span(&self, offset: usize, length: usize) -> Result<Span, MemoryError> {
        let memory = self.memory.as_ref().ok_or(MemoryError::Null)?;
        memory.span(offset, length)
    }
}

impl Opened {
    /// Lets the allocation go. Returns false if this process has it open still, though no lane holds it.
    pub(crate) fn close(mut self) -> bool {
        self.let_go()
    }

    /// The last one closes the allocation. What cannot be closed keeps its handle: another allocation with it
    /// is not opened.
    fn let_go(&mut self) -> bool {
        if self.is_let_go {
            return true;
        }
        self.is_let_go = true;
        let mut table = TABLE.lock();
        self.memory = None;
        if !table.openings.close(self.handle) {
            return true;
        }
        let Some(OpenedMemory { memory, is_closed }) = table.memories.remove(&self.handle) else {
            return true;
        };
        drop(memory);
        let is_closed = is_closed.load(Ordering::Acquire);
        if !is_closed {
            let kept = table.openings.open(self.handle, self.allocation);
            debug_assert_eq!(kept, Ok(Opening::First));
        }
        is_closed
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.let_go();
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
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize};

    const BYTES: usize = 4_096;
    /// Calls for the allocations of [`lanes_share_one_opening`].
    static CALLS: AtomicUsize = AtomicUsize::new(0);

    /// Closes an allocation with its block.
    struct Closes(Arc<AtomicBool>);

    impl Drop for Closes {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

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

    fn opens(handle: &DeviceHandle, length: usize) -> Result<OpenedMemory, OpenDeviceError> {
        CALLS.fetch_add(usize::from(handle.bytes[0] == 1), Ordering::Relaxed);
        match handle.bytes[0] {
            1 | 5 => {
                let memory = Memory::zeroed(length).unwrap();
                let is_closed = Arc::new(AtomicBool::new(false));
                memory.drop_with_block(Closes(Arc::clone(&is_closed)));
                Ok(OpenedMemory { memory, is_closed })
            }
            2 => Err(OpenDeviceError::OtherDevice),
            4 => Err(OpenDeviceError::NoContext),
            _ => Err(OpenDeviceError::Refused("no".to_owned())),
        }
    }

    fn open(it: &DeviceHandle, driver: Option<OpenDevice>) -> Result<Opened, Staged> {
        let opened = Opened::open(passed(it).unwrap().unwrap(), &offered(), driver);
        opened.map_err(|it| it.reason)
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
        assert!(second.close());
        let is_known = |it: &DeviceHandle| TABLE.lock().memories.contains_key(&Handle(it.bytes));
        assert!(!is_known(&handle(1, 7)));
        assert!(open(&handle(1, 8), driver).is_ok());
        for (number, reason) in
            [(2, Staged::OtherDevice), (3, Staged::NotOpened), (4, Staged::NoContext)]
        {
            assert_eq!(open(&handle(number, 1), driver).err(), Some(reason));
        }
        assert_eq!(open(&handle(1, 7), None).err(), Some(Staged::NoDriver));
        for number in 1..5 {
            let known = TABLE.lock().openings.open(Handle(handle(number, 9).bytes), 9);
            assert_eq!(known, Ok(Opening::First), "failures leave nothing");
            TABLE.lock().openings.close(Handle(handle(number, 9).bytes));
        }
    }

    /// An allocation that can be neither used nor closed stays open: it is not asked for again, and another one
    /// with the handle is not opened.
    #[test]
    fn allocation_that_cannot_be_closed_keeps_its_handle() {
        let passed = passed(&handle(6, 7)).unwrap().unwrap();
        let keeps: OpenDevice = |_, _| Err(OpenDeviceError::Kept("no".to_owned()));
        let refused = Opened::open(passed, &offered(), Some(keeps)).err();
        assert_eq!(refused, Some(NotOpened { reason: Staged::NotOpened, is_kept: true }));
        assert_eq!(open(&handle(6, 7), Some(keeps)).err(), Some(Staged::NotOpened));
        assert_eq!(open(&handle(6, 8), Some(keeps)).err(), Some(Staged::Earlier));
    }

    /// A copy that may run for ever keeps its allocation open: its last holder says so, and another
    /// allocation with the handle is not opened.
    #[test]
    fn lost_copy_keeps_its_allocation_open() {
        let driver: Option<OpenDevice> = Some(opens);
        let opened = open(&handle(5, 7), driver).unwrap();
        let lost = opened.span(0, 1).unwrap();
        assert!(!opened.close());
        assert_eq!(open(&handle(5, 8), driver).err(), Some(Staged::Earlier));
        assert!(lost.copy_in(0, &[1]).is_ok());
    }
}
