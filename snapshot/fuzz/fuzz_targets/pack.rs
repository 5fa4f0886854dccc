//! Bytes that may be a pack.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tidegauge_snapshot_fuzz::doors::packs(bytes));
