//! Bytes that may be a snapshot, beginning from those of kind pickle.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tidegauge_snapshot_fuzz::doors::file(bytes));
