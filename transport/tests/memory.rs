//! Blocks, spans and regions at their limits.
#![allow(unsafe_code, reason = "foreign memory, and a check in a forked child")]

use handfast_transport::{
    Access, Direction, Memory, MemoryError, REGIONS_MAX, RegionCache, RegionError, RegionTable,
    RegionWatch, RegistrationError, WATCHES_MAX,
};
use proptest::prelude::*;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn ranges_are_checked_without_overflow() {
    let memory = Memory::zeroed(100).unwrap();
    memory.copy_in(90, &[7; 10]).unwrap();
    for (offset, length) in [(91, 10), (101, 0), (usize::MAX, 10), (0, 101)] {
        let bytes = vec![0; length];
        let error = memory.copy_in(offset, &bytes).unwrap_err();
        assert!(matches!(error, MemoryError::OutOfRange { offset: o, length: l, size: 100 }
                if o == offset && l == length));
        assert!(memory.span(offset, length).is_err());
    }
    assert!(memory.span(1, usize::MAX).is_err());
    assert!(memory.span(100, 0).unwrap().is_empty());
    assert!(matches!(Memory::zeroed(0), Err(MemoryError::Size(0))));
    assert!(matches!(Memory::zeroed(usize::MAX), Err(MemoryError::Size(_))));
}

#[test]
fn a_span_keeps_its_block() {
    let memory = Memory::zeroed(64).unwrap();
    let span = memory.span(10, 20).unwrap().slice(5, 10).unwrap();
    assert_eq!((span.offset(), span.len()), (15, 10));
    assert_eq!(span.address(), memory.address() + 15);
    assert!(span.slice(5, 6).is_err());
    assert_eq!(memory.holders(), 2);
    drop(memory);
    span.copy_in(0, b"0123456789").unwrap();
    let mut out = [0; 4];
    span.copy_out(6, &mut out).unwrap();
    assert_eq!(&out, b"6789");
    assert_eq!(span.memory().crc32c(15, 9).unwrap(), crc32c::crc32c(b"012345678"));
}

#[test]
fn a_mapped_file_shares_its_bytes() {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&[1; 10_000]).unwrap();
    assert!(matches!(
        Memory::map_file(&file, true, 10_001),
        Err(MemoryError::FileTooShort { file: 10_000, asked: 10_001 })
    ));
    let memory = Memory::map_file(&file, true, 10_000).unwrap();
    memory.copy_in(9_000, &[9; 10]).unwrap();
    memory.sync_file(8_999, 12).unwrap();
    file.seek(std::io::SeekFrom::Start(8_999)).unwrap();
    let mut read = [0; 12];
    file.read_exact(&mut read).unwrap();
    assert_eq!(read, [1, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 1]);

    let fixed = Memory::map_file(&file, false, 10_000).unwrap();
    assert!(matches!(fixed.copy_in(0, &[0]), Err(MemoryError::ReadOnly)));
    let table = RegionTable::new();
    assert_eq!(
        table.register(fixed.whole(), Access::WRITE, 1).unwrap_err(),
        RegistrationError::ReadOnly
    );
    assert!(table.register(fixed.whole(), Access::READ, 1).is_ok());
}

#[test]
fn foreign_memory_lives_as_long_as_the_block() {
    let mut owner = vec![5_u8; 32];
    let start = owner.as_mut_ptr();
    let owner: Arc<Vec<u8>> = Arc::new(owner);
    // SAFETY: the bytes are owned by the keepalive and touched only through the block.
    let memory = unsafe { Memory::from_raw(start, 32, owner.clone()) }.unwrap();
    let mut out = [0; 32];
    memory.copy_out(0, &mut out).unwrap();
    assert_eq!(out, [5; 32]);
    assert_eq!(Arc::strong_count(&owner), 2);
    drop(memory);
    assert_eq!(Arc::strong_count(&owner), 1);
}

