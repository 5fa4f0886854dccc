//! A snapshot again, as PyTorch writes it: for torch's own viewer, and for Python.

use std::io::Write;

use tidegauge_snapshot::write;

use crate::{ExportError, Part};

/// Writes a pickle of protocol 4 with the same fields; of a window, what torch would have written of it alone.
///
/// # Errors
/// When nothing can be written.
pub fn write(part: &Part<'_>, out: impl Write) -> Result<(), ExportError> {
    write::pickle(&part.to_snapshot(), out)?;
    Ok(())
}
