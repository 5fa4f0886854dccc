//! Bytes that may be an archive of snapshots.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tidegauge_snapshot_fuzz::doors::archives(bytes));
