//! Memory of Mooncake nodes as segments.

use handfast_core::wire::RegionDescriptor;

/// The segment of a Mooncake node that is its whole address space: offsets in it are addresses. TCP
/// only; over RDMA each buffer has its own key.
pub const ABSOLUTE: &str = "absolute";
/// Prefix of the name of a Mooncake node's buffer, before its index in the descriptor.
pub(crate) const BUFFER: &str = "buffer-";

/// Describes the whole address space of a Mooncake node. Only the node itself knows the accessible
/// parts.
pub(crate) fn absolute() -> RegionDescriptor {
    region(ABSOLUTE.to_owned(), 0, u64::MAX)
}

pub(super) fn region(name: String, address: u64, bytes: u64) -> RegionDescriptor {
    // The key is unused there.
    let (key, remote_keys, cut) = (0, Vec::new(), None);
    let (readable, writable, location, needs_flush) = (true, true, None, false);
    RegionDescriptor {
        name,
        key,
        remote_keys,
        cut,
        address,
        bytes,
        readable,
        writable,
        location,
        needs_flush,
    }
}
