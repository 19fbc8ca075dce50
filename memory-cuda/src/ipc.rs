//! Allocations that another process of this host opens, or that are opened here.
#![allow(unsafe_code)]

use crate::driver::{Calls, Driver, Stream};
use crate::place::PlaceError;
use handfast_transport::{
    DEVICE_HANDLE_BYTES, DEVICE_UUID_BYTES, DeviceAllocation, DeviceHandle, Memory,
    OpenDeviceError, OpenedMemory,
};
use libc::{c_int, c_uint};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`.
const LAZY_PEER_ACCESS: c_uint = 1;
/// `CUDA_ERROR_NOT_SUPPORTED`.
const NOT_SUPPORTED: c_int = 801;
pub(crate) const GET_CALL: &str = "cuIpcGetMemHandle";
const OPEN_CALL: &str = "cuIpcOpenMemHandle";
const CLOSE_CALL: &str = "cuIpcCloseMemHandle";
/// Codes of a context that has ended, and what was open in it with it: `CUDA_ERROR_DEINITIALIZED`,
/// `CUDA_ERROR_INVALID_CONTEXT`, `CUDA_ERROR_CONTEXT_IS_DESTROYED`.
const CONTEXT_ENDED: [c_int; 3] = [4, 201, 709];

/// `CUipcMemHandle`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IpcHandle([u8; DEVICE_HANDLE_BYTES]);

/// An allocation of another process, closed with the last block of it.
struct Opened {
    stream: Arc<Stream>,
    address: u64,
    is_closed: Arc<AtomicBool>,
}

impl Drop for Opened {
    fn drop(&mut self) {
        let Some(close) = self.stream.driver.calls.ipc_close else { return };
        // SAFETY: opened once, closed once, and no block of it is left.
        let closed = self.stream.call(CLOSE_CALL, || unsafe { close(self.address) });
        match closed {
            Err(error) if !CONTEXT_ENDED.contains(&error.code) => {
                tracing::warn!(%error, "an allocation of a peer stays open");
            }
            _ => self.is_closed.store(true, Ordering::Release),
        }
    }
}

impl Stream {
    /// The handle of the allocation that has the byte, and its device; the code of the driver where it makes
    /// none.
    pub(crate) fn handle(&self, address: u64) -> Result<([u8; 64], [u8; 16]), c_int> {
        let Calls { ipc_get, ipc_close, .. } = self.driver.calls;
        let (Some(get), Some(_)) = (ipc_get, ipc_close) else { return Err(NOT_SUPPORTED) };
        let device = self.driver.uuid(self.device.ordinal).ok_or(NOT_SUPPORTED)?;
        let mut handle = IpcHandle([0; DEVICE_HANDLE_BYTES]);
        // SAFETY: a place for the handle. The address is looked up and not touched.
        let made = self.call(GET_CALL, || unsafe { get(&raw mut handle, address) });
        made.map_err(|error| error.code)?;
        Ok((handle.0, device))
    }
}

impl Driver {
    /// The UUID of a device: equal in every process that sees it, whatever its number there.
    fn uuid(&self, ordinal: u32) -> Option<[u8; DEVICE_UUID_BYTES]> {
        let (mut device, mut uuid) = (0, [0_u8; DEVICE_UUID_BYTES]);
        let get = self.calls.uuid?;
        // SAFETY: places for a number and for the bytes of a UUID.
        let code = unsafe {
            match (self.calls.device)(&raw mut device, c_int::try_from(ordinal).ok()?) {
                0 => get(uuid.as_mut_ptr(), device),
                code => code,
            }
        };
        (code == 0).then_some(uuid)
    }

    /// Whether this process uses the first context of a device. Starting it takes up to a second, and hundreds
    /// of megabytes of the device.
    fn has_first_context(&self, ordinal: u32) -> bool {
        let (mut device, mut flags, mut is_active) = (0, 0, 0);
        let Ok(ordinal) = c_int::try_from(ordinal) else { return false };
        // SAFETY: places for three numbers.
        unsafe {
            (self.calls.device)(&raw mut device, ordinal) == 0
                && (self.calls.primary_state)(device, &raw mut flags, &raw mut is_active) == 0
                && is_active == 1
        }
    }
}

/// Opens the allocation of another process of this host, with `len` bytes.
///
/// # Errors
/// [`OpenDeviceError`]: this process has not loaded the driver, does not see the device, does not use it, or the
/// driver refuses, as it does for an allocation of this process.
pub fn open_handle(handle: &DeviceHandle, len: usize) -> Result<OpenedMemory, OpenDeviceError> {
    let driver = Driver::loaded().ok().flatten().ok_or(OpenDeviceError::NoDriver)?;
    let mut ordinals = 0..u32::try_from(driver.pci_addresses().len()).unwrap_or(0);
    let ordinal = ordinals.find(|ordinal| driver.uuid(*ordinal) == Some(handle.device));
    let ordinal = ordinal.ok_or(OpenDeviceError::OtherDevice)?;
    if !driver.has_first_context(ordinal) {
        return Err(OpenDeviceError::NoContext);
    }
    let open = driver.calls.ipc_open.filter(|_| driver.calls.ipc_close.is_some());
    let open = open.ok_or_else(|| OpenDeviceError::Refused(format!("it lacks {OPEN_CALL}")))?;
    let refused = |error: PlaceError| OpenDeviceError::Refused(error.to_string());
    let stream = driver.stream(ordinal, ptr::null_mut());
    let stream = stream.map_err(|error| refused(error.into()))?;
    let (raw, mut address) = (IpcHandle(handle.bytes), 0);
    // SAFETY: a place for the address. The driver refuses what is no handle of its own.
    let opened =
        stream.call(OPEN_CALL, || unsafe { open(&raw mut address, raw, LAZY_PEER_ACCESS) });
    opened.map_err(|error| refused(error.into()))?;
    let is_closed = Arc::new(AtomicBool::new(false));
    let opened = Arc::new(Opened { stream, address, is_closed: Arc::clone(&is_closed) });
    // SAFETY: what is open is closed by `opened` alone, which the block holds.
    let memory = unsafe { driver.device_memory(address, len, opened) };
    // The failed call has dropped it, and the driver has closed it, or has not.
    let failed = |cause: String| match is_closed.load(Ordering::Acquire) {
        true => OpenDeviceError::Refused(cause),
        false => OpenDeviceError::Kept(cause),
    };
    let memory = memory.map_err(|error| failed(error.to_string()))?;
    // Behind a shorter allocation may be memory of this process.
    let whole = DeviceAllocation { start: address, bytes: len as u64 };
    let is_whole = |memory: &Memory| memory.whole().device_allocation() == Some(whole);
    let memory = memory
        .filter(is_whole)
        .ok_or_else(|| failed(format!("what it has opened is no allocation of {len} bytes")))?;
    Ok(OpenedMemory { memory, is_closed })
}
