//! `tidegauge export FILE --to FORMAT`: a snapshot for other programs.

use std::{
    fs::{self, File},
    io::{self, BufWriter, IsTerminal as _, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail, ensure};
use clap::{
    Args,
    builder::{PossibleValuesParser, TypedValueParser as _},
};
use tempfile::NamedTempFile;
use tidegauge_export::{
    ExportError, Format, Holds, Moment, Part, Table, arrow, collapsed, csv, json, parquet, perfetto, pickle,
    pprof, speedscope,
};
use tidegauge_snapshot::words::size;

use crate::{
    DONE, USAGE,
    opened::{Opened, Which, moment},
    progress::{Counted, Progress},
};

/// Write a snapshot for other programs
///
/// pickle and json are snapshots again. Parquet, Arrow and CSV hold one table (--table); collapsed, speedscope and pprof show who holds the memory at one
/// moment (--at); perfetto shows levels over time. Exit status: 0 written, 1 not written, 2 no snapshot.
#[derive(Debug, Args)]
pub(crate) struct Export {
    /// A memory snapshot: a pickle, JSON or a page around one, plain, in gzip or zstd, or in an archive
    file: PathBuf,
    /// Of an archive, this snapshot
    #[arg(long, value_name = "PATH")]
    member: Option<String>,
    /// What to write
    #[arg(long, value_name = "FORMAT", value_parser = format_names())]
    to: Format,
    /// The file or folder to write into, - for standard output; without it a file beside you, named after the snapshot
    #[arg(short, long, value_name = "OUT")]
    output: Option<PathBuf>,
    /// Write in place of a file that is there
    #[arg(long)]
    force: bool,
    /// Only this device; host for pinned host memory
    #[arg(long, value_name = "N")]
    device: Option<Which>,
    /// The first event of a window, counted from 0
    #[arg(long, value_name = "EVENT")]
    from: Option<u32>,
    /// The first event no longer in the window
    #[arg(long, value_name = "EVENT")]
    until: Option<u32>,
    /// Of parquet, arrow and csv: which table [default: allocations]
    #[arg(long, value_parser = table_names())]
    table: Option<Table>,
    /// Of flame graphs: peak, end, or after this event [default: peak]; of segments and blocks [default: end]
    #[arg(long, value_name = "EVENT", value_parser = moment)]
    at: Option<Moment>,
}

fn format_names() -> impl clap::builder::TypedValueParser<Value = Format> {
    let named = |name: String| Format::ALL.into_iter().find(|format| format.name() == name);
    PossibleValuesParser::new(Format::ALL.map(Format::name))
        .try_map(move |name| named(name).ok_or("no such format"))
}

fn table_names() -> impl clap::builder::TypedValueParser<Value = Table> {
    let named = |name: String| Table::ALL.into_iter().find(|table| table.name() == name);
    PossibleValuesParser::new(Table::ALL.map(Table::name))
        .try_map(move |name| named(name).ok_or("no such table"))
}

impl Export {
    pub(crate) fn run(&self) -> Result<u8> {
        if let Err(sentence) = self.check() {
            eprintln!("error: {sentence}");
            return Ok(USAGE);
        }
        let target = self.target()?;
        let opened = match Opened::read(&self.file, self.member.as_deref()) {
            Ok(opened) => opened,
            Err(error) => return error.report(false),
        };
        let written = target.write(&mut |out| self.write(&opened, out))?;
        if let Some((path, bytes)) = written {
            eprintln!("wrote {} ({})", path.display(), size(bytes));
        }
        Ok(DONE)
    }

    /// What each option goes with.
    fn check(&self) -> Result<(), String> {
        let (format, holds) = (self.to.name(), self.to.holds());
        if self.table.is_some() && holds != Holds::Rows {
            return Err(format!("--table goes with parquet, arrow and csv; {format} holds no table"));
        }
        let has_moment = holds == Holds::Stacks || self.is_of_a_moment();
        if self.at.is_some() && !has_moment {
            return Err(
                "--at goes with collapsed, speedscope and pprof, and with the tables segments and blocks"
                    .to_owned(),
            );
        }
        if self.is_of_a_moment() && self.at.is_some() && self.until.is_some() {
            return Err("--at and --until both say when; give one of them".to_owned());
        }
        Ok(())
    }

    /// Whether it is a table of one moment.
    fn is_of_a_moment(&self) -> bool {
        matches!(self.table, Some(Table::Segments | Table::Blocks))
    }

    fn target(&self) -> Result<Target> {
        let default_name = self.default_name();
        let path = match self.output.as_deref() {
            Some(path) if path == Path::new("-") => {
                ensure!(
                    self.to.is_text() || !io::stdout().is_terminal(),
                    "{} is no text, and standard output is a terminal; name a file with -o",
                    self.to.name()
                );
                return Ok(Target::StandardOutput);
            }
            Some(path) if path.is_dir() => path.join(default_name),
            Some(path) => path.to_owned(),
            None => PathBuf::from(default_name),
        };
        let there = fs::metadata(&path).ok();
        if there.as_ref().is_some_and(|there| !there.is_file()) {
            return Ok(Target::Special(path));
        }
        ensure!(
            there.is_none() || self.force,
            "{} is there already; --force writes in its place, -o names another file",
            path.display()
        );
        let is_itself = match (fs::canonicalize(&path), fs::canonicalize(&self.file)) {
            (Ok(target), Ok(source)) => target == source,
            _ => false,
        };
        ensure!(!is_itself, "{} is the snapshot itself; name another file with -o", path.display());
        Ok(Target::File { path, force: self.force })
    }

    /// "rank0_step5.allocations.parquet" for "rank0_step5.pickle.zst".
    fn default_name(&self) -> String {
        let source = self.member.as_deref().map_or(self.file.as_path(), Path::new);
        let name = source.file_name().unwrap_or_default().to_string_lossy();
        let stem = [".pickle", ".pkl"].iter().find_map(|ending| Some(name.split_once(ending)?.0));
        let stem = stem.or_else(|| Some(name.rsplit_once('.')?.0)).filter(|stem| !stem.is_empty());
        let stem = stem.unwrap_or(&name);
        match self.to.holds() {
            Holds::Rows => format!("{stem}.{}.{}", self.table().name(), self.to.extension()),
            _ => format!("{stem}.{}", self.to.extension()),
        }
    }

    fn table(&self) -> Table {
        self.table.unwrap_or(Table::Allocations)
    }

    fn write(&self, opened: &Opened, out: &mut (dyn Write + Send)) -> Result<()> {
        let devices = opened.devices(self.device)?;
        let needs_one = match self.at {
            _ if self.from.or(self.until).is_some() => Some("a window"),
            Some(Moment::After(_)) => Some("an event"),
            _ => None,
        };
        if let Some(why) = needs_one {
            opened.one_device(self.device, why)?;
        }
        let replays = opened.replays(&devices);
        let mut part = Part { snapshot: &opened.snapshot, devices: Vec::new() };
        for (device, replay) in devices.into_iter().zip(&replays) {
            let n_events = device.events.len() as u32;
            let mut window = self.from.unwrap_or(0)..self.until.unwrap_or(n_events);
            let of_window = |window| Part::window(&opened.snapshot, device, replay, window);
            let mut devices = of_window(window.clone())?.devices;
            if let (true, Some(at)) = (self.is_of_a_moment(), self.at) {
                window.end = at.state(&devices[0])?;
                devices = of_window(window)?.devices;
            }
            part.devices.append(&mut devices);
        }
        self.write_part(&part, out)?;
        Ok(())
    }

    fn write_part(&self, part: &Part<'_>, out: &mut (dyn Write + Send)) -> Result<(), ExportError> {
        let moment = self.at.unwrap_or(Moment::Peak);
        match self.to {
            Format::Parquet => parquet::write(part, self.table(), out),
            Format::Arrow => arrow::write(part, self.table(), out),
            Format::Csv => csv::write(part, self.table(), out),
            Format::Collapsed => collapsed::write(part, moment, out),
            Format::Speedscope => speedscope::write(part, moment, out),
            Format::Pprof => pprof::write(part, moment, out),
            Format::Perfetto => perfetto::write(part, out),
            Format::Pickle => pickle::write(part, out),
            Format::Json => json::write(part, out),
        }
    }
}

/// Where the bytes go.
enum Target {
    StandardOutput,
    /// A file that appears when it is complete.
    File {
        path: PathBuf,
        force: bool,
    },
    /// A pipe or a device: it is written into, not replaced.
    Special(PathBuf),
}

/// Writes everything into what it is given.
type Writing<'a> = dyn FnMut(&mut (dyn Write + Send)) -> Result<()> + 'a;

impl Target {
    /// Has everything written, and returns the path and size of a new file.
    fn write(self, writing: &mut Writing<'_>) -> Result<Option<(PathBuf, u64)>> {
        match self {
            Self::StandardOutput => {
                let mut out = Tap { out: BufWriter::new(io::stdout()), is_closed: false };
                let written = writing(&mut out).and_then(|()| Ok(out.flush()?));
                // Whoever reads has seen enough.
                if out.is_closed { Ok(None) } else { written.map(|()| None) }
            }
            Self::Special(path) => {
                let open = || fs::OpenOptions::new().write(true).open(&path);
                let mut out =
                    BufWriter::new(open().with_context(|| format!("cannot open {}", path.display()))?);
                writing(&mut out)?;
                out.flush().with_context(|| format!("cannot write {}", path.display()))?;
                Ok(None)
            }
            Self::File { path, force } => write_file(&path, force, writing).map(|bytes| Some((path, bytes))),
        }
    }
}

fn write_file(path: &Path, force: bool, writing: &mut Writing<'_>) -> Result<u64> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let temporary = new_file_in(folder).with_context(|| format!("cannot write into {}", folder.display()))?;
    let progress = Progress::of_much(format!("writing {}", path.display()), None);
    let mut out = BufWriter::new(Counted::new(temporary.as_file(), progress));
    writing(&mut out).with_context(|| format!("cannot write {}", path.display()))?;
    out.flush().with_context(|| format!("cannot write {}", path.display()))?;
    drop(out);
    let finish = |file: &File| -> io::Result<u64> {
        file.sync_all()?;
        Ok(file.metadata()?.len())
    };
    let bytes = finish(temporary.as_file()).with_context(|| format!("cannot write {}", path.display()))?;
    let kept = if force { temporary.persist(path) } else { temporary.persist_noclobber(path) };
    match kept {
        Ok(_) => Ok(bytes),
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => {
            bail!("{} has appeared meanwhile; --force writes in its place", path.display())
        }
        Err(error) => Err(error.error).with_context(|| format!("cannot write {}", path.display())),
    }
}

/// A file with a name of its own and the rights that other new files have.
fn new_file_in(folder: &Path) -> io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".tidegauge-").suffix(".partial");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    builder.tempfile_in(folder)
}

/// Standard output, and whether its reader is gone.
struct Tap<W> {
    out: W,
    is_closed: bool,
}

impl<W> Tap<W> {
    fn note<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        self.is_closed |= matches!(&result, Err(error) if error.kind() == io::ErrorKind::BrokenPipe);
        result
    }
}

impl<W: Write> Write for Tap<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let result = self.out.write(bytes);
        self.note(result)
    }

    fn flush(&mut self) -> io::Result<()> {
        let result = self.out.flush();
        self.note(result)
    }
}
