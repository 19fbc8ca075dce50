//! Forks of a program whose memory a device knows, on scripted devices.
#![allow(unsafe_code, reason = "foreign memory, and a check in a forked child")]

use super::{on, sites};
use crate::support::{BYTES, LANE, Site, config, connect_lane, pattern};
use handfast_core::transport::Side;
use handfast_transport::{Access, CompletionStatus, Direction, Memory};
use handfast_transport_rdma::{FORK_STEP, RegisterOptions};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

/// Whether a child that this process forks has the memory.
fn child_has(memory: &Memory) -> bool {
    let address = memory.address() as usize;
    let mut child = Command::new("true");
    // SAFETY: one system call between fork and exec, which allocates nothing and takes no lock.
    unsafe {
        child.pre_exec(move || {
            let page = std::ptr::without_provenance_mut(address);
            let mut resident = 0_u8;
            match libc::mincore(page, 1, &raw mut resident) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        });
    }
    match child.status() {
        Ok(_) => true,
        Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => false,
        Err(error) => panic!("{error}"),
    }
}

/// Memory that the process owns, as foreign memory.
fn foreign() -> Memory {
    let owner = Memory::zeroed(BYTES).unwrap();
    let start = owner.whole().host_ptr().unwrap();
    // SAFETY: the block owns the bytes, and nobody refers to them.
    unsafe { Memory::from_raw(start, BYTES, Arc::new(owner)) }.unwrap()
}

/// Foreign memory is refused with the cures, before any call, if the kernel gives registered pages away
/// at a fork and the risk is not accepted. Memory of this library is registered as ever.
#[test]
fn foreign_memory_needs_a_kernel_that_copies() {
    on(&["mlx5"], "children::foreign_memory_needs_a_kernel_that_copies", |fabric| {
        fabric.run("forks shared");
        let site = Site::new(config("rxe0"));
        let calls = fabric.run("count rxe0 ibv_reg_mr");
        let memory = foreign();
        let error = site.nic.register(memory.whole(), Access::READ_WRITE).err().expect("a refusal");
        assert_eq!((error.side, error.call), (Side::Configuration, FORK_STEP), "{error}");
        assert!(error.to_string().contains("ibv_fork_init"), "{error}");
        assert_eq!(fabric.run("count rxe0 ibv_reg_mr"), calls);
        let accepted = RegisterOptions { accepts_forked_memory: true, ..Default::default() };
        let registered = site.nic.register_with(memory.whole(), Access::READ_WRITE, accepted);
        registered.expect("an accepted risk");
    });
}

/// A child that is forked during a transfer has no memory that a device knows: one of the two would get
/// copies of its pages, and the device would go on with the other's. Later children have it again.
/// Foreign memory is its owner's to hide.
#[test]
fn child_lacks_memory_of_a_device() {
    let profiles = ["mlx5", "rxe", "erdma-standard", "siw", "iwarp"];
    on(&profiles, "children::child_lacks_memory_of_a_device", |fabric| {
        let (one, other) = sites();
        connect_lane(&one, &other, LANE, 2);
        let unknown = Memory::zeroed(BYTES).unwrap();
        unknown.copy_in(0, &pattern(1)).unwrap();
        assert!(child_has(&unknown));
        one.memory.copy_in(0, &pattern(2)).unwrap();
        fabric.run("hold packets rxe0 rxe1");
        one.post_all(&other, Direction::Write, 4);
        assert!(!child_has(&one.memory) && !child_has(&other.memory));
        fabric.run("release packets rxe0 rxe1");
        let ends = one.told.ends(4);
        assert!(ends.iter().all(|end| *end == CompletionStatus::Done), "{ends:?}");
        assert_eq!(other.bytes(), pattern(2));

        let foreign = foreign();
        let _registration = other.nic.register(foreign.whole(), Access::READ_WRITE).unwrap();
        assert!(child_has(&foreign));

        other.nic.retire(LANE).unwrap();
        let Site { registration, memory, .. } = other;
        drop(registration);
        assert!(child_has(&memory));
        one.nic.retire(LANE).unwrap();
    });
}
