//! The driver's calls for allocations of other processes, as a driver of CUDA 13 answers them.
//!
//! An allocation that its process frees while another one has it open keeps its bytes there.

use crate::calls::{call, context_of, current, queue};
use crate::state::{
    Allocation, Copy, DEVICES, INVALID_CONTEXT, INVALID_DEVICE, INVALID_VALUE, Kind,
};
use handfast_fabric_buffer::Buffer;
use libc::{c_int, c_uint, c_void};
use std::os::fd::AsRawFd;

/// `CUipcMemHandle`: here the process, its descriptor of the bytes, their number, the device, and the address.
#[repr(C)]
#[derive(Clone, Copy)]
struct IpcHandle([u8; 64]);

impl IpcHandle {
    fn of(words: [u64; 5]) -> Self {
        let mut bytes = [0; 64];
        let (places, _) = bytes.as_chunks_mut();
        places.iter_mut().zip(words).for_each(|(place, word)| *place = word.to_ne_bytes());
        Self(bytes)
    }

    fn words(&self) -> [u64; 5] {
        let (places, _) = self.0.as_chunks();
        [0, 1, 2, 3, 4].map(|at: usize| places.get(at).map_or(0, |it| u64::from_ne_bytes(*it)))
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetUuid_v2(uuid: *mut u8, device: c_int) -> c_int {
    call("cuDeviceGetUuid", |_| {
        if !(0..DEVICES).contains(&device) {
            return Err(INVALID_DEVICE);
        }
        // SAFETY: the caller passes a place for 16 bytes.
        unsafe { std::ptr::write_bytes(uuid, 0xD0 + device as u8, 16) };
        Ok(())
    })
}

/// The handle of a byte is that of its whole allocation.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuIpcGetMemHandle(handle: *mut IpcHandle, address: u64) -> c_int {
    call("cuIpcGetMemHandle", |state| {
        let found = state.find(address).filter(|(_, it)| it.kind == Kind::Device);
        let (start, it) = found.ok_or(INVALID_VALUE)?;
        let descriptor = it.buffer.file().as_raw_fd() as u64;
        let process = u64::from(std::process::id());
        let made = IpcHandle::of([process, descriptor, it.length as u64, it.device as u64, start]);
        // SAFETY: the caller passes a place for a handle.
        unsafe { *handle = made };
        Ok(())
    })
}

/// Refuses an allocation of this process. What is open is counted and has one address.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuIpcOpenMemHandle_v2(
    place: *mut u64,
    handle: IpcHandle,
    _flags: c_uint,
) -> c_int {
    call("cuIpcOpenMemHandle", |state| {
        let [process, descriptor, length, device, _] = handle.words();
        let device = c_int::try_from(device).map_err(|_| INVALID_VALUE)?;
        if process == 0 || length == 0 || !(0..DEVICES).contains(&device) {
            return Err(INVALID_VALUE);
        }
        if current() != Some(context_of(device)) || process == u64::from(std::process::id()) {
            return Err(INVALID_CONTEXT);
        }
        let address = match state.opened.get(&handle.words()).copied() {
            Some(address) => {
                let known = state.allocations.get_mut(&address).ok_or(INVALID_VALUE)?;
                known.openings += 1;
                address
            }
            None => {
                let opened = Buffer::of_process(process as u32, descriptor as i32);
                let (buffer, _) = opened.map_err(|_| INVALID_VALUE)?;
                let (id, kind, length, openings) = (0, Kind::Opened, length as usize, 1);
                let (reserved, context) = (None, None);
                let address = state.add(Allocation {
                    id,
                    kind,
                    device,
                    length,
                    buffer,
                    openings,
                    reserved,
                    context,
                })?;
                state.opened.insert(handle.words(), address);
                address
            }
        };
        // SAFETY: the caller passes a place for a number.
        unsafe { *place = address };
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuIpcCloseMemHandle(address: u64) -> c_int {
    call("cuIpcCloseMemHandle", |state| {
        let found = state.allocations.get_mut(&address).filter(|it| it.kind == Kind::Opened);
        let found = found.ok_or(INVALID_VALUE)?;
        found.openings -= 1;
        if found.openings == 0 {
            state.opened.retain(|_, it| *it != address);
            state.free(address)?;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoDAsync_v2(
    device: u64,
    from: u64,
    bytes: usize,
    stream: *mut c_void,
) -> c_int {
    let from = Some(from);
    let copy = Copy { to_device: true, device, host: 0, from, bytes };
    queue("cuMemcpyDtoDAsync", stream, copy)
}
