//! The function in PyTorch, the shim in front of it, and the call.

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    path::Path,
    slice,
};

use crate::{LEFT_OUT, NativeError, SHIM, loading::Library};

/// The most that is kept of what an exception says, bytes. PyTorch appends a backtrace of several thousand.
const MAX_SAID_BYTES: usize = 1024;

/// How a `std::string` is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Abi {
    /// As GCC 5 and later do it; `torch` wheels since 2.7.
    New,
    /// As before; older wheels.
    Old,
}

/// A C++ function without arguments that returns a `std::string`.
#[derive(Debug, Clone, Copy)]
pub struct Function {
    address: *mut c_void,
    abi: Abi,
}

// SAFETY: the address of code in a library that stays loaded.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

/// The way of taking a snapshot natively.
#[derive(Debug, Clone, Copy)]
pub struct Native {
    function: Function,
    call: Call,
}

type Sink = extern "C" fn(*mut c_void, *const c_char, usize);
type Call = unsafe extern "C" fn(*mut c_void, Sink, *mut c_void, *mut c_char, usize) -> c_int;

impl Function {
    /// `torch::cuda::_memory_snapshot_pickled()` in the `libtorch_cuda.so` that this process has loaded.
    ///
    /// # Errors
    /// When the library is not loaded or has no such function.
    pub fn of_torch() -> Result<Self, NativeError> {
        let library = Library::of_process(c"libtorch_cuda.so");
        let library = library.ok_or_else(|| NativeError("libtorch_cuda.so is not loaded".to_owned()))?;
        let symbols = [
            (Abi::New, c"_ZN5torch4cuda24_memory_snapshot_pickledB5cxx11Ev"),
            (Abi::Old, c"_ZN5torch4cuda24_memory_snapshot_pickledEv"),
        ];
        let found = symbols
            .into_iter()
            .find_map(|(abi, symbol)| Some(Self { address: library.symbol(symbol)?, abi }));
        found.ok_or_else(|| NativeError("libtorch_cuda.so has no _memory_snapshot_pickled".to_owned()))
    }

    /// How the string that it returns is laid out.
    pub fn abi(self) -> Abi {
        self.abi
    }
}

impl Native {
    /// Loads the shim; where the system does not run code from memory, by way of a file in `folder`.
    ///
    /// # Errors
    /// When the shim was left out, the process has loaded no C++ runtime, or the loader says no.
    pub fn load(function: Function, folder: &Path) -> Result<Self, NativeError> {
        if SHIM.is_empty() {
            return Err(NativeError(format!("it was left out when the agent was built: {LEFT_OUT}")));
        }
        for name in [c"libgcc_s.so.1", c"libstdc++.so.6"] {
            Library::of_process(name).ok_or_else(|| not_loaded(name))?;
        }
        let shim = Library::from_bytes(SHIM, folder)?;
        let name = match function.abi {
            Abi::New => c"tidegauge_call_new",
            Abi::Old => c"tidegauge_call_old",
        };
        let call = shim.symbol(name).ok_or_else(|| not_loaded(name))?;
        // SAFETY: the shim defines this symbol as a function of this signature.
        let call = unsafe { std::mem::transmute::<*mut c_void, Call>(call) };
        Ok(Self { function, call })
    }

    /// Calls the function and copies what it returns.
    ///
    /// # Errors
    /// With what the exception said, when it threw one.
    pub fn take(&self) -> Result<Vec<u8>, NativeError> {
        let mut bytes = Vec::new();
        let mut said = [0 as c_char; MAX_SAID_BYTES];
        // SAFETY: the address is of a function that takes nothing and returns the string that `call` is for. `keep`
        // is given the vector that it expects; `said` has the room that is stated.
        let threw = unsafe {
            (self.call)(self.function.address, keep, (&raw mut bytes).cast(), said.as_mut_ptr(), said.len())
        };
        if threw == 0 {
            return Ok(bytes);
        }
        // SAFETY: the shim ends what it says with a zero, within the room.
        let said = unsafe { CStr::from_ptr(said.as_ptr()) }.to_string_lossy();
        Err(NativeError(said.lines().next().unwrap_or_default().to_owned()))
    }
}

