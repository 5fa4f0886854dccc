//! Calls `torch::cuda::_memory_snapshot_pickled()`, PyTorch's own C++ function that pickles a memory snapshot.
//!
//! It builds no Python objects and may be called from any thread without the interpreter's lock. It returns a
//! `std::string` and may throw, so a shim in C++ stands between (`shim/shim.cpp`): a shared object that is built with
//! this package, carried inside it and loaded when it is first needed, with the C++ runtime that PyTorch has loaded.
//!
//! ```text
//! Function::find ─ the symbol, in the library that is loaded ─┐
//! Shim::load ─ memfd, or a file in a folder ──────────────────┴─ Native::take ─ bytes, or what the exception says
//! ```
//! This package is the only one with `unsafe`; nothing here knows Python.

#![expect(unsafe_code, reason = "what is called is C++, found by its symbol at run time")]

#[cfg(target_os = "linux")]
mod loading;
#[cfg(target_os = "linux")]
mod shim;

#[cfg(target_os = "linux")]
pub use shim::{Abi, Function, Native};

/// Why the native way cannot be taken, or what a call came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NativeError(pub String);

impl std::fmt::Display for NativeError {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for NativeError {}

/// The shim's bytes; none where it was left out.
pub const SHIM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/shim.so"));

/// Why the shim was left out when this was built; empty when it is there.
pub const LEFT_OUT: &str = include_str!(concat!(env!("OUT_DIR"), "/left-out.txt"));
