//! A snapshot file, opened: read, with what the commands ask of its devices.

use std::{
    fmt,
    fs::File,
    path::{Path, PathBuf},
    str::FromStr,
};

use anyhow::{Context as _, Result, bail, ensure};
use tidegauge_snapshot::{
    Snapshot,
    findings::Known,
    model::Device,
    read::{self, ReadError, archive},
    replay::{Replay, replay},
};

use crate::{
    FAILED, REFUSED, members,
    parcel::sidecar_beside,
    progress::{Counted, Progress},
};

/// A snapshot and the file it was read from.
pub(crate) struct Opened {
    pub(crate) path: PathBuf,
    /// Which of the snapshots in it, if it is an archive.
    member: Option<String>,
    /// Bytes of the file.
    pub(crate) bytes: u64,
    pub(crate) snapshot: Snapshot,
}

/// Why there is nothing to show.
pub(crate) enum NotOpened {
    /// The file cannot be had.
    Unreachable(anyhow::Error),
    /// The file is no snapshot.
    Refused(PathBuf, ReadError),
}

impl Opened {
    /// Reads a file; `member` names one of the snapshots in an archive.
    pub(crate) fn read(path: &Path, member: Option<&str>) -> Result<Self, NotOpened> {
        let (file, bytes) = open(path).map_err(NotOpened::Unreachable)?;
        let progress = Progress::of_much(format!("reading {}", path.display()), Some(bytes));
        let file = Counted::new(file, progress);
        let snapshot = match member {
            Some(member) => archive::open_member(file, member),
            None => read::open_file(file),
        };
        let snapshot = snapshot.map_err(|error| NotOpened::Refused(path.to_owned(), error))?;
        Ok(Self { path: path.to_owned(), member: member.map(str::to_owned), bytes, snapshot })
    }

    /// The name of the file without its folder, or of the member.
    pub(crate) fn name(&self) -> String {
        self.member.clone().unwrap_or_else(|| members::name_of(&self.path))
    }

    /// What the agent wrote down beside the file.
    pub(crate) fn known(&self) -> Known {
        let sidecar =
            Some(&self.path).filter(|_| self.member.is_none()).and_then(|path| sidecar_beside(path));
        sidecar.map(|sidecar| sidecar.known()).unwrap_or_default()
    }

    /// The devices that are meant: all, or the one that was named.
    pub(crate) fn devices(&self, which: Option<Which>) -> Result<Vec<&Device>> {
        let snapshot = &self.snapshot;
        let found = match which {
            None => return Ok(snapshot.devices.iter().collect()),
            Some(Which::Device(ordinal)) => snapshot.device(ordinal),
            Some(Which::Host) => snapshot.host.as_ref(),
        };
        match (found, which) {
            (Some(device), _) => Ok(vec![device]),
            (None, Some(which)) => {
                bail!("{} has nothing on {which}; it has {}", self.path.display(), self.present())
            }
            (None, None) => Ok(Vec::new()),
        }
    }

    /// The one device that is meant, where several would not do.
    pub(crate) fn one_device(&self, which: Option<Which>, why: &str) -> Result<&Device> {
        match self.devices(which)?.as_slice() {
            [device] => Ok(device),
            [] => bail!("{} has nothing on any device", self.path.display()),
            _ => bail!("{why} needs one device; say which with --device: there are {}", self.present()),
        }
    }

    /// "device 0, device 1"
    fn present(&self) -> String {
        let devices = self.snapshot.devices.iter().map(|device| Which::Device(device.ordinal));
        let all = devices.chain(self.snapshot.host.iter().map(|_| Which::Host));
        let all: Vec<String> = all.map(|which| which.to_string()).collect();
        if all.is_empty() { "nothing at all".to_owned() } else { all.join(", ") }
    }

    /// The replays of some devices, in their order.
    pub(crate) fn replays(&self, devices: &[&Device]) -> Vec<Replay> {
        devices.iter().map(|device| replay(&self.snapshot, device)).collect()
    }
}

impl NotOpened {
    /// Says it and returns the exit status; with `json` for whoever reads standard output too.
    pub(crate) fn report(self, json: bool) -> Result<u8> {
        let (path, error) = match self {
            Self::Unreachable(error) => return Err(error),
            Self::Refused(path, error) => (path, error),
        };
        let how = if error.code() == ReadError::ARCHIVE { " (--member PATH chooses)" } else { "" };
        eprintln!("{}: {error}{how}", path.display());
        if json {
            let error = serde_json::json!({ "error": members::json_of(&error) });
            crate::print(&serde_json::to_string_pretty(&error)?)?;
        }
        // Reading can fail for reasons of the disk; that says nothing about the snapshot.
        Ok(if error.code() == ReadError::IO { FAILED } else { REFUSED })
    }
}

/// A file, and its size.
pub(crate) fn open(path: &Path) -> Result<(File, u64)> {
    let open = || -> Result<(File, u64)> {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        ensure!(!metadata.is_dir(), "it is a folder; name a file in it");
        Ok((file, metadata.len()))
    };
    open().with_context(|| format!("cannot open {}", path.display()))
}

/// A device as the command line names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    Device(u32),
    /// Pinned host memory.
    Host,
}

impl FromStr for Which {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "host" => Ok(Self::Host),
            _ => text
                .parse()
                .map(Self::Device)
                .map_err(|_not_a_number| "expected a number, or host for pinned host memory".to_owned()),
        }
    }
}

impl fmt::Display for Which {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(ordinal) => write!(f, "device {ordinal}"),
            Self::Host => f.write_str("host"),
        }
    }
}

/// A moment as the command line names it: after an event, at the peak, at the end.
pub(crate) fn moment(text: &str) -> Result<tidegauge_export::Moment, String> {
    use tidegauge_export::Moment;
    match text {
        "peak" => Ok(Moment::Peak),
        "end" => Ok(Moment::End),
        _ => text
            .parse()
            .map(Moment::After)
            .map_err(|_not_a_number| "expected peak, end, or an event's number, counted from 0".to_owned()),
    }
}
