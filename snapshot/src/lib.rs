//! What a PyTorch memory snapshot is.
//!
//! `torch.cuda.memory._snapshot()` returns the segments a process holds on its devices, the blocks inside them
//! and, if recording was on, a trace of every allocation and free. This crate reads such a file without ever
//! running it ([`read`]), keeps it as column tables ([`model`]), computes the memory in use after every event
//! exactly as the allocator counted it ([`replay`]), draws it ([`picture`]) and stores it compactly ([`pack`]).
//!
//! It knows no files, clocks, threads, HTTP, browser or Python: bytes go in, values come out, natively and in
//! WebAssembly alike.
//!
//! ```
//! # let pickle: &[u8] = include_bytes!("../fixtures/oom_plain_2gib.pickle");
//! let snapshot = tidegauge_snapshot::read::open(pickle)?;
//! let device = &snapshot.devices[0];
//! let replay = tidegauge_snapshot::replay::replay(&snapshot, device);
//! assert_eq!(replay.peak.allocated, 1_610_612_736); // as torch.cuda.memory_stats() said
//! # Ok::<(), tidegauge_snapshot::read::ReadError>(())
//! ```

pub mod model;
pub mod read;
pub mod replay;
pub mod overlap;
pub mod annotations;
pub mod window;
pub mod findings;
pub mod picture;
pub mod pack;
pub mod write;
pub mod paths;
pub mod sites;
pub mod origins;
pub mod sums;
pub mod icicle;
pub mod filter;
pub mod words;

pub use model::Snapshot;
