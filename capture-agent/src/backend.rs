//! How the memory history of each kind of device is switched on, cleared and read: a table of calls.
//!
//! Calls are written out with all their keywords, never found by looking at signatures: torch_npu's
//! `_record_memory_history` shows `*args, **kwargs`, and whoever passes only what a signature names passes
//! nothing. A clear repeats the keywords that recording began with, so context, stacks and max_entries stay.

use tidegauge_api::Sidecar;

/// A kind of device that keeps a memory history.
#[derive(Debug)]
pub struct Backend {
    /// "cuda", "npu"
    pub name: &'static str,
    /// The package whose presence in the process makes it worth a look; never imported by us.
    pub package: &'static str,
    /// The module with `is_available`, `memory_stats`, `mem_get_info`, `memory`, …
    pub module: &'static str,
    /// Whether queued work must end before a snapshot: kernels whose launches allocate later.
    pub synchronizes: bool,
    /// The torch releases with which tests drive it; one is added together with the test that does.
    driven: &'static [(TorchVersion, Driven)],
    clearing: fn(TorchVersion) -> Clearing,
}

/// How tests drive a backend with a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Driven {
    /// The release itself, on a device that is pretended.
    Torch,
    /// A double that answers as the release does.
    Double,
}

/// Kinds of device that torch knows and nothing here records: no test drove them.
pub const UNTESTED: &[&str] = &["xpu", "mtia", "musa", "mlu"];

/// The backends, in the order in which they are looked for. npu comes first: torch_npu can put itself in cuda's
/// place (`transfer_to_npu`).
pub const BACKENDS: &[Backend] = &[
    Backend {
        name: "npu",
        package: "torch_npu",
        module: "torch.npu",
        // Its task queue launches, and allocates, behind the step's back.
        synchronizes: true,
        driven: &[(TorchVersion(2, 9), Driven::Double)],
        // Every call empties the history first, also one that changes nothing.
        clearing: |_| Clearing::SameCall,
    },
    Backend {
        name: "cuda",
        package: "torch",
        module: "torch.cuda",
        synchronizes: false,
        driven: &[(TorchVersion(2, 7), Driven::Double), (TorchVersion(2, 9), Driven::Torch)],
        clearing: |version| {
            if version >= TorchVersion(2, 8) { Clearing::ClearHistory } else { Clearing::OffAndOn }
        },
    },
];

/// Major and minor number of a torch release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TorchVersion(pub u32, pub u32);

impl TorchVersion {
    /// From `torch.__version__`: "2.9.1+cu128".
    pub fn from_text(text: &str) -> Option<Self> {
        let mut numbers = text.split('.').map(|part| part.parse().ok());
        Some(Self(numbers.next()??, numbers.next()??))
    }
}

/// What is recorded, and how much of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recording {
    /// For which events stacks are kept: "all", "alloc", "state".
    pub context: String,
    /// "python" or "all" (with C++ frames, a hundred times slower to take).
    pub stacks: String,
    /// The most events that are kept; later ones push out the oldest.
    pub max_entries: u64,
}

/// A value of a keyword.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Argument {
    /// `None`
    None,
    /// A string.
    Text(String),
    /// An int.
    Number(u64),
    /// A bool.
    Flag(bool),
}

/// The keywords of one call of `_record_memory_history`.
pub type Call = Vec<(&'static str, Argument)>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Clearing {
    /// The same call with `clear_history=True`; atomic.
    ClearHistory,
    /// The same call; atomic.
    SameCall,
    /// Off, then the same call: events in between are lost.
    OffAndOn,
}

impl Backend {
    /// The call that begins recording.
    pub fn record(&self, recording: &Recording) -> Call {
        vec![
            ("enabled", Argument::Text("all".to_owned())),
            ("context", Argument::Text(recording.context.clone())),
            ("stacks", Argument::Text(recording.stacks.clone())),
            ("max_entries", Argument::Number(recording.max_entries)),
        ]
    }