/// A vector that cannot grow aborts, as everywhere in Rust; nothing unwinds into C++.
extern "C" fn keep(context: *mut c_void, bytes: *const c_char, length: usize) {
    if length == 0 {
        return;
    }
    // SAFETY: `take` passes its vector, of which nobody else knows meanwhile; the shim passes a string's bytes.
    unsafe { (*context.cast::<Vec<u8>>()).extend_from_slice(slice::from_raw_parts(bytes.cast(), length)) };
}

fn not_loaded(name: &CStr) -> NativeError {
    NativeError(format!("{} is not loaded", name.to_string_lossy()))
}

/// Loads the C++ runtime, as PyTorch would have.
#[cfg(test)]
pub(crate) fn runtime_for_tests() -> Option<()> {
    for name in [c"libgcc_s.so.1", c"libstdc++.so.6"] {
        // SAFETY: the system's C++ runtime; its constructors may run on any thread.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        (!handle.is_null()).then_some(())?;
    }
    (!SHIM.is_empty()).then_some(())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Functions as PyTorch has them, compiled by the system's compiler with its own `<string>`.
    const FUNCTIONS: &str = r#"
#include <string>
#include <stdexcept>
extern "C" void *address_of(int which);
static std::string short_one() { return std::string("ab\0c", 4); }
static std::string empty() { return std::string(); }
static std::string long_one() { return std::string(1000000, 'x') + "y"; }
static std::string throws() { throw std::runtime_error("no snapshot of this allocator\nframe #0"); }
static std::string throws_odd() { throw 42; }
void *address_of(int which) {
  std::string (*functions[])() = {short_one, empty, long_one, throws, throws_odd};
  return (void *)functions[which];
}
"#;

    /// `None` where there is no compiler.
    fn functions(abi: Abi) -> Option<[Native; 5]> {
        runtime_for_tests()?;
        let folder = tempfile::tempdir().unwrap();
        let (source, object) = (folder.path().join("functions.cpp"), folder.path().join("functions.so"));
        std::fs::write(&source, FUNCTIONS).unwrap();
        let abi_flag = format!("-D_GLIBCXX_USE_CXX11_ABI={}", u8::from(abi == Abi::New));
        let compiled = Command::new("c++")
            .args(["-shared", "-fPIC", "-O1", &abi_flag, "-o"])
            .arg(&object)
            .arg(&source)
            .status();
        if !compiled.ok()?.success() {
            return None;
        }
        let name = std::ffi::CString::new(object.to_str().unwrap()).unwrap();
        // SAFETY: the object was just built from the source above.
        let address_of = unsafe {
            let handle = libc::dlopen(name.as_ptr(), libc::RTLD_NOW);
            assert!(!handle.is_null());
            let address = libc::dlsym(handle, c"address_of".as_ptr());
            std::mem::transmute::<*mut c_void, extern "C" fn(c_int) -> *mut c_void>(address)
        };
        Some(
            [0, 1, 2, 3, 4].map(|which| {
                Native::load(Function { address: address_of(which), abi }, folder.path()).unwrap()
            }),
        )
    }

    #[test]
    fn strings_of_both_abis_arrive_byte_by_byte_and_exceptions_as_sentences() {
        for abi in [Abi::New, Abi::Old] {
            let Some([short_one, empty, long_one, throws, throws_odd]) = functions(abi) else { return };
            for _ in 0..3 {
                assert_eq!(short_one.take().unwrap(), b"ab\0c", "{abi:?}");
                assert_eq!(empty.take().unwrap(), b"", "{abi:?}");
                let long = long_one.take().unwrap();
                assert_eq!((long.len(), long[0], long[1_000_000]), (1_000_001, b'x', b'y'), "{abi:?}");
                assert_eq!(throws.take(), Err(NativeError("no snapshot of this allocator".to_owned())));
                assert!(throws_odd.take().unwrap_err().0.contains("no std::exception"));
            }
        }
    }

    #[test]
    fn without_pytorch_the_function_is_not_found_and_that_is_said() {
        assert_eq!(Function::of_torch().unwrap_err().0, "libtorch_cuda.so is not loaded");
    }
}
