//! Compiles the shim into a shared object of its own. Without a C++ compiler it is left out, and the agent says so
//! when it would have used it.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Stdio,
};

const SHIM: &str = "shim/shim.cpp";

fn main() {
    println!("cargo::rerun-if-changed={SHIM}");
    let folder = PathBuf::from(env::var_os("OUT_DIR").expect("cargo names a folder for outputs"));
    let (shim, reason) = (folder.join("shim.so"), folder.join("left-out.txt"));
    let why = match build(&shim) {
        Ok(()) => String::new(),
        Err(why) => {
            println!("cargo::warning=snapshots will be taken the Python way only: {why}");
            fs::write(&shim, []).expect("cargo's folder for outputs can be written to");
            why
        }
    };
    fs::write(reason, why).expect("cargo's folder for outputs can be written to");
}

fn build(shim: &Path) -> Result<(), String> {
    let target = |name: &str| env::var(format!("CARGO_CFG_TARGET_{name}")).unwrap_or_default();
    let (os, arch) = (target("OS"), target("ARCH"));
    if os != "linux" || !matches!(arch.as_str(), "x86_64" | "aarch64") {
        return Err(format!("{arch} {os} has no native way"));
    }
    // Always optimized: what is called is so, and a debug build would bring checks that need a runtime.
    let mut build = cc::Build::new();
    build.cpp(true).cargo_metadata(false).cargo_warnings(false).opt_level(2).debug(false);
    let compiler = build.try_get_compiler().map_err(|error| format!("no C++ compiler: {error}"))?;
    let mut command = compiler.to_command();
    command.args(["-std=c++17", "-fPIC", "-fexceptions", "-fno-stack-protector", "-fno-sanitize=all"]);
    command.args(["-shared", "-nostdlib", "-Wl,--eh-frame-hdr", "-Wl,-z,noexecstack", "-o"]);
    let compiled = command.arg(shim).arg(SHIM).stdin(Stdio::null()).output();
    match compiled {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!(
            "{} does not compile {SHIM}: {}",
            compiler.path().display(),
            String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or("it said nothing")
        )),
        Err(error) => Err(format!("no C++ compiler: {}: {error}", compiler.path().display())),
    }
}
