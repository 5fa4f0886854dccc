//! A table as Parquet.

use std::io::Write;

use ::parquet::{
    arrow::ArrowWriter,
    basic::Compression,
    file::properties::{WriterProperties, WriterVersion},
};

use crate::{ExportError, Part, Table};

/// Rows that are kept in memory, encoded, until they are written together.
const ROW_GROUP_ROWS: usize = 1 << 18;

/// Largest dictionary of a column in one row group. Stacks are few and long: within a dictionary each is written
/// once, beyond it once a row.
const DICTIONARY_BYTES: usize = 64 << 20;

/// Writes one table.
///
/// # Errors
/// When the table cannot be had for this part, or not be written.
pub fn write(part: &Part<'_>, table: Table, out: impl Write + Send) -> Result<(), ExportError> {
    let rows = table.rows(part)?;
    let properties = WriterProperties::builder()
        .set_created_by(concat!("tidegauge version ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_writer_version(WriterVersion::PARQUET_1_0)
        // Every reader knows it, and it is Rust.
        .set_compression(Compression::SNAPPY)
        .set_dictionary_page_size_limit(DICTIONARY_BYTES)
        .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
        .build();
    let mut writer = ArrowWriter::try_new(out, rows.schema(), Some(properties))?;
    for batch in rows.batches() {
        writer.write(&batch?)?;
    }
    writer.close()?;
    Ok(())
}
