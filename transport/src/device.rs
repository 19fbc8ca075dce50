//! Memory registered with devices.

use crate::block::Span;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Identifies a device that this process has opened. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(u64);

impl DeviceId {
    /// Allocates the number of a newly opened device.
    pub fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// The keys of memory at one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceKey {
    /// The device.
    pub device: DeviceId,
    /// The key in requests of this node.
    pub local: u32,
    /// The key in requests of peers.
    pub remote: u32,
}

/// Memory registered with devices, which may read and write it until this is dropped.
pub struct DeviceMemory {
    address: u64,
    bytes: u64,
    keys: Vec<DeviceKey>,
    _registrations: Box<dyn Send + Sync>,
}

impl DeviceMemory {
    /// Creates the registration of `span` with each device of `keys`. `registrations` hold it, keep
    /// the memory mapped, and are dropped with this.
    pub fn new(
        span: &Span,
        keys: Vec<DeviceKey>,
        registrations: impl Send + Sync + 'static,
    ) -> Self {
        let (address, bytes) = (span.address(), span.len() as u64);
        Self { address, bytes, keys, _registrations: Box::new(registrations) }
    }

    /// Address of the first byte.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The keys, one for each device.
    pub fn keys(&self) -> &[DeviceKey] {
        &self.keys
    }

    /// Returns the key in requests of this node to a device; `None` if the memory is not registered
    /// with it.
    pub fn local_key(&self, device: DeviceId) -> Option<u32> {
        self.keys.iter().find(|key| key.device == device).map(|key| key.local)
    }

    /// Whether all bytes of `span` are in this memory.
    pub fn covers(&self, span: &Span) -> bool {
        let first = span.address();
        self.address <= first && first + span.len() as u64 <= self.address + self.bytes
    }
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceMemory({} bytes)", self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memory;

    /// The keys of one device are not another's, and bytes outside the registered span are not
    /// covered.
    #[test]
    fn keys_belong_to_one_device_and_one_span() {
        let (block, other) = (Memory::zeroed(64).unwrap(), Memory::zeroed(64).unwrap());
        let [first, second, unknown] = std::array::from_fn(|_| DeviceId::next());
        let key = |device, local| DeviceKey { device, local, remote: 10 * local };
        let span = block.span(16, 32).unwrap();
        let keys = vec![key(first, 1), key(second, 2)];
        let memory = DeviceMemory::new(&span, keys, span.clone());
        assert_eq!(memory.local_key(first), Some(1));
        assert_eq!(memory.local_key(second), Some(2));
        assert_eq!(memory.local_key(unknown), None);
        assert!(memory.covers(&block.span(16, 32).unwrap()));
        assert!(!memory.covers(&block.span(15, 2).unwrap()));
        assert!(!memory.covers(&block.span(40, 9).unwrap()));
        assert!(!memory.covers(&other.span(16, 32).unwrap()));
    }
}