    /// The calls that empty the history and go on recording as before.
    pub fn clear(&self, version: TorchVersion, recording: &Recording) -> Vec<Call> {
        let mut again = self.record(recording);
        match (self.clearing)(version) {
            Clearing::ClearHistory => {
                again.push(("clear_history", Argument::Flag(true)));
                vec![again]
            }
            Clearing::SameCall => vec![again],
            Clearing::OffAndOn => vec![self.stop(), again],
        }
    }

    /// The call that ends recording.
    pub fn stop(&self) -> Call {
        vec![("enabled", Argument::None)]
    }

    /// How tests drive it with this release; `None` when no test did.
    pub fn driven(&self, version: TorchVersion) -> Option<Driven> {
        self.driven.iter().find(|(driven, _)| *driven == version).map(|(_, how)| *how)
    }

    /// How it is cleared: "clear_history", "same call", "off and on".
    pub fn clearing(&self, version: TorchVersion) -> &'static str {
        match (self.clearing)(version) {
            Clearing::ClearHistory => "clear_history",
            Clearing::SameCall => "same call",
            Clearing::OffAndOn => "off and on",
        }
    }

    /// Writes into a sidecar how the snapshot was recorded.
    pub fn describe(&self, version: TorchVersion, recording: &Recording, sidecar: &mut Sidecar) {
        sidecar.backend = Some(self.name.to_owned());
        sidecar.recording = Some(serde_json::json!({
            "enabled": "all",
            "context": recording.context,
            "stacks": recording.stacks,
            "max_entries": recording.max_entries,
            "clearing": self.clearing(version),
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backend(name: &str) -> &'static Backend {
        BACKENDS.iter().find(|backend| backend.name == name).unwrap()
    }

    fn recording() -> Recording {
        Recording { context: "alloc".to_owned(), stacks: "python".to_owned(), max_entries: 1234 }
    }

    #[test]
    fn context_stacks_and_max_entries_are_equal_before_and_after_a_clear_on_every_backend() {
        for backend in BACKENDS {
            for version in [TorchVersion(2, 1), TorchVersion(2, 7), TorchVersion(2, 8), TorchVersion(2, 15)] {
                let before = backend.record(&recording());
                let calls = backend.clear(version, &recording());
                let after = calls.last().unwrap();
                assert_eq!(after[..before.len()], before, "{} {version:?}", backend.name);
                assert_eq!(before[1], ("context", Argument::Text("alloc".to_owned())));
                assert_eq!(before[2], ("stacks", Argument::Text("python".to_owned())));
                assert_eq!(before[3], ("max_entries", Argument::Number(1234)));
            }
        }
    }

    #[test]
    fn cuda_clears_in_one_call_where_it_can_and_by_off_and_on_before() {
        let calls = backend("cuda").clear(TorchVersion(2, 9), &recording());
        assert_eq!(calls.len(), 1);
        assert_eq!(calls[0].last(), Some(&("clear_history", Argument::Flag(true))));

        let calls = backend("cuda").clear(TorchVersion(2, 7), &recording());
        assert_eq!(calls, [backend("cuda").stop(), backend("cuda").record(&recording())]);
    }

    #[test]
    fn npu_clears_by_the_same_call_and_never_sees_a_keyword_it_does_not_know() {
        let calls = backend("npu").clear(TorchVersion(2, 9), &recording());
        assert_eq!(calls, [backend("npu").record(&recording())]);
    }

    #[test]
    fn versions_are_read_as_torch_writes_them() {
        assert_eq!(TorchVersion::from_text("2.9.1+cu128"), Some(TorchVersion(2, 9)));
        assert_eq!(TorchVersion::from_text("2.15.0a0+gitabc"), Some(TorchVersion(2, 15)));
        assert_eq!(TorchVersion::from_text("unknown"), None);
        assert!(TorchVersion(2, 10) > TorchVersion(2, 8));
    }
}
