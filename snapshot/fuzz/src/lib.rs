//! What the fuzzer's targets share.

pub mod doors;