#[test]
fn a_reader_sees_each_change_of_the_table() {
    let table = Arc::new(RegionTable::new());
    let mut cache = RegionCache::new(table.clone(), None);
    let memory = Memory::zeroed(1000).unwrap();
    let base = memory.address() + 100;
    let span = memory.span(100, 200).unwrap();
    let region = table.register(span.clone(), Access::READ, 42).unwrap();
    assert_eq!((region.address(), region.bytes()), (base, 200));
    assert_eq!(table.register(span, Access::READ, 42).unwrap_err(), RegistrationError::KeyTaken);
    assert_eq!(cache.lookup(42, base + 1, 199, Direction::Read).unwrap().offset(), 101);
    let permission = RegionError::Permission(Direction::Write);
    assert_eq!(cache.lookup(42, base, 1, Direction::Write).unwrap_err(), permission);
    assert_eq!(cache.lookup(41, base, 1, Direction::Read).unwrap_err(), RegionError::UnknownKey);
    for (address, length) in [(base - 1, 1), (base + 1, 200), (base, u64::MAX), (u64::MAX, 2)] {
        let bounds = RegionError::OutOfBounds { address, length, region: 200 };
        assert_eq!(cache.lookup(42, address, length, Direction::Read).unwrap_err(), bounds);
    }
    assert_eq!(memory.holders(), 3, "the block, and the span in the table and in the region");
    let before = cache.version();
    assert!(table.unregister(42).unwrap().same_block(&memory));
    assert!(table.unregister(42).is_none());
    assert_ne!(before, cache.version());
    assert_eq!(cache.lookup(42, base, 1, Direction::Read).unwrap_err(), RegionError::UnknownKey);
    drop(region);
    assert_eq!(memory.holders(), 1, "the reader holds nothing");
}

#[test]
fn the_table_is_bounded() {
    let table = RegionTable::new();
    let span = Memory::zeroed(1).unwrap().whole();
    // Keys are random in use, so their leading bits differ.
    for key in 0..REGIONS_MAX as u64 {
        table.register(span.clone(), Access::READ, key.reverse_bits()).unwrap();
    }
    let full = table.register(span, Access::READ, u64::MAX).unwrap_err();
    assert_eq!(full, RegistrationError::Full);
    assert_eq!(table.len(), REGIONS_MAX);
}

proptest! {
    #[test]
    fn copies_agree_with_a_vector(
        edits in proptest::collection::vec((0_usize..300, proptest::collection::vec(any::<u8>(), 0..100)), 0..20)
    ) {
        let memory = Memory::zeroed(256).unwrap();
        let mut model = vec![0_u8; 256];
        for (offset, bytes) in edits {
            let fits = offset + bytes.len() <= 256;
            prop_assert_eq!(memory.copy_in(offset, &bytes).is_ok(), fits);
            if fits {
                model[offset..offset + bytes.len()].copy_from_slice(&bytes);
            }
        }
        let mut out = vec![0; 256];
        memory.copy_out(0, &mut out).unwrap();
        prop_assert_eq!(&out, &model);
        prop_assert_eq!(memory.crc32c(0, 256).unwrap(), crc32c::crc32c(&model));
    }
}

