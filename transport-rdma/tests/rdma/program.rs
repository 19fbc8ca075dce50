//! Dependencies of a program at start.

use elf::ElfBytes;
use elf::abi::DT_NEEDED;
use elf::endian::AnyEndian;
use handfast_transport_rdma::{RdmaUnavailable, availability};
use std::fs;

/// This program holds the whole transport, as one that users get does.
#[test]
fn a_program_needs_no_verbs_library_to_start() {
    let needed = needed_libraries();
    assert!(needed.iter().any(|name| name.starts_with("libc.so")), "{needed:?}");
    let verbs = needed.iter().find(|name| name.contains("ibverbs") || name.contains("rdmacm"));
    assert_eq!(verbs, None, "{needed:?}");
}

#[test]
fn what_is_missing_for_rdma_is_told_and_nothing_else_happens() {
    let available = availability();
    if std::env::var_os("HANDFAST_WITHOUT_LIBRARY").is_some() {
        assert!(matches!(available, Err(RdmaUnavailable::NoLibrary { .. })), "{available:?}");
    }
    match available {
        Ok(devices) => assert!(!devices.is_empty()),
        Err(error @ RdmaUnavailable::NotBuilt) => {
            let built = cfg!(feature = "verbs");
            assert!(!built, "{error}");
        }
        Err(error @ RdmaUnavailable::NoLibrary { .. }) => {
            println!("{error}");
            assert!(error.to_string().contains("libibverbs.so.1"), "{error}");
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn needed_libraries() -> Vec<String> {
    let bytes = fs::read("/proc/self/exe").unwrap();
    let program = ElfBytes::<AnyEndian>::minimal_parse(&bytes).unwrap();
    let (_, names) = program.dynamic_symbol_table().unwrap().unwrap();
    let entries = program.dynamic().unwrap().unwrap();
    let needed = entries.iter().filter(|entry| entry.d_tag == DT_NEEDED);
    needed.map(|entry| names.get(entry.d_val() as usize).unwrap().to_owned()).collect()
}
