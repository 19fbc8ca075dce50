//! NUMA node of memory.
#![allow(unsafe_code)]

use crate::block::Span;
use crate::kind::MemoryKind;
use std::ptr;

/// Number of sampled pages: the first, the last, and evenly spaced ones between.
const PAGES_ASKED: usize = 16;

impl Span {
    /// The NUMA node of its accelerator, or of its pages, sampled by the kernel; `None` if they lie on several, none was
    /// touched yet, or the kernel does not report it.
    pub fn numa_node(&self) -> Option<u32> {
        let last = self.len().checked_sub(1)?;
        if self.kind() != MemoryKind::Host {
            return self.memory().device_numa_node();
        }
        let start = usize::try_from(self.address()).ok()?;
        let page = |place: usize| {
            let far = last as u128 * place as u128 / (PAGES_ASKED as u128 - 1);
            ptr::without_provenance::<libc::c_void>(start + far as usize)
        };
        let pages: [*const libc::c_void; PAGES_ASKED] = std::array::from_fn(page);
        let mut status = [-libc::ENOENT; PAGES_ASKED];
        // SAFETY: both arrays have the length passed to the call, live until it returns, and
        // `status` is written by nothing else. Without a list of nodes it moves no page and reads none:
        // the addresses are looked up, whatever they are.
        let result = unsafe {
            libc::syscall(
                libc::SYS_move_pages,
                0,
                PAGES_ASKED as libc::c_ulong,
                pages.as_ptr(),
                ptr::null::<libc::c_int>(),
                status.as_mut_ptr(),
                0 as libc::c_int,
            )
        };
        if result != 0 {
            return None;
        }
        let mut nodes = status.iter().filter_map(|node| u32::try_from(*node).ok());
        let first = nodes.next()?;
        nodes.all(|node| node == first).then_some(first)
    }
}

#[cfg(test)]
mod tests {
    use crate::Memory;
    use std::path::Path;

    /// Touched memory lies on a NUMA node, and empty memory on none.
    #[test]
    fn touched_memory_has_a_numa_node() {
        let memory = Memory::zeroed(1 << 20).unwrap();
        assert_eq!(memory.whole().numa_node(), None, "no page is there yet");
        memory.copy_in(0, &vec![1; 1 << 20]).unwrap();
        assert_eq!(memory.span(5, 0).unwrap().numa_node(), None);
        let node = memory.whole().numa_node();
        println!("on node {node:?}");
        // Kernels without NUMA and sandboxes do not report it.
        if let Some(node) = node {
            let folder = format!("/sys/devices/system/node/node{node}");
            assert!(Path::new(&folder).exists() || node == 0, "there is no node {node}");
            assert_eq!(memory.span(100, 1).unwrap().numa_node(), Some(node));
        }
    }
}
