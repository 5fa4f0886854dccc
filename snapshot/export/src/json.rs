//! A snapshot with the same fields, as JSON.

use std::io::Write;

use tidegauge_snapshot::write;

use crate::{ExportError, Part};

/// Writes what Python's `json.dump` would; of a window, what torch would have written of it alone.
///
/// # Errors
/// When nothing can be written.
pub fn write(part: &Part<'_>, out: impl Write) -> Result<(), ExportError> {
    write::json(&part.to_snapshot(), out)?;
    Ok(())
}