/// Whether a child that this process forks has the memory.
fn is_in_children(memory: &Memory) -> bool {
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

/// A device writes to the pages of this process. A forked child must not have them, since one of the
/// two then gets copies, but it has everything again once no device knows the block.
#[test]
fn children_lack_a_block_while_it_is_hidden() {
    let memory = Memory::zeroed(100_000).unwrap();
    memory.copy_in(0, &[7; 100_000]).unwrap();
    assert!(is_in_children(&memory));
    let first = memory.hide_from_children().unwrap();
    let second = memory.whole().uncounted().memory().hide_from_children().unwrap();
    assert!(!is_in_children(&memory));
    drop(first);
    assert!(!is_in_children(&memory), "one still hides it");
    drop(second);
    assert!(is_in_children(&memory));
    assert_eq!(memory.crc32c(0, 100_000).unwrap(), crc32c::crc32c(&[7; 100_000]));
}

/// A file's pages are shared with children, and foreign ones are not ours to hide.
#[test]
fn files_and_foreign_memory_stay_with_children() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(10_000).unwrap();
    let mapped = Memory::map_file(&file, true, 10_000).unwrap();
    let hidden = mapped.hide_from_children().unwrap();
    assert!(is_in_children(&mapped) && !mapped.is_foreign());
    drop(hidden);

    let owner = Memory::zeroed(10_000).unwrap();
    let start = owner.whole().host_ptr().unwrap();
    // SAFETY: the block owns the bytes, and nobody refers to them.
    let foreign = unsafe { Memory::from_raw(start, 10_000, Arc::new(owner)) }.unwrap();
    let _hidden = foreign.hide_from_children().unwrap();
    assert!(is_in_children(&foreign) && foreign.is_foreign());
}

