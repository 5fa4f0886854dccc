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
    /// The module with `is_available`, `memory_stats`, `mem_get_info`, …
    pub module: &'static str,
    /// The first torch release in which it keeps a history.
    pub since: TorchVersion,
    /// Whether queued work must end before a snapshot: kernels whose launches allocate later.
    pub synchronizes: bool,
    /// Where it records, and by what names.
    pub calls: Calls,
    /// The torch releases with which tests drive it; one is added together with the test that does.
    driven: &'static [(TorchVersion, Driven)],
    clearing: fn(TorchVersion) -> Clearing,
}

/// The names of what is called.
#[derive(Debug)]
pub struct Calls {
    /// The module with the next two: "torch.cuda.memory".
    pub home: &'static str,
    /// Switches recording on and off.
    pub record: &'static str,
    /// Returns the history.
    pub snapshot: &'static str,
    /// Whether `record` takes a context. Without, it keeps what it keeps.
    pub takes_context: bool,
    /// Module and function that tell whether anybody records.
    pub is_recording: Option<(&'static str, &'static str)>,
    /// Module and function that take an observer of running out of memory.
    pub observe_oom: Option<(&'static str, &'static str)>,
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
pub const UNTESTED: &[&str] = &["hpu"];

/// `torch.cuda.memory` and what was made in its image.
const fn as_cuda(
    home: &'static str,
    is_recording: (&'static str, &'static str),
    observe_oom: Option<(&'static str, &'static str)>,
) -> Calls {
    Calls {
        home,
        record: "_record_memory_history",
        snapshot: "_snapshot",
        takes_context: true,
        is_recording: Some(is_recording),
        observe_oom,
    }
}

/// The backends, in the order in which they are looked for. Those of vendors come first: some put themselves in
/// cuda's place (`transfer_to_npu`), and one device is not to be recorded twice.
pub const BACKENDS: &[Backend] = &[
    Backend {
        name: "npu",
        package: "torch_npu",
        module: "torch.npu",
        since: TorchVersion(2, 1),
        // Its task queue launches, and allocates, behind the step's back.
        synchronizes: true,
        calls: as_cuda(
            "torch.npu.memory",
            ("torch_npu._C", "_npu_isHistoryEnabled"),
            Some(("torch_npu._C", "_npu_attach_out_of_memory_observer")),
        ),
        driven: &[(TorchVersion(2, 9), Driven::Double)],
        // Every call empties the history first, also one that changes nothing.
        clearing: |_| Clearing::SameCall,
    },
    Backend {
        name: "musa",
        package: "torch_musa",
        module: "torch.musa",
        since: TorchVersion(2, 2),
        synchronizes: false,
        calls: as_cuda(
            "torch.musa.memory",
            ("torch_musa._MUSAC", "_musa_isHistoryEnabled"),
            Some(("torch_musa._MUSAC", "_musa_attach_out_of_memory_observer")),
        ),
        driven: &[(TorchVersion(2, 9), Driven::Double)],
        // Nobody here knows whether a second call empties; off and on does everywhere.
        clearing: |_| Clearing::OffAndOn,
    },
    Backend {
        name: "mlu",
        package: "torch_mlu",
        module: "torch.mlu",
        since: TorchVersion(2, 1),
        synchronizes: false,
        calls: as_cuda(
            "torch.mlu.memory",
            ("torch_mlu._MLUC", "_mlu_isHistoryEnabled"),
            Some(("torch_mlu._MLUC", "_mlu_attach_out_of_memory_observer")),
        ),
        driven: &[(TorchVersion(2, 9), Driven::Double)],
        clearing: |version| {
            if version >= TorchVersion(2, 8) { Clearing::ClearHistory } else { Clearing::OffAndOn }
        },
    },
    Backend {
        name: "cuda",
        package: "torch",
        module: "torch.cuda",
        since: TorchVersion(2, 1),
        synchronizes: false,
        calls: as_cuda(
            "torch.cuda.memory",
            ("torch._C", "_cuda_isHistoryEnabled"),
            Some(("torch._C", "_cuda_attach_out_of_memory_observer")),
        ),
        driven: &[
            (TorchVersion(2, 1), Driven::Double),
            (TorchVersion(2, 4), Driven::Torch),
            (TorchVersion(2, 7), Driven::Torch),
            (TorchVersion(2, 9), Driven::Torch),
            (TorchVersion(2, 15), Driven::Torch),
        ],
        clearing: |version| {
            if version >= TorchVersion(2, 8) { Clearing::ClearHistory } else { Clearing::OffAndOn }
        },
    },
    Backend {
        name: "xpu",
        package: "torch",
        module: "torch.xpu",
        since: TorchVersion(2, 11),
        synchronizes: false,
        // No observer: running out of memory is seen when nobody catches the error.
        calls: as_cuda("torch.xpu.memory", ("torch._C", "_xpu_isHistoryEnabled"), None),
        driven: &[(TorchVersion(2, 11), Driven::Double)],
        clearing: |_| Clearing::ClearHistory,
    },
    Backend {
        name: "mtia",
        package: "torch",
        module: "torch.mtia",
        since: TorchVersion(2, 7),
        synchronizes: false,
        calls: Calls {
            home: "torch.mtia",
            record: "record_memory_history",
            snapshot: "snapshot",
            takes_context: false,
            is_recording: None,
            observe_oom: Some(("torch.mtia", "attach_out_of_memory_observer")),
        },
        driven: &[(TorchVersion(2, 9), Driven::Double)],
        clearing: |_| Clearing::OffAndOn,
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
        let mut call = vec![
            ("enabled", Argument::Text("all".to_owned())),
            ("context", Argument::Text(recording.context.clone())),
            ("stacks", Argument::Text(recording.stacks.clone())),
            ("max_entries", Argument::Number(recording.max_entries)),
        ];
        call.retain(|(name, _)| *name != "context" || self.calls.takes_context);
        call
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
            Clearing::OffAndOn => self.clear_by_off_and_on(recording),
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

    /// The calls that empty the history where it turned out not to know `clear_history`.
    pub fn clear_by_off_and_on(&self, recording: &Recording) -> Vec<Call> {
        vec![self.stop(), self.record(recording)]
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
        let mut said = serde_json::json!({
            "enabled": "all",
            "stacks": recording.stacks,
            "max_entries": recording.max_entries,
            "clearing": self.clearing(version),
        });
        if self.calls.takes_context {
            said["context"] = recording.context.clone().into();
        }
        sidecar.recording = Some(said);
    }
}

/// The keyword of `call` that a `TypeError` with this message is about: "got an unexpected keyword argument
/// 'clear_history'". What switches recording on and what bounds it are not given up.
pub fn not_understood(message: &str, call: &Call) -> Option<&'static str> {
    let names = call.iter().map(|(name, _)| *name);
    let mut droppable = names.filter(|name| !["enabled", "max_entries"].contains(name));
    droppable.find(|name| message.contains(&format!("'{name}'")))
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
    fn a_keyword_is_dropped_when_the_message_names_it_and_the_bound_never() {
        let call = backend("cuda").clear(TorchVersion(2, 9), &recording()).remove(0);
        let dropped = |message: &str| not_understood(message, &call);
        assert_eq!(dropped("f() got an unexpected keyword argument 'clear_history'"), Some("clear_history"));
        assert_eq!(dropped("f() got an unexpected keyword argument 'stacks'"), Some("stacks"));
        assert_eq!(dropped("f() got an unexpected keyword argument 'max_entries'"), None);
        assert_eq!(dropped("incompatible function arguments"), None);
    }

    #[test]
    fn context_stacks_and_max_entries_are_equal_before_and_after_a_clear_on_every_backend() {
        for backend in BACKENDS {
            for version in [TorchVersion(2, 1), TorchVersion(2, 7), TorchVersion(2, 8), TorchVersion(2, 15)] {
                let before = backend.record(&recording());
                let calls = backend.clear(version, &recording());
                let after = calls.last().unwrap();
                assert_eq!(after[..before.len()], before, "{} {version:?}", backend.name);
                let context = ("context", Argument::Text("alloc".to_owned()));
                assert_eq!(before.contains(&context), backend.name != "mtia");
                assert!(before.contains(&("stacks", Argument::Text("python".to_owned()))));
                assert!(before.contains(&("max_entries", Argument::Number(1234))));
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
