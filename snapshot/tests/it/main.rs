//! Whole files: real snapshots against what the allocator itself reported, and hostile ones.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by it, with a message")]

mod cases;
mod exact;
mod heads;
mod host;
mod moments;
mod rewritten;
mod together;
mod story;
mod traps;
mod simulated;
mod hostile;
mod versions;
mod wrapped;
mod odd;
mod memory;
mod found;
mod profiler;
mod archives;
mod strangers;
mod pack;
mod pictures;
mod maps;
