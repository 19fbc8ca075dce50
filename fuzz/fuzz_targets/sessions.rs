#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| handfast_fuzz_checks::sessions::check(bytes));
