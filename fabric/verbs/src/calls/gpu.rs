//! Memory of scripted GPUs, whose library this process may have loaded.

use libc::{c_int, c_void};
use std::path::PathBuf;

/// Finds the descriptor and the offset of an address in a GPU's memory.
type Find = unsafe extern "C" fn(*const c_void, *mut u64) -> c_int;

/// Returns the descriptor of the memory that has the address, and the address's offset in it; `None` for
/// memory of the host. The descriptor is the other library's.
pub(super) fn find(address: *const c_void) -> Option<(c_int, u64)> {
    // SAFETY: the library is asked for only if the process has it, and is not closed by the matching
    // call before its symbol was used. The symbol has this type in `handfast-fabric-cuda`.
    unsafe {
        let library = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if library.is_null() {
            return None;
        }
        let symbol = libc::dlsym(library, c"handfast_fabric_cuda_find".as_ptr());
        let mut offset = 0;
        let found = match symbol.is_null() {
            true => -1,
            false => std::mem::transmute::<*mut c_void, Find>(symbol)(address, &raw mut offset),
        };
        libc::dlclose(library);
        (found >= 0).then_some((found, offset))
    }
}

/// Whether a module of the kernel gives NICs the pages of GPUs.
pub(super) fn is_known_to_kernel() -> bool {
    let root = std::env::var_os("SYSFS_PATH").map_or_else(|| "/sys".into(), PathBuf::from);
    root.join("module/nvidia_peermem").exists()
}
