//! An accelerator of tests, which records in which order its copies begin and are waited for.
#![allow(unsafe_code)]

use handfast_transport::{
    Accelerator, AcceleratorError, DeviceAllocation, DeviceBytes, DeviceHandle, DmaBuf, Memory,
    MemoryKind, STAGING_BYTES, StagingBuffer,
};
use parking_lot::Mutex;
use std::sync::Arc;

const ADDRESS: u64 = 1 << 40;

/// An event of a device or a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A copy began, of the first byte at this offset.
    Begun(u64),
    /// Copies were waited for.
    Waited,
    /// A socket took bytes.
    Sent(usize),
}

/// The state of a device.
#[derive(Debug, Default)]
pub(crate) struct Device {
    pub(crate) events: Vec<Event>,
    /// Pinned buffers that the pool has.
    pub(crate) buffers: usize,
    /// The coming waits fail.
    pub(crate) is_broken: bool,
    /// No copy ends.
    pub(crate) is_held: bool,
    /// Bytes before this one were freed.
    pub(crate) freed: usize,
    bytes: Vec<u8>,
}

pub(crate) type Shared = Arc<Mutex<Device>>;

/// A block of a device with as many buffers.
pub(crate) fn block(bytes: Vec<u8>, buffers: usize) -> (Memory, Shared) {
    let len = bytes.len();
    let device = Arc::new(Mutex::new(Device { buffers, bytes, ..Device::default() }));
    // SAFETY: every copy of the block goes through the device, which touches its own bytes alone.
    let memory = unsafe { Memory::of_device(ADDRESS, len, Arc::new(Bytes(Arc::clone(&device)))) };
    (memory.expect("a block of the device"), device)
}

struct Bytes(Shared);

struct Buffer {
    device: Shared,
    bytes: Vec<u8>,
    used: usize,
    is_busy: bool,
    failed: Option<AcceleratorError>,
}

fn refused() -> AcceleratorError {
    let device = Accelerator { runtime: "test", ordinal: 0 };
    AcceleratorError { device, call: "wait", code: 700, cause: "broken".to_owned() }
}

fn at(address: u64) -> usize {
    (address - ADDRESS) as usize
}

impl DeviceBytes for Bytes {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Device(Accelerator { runtime: "test", ordinal: 0 })
    }

    fn numa_node(&self) -> Option<u32> {
        None
    }

    fn context(&self) -> u64 {
        1
    }

    fn staging(&self) -> Option<Box<dyn StagingBuffer>> {
        let mut device = self.0.lock();
        device.buffers = device.buffers.checked_sub(1)?;
        let (device, bytes) = (Arc::clone(&self.0), vec![0; STAGING_BYTES]);
        Some(Box::new(Buffer { device, bytes, used: 0, is_busy: false, failed: None }))
    }

    fn allocation(&self, _address: u64) -> Option<DeviceAllocation> {
        None
    }

    fn handle(&self, _address: u64) -> Result<DeviceHandle, AcceleratorError> {
        Err(refused())
    }

    fn copy_across(&self, _from: u64, _to: u64, _bytes: usize) -> Result<(), AcceleratorError> {
        Err(refused())
    }

    fn check(&self, address: u64) -> Result<(), AcceleratorError> {
        if at(address) < self.0.lock().freed { Err(refused()) } else { Ok(()) }
    }

    fn copy_in(&self, address: u64, bytes: &[u8]) -> Result<(), AcceleratorError> {
        self.0.lock().bytes[at(address)..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn copy_out(&self, address: u64, bytes: &mut [u8]) -> Result<(), AcceleratorError> {
        if self.0.lock().is_broken {
            return Err(refused());
        }
        bytes.copy_from_slice(&self.0.lock().bytes[at(address)..][..bytes.len()]);
        Ok(())
    }

    fn export(&self, _address: u64, _bytes: u64) -> Result<DmaBuf, AcceleratorError> {
        Err(refused())
    }

    fn needs_flush(&self) -> bool {
        false
    }

    fn flush(&self) -> Result<(), AcceleratorError> {
        Ok(())
    }
}

impl StagingBuffer for Buffer {
    fn spare(&mut self) -> &mut [u8] {
        &mut self.bytes[self.used..]
    }

    fn start_in(&mut self, address: u64, len: usize) -> Result<(), AcceleratorError> {
        self.failed.clone().map_or(Ok(()), Err)?;
        let mut device = self.device.lock();
        device.events.push(Event::Begun(address - ADDRESS));
        device.bytes[at(address)..][..len].copy_from_slice(&self.bytes[self.used..][..len]);
        (self.used, self.is_busy) = (self.used + len, true);
        Ok(())
    }

    fn start_out(&mut self, address: u64, len: usize) -> Result<(), AcceleratorError> {
        self.failed.clone().map_or(Ok(()), Err)?;
        let mut device = self.device.lock();
        device.events.push(Event::Begun(address - ADDRESS));
        self.bytes[self.used..][..len].copy_from_slice(&device.bytes[at(address)..][..len]);
        (self.used, self.is_busy) = (self.used + len, true);
        Ok(())
    }

    fn has_ended(&mut self) -> bool {
        let mut device = self.device.lock();
        if device.is_held {
            return !self.is_busy;
        }
        if std::mem::take(&mut self.is_busy) {
            device.events.push(Event::Waited);
            if device.is_broken {
                self.failed = Some(refused());
            }
        }
        true
    }

    fn wait(&mut self) -> Result<(), AcceleratorError> {
        while !self.has_ended() {
            std::thread::yield_now();
        }
        self.failed.clone().map_or(Ok(()), Err)
    }

    fn is_lost(&self) -> bool {
        false
    }

    fn bytes(&mut self) -> &[u8] {
        if self.wait().is_ok() { &self.bytes } else { &[] }
    }

    fn clear(&mut self) -> Result<(), AcceleratorError> {
        self.wait()?;
        self.used = 0;
        Ok(())
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let _ = self.wait();
        self.device.lock().buffers += 1;
    }
}
