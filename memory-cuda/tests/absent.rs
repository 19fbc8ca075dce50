//! A process without CUDA.
#![allow(unsafe_code)]

use handfast_memory_cuda::{Driver, device_memory};
use std::sync::Arc;

/// Nothing is loaded into a process that has no driver, and all its memory is host memory.
#[test]
fn process_without_driver_has_host_memory() {
    let bytes = [0_u8; 8];
    // SAFETY: the bytes are not on a device.
    let found = unsafe { device_memory(bytes.as_ptr().addr() as u64, 8, Arc::new(())) };
    assert!(found.unwrap().is_none());
    assert!(Driver::loaded().unwrap().is_none());
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    assert!(!maps.contains("libcuda"), "the look has loaded it");
}
