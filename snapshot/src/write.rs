//! A snapshot written out again, field by field as it was read: [`pickle`] for torch's own viewer and Python, [`json`]
//! for everything else.
//!
//! What the tables hold is written under the keys each row had; fields that no column holds come from
//! [`Snapshot::kept`]. Read again, the file gives the same tables; loaded by Python's `pickle`, the same values as the
//! original. Equal stacks are written once and shared, so a pickle may be smaller than its original.

mod walk;
mod pickler;
mod json;

use std::io::{self, Write};

use crate::Snapshot;

/// Writes a snapshot as torch's `_dump_snapshot` does: a pickle of protocol 4.
///
/// # Errors
/// Those of writing.
pub fn pickle(snapshot: &Snapshot, out: impl Write) -> io::Result<()> {
    pickler::write(snapshot, out)
}

/// Writes a snapshot as Python's `json.dump` would: tuples become lists, and what is not UTF-8 is replaced.
///
/// # Errors
/// Those of writing.
pub fn json(snapshot: &Snapshot, out: impl Write) -> io::Result<()> {
    json::write(snapshot, out)
}
