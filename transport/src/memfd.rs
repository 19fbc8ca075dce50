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
    // A hole in it is fatal to touch while the pool of huge pages is empty, and no seal forbids holes.
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

    /// A file on huge pages of the pool is not mapped, sealed as it may be; one on small pages is.
    #[test]
    fn pages_of_the_pool_are_refused() {
        let sealed = create(4 << 20).unwrap();
        assert_eq!(check_sealed(&sealed, 4 << 20).unwrap(), 4 << 20);
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | libc::MFD_HUGETLB;
        // SAFETY: the name is a C string; the call returns a new descriptor or an error.
        let fd = unsafe { libc::memfd_create(c"pool".as_ptr(), flags | libc::MFD_HUGE_2MB) };
        if fd < 0 {
            // A kernel without a pool has no such files.
            return;
        }
        // SAFETY: the descriptor is new, and nothing else owns it.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(4 << 20).unwrap();
        add_seals(&file, SIZE).unwrap();
        assert!(matches!(check_sealed(&file, 1), Err(MemoryError::NotSealed)));
    }
}