/// A value that lives with a block ends with its last span, although it has the bytes itself.
#[test]
fn block_ends_what_lives_with_it() {
    struct Registered(Arc<AtomicBool>, handfast_transport::Span);
    impl Drop for Registered {
        fn drop(&mut self) {
            let mut byte = [0];
            self.1.copy_out(0, &mut byte).unwrap();
            assert_eq!(byte, [5], "its bytes are mapped still");
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let memory = Memory::zeroed(4096).unwrap();
    memory.copy_in(16, &[5]).unwrap();
    let (ended, span) = (Arc::new(AtomicBool::new(false)), memory.span(16, 8).unwrap());
    let known = span.uncounted();
    assert_eq!((memory.holders(), known.memory().holders()), (2, 1));
    assert!(known.memory().same_block(&memory) && known.memory().id() == memory.id());
    assert_eq!((known.address(), known.len()), (span.address(), 8));
    memory.drop_with_block(Registered(Arc::clone(&ended), known));
    drop(memory);
    assert!(!ended.load(Ordering::Relaxed));
    drop(span);
    assert!(ended.load(Ordering::Relaxed));
    assert_ne!(Memory::zeroed(1).unwrap().id(), Memory::zeroed(1).unwrap().id());
}

/// Large blocks begin at a huge page and say how much of them is on huge pages; small ones do not ask.
#[test]
fn large_blocks_ask_for_huge_pages() {
    const HUGE: usize = 2 << 20;
    for bytes in [HUGE, HUGE + 1, 3 * HUGE + 4096] {
        let memory = Memory::zeroed(bytes).unwrap();
        assert_eq!((memory.address() as usize % HUGE, memory.len()), (0, bytes));
        assert_eq!(memory.huge_page_bytes().unwrap(), 0, "no page is there yet");
        memory.copy_in(0, &vec![1; bytes]).unwrap();
        let huge = memory.huge_page_bytes().unwrap();
        println!("{huge} of {bytes} bytes are on huge pages");
        assert!(huge <= bytes as u64 && huge.is_multiple_of(HUGE as u64), "{huge}");
        assert_eq!(memory.crc32c(0, bytes).unwrap(), crc32c::crc32c(&vec![1; bytes]));
    }
    let small = Memory::zeroed(HUGE - 1).unwrap();
    small.copy_in(0, &[1]).unwrap();
    assert_eq!(small.huge_page_bytes().unwrap(), 0);
    assert!(matches!(Memory::zeroed(isize::MAX as usize), Err(MemoryError::Size(_))));
}

/// Another map of a shared block has the same bytes, with the rights of its descriptor, and no map
/// with more rights can be made of it.
#[test]
fn shared_block_is_mapped_with_its_rights() {
    let ours = Memory::shared(5_000).unwrap();
    let descriptor = ours.descriptor(true).unwrap().unwrap();
    let theirs = Memory::of_peer(descriptor, true, 5_000).unwrap();
    ours.copy_in(4_000, b"seen").unwrap();
    theirs.copy_in(4_996, b"back").unwrap();
    let mut bytes = [0; 4];
    theirs.copy_out(4_000, &mut bytes).unwrap();
    assert_eq!(&bytes, b"seen");
    ours.copy_out(4_996, &mut bytes).unwrap();
    assert_eq!(&bytes, b"back");
    assert!(matches!(ours.descriptor(false), Err(MemoryError::OtherRights)));

    let read_only = Memory::shared(5_000).unwrap();
    let reader = || read_only.descriptor(false).unwrap().unwrap();
    let map = Memory::of_peer(reader(), false, 5_000).unwrap();
    assert!(!map.is_writable() && read_only.is_writable());
    read_only.copy_in(0, b"seen").unwrap();
    map.copy_out(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"seen");
    assert!(matches!(read_only.descriptor(true), Err(MemoryError::OtherRights)));
    assert!(Memory::of_peer(reader(), true, 5_000).is_err(), "a descriptor for reading");
    let held = reader();
    let path = format!("/proc/self/fd/{}", held.as_raw_fd());
    let again = OpenOptions::new().read(true).write(true).open(path).unwrap();
    assert!(Memory::of_peer(again.into(), true, 5_000).is_err(), "opened again, yet sealed");
}

/// A file that its owner may truncate is refused before it is mapped, and so is one that is too
/// short.
#[test]
fn unsealed_and_short_files_are_refused() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(8_192).unwrap();
    let refused = Memory::of_peer(file.into(), false, 4_096);
    assert!(matches!(refused, Err(MemoryError::NotSealed)));
    let ours = Memory::shared(4_096).unwrap();
    let short = Memory::of_peer(ours.descriptor(true).unwrap().unwrap(), true, 4_097);
    assert!(matches!(short, Err(MemoryError::FileTooShort { file: 4_096, asked: 4_097 })));
    let file = File::from(ours.descriptor(true).unwrap().unwrap());
    assert!(file.set_len(1).is_err() && file.set_len(8_192).is_err(), "sealed");
    assert!(Memory::zeroed(8).unwrap().descriptor(true).unwrap().is_none());
}

/// A watch learns of each end of a region, and of each change of its grants, before its memory comes back, and is forgotten with its
/// owner.
#[test]
fn watches_learn_of_unregistered_regions() {
    struct Watch(parking_lot::Mutex<Vec<u64>>);
    impl RegionWatch for Watch {
        fn on_revoked(&self, key: u64) {
            self.0.lock().push(key);
        }
    }
    let table = RegionTable::new();
    let watch: Arc<Watch> = Arc::new(Watch(parking_lot::Mutex::default()));
    let dynamic: Arc<dyn RegionWatch> = watch.clone();
    for _ in 0..WATCHES_MAX {
        assert!(table.watch(Arc::downgrade(&dynamic)));
    }
    assert!(!table.watch(Arc::downgrade(&dynamic)));
    let span = Memory::zeroed(8).unwrap().whole();
    table.register(span.clone(), Access::READ, 5).unwrap();
    assert!(table.unregister(4).is_none() && watch.0.lock().is_empty());
    table.regrant(5, Access::READ_WRITE.into()).unwrap();
    assert_eq!(table.regrant(4, Access::READ.into()).unwrap_err(), RegistrationError::Gone);
    assert_eq!(watch.0.lock().drain(..).as_slice(), [5; WATCHES_MAX], "of each change");
    assert!(table.unregister(5).is_some());
    assert_eq!(*watch.0.lock(), [5; WATCHES_MAX]);
    drop(dynamic);
    drop(watch);
    let other: Arc<dyn RegionWatch> = Arc::new(Watch(parking_lot::Mutex::default()));
    assert!(table.watch(Arc::downgrade(&other)), "the places of dropped ones are free");
}
