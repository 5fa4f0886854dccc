//! What the fuzzer found once must stay harmless: each input goes through its door again.

use std::path::Path;

#[path = "../../fuzz/src/doors.rs"]
#[expect(unreachable_pub, clippy::expect_used, reason = "shared with the fuzzer's own package")]
mod doors;

/// The inputs of one target.
fn replay(target: &str) -> usize {
    let door = doors::door(target)
        .unwrap_or_else(|| panic!("fixtures/found has a folder {target}, which is no target"));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/found").join(target);
    let files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    for file in &files {
        println!("{}", file.display());
        door(&std::fs::read(file).unwrap());
    }
    files.len()
}

#[test]
fn what_the_fuzzer_found_stays_harmless() {
    let found = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/found");
    let targets = std::fs::read_dir(found).unwrap().map(|entry| entry.unwrap());
    let targets = targets.filter(|entry| entry.file_type().unwrap().is_dir());
    let n: usize = targets.map(|entry| replay(entry.file_name().to_str().unwrap())).sum();
    println!("{n} inputs");
}

#[test]
fn the_laws_hold_for_every_committed_snapshot() {
    let mut n = 0;
    for folder in ["fixtures", "fixtures/wrapped", "fixtures/torch2.15.0", "fixtures/kineto"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_file() && path.metadata().unwrap().len() < 1 << 20 {
                doors::archives(&std::fs::read(path).unwrap());
                n += 1;
            }
        }
    }
    assert!(n > 40, "{n} files");
}
