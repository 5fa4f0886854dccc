//! A snapshot written for other programs: tables, flame graphs and traces.
//!
//! A [`Part`] says what of a snapshot is meant: all of it, or a window of one device's trace. Each format then is
//! a function from a part to an `impl Write`, which had better be buffered, and streams: beside the tables of the
//! snapshot itself only one batch of rows, and each text once, are in memory. (A window as a snapshot of its own is
//! cut out first.) Addresses stay whole numbers of 64 bits everywhere.
//!
//! ```
//! # let pickle: &[u8] = include_bytes!("../../fixtures/oom_plain_2gib.pickle");
//! use tidegauge_export::{Moment, Part, collapsed};
//! use tidegauge_snapshot::{read, replay::replay};
//!
//! let snapshot = read::open(pickle)?;
//! let replays: Vec<_> = snapshot.devices.iter().map(|device| replay(&snapshot, device)).collect();
//! let mut flame_graph = Vec::new();
//! collapsed::write(&Part::whole(&snapshot, &replays), Moment::Peak, &mut flame_graph)?;
//! # assert!(flame_graph.ends_with(b"\n"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod part;
mod memory;
mod table;
mod column;
mod dictionary;
pub mod pickle;
pub mod json;
pub mod parquet;
pub mod arrow;
pub mod csv;
mod held;
pub mod collapsed;
pub mod speedscope;
pub mod pprof;
pub mod perfetto;
mod annotations;
mod protobuf;

pub use held::Moment;
pub use part::{DevicePart, Part};
pub use table::Table;

/// What a snapshot can be written as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A snapshot again, as PyTorch writes it.
    Pickle,
    /// A snapshot with the same fields, as JSON.
    Json,
    /// One table, for pandas, DuckDB, Polars and Spark.
    Parquet,
    /// One table, to be mapped into memory: an Arrow IPC file, also known as Feather.
    Arrow,
    /// One table, for everything else.
    Csv,
    /// Stacks in one line each, for flamegraph.pl and inferno.
    Collapsed,
    /// Stacks for speedscope.
    Speedscope,
    /// Stacks for `go tool pprof` and what reads its format.
    Pprof,
    /// Levels over time for ui.perfetto.dev.
    Perfetto,
}

/// What a format holds, and so which questions it leaves open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holds {
    /// Everything: a snapshot again.
    Snapshot,
    /// Rows: which [`Table`]?
    Rows,
    /// Stacks and the bytes they hold: at which [`Moment`]?
    Stacks,
    /// Levels and events over time.
    Time,
}

impl Format {
    /// Every format, in the order in which they are told.
    pub const ALL: [Self; 9] = [
        Self::Pickle,
        Self::Json,
        Self::Parquet,
        Self::Arrow,
        Self::Csv,
        Self::Collapsed,
        Self::Speedscope,
        Self::Pprof,
        Self::Perfetto,
    ];

    /// Its name: "parquet".
    pub fn name(self) -> &'static str {
        match self {
            Self::Pickle => "pickle",
            Self::Json => "json",
            Self::Parquet => "parquet",
            Self::Arrow => "arrow",
            Self::Csv => "csv",
            Self::Collapsed => "collapsed",
            Self::Speedscope => "speedscope",
            Self::Pprof => "pprof",
            Self::Perfetto => "perfetto",
        }
    }

    /// How its files' names end, as the programs that open them expect: "pb.gz".
    pub fn extension(self) -> &'static str {
        match self {
            Self::Collapsed => "collapsed.txt",
            Self::Speedscope => "speedscope.json",
            Self::Pprof => "pb.gz",
            Self::Perfetto => "pftrace",
            Self::Pickle | Self::Json | Self::Parquet | Self::Arrow | Self::Csv => self.name(),
        }
    }

    /// What it holds.
    pub fn holds(self) -> Holds {
        match self {
            Self::Pickle | Self::Json => Holds::Snapshot,
            Self::Parquet | Self::Arrow | Self::Csv => Holds::Rows,
            Self::Collapsed | Self::Speedscope | Self::Pprof => Holds::Stacks,
            Self::Perfetto => Holds::Time,
        }
    }

    /// True when it is text, which a terminal can show.
    pub fn is_text(self) -> bool {
        matches!(self, Self::Json | Self::Csv | Self::Collapsed | Self::Speedscope)
    }
}

/// Why something could not be written.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The other end did not take the bytes.
    #[error(transparent)]
    Write(#[from] std::io::Error),
    /// Arrow refused a batch, or the other end its bytes.
    #[error("cannot write the Arrow file: {0}")]
    Arrow(#[from] arrow_schema::ArrowError),
    /// Parquet refused a batch, or the other end its bytes.
    #[error("cannot write the Parquet file: {0}")]
    Parquet(#[from] ::parquet::errors::ParquetError),
    /// A window that the trace does not have.
    #[error("{device} has {n_events} events, counted from 0: the window {from}..{until} is not within them")]
    NoSuchWindow {
        /// Which device, in words.
        device: String,
        /// Events in its trace.
        n_events: u32,
        /// First event asked for.
        from: u32,
        /// First event no longer asked for.
        until: u32,
    },
    /// A moment outside the window.
    #[error("event {event} of {device} is not within the events {from}..{until}")]
    NoSuchEvent {
        /// Which device, in words.
        device: String,
        /// The event asked for.
        event: u32,
        /// First event of the part.
        from: u32,
        /// First event no longer in the part.
        until: u32,
    },
    /// Texts beyond the bound of a dictionary.
    #[error(
        "the texts of the column \"{column}\" take more than {}; --table frames has the same stacks frame by frame",
        tidegauge_snapshot::words::size(dictionary::MAX_TEXT_BYTES as u64)
    )]
    TooMuchText {
        /// The column.
        column: &'static str,
    },
}
