//! Columns of a table as functions from a row to a cell, and batches of them as Arrow arrays.

use std::{ops::Range, sync::Arc};

use arrow_array::{
    ArrayRef, BooleanArray, DictionaryArray, Int32Array, Int64Array, RecordBatch, StringArray,
    TimestampMicrosecondArray, UInt64Array,
};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef, TimeUnit};

use crate::dictionary::Dictionary;

/// Rows in a batch: a few megabytes of cells.
const BATCH_ROWS: usize = 1 << 16;

/// Where a cell stands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct At {
    /// Which section of the table: mostly, which device of the part.
    pub(crate) section: usize,
    /// Which row of what the section shows: an event, an allocation.
    pub(crate) row: usize,
}

type Cell<'a, T> = Box<dyn Fn(At) -> T + 'a>;

/// The cells of a column.
pub(crate) enum Cells<'a> {
    /// Counts, bytes, positions.
    Int(Cell<'a, i64>),
    /// The same, where not every row has one.
    MaybeInt(Cell<'a, Option<i64>>),
    /// Addresses and other numbers that take all 64 bits.
    Wide(Cell<'a, u64>),
    /// The same, where not every row has one.
    MaybeWide(Cell<'a, Option<u64>>),
    /// True or false.
    Flag(Cell<'a, bool>),
    /// Microseconds of the Unix epoch.
    Time(Cell<'a, Option<i64>>),
    /// A text of a dictionary, by its position.
    Text(Dictionary, Cell<'a, Option<i32>>),
}

/// A column.
pub(crate) struct Column<'a> {
    pub(crate) name: &'static str,
    pub(crate) cells: Cells<'a>,
}

impl<'a> Column<'a> {
    pub(crate) fn int(name: &'static str, cell: impl Fn(At) -> u64 + 'a) -> Self {
        Self { name, cells: Cells::Int(Box::new(move |at| int(cell(at)))) }
    }

    /// The first column of most tables: which device.
    pub(crate) fn device(ordinal: impl Fn(At) -> i64 + 'a) -> Self {
        Self { name: "device", cells: Cells::Int(Box::new(ordinal)) }
    }

    pub(crate) fn maybe_int(name: &'static str, cell: impl Fn(At) -> Option<u64> + 'a) -> Self {
        Self { name, cells: Cells::MaybeInt(Box::new(move |at| cell(at).map(int))) }
    }

    pub(crate) fn maybe_signed(name: &'static str, cell: impl Fn(At) -> Option<i64> + 'a) -> Self {
        Self { name, cells: Cells::MaybeInt(Box::new(cell)) }
    }

    pub(crate) fn wide(name: &'static str, cell: impl Fn(At) -> u64 + 'a) -> Self {
        Self { name, cells: Cells::Wide(Box::new(cell)) }
    }

    pub(crate) fn maybe_wide(name: &'static str, cell: impl Fn(At) -> Option<u64> + 'a) -> Self {
        Self { name, cells: Cells::MaybeWide(Box::new(cell)) }
    }

    pub(crate) fn flag(name: &'static str, cell: impl Fn(At) -> bool + 'a) -> Self {
        Self { name, cells: Cells::Flag(Box::new(cell)) }
    }

    pub(crate) fn time(name: &'static str, cell: impl Fn(At) -> Option<i64> + 'a) -> Self {
        Self { name, cells: Cells::Time(Box::new(cell)) }
    }

    /// `cell` gives the key under which `dictionary` knows the text.
    pub(crate) fn text(
        name: &'static str,
        dictionary: Dictionary,
        cell: impl Fn(At) -> Option<usize> + 'a,
    ) -> Self {
        let positions = dictionary.clone();
        let cell = move |at| cell(at).and_then(|key| positions.position(key));
        Self { name, cells: Cells::Text(dictionary, Box::new(cell)) }
    }

    fn field(&self) -> Field {
        let (data_type, is_nullable) = match self.cells {
            Cells::Int(_) => (DataType::Int64, false),
            Cells::MaybeInt(_) => (DataType::Int64, true),
            Cells::Wide(_) => (DataType::UInt64, false),
            Cells::MaybeWide(_) => (DataType::UInt64, true),
            Cells::Flag(_) => (DataType::Boolean, false),
            Cells::Time(_) => (DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())), true),
            Cells::Text(..) => {
                (DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8)), true)
            }
        };
        Field::new(self.name, data_type, is_nullable)
    }

    fn array(&self, rows: impl Iterator<Item = At>) -> Result<ArrayRef, ArrowError> {
        Ok(match &self.cells {
            Cells::Int(cell) => Arc::new(rows.map(cell).collect::<Int64Array>()),
            Cells::MaybeInt(cell) => Arc::new(rows.map(cell).collect::<Int64Array>()),
            Cells::Wide(cell) => Arc::new(rows.map(cell).collect::<UInt64Array>()),
            Cells::MaybeWide(cell) => Arc::new(rows.map(cell).collect::<UInt64Array>()),
            Cells::Flag(cell) => Arc::new(BooleanArray::from(rows.map(cell).collect::<Vec<bool>>())),
            Cells::Time(cell) => {
                Arc::new(rows.map(cell).collect::<TimestampMicrosecondArray>().with_timezone("UTC"))
            }
            Cells::Text(dictionary, cell) => {
                let keys: Int32Array = rows.map(cell).collect();
                let texts: Arc<StringArray> = dictionary.texts();
                Arc::new(DictionaryArray::try_new(keys, texts)?)
            }
        })
    }
}

/// Numbers that count are signed, so that a difference of two columns is right everywhere. No device holds
/// 2^63 bytes; a file that says so is shown as 2^63-1.
fn int(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The rows of one section: how many, and which row of its source each is.
pub(crate) struct Section<'a> {
    pub(crate) n_rows: usize,
    pub(crate) source: Box<dyn Fn(usize) -> usize + 'a>,
}

impl<'a> Section<'a> {
    /// Consecutive rows.
    pub(crate) fn range(rows: Range<usize>) -> Self {
        Self { n_rows: rows.len(), source: Box::new(move |row| rows.start + row) }
    }

    /// Rows from a list.
    pub(crate) fn list(rows: Vec<u32>) -> Self {
        Self { n_rows: rows.len(), source: Box::new(move |row| rows[row] as usize) }
    }
}

/// A table that is computed batch by batch.
pub(crate) struct Rows<'a> {
    pub(crate) columns: Vec<Column<'a>>,
    pub(crate) sections: Vec<Section<'a>>,
}

impl Rows<'_> {
    /// Names and types.
    pub(crate) fn schema(&self) -> SchemaRef {
        Arc::new(Schema::new(self.columns.iter().map(Column::field).collect::<Vec<_>>()))
    }

    /// All rows, a batch at a time.
    pub(crate) fn batches(&self) -> impl Iterator<Item = Result<RecordBatch, ArrowError>> + '_ {
        let schema = self.schema();
        let spans = self.sections.iter().enumerate().flat_map(|(number, section)| {
            let starts = (0..section.n_rows).step_by(BATCH_ROWS);
            starts.map(move |start| (number, start..section.n_rows.min(start + BATCH_ROWS)))
        });
        spans.map(move |(section, rows)| {
            let source = &self.sections[section].source;
            let at = |row| At { section, row: source(row) };
            let arrays = self.columns.iter().map(|column| column.array(rows.clone().map(at)));
            RecordBatch::try_new(schema.clone(), arrays.collect::<Result<_, _>>()?)
        })
    }
}
