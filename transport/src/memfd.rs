//! Anonymous files that processes share.
#![allow(unsafe_code)]

use crate::block::{MemoryError, system};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

/// No process can make the file shorter or longer.
const SIZE: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;

/// Creates a file of `len` zero bytes, whose length is sealed, a multiple of the page. It has no pages
/// of the machine's pool: touching one is fatal while the pool is empty.
pub(crate) fn create(len: usize) -> Result<File, MemoryError> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a C string; the call returns a new descriptor or an error.
    let fd = unsafe { libc::memfd_create(c"handfast".as_ptr(), flags) };
    if fd < 0 {
        return Err(system("memfd_create"));
    }
    // SAFETY: the descriptor is new, and nothing else owns it.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(len as u64).map_err(|error| MemoryError::System { call: "ftruncate", error })?;
    add_seals(&file, SIZE)?;
    Ok(file)
}

/// Checks that a file of another process has `len` bytes and keeps them, and returns how many of its
/// bytes to map: whole pages of its own size, and no more of a long file.
pub(crate) fn check_sealed(file: &File, len: usize) -> Result<usize, MemoryError> {
    // A hole in it is fatal to touch while the pool of huge pages is empty, and who may write it may make one.
    if is_huge(file)? {
        return Err(MemoryError::NotSealed);
    }
    // Before the length is read: it does not shrink afterwards.
    if seals(file).is_none_or(|seals| seals & libc::F_SEAL_SHRINK == 0) {
        return Err(MemoryError::NotSealed);
    }
    let metadata = file.metadata().map_err(|error| MemoryError::System { call: "fstat", error })?;
    match usize::try_from(metadata.len()) {
        Ok(whole) if whole >= len => {
            let page = usize::try_from(metadata.blksize()).unwrap_or(1).max(1);
            Ok(len.checked_next_multiple_of(page).map_or(whole, |pages| pages.min(whole)))
        }
        _ => Err(MemoryError::FileTooShort { file: metadata.len(), asked: len }),
    }
}

/// Returns a descriptor with these rights and seals the file, so that no holder has or gains others.
pub(crate) fn share(file: &File, writable: bool) -> Result<OwnedFd, MemoryError> {
    let present = seals(file).ok_or_else(|| system("fcntl(F_GET_SEALS)"))?;
    let is_read_only = present & libc::F_SEAL_FUTURE_WRITE != 0;
    if present & libc::F_SEAL_SEAL != 0 {
        if writable == is_read_only {
            return Err(MemoryError::OtherRights);
        }
    } else if writable {
        add_seals(file, libc::F_SEAL_SEAL)?;
    } else {
        add_seals(file, libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL)?;
    }
    let shared = match writable {
        true => file.try_clone(),
        false => reopened(file),
    };
    shared.map(OwnedFd::from).map_err(|error| MemoryError::System { call: "open", error })
}

/// Opens the file again, for reading alone.
fn reopened(file: &File) -> io::Result<File> {
    OpenOptions::new().read(true).open(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Whether a file has huge pages of the machine's pool.
fn is_huge(file: &File) -> Result<bool, MemoryError> {
    // SAFETY: zeros are a valid value of this plain structure.
    let mut system_of: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: writes to a local what it says about an open descriptor.
    if unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut system_of) } != 0 {
        return Err(system("fstatfs"));
    }
    Ok(system_of.f_type == libc::HUGETLBFS_MAGIC)
}

fn seals(file: &File) -> Option<i32> {
    // SAFETY: reads a property of an open descriptor.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    (seals >= 0).then_some(seals)
}

fn add_seals(file: &File, seals: i32) -> Result<(), MemoryError> {
    // SAFETY: restricts what can be done with an open file, which this crate made.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) };
    if result == 0 { Ok(()) } else { Err(system("fcntl(F_ADD_SEALS)")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HUGE: usize = 2 << 20;

    /// A file of sealed length on huge pages of the machine's pool; `None` where the kernel has no pool.
    fn of_pool() -> Option<File> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | libc::MFD_HUGETLB;
        // SAFETY: the name is a C string; the call returns a new descriptor or an error.
        let fd = unsafe { libc::memfd_create(c"pool".as_ptr(), flags | libc::MFD_HUGE_2MB) };
        if fd < 0 {
            eprintln!("skipped: the kernel has no pool of huge pages");
            return None;
        }
        // SAFETY: the descriptor is new, and nothing else owns it.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(2 * HUGE as u64).unwrap();
        add_seals(&file, SIZE).unwrap();
        Some(file)
    }

    /// Makes a hole of the first page, as any process with the descriptor may try.
    fn punch(file: &impl AsRawFd) -> io::Result<()> {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: no reference to bytes of the file exists.
        match unsafe { libc::fallocate(file.as_raw_fd(), mode, 0, HUGE as libc::off_t) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// A file on huge pages of the pool is not mapped, sealed as it may be; one on small pages is.
    #[test]
    fn pages_of_the_pool_are_refused() {
        let sealed = create(4 << 20).unwrap();
        assert_eq!(check_sealed(&sealed, 4 << 20).unwrap(), 4 << 20);
        let Some(file) = of_pool() else { return };
        assert!(matches!(check_sealed(&file, 1), Err(MemoryError::NotSealed)));
    }

    /// A process that may write a file on pages of the pool may take them out of it, filled or not;
    /// the one seal that forbids it forbids writable maps as well.
    #[test]
    fn writable_pages_of_the_pool_can_be_taken() {
        let Some(file) = of_pool() else { return };
        punch(&share(&file, true).unwrap()).expect("a peer that may write");
        let Some(file) = of_pool() else { return };
        let reader = share(&file, false).unwrap();
        assert!(punch(&reader).is_err(), "a peer that may read");
        let refused = punch(&file).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EPERM), "nor its owner, from then on");
    }

    /// Set for the process that touches a hole.
    const TOUCHES: &str = "HANDFAST_TEST_TOUCHES";

    /// Touching a hole while the pool is empty ends the process.
    #[test]
    fn hole_in_an_empty_pool_is_fatal() {
        use std::os::unix::process::ExitStatusExt;
        let Some(file) = of_pool() else { return };
        if std::env::var_os(TOUCHES).is_some() {
            let (access, flags) = (libc::PROT_READ, libc::MAP_SHARED | libc::MAP_NORESERVE);
            // SAFETY: a new map of an open file; the read of it is what the test is about.
            unsafe {
                let anywhere = std::ptr::null_mut();
                let start = libc::mmap(anywhere, HUGE, access, flags, file.as_raw_fd(), 0);
                assert_ne!(start, libc::MAP_FAILED);
                std::ptr::read_volatile(start.cast::<u8>());
            }
            return;
        }
        let read = |name: &str| std::fs::read_to_string(format!("/proc/sys/vm/{name}"));
        let pages = ["nr_hugepages", "nr_overcommit_hugepages"].map(|name| read(name).unwrap());
        if pages.iter().any(|count| count.trim() != "0") {
            return eprintln!("skipped: the pool may have pages");
        }
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "memfd::tests::hole_in_an_empty_pool_is_fatal"]).env(TOUCHES, "1");
        let ended = child.output().unwrap().status;
        assert_eq!(ended.signal(), Some(libc::SIGBUS), "{ended}");
    }
}
