//! A table as an Arrow IPC file, also known as Feather 2.

use std::io::Write;

use arrow_ipc::writer::FileWriter;

use crate::{ExportError, Part, Table};

/// Writes one table. Nothing is compressed: the file is made to be mapped into memory.
///
/// # Errors
/// When the table cannot be had for this part, or not be written.
pub fn write(part: &Part<'_>, table: Table, out: impl Write) -> Result<(), ExportError> {
    let rows = table.rows(part)?;
    let mut writer = FileWriter::try_new(out, &rows.schema())?;
    for batch in rows.batches() {
        writer.write(&batch?)?;
    }
    writer.finish()?;
    Ok(())
}
