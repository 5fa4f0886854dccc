//! Shared objects: those the process has loaded, and one of ours.

use std::{
    ffi::{CStr, CString, c_void},
    fs::{self, File},
    io::Write as _,
    os::{
        fd::{AsRawFd as _, FromRawFd as _},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
};

use crate::NativeError;

/// A shared object that stays loaded: it is never closed, so what is found in it lasts as long as the process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Library(*mut c_void);

// SAFETY: a handle of `dlopen` is a name for the loader, which locks by itself.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    /// A library that the process has loaded already, by its soname. Its symbols become visible to libraries
    /// that are loaded later.
    pub(crate) fn of_process(name: &CStr) -> Option<Self> {
        // SAFETY: the name ends with a zero. RTLD_NOLOAD runs no code: the library is there or it is not.
        let handle =
            unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY | libc::RTLD_GLOBAL) };
        (!handle.is_null()).then_some(Self(handle))
    }

    /// Loads these bytes: from memory, or where the system does not run code there, from a file in `folder`.
    pub(crate) fn from_bytes(bytes: &[u8], folder: &Path) -> Result<Self, NativeError> {
        let in_memory = from_memory(bytes);
        in_memory.or_else(|first| {
            from_file(bytes, folder).map_err(|second| NativeError(format!("{first}; {second}")))
        })
    }

    /// The address of a symbol.
    pub(crate) fn symbol(self, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: the handle is of a library that stays loaded, and the name ends with a zero.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        (!address.is_null()).then_some(address)
    }

    fn open(path: &CStr) -> Result<Self, NativeError> {
        // SAFETY: the path ends with a zero. The object is the shim, which has no constructors.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() { Err(NativeError(last_error())) } else { Ok(Self(handle)) }
    }
}

fn from_memory(bytes: &[u8]) -> Result<Library, NativeError> {
    let failed = |error: std::io::Error| NativeError(format!("no file in memory: {error}"));
    // SAFETY: the name ends with a zero.
    let file = unsafe { libc::memfd_create(c"tidegauge-shim".as_ptr(), libc::MFD_CLOEXEC) };
    if file < 0 {
        return Err(failed(std::io::Error::last_os_error()));
    }
    // SAFETY: the descriptor was just made, and nobody else has it.
    let mut file = unsafe { File::from_raw_fd(file) };
    file.write_all(bytes).map_err(failed)?;
    let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()));
    Library::open(&path.expect("a number holds no zero byte"))
}

/// The file is gone again once it is loaded.
fn from_file(bytes: &[u8], folder: &Path) -> Result<Library, NativeError> {
    let path = folder.join(format!(".shim-{}.so", std::process::id()));
    let failed = |error: std::io::Error| NativeError(format!("cannot write {}: {error}", path.display()));
    let loaded =
        fs::create_dir_all(folder).and_then(|()| fs::write(&path, bytes)).map_err(failed).and_then(|()| {
            let name = CString::new(path.as_os_str().as_bytes());
            Library::open(&name.map_err(|error| NativeError(format!("{}: {error}", path.display())))?)
        });
    fs::remove_file(&path).ok();
    loaded
}

fn last_error() -> String {
    // SAFETY: dlerror returns null or a text that lasts until the thread's next call.
    unsafe {
        let error = libc::dlerror();
        if error.is_null() {
            return "the loader gave no reason".to_owned();
        }
        CStr::from_ptr(error).to_string_lossy().into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shim_also_loads_from_a_file_which_is_then_gone() {
        let folder = tempfile::tempdir().unwrap();
        let Some(_) = crate::shim::runtime_for_tests() else { return };
        let library = from_file(crate::SHIM, &folder.path().join("new")).unwrap();
        assert!(library.symbol(c"tidegauge_call_new").is_some());
        assert_eq!(fs::read_dir(folder.path().join("new")).unwrap().count(), 0);
    }

    #[test]
    fn bytes_that_are_no_library_are_refused_with_both_reasons() {
        let folder = tempfile::tempdir().unwrap();
        let error = Library::from_bytes(b"no library at all", folder.path()).unwrap_err();
        assert!(error.0.contains("/proc/self/fd") && error.0.contains(".shim-"), "{error}");
    }
}
