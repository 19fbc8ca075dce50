//! Placement of a NIC's thread on the processors of its NUMA node.
#![allow(unsafe_code)]

use crate::discovery::DEVICES_FOLDER;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::path::Path;

/// Processors that a mask of the kernel's default size holds.
const PROCESSORS_MAX: usize = libc::CPU_SETSIZE as usize;

/// The processors of the NUMA node of a device, from `/sys` below `root`; `None` if the kernel
/// reports none, as for software devices.
pub(super) fn processors_near(root: &Path, device: &str) -> Option<Vec<usize>> {
    let read = |path: &Path| fs::read_to_string(path).ok();
    let node = read(&root.join(DEVICES_FOLDER).join(device).join("device/numa_node"))?;
    // The kernel writes -1 if it is unknown.
    let node: u32 = node.trim().parse().ok()?;
    let list = root.join(format!("sys/devices/system/node/node{node}/cpulist"));
    listed(&read(&list)?).filter(|processors| !processors.is_empty())
}

/// Reads a list of processors, such as `0-15,32-47`.
fn listed(text: &str) -> Option<Vec<usize>> {
    let mut processors = Vec::new();
    for range in text.trim().split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= PROCESSORS_MAX {
            return None;
        }
        processors.extend(first..=last);
    }
    Some(processors)
}

/// The processors to move to; `None` if the thread may use none of them, or is near already.
fn choice(allowed: &[usize], near: &[usize]) -> Option<Vec<usize>> {
    let chosen: Vec<_> = allowed.iter().copied().filter(|it| near.contains(it)).collect();
    (!chosen.is_empty() && chosen.len() < allowed.len()).then_some(chosen)
}

/// Moves the calling thread to those of the processors that it may use, and returns them; `None`
/// if it stays as it is.
pub(super) fn move_near(near: &[usize]) -> io::Result<Option<Vec<usize>>> {
    let Some(chosen) = choice(&allowed()?, near) else { return Ok(None) };
    // SAFETY: the mask is made of integers, of which all zeroes are one value, and each number is
    // below its size; the call reads it.
    let returned = unsafe {
        let mut mask: libc::cpu_set_t = MaybeUninit::zeroed().assume_init();
        chosen.iter().for_each(|processor| libc::CPU_SET(*processor, &mut mask));
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const mask)
    };
    if returned == 0 { Ok(Some(chosen)) } else { Err(io::Error::last_os_error()) }
}

/// The processors that the calling thread may use.
fn allowed() -> io::Result<Vec<usize>> {
    // SAFETY: the mask is made of integers, of which all zeroes are one value; the call fills it.
    let (returned, mask) = unsafe {
        let mut mask: libc::cpu_set_t = MaybeUninit::zeroed().assume_init();
        let size = size_of::<libc::cpu_set_t>();
        (libc::sched_getaffinity(0, size, &raw mut mask), mask)
    };
    if returned != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: each number is below the size of the mask.
    let is_set = |processor: &usize| unsafe { libc::CPU_ISSET(*processor, &mask) };
    Ok((0..PROCESSORS_MAX).filter(is_set).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The list of a node is the kernel's, and a text that is none is not guessed at.
    #[test]
    fn processors_of_a_device_are_those_of_its_node() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("sys/class/infiniband/mlx5_0/device/numa_node", "1\n");
        write("sys/class/infiniband/mlx5_1/device/numa_node", "-1\n");
        write("sys/class/infiniband/mlx5_2/device/numa_node", "2\n");
        write("sys/class/infiniband/rxe0/ports/1/state", "4: ACTIVE\n");
        write("sys/devices/system/node/node1/cpulist", "2-3,6\n");
        write("sys/devices/system/node/node2/cpulist", "\n");
        let near = |device| processors_near(root.path(), device);
        assert_eq!(near("mlx5_0"), Some(vec![2, 3, 6]));
        for unknown in ["mlx5_1", "mlx5_2", "rxe0", "absent"] {
            assert_eq!(near(unknown), None, "{unknown}");
        }
        assert_eq!(listed("1023"), Some(vec![1023]));
        for wrong in ["x", "3-1", "0-1024", "1-"] {
            assert_eq!(listed(wrong), None, "{wrong}");
        }
    }

    /// A thread moves within what it may use: a container or `taskset` may have taken the node away.
    #[test]
    fn thread_moves_within_its_own_processors() {
        assert_eq!(choice(&[0, 1, 2, 3], &[2, 3, 6]), Some(vec![2, 3]));
        assert_eq!(choice(&[0, 1], &[2, 3]), None, "none is near");
        assert_eq!(choice(&[2, 3], &[2, 3, 6]), None, "all are near");
        let own = allowed().unwrap();
        assert_eq!(move_near(&own).unwrap(), None);
        assert_eq!(move_near(&[]).unwrap(), None);
        let last = own[own.len() - 1..].to_vec();
        if own.len() > 1 {
            assert_eq!(move_near(&last).unwrap(), Some(last.clone()));
            assert_eq!(allowed().unwrap(), last);
        }
    }
}
