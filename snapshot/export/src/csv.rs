//! A table as CSV (RFC 4180): UTF-8, commas, a head, lines that end with CR LF.
//!
//! A cell without a value is empty, an empty text is `""`. Times are as in RFC 3339, in UTC.

use std::io::{self, Write};

use arrow_array::{
    Array, RecordBatch,
    cast::AsArray as _,
    types::{Int32Type, Int64Type, TimestampMicrosecondType, UInt64Type},
};
use arrow_schema::DataType;

use crate::{ExportError, Part, Table, column::Rows};

/// Whole stacks would be repeated in every row, some fifty frames each: the table of stacks has them.
const ONLY_IN_STACKS: &str = "stack";

/// Writes one table.
///
/// # Errors
/// When the table cannot be had for this part, or not be written.
pub fn write(part: &Part<'_>, table: Table, mut out: impl Write) -> Result<(), ExportError> {
    let Rows { mut columns, sections } = table.rows(part)?;
    if table != Table::Stacks {
        columns.retain(|column| column.name != ONLY_IN_STACKS);
    }
    let names: Vec<&str> = columns.iter().map(|column| column.name).collect();
    write!(out, "{}\r\n", names.join(","))?;
    for batch in (Rows { columns, sections }).batches() {
        write_batch(&batch?, &mut out)?;
    }
    Ok(())
}

fn write_batch(batch: &RecordBatch, out: &mut impl Write) -> io::Result<()> {
    for row in 0..batch.num_rows() {
        for (at, column) in batch.columns().iter().enumerate() {
            if at > 0 {
                out.write_all(b",")?;
            }
            if !column.is_null(row) {
                write_cell(column, row, out)?;
            }
        }
        out.write_all(b"\r\n")?;
    }
    Ok(())
}

fn write_cell(column: &dyn Array, row: usize, out: &mut impl Write) -> io::Result<()> {
    match column.data_type() {
        DataType::Int64 => write!(out, "{}", column.as_primitive::<Int64Type>().value(row)),
        DataType::UInt64 => write!(out, "{}", column.as_primitive::<UInt64Type>().value(row)),
        DataType::Boolean => write!(out, "{}", column.as_boolean().value(row)),
        DataType::Timestamp(..) => {
            write_time(column.as_primitive::<TimestampMicrosecondType>().value(row), out)
        }
        _ => {
            let dictionary = column.as_dictionary::<Int32Type>();
            let text = dictionary.key(row).map(|key| dictionary.values().as_string::<i32>().value(key));
            write_text(text.unwrap_or_default(), out)
        }
    }
}

fn write_time(micros: i64, out: &mut impl Write) -> io::Result<()> {
    match jiff::Timestamp::from_microsecond(micros) {
        Ok(time) => write!(out, "{time:.6}"),
        // Beyond the year 9999: the number itself says more than nothing.
        Err(_) => write!(out, "{micros}"),
    }
}

fn write_text(text: &str, out: &mut impl Write) -> io::Result<()> {
    if text.is_empty() || text.contains([',', '"', '\n', '\r']) {
        write!(out, "\"{}\"", text.replace('"', "\"\""))
    } else {
        out.write_all(text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl Fn(&mut Vec<u8>) -> io::Result<()>) -> String {
        let mut out = Vec::new();
        write(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn texts_with_separators_are_quoted_and_an_empty_text_is_not_nothing() {
        let text = |text| written(|out| write_text(text, out));
        assert_eq!(text("forward"), "forward");
        assert_eq!(text("a, \"b\"\n"), "\"a, \"\"b\"\"\n\"");
        assert_eq!(text(""), "\"\"");
    }

    #[test]
    fn times_have_six_digits_and_their_zone_and_impossible_ones_stay_numbers() {
        let time = |micros| written(|out| write_time(micros, out));
        assert_eq!(time(1_700_000_000_000_000), "2023-11-14T22:13:20.000000Z");
        assert_eq!(time(1_700_000_000_123_456), "2023-11-14T22:13:20.123456Z");
        assert_eq!(time(i64::MAX), "9223372036854775807");
    }
}
