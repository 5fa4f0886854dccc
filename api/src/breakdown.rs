//! Who holds the memory at one moment: answers of `tidegauge inspect`, and of whoever else asks.

use serde::{Deserialize, Serialize};
use tidegauge_snapshot::Snapshot;
use tidegauge_snapshot::filter::Filter;
use tidegauge_snapshot::model::StackId;
use tidegauge_snapshot::origins::Origins;
use tidegauge_snapshot::sums::{By, Key, Sum, sums};
use tidegauge_snapshot::{sites, words};

use crate::picture::{FrameAnswer, LevelsAnswer};

/// The blocks in use on a device at one moment, in groups.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Breakdown {
    /// Device ordinal.
    pub device: u32,
    /// The moment, and the levels there.
    pub levels: LevelsAnswer,
    /// What the groups have in common: "stack", "file", "module", "pool", "stream" or "size".
    pub by: String,
    /// Which of the blocks are meant; absent when all are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// How many groups there are.
    pub n_groups: u64,
    /// Those with most allocated bytes.
    pub groups: Vec<Group>,
    /// All others together.
    pub others: Total,
}

/// Blocks in use that have something in common.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// What they have in common, for people: a line of code, a file, a pool.
    pub label: String,
    /// Their sizes.
    #[serde(flatten)]
    pub total: Total,
    /// Of a group by stack: the frames, innermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stack: Vec<FrameAnswer>,
}

/// Blocks, summed up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Total {
    /// Bytes they occupy.
    pub allocated: u64,
    /// Bytes the program asked for.
    pub requested: u64,
    /// How many there are.
    pub blocks: u64,
}

impl Breakdown {
    /// All groups together.
    pub fn total(&self) -> Total {
        self.groups.iter().map(|group| group.total).fold(self.others, Total::and)
    }
}

impl Total {
    /// Both together.
    pub fn and(self, more: Self) -> Self {
        Self {
            allocated: self.allocated.saturating_add(more.allocated),
            requested: self.requested.saturating_add(more.requested),
            blocks: self.blocks + more.blocks,
        }
    }
}

/// The `top` largest groups of the blocks in use at a state that a filter means.
pub fn breakdown(origins: &Origins<'_>, state: u32, by: By, only: &Filter, top: usize) -> Breakdown {
    let snapshot = origins.snapshot;
    let sums = sums(origins, state, by, only);
    let (shown, others) = sums.split_at(top.min(sums.len()));
    let name = By::NAMED.iter().find(|(_, known)| *known == by).map_or("", |(name, _)| name);
    Breakdown {
        device: origins.device.ordinal,
        levels: levels_at(origins, state),
        by: name.to_owned(),
        filter: (!only.is_empty()).then(|| only.to_string()),
        n_groups: sums.len() as u64,
        groups: shown.iter().map(|sum| group(snapshot, sum)).collect(),
        others: others.iter().map(total).fold(Total::default(), Total::and),
    }
}

/// The levels at a state, and the event that led to it.
pub fn levels_at(origins: &Origins<'_>, state: u32) -> LevelsAnswer {
    let levels = origins.replay.curves.at(state as usize);
    let (snapshot, event) = (origins.snapshot, origins.event_before(state));
    LevelsAnswer {
        state,
        requested: levels.requested,
        allocated: levels.allocated,
        active: levels.active,
        reserved: levels.reserved,
        action: event.map(|event| snapshot.action_name(snapshot.trace.action[event]).to_owned()),
        time_us: event.and_then(|event| snapshot.trace.time_us(event)),
    }
}

/// The frames of a stack, innermost first.
pub fn frames(snapshot: &Snapshot, stack: StackId) -> Vec<FrameAnswer> {
    let text = |id| snapshot.strings.text(id).into_owned();
    let frames = snapshot.stacks.frames(stack);
    frames
        .map(|frame| FrameAnswer {
            name: text(frame.name),
            filename: text(frame.filename),
            line: frame.known_line(),
        })
        .collect()
}

fn group(snapshot: &Snapshot, sum: &Sum) -> Group {
    let stack = match sum.key {
        Key::Stack(stack) => frames(snapshot, stack),
        _ => Vec::new(),
    };
    Group { label: label(snapshot, &sum.key), total: total(sum), stack }
}

pub(crate) fn total(sum: &Sum) -> Total {
    Total { allocated: sum.allocated, requested: sum.requested, blocks: sum.n_blocks }
}

pub(crate) fn label(snapshot: &Snapshot, key: &Key) -> String {
    match key {
        Key::Stack(stack) => stack_label(snapshot, *stack),
        Key::File(file) => file.clone(),
        Key::Module(module) => module.clone(),
        Key::Pool(Some(pool)) => words::pool(*pool),
        Key::Stream(Some(0)) => "default stream".to_owned(),
        Key::Stream(Some(handle)) => format!("stream {handle:#x}"),
        Key::Size(bytes) => format!("{} each ({})", words::size(*bytes), words::exact_size(*bytes)),
        Key::Pool(None) | Key::Stream(None) => "(unknown)".to_owned(),
        Key::OlderThanTrace => "(older than the trace: stack unknown)".to_owned(),
        Key::NoStack => "(recorded without a stack)".to_owned(),
        Key::NoFrames => "(no Python frames)".to_owned(),
    }
}

/// The line that somebody can change, and where it led to: "train.py:44 worker › torch.optim.adam:177 _init_group".
fn stack_label(snapshot: &Snapshot, stack: StackId) -> String {
    let Some(site) = sites::site(snapshot, stack) else { return "(empty stack)".to_owned() };
    let innermost = sites::innermost_python(snapshot, stack).filter(|frame| *frame != site);
    let label = sites::frame(snapshot, site);
    let Some(frame) = innermost else { return label };
    let place = sites::place(snapshot, frame);
    let line = place.line.map(|line| format!(":{line}")).unwrap_or_default();
    format!("{label} › {}{line} {}", sites::module(&place.file), place.function)
}
