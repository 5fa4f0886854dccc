//! The tables, column by column; docs/export.md tells them to their readers.

use std::rc::Rc;

use tidegauge_snapshot::Snapshot;
use tidegauge_snapshot::annotations::Named;
use tidegauge_snapshot::model::{Action, BlockState, Extra, StackId, StrId};
use tidegauge_snapshot::replay::NEVER;
use tidegauge_snapshot::{sites, words};

use crate::column::{At, Column, Rows, Section};
use crate::dictionary::Dictionary;
use crate::memory::{Block, Memory, Segment};
use crate::{DevicePart, ExportError, Part, annotations};

/// What the rows of a table are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Table {
    /// Lives of blocks, from when they were handed out to when they could be handed out again.
    Allocations,
    /// Entries of the trace.
    Events,
    /// Memory in use after each event.
    Levels,
    /// Segments as they stood at the end of the window.
    Segments,
    /// Blocks as they stood at the end of the window.
    Blocks,
    /// Call stacks, one row each.
    Stacks,
    /// Call stacks, one row for each of their frames.
    Frames,
    /// Named ranges that the program marked.
    Annotations,
}

impl Table {
    /// Every table, the most useful first.
    pub const ALL: [Self; 8] = [
        Self::Allocations,
        Self::Events,
        Self::Levels,
        Self::Segments,
        Self::Blocks,
        Self::Stacks,
        Self::Frames,
        Self::Annotations,
    ];

    /// Its name: "allocations".
    pub fn name(self) -> &'static str {
        match self {
            Self::Allocations => "allocations",
            Self::Events => "events",
            Self::Levels => "levels",
            Self::Segments => "segments",
            Self::Blocks => "blocks",
            Self::Stacks => "stacks",
            Self::Frames => "frames",
            Self::Annotations => "annotations",
        }
    }

    /// Its columns and rows for a part of a snapshot.
    pub(crate) fn rows<'a>(self, part: &'a Part<'a>) -> Result<Rows<'a>, ExportError> {
        match self {
            Self::Allocations => allocations(part),
            Self::Events => events(part),
            Self::Levels => levels(part),
            Self::Segments => segments(part),
            Self::Blocks => blocks(part),
            Self::Stacks => stacks(part.snapshot),
            Self::Frames => frames(part.snapshot),
            Self::Annotations => annotations(part),
        }
    }
}

fn allocations<'a>(part: &'a Part<'a>) -> Result<Rows<'a>, ExportError> {
    let snapshot = part.snapshot;
    let of = |at: At| &part.devices[at.section].origins;
    let rows: Vec<Vec<u32>> = part.devices.iter().map(|device| device.allocations().collect()).collect();
    let stack = move |at: At| of(at).replay.allocations.stack[at.row];
    let used = rows.iter().zip(&part.devices).flat_map(|(rows, device)| {
        rows.iter().map(|row| device.origins.replay.allocations.stack[*row as usize])
    });
    let stacks = Stacks::new(snapshot, used)?;
    let notes = Notes::new(snapshot)?;
    let pools = Pools::new(snapshot)?;
    let event_of = |state: u32| (state != NEVER).then(|| state.checked_sub(1).map(u64::from)).flatten();
    let time = |event: Option<usize>| event.and_then(|row| snapshot.trace.time_us(row));
    let mut columns = vec![
        Column::device(move |at| part.devices[at.section].ordinal()),
        Column::int("allocation", |at| at.row as u64),
        Column::wide("address", move |at| of(at).replay.allocations.address[at.row]),
        Column::int("requested_bytes", move |at| of(at).replay.allocations.requested[at.row]),
        Column::int("size_bytes", move |at| of(at).replay.allocations.size[at.row]),
        Column::flag("is_older_than_trace", move |at| of(at).is_older(at.row)),
        Column::maybe_int("from_event", move |at| event_of(of(at).replay.allocations.from[at.row])),
        Column::maybe_signed("free_requested_event", move |at| {
            let state = of(at).replay.allocations.free_requested[at.row];
            // Asked for before the trace is before its event 0.
            (state != NEVER).then(|| i64::from(state) - 1)
        }),
        Column::maybe_int("to_event", move |at| event_of(of(at).replay.allocations.to[at.row])),
        Column::time("from_time", move |at| time(of(at).made_in(at.row))),
        Column::time("to_time", move |at| time(of(at).ended_in(at.row))),
        Column::maybe_wide("stream", move |at| of(at).stream(at.row)),
        pools.column(move |at| of(at).pool(at.row)),
    ];
    columns.extend(notes.columns(move |at| of(at).made_in(at.row)));
    columns.extend(stacks.columns(stack));
    Ok(Rows { columns, sections: rows.into_iter().map(Section::list).collect() })
}

fn events<'a>(part: &'a Part<'a>) -> Result<Rows<'a>, ExportError> {
    let snapshot = part.snapshot;
    let trace = &snapshot.trace;
    let of = |at: At| &part.devices[at.section];
    // Rows are those of the snapshot's trace, where each device has a range.
    let rows =
        |device: &DevicePart<'_>| device.trace_row(device.events.start)..device.trace_row(device.events.end);
    let is_oom = |at: At| trace.action[at.row] == Action::OOM;
    let used = part.devices.iter().flat_map(|device| rows(device).map(|row| trace.stack[row]));
    let stacks = Stacks::sites_only(snapshot, used)?;
    let notes = Notes::new(snapshot)?;
    let pools = Pools::new(snapshot)?;
    let mut columns = vec![
        Column::device(move |at| of(at).ordinal()),
        Column::int("event", move |at| (at.row - of(at).origins.device.events.start) as u64),
        Column::time("time", |at| trace.time_us(at.row)),
        Column::text("action", actions(snapshot)?, |at| Some(usize::from(trace.action[at.row].0))),
        // Without an address is only oom, whose column holds something else; null would make it a float in pandas.
        Column::wide("address", move |at| if is_oom(at) { 0 } else { trace.address[at.row] }),
        Column::int("size_bytes", |at| trace.size[at.row]),
        Column::maybe_int("device_free_bytes", move |at| is_oom(at).then(|| trace.address[at.row])),
        Column::maybe_wide("stream", |at| snapshot.streams.get(trace.stream[at.row] as usize).copied()),
        pools.column(|at| trace.extra(at.row).pool),
        Column::flag("is_internal", |at| trace.extra(at.row).is_internal),
    ];
    columns.extend(notes.columns(|at| Some(at.row)));
    columns.extend(stacks.columns(|at| trace.stack[at.row]));
    let sections = part.devices.iter().map(|device| Section::range(rows(device))).collect();
    Ok(Rows { columns, sections })
}

fn levels<'a>(part: &'a Part<'a>) -> Result<Rows<'a>, ExportError> {
    let snapshot = part.snapshot;
    let of = |at: At| &part.devices[at.section];
    let level = move |at: At| of(at).origins.replay.curves.at(at.row);
    let columns = vec![
        Column::device(move |at| of(at).ordinal()),
        Column::int("state", |at| at.row as u64),
        Column::maybe_int("event", |at| at.row.checked_sub(1).map(|event| event as u64)),
        Column::time("time", move |at| snapshot.trace.time_us(of(at).origins.event_before(at.row as u32)?)),
        Column::int("requested_bytes", move |at| level(at).requested),
        Column::int("allocated_bytes", move |at| level(at).allocated),
        Column::int("active_bytes", move |at| level(at).active),
        Column::int("reserved_bytes", move |at| level(at).reserved),
    ];
    let states = |device: &DevicePart<'_>| device.events.start as usize..device.events.end as usize + 1;
    let sections = part.devices.iter().map(|device| Section::range(states(device))).collect();
    Ok(Rows { columns, sections })
}

fn segments<'a>(part: &'a Part<'a>) -> Result<Rows<'a>, ExportError> {
    let snapshot = part.snapshot;
    let memory: Rc<Vec<Memory>> = Rc::new(part.devices.iter().map(Memory::of).collect());
    let all = || memory.iter().flat_map(|memory| &memory.segments);
    let stacks = Stacks::new(snapshot, all().map(|segment| segment.stack))?;
    let kinds = strings(snapshot, "kind", all().filter_map(|segment| segment.kind))?;
    let pools = Pools::new(snapshot)?;
    let n_before = n_before(memory.iter().map(|memory| memory.segments.len()));
    let cell = |of: fn(&Segment) -> u64| {
        let memory = memory.clone();
        move |at: At| of(&memory[at.section].segments[at.row])
    };
    // Bytes of those of its blocks that are counted.
    let sum = |bytes: fn(&Block) -> u64| {
        let memory = memory.clone();
        move |at: At| {
            let Memory { segments, blocks } = &memory[at.section];
            let inside = blocks[segments[at.row].blocks.clone()].iter();
            inside.fold(0, |sum: u64, block| sum.saturating_add(bytes(block)))
        }
    };
    let of = {
        let memory = memory.clone();
        move |at: At| memory[at.section].segments[at.row].clone()
    };
    let mut columns = vec![
        Column::device(|at| part.devices[at.section].ordinal()),
        Column::int("segment", move |at| (n_before[at.section] + at.row) as u64),
        Column::wide("address", cell(|segment| segment.address)),
        Column::int("size_bytes", cell(|segment| segment.size)),
        Column::int("requested_bytes", sum(|block| block.requested.unwrap_or(0))),
        Column::int(
            "allocated_bytes",
            sum(|block| if block.state == BlockState::Allocated { block.size } else { 0 }),
        ),
        Column::int(
            "active_bytes",
            sum(|block| if block.state == BlockState::Inactive { 0 } else { block.size }),
        ),
        Column::int("n_blocks", cell(|segment| segment.blocks.len() as u64)),
        Column::maybe_wide("stream", {
            let of = of.clone();
            move |at| of(at).stream
        }),
        Column::text("kind", kinds, {
            let of = of.clone();
            move |at| Some(of(at).kind?.0 as usize)
        }),
        pools.column({
            let of = of.clone();
            move |at| of(at).pool
        }),
        Column::flag("is_expandable", {
            let of = of.clone();
            move |at| of(at).is_expandable
        }),
    ];
    columns.extend(stacks.columns(move |at| of(at).stack));
    let sections = memory.iter().map(|memory| Section::range(0..memory.segments.len())).collect();
    Ok(Rows { columns, sections })
}

fn blocks<'a>(part: &'a Part<'a>) -> Result<Rows<'a>, ExportError> {
    let snapshot = part.snapshot;
    let memory: Rc<Vec<Memory>> = Rc::new(part.devices.iter().map(Memory::of).collect());
    let stacks = memory.iter().flat_map(|memory| &memory.blocks).map(|block| block.stack);
    let stacks = Stacks::new(snapshot, stacks)?;
    let pools = Pools::new(snapshot)?;
    let n_before = n_before(memory.iter().map(|memory| memory.segments.len()));
    const STATES: [(BlockState, &str); 3] = [
        (BlockState::Allocated, "active_allocated"),
        (BlockState::PendingFree, "active_pending_free"),
        (BlockState::Inactive, "inactive"),
    ];
    let states = Dictionary::new("state", STATES.len(), |key| Some(STATES[key].1.to_owned()))?;
    let of = {
        let memory = memory.clone();
        move |at: At| memory[at.section].blocks[at.row]
    };
    let segment = {
        let memory = memory.clone();
        move |at: At| {
            let Memory { segments, blocks } = &memory[at.section];
            segments[blocks[at.row].segment].clone()
        }
    };
    let mut columns = vec![
        Column::device(|at| part.devices[at.section].ordinal()),
        Column::int("segment", {
            let of = of.clone();
            move |at| (n_before[at.section] + of(at).segment) as u64
        }),
        Column::wide("address", {
            let of = of.clone();
            move |at| of(at).address
        }),
        Column::int("size_bytes", {
            let of = of.clone();
            move |at| of(at).size
        }),
        Column::maybe_int("requested_bytes", {
            let of = of.clone();
            move |at| of(at).requested
        }),
        Column::text("state", states, {
            let of = of.clone();
            move |at| STATES.iter().position(|(state, _)| *state == of(at).state)
        }),
        Column::maybe_wide("stream", {
            let segment = segment.clone();
            move |at| segment(at).stream
        }),
        pools.column(move |at| segment(at).pool),
    ];
    columns.extend(stacks.columns(move |at| of(at).stack));
    let sections = memory.iter().map(|memory| Section::range(0..memory.blocks.len())).collect();
    Ok(Rows { columns, sections })
}

/// How many rows stand before each section.
fn n_before(lengths: impl Iterator<Item = usize>) -> Vec<usize> {
    let running = lengths.scan(0, |n, length| {
        let before = *n;
        *n += length;
        Some(before)
    });
    running.collect()
}

fn stacks<'a>(snapshot: &'a Snapshot) -> Result<Rows<'a>, ExportError> {
    let n_stacks = snapshot.stacks.len();
    let id = |at: At| StackId(at.row as u32);
    let stacks = Stacks::new(snapshot, (0..n_stacks as u32).map(StackId))?;
    let mut columns = stacks.columns(id);
    let n_frames = Column::int("n_frames", move |at| snapshot.stacks.frame_ids(id(at)).len() as u64);
    columns.insert(1, n_frames);
    Ok(Rows { columns, sections: vec![Section::range(0..n_stacks)] })
}

fn frames<'a>(snapshot: &'a Snapshot) -> Result<Rows<'a>, ExportError> {
    let stacks = &snapshot.stacks;
    // Row r belongs to the stack before which at most r frames stand.
    let mut n_before = Vec::with_capacity(stacks.len());
    let mut n_rows = 0;
    for stack in 0..stacks.len() {
        n_before.push(n_rows);
        n_rows += stacks.frame_ids(StackId(stack as u32)).len();
    }
    let n_before = Rc::new(n_before);
    let place = move |at: At| {
        let stack = n_before.partition_point(|before| *before <= at.row) - 1;
        (StackId(stack as u32), at.row - n_before[stack])
    };
    let frame = {
        let place = place.clone();
        move |at: At| {
            let (stack, depth) = place(at);
            stacks.all_frames()[stacks.frame_ids(stack)[depth] as usize]
        }
    };
    let all = || stacks.all_frames().iter();
    let functions = strings(snapshot, "function", all().map(|frame| frame.name))?;
    let files = strings(snapshot, "file", all().map(|frame| frame.filename))?;
    let columns = vec![
        Column::int("stack_id", {
            let place = place.clone();
            move |at| place(at).0.0.into()
        }),
        Column::int("depth", move |at| place(at).1 as u64),
        Column::text("function", functions, {
            let frame = frame.clone();
            move |at| Some(frame(at).name.0 as usize)
        }),
        Column::text("file", files, {
            let frame = frame.clone();
            move |at| Some(frame(at).filename.0 as usize)
        }),
        Column::maybe_int("line", move |at| frame(at).known_line().map(u64::from)),
    ];
    Ok(Rows { columns, sections: vec![Section::range(0..n_rows)] })
}

fn annotations<'a>(part: &'a Part<'a>) -> Result<Rows<'a>, ExportError> {
    let snapshot = part.snapshot;
    let ranges: Vec<Vec<Named>> =
        part.devices.iter().map(|device| annotations::within(snapshot, device)).collect();
    let names = strings(snapshot, "name", ranges.iter().flatten().map(|range| range.name))?;
    let sections = ranges.iter().map(|ranges| Section::range(0..ranges.len())).collect();
    let ranges = Rc::new(ranges);
    let of = move |at: At| ranges[at.section][at.row];
    let columns = vec![
        Column::device(|at| part.devices[at.section].ordinal()),
        Column::text("name", names, {
            let of = of.clone();
            move |at| Some(of(at).name.0 as usize)
        }),
        Column::time("start_time", {
            let of = of.clone();
            move |at| of(at).start_us
        }),
        Column::time("end_time", move |at| of(at).end_us),
    ];
    Ok(Rows { columns, sections })
}

/// The columns of a stack: its number, the line that is meant, all of it.
struct Stacks {
    sites: Dictionary,
    texts: Option<Dictionary>,
}

impl Stacks {
    fn new(snapshot: &Snapshot, used: impl Iterator<Item = StackId>) -> Result<Self, ExportError> {
        let is_used = marked(snapshot.stacks.len(), used.map(|stack| stack.0 as usize));
        let texts = Dictionary::new("stack", is_used.len(), |stack| {
            is_used[stack].then(|| stack_text(snapshot, StackId(stack as u32)))
        })?;
        Ok(Self { sites: Self::sites(snapshot, &is_used)?, texts: Some(texts) })
    }

    fn sites_only(snapshot: &Snapshot, used: impl Iterator<Item = StackId>) -> Result<Self, ExportError> {
        let is_used = marked(snapshot.stacks.len(), used.map(|stack| stack.0 as usize));
        Ok(Self { sites: Self::sites(snapshot, &is_used)?, texts: None })
    }

    fn sites(snapshot: &Snapshot, is_used: &[bool]) -> Result<Dictionary, ExportError> {
        Dictionary::new("site", is_used.len(), |stack| {
            let site = is_used[stack].then(|| sites::site(snapshot, StackId(stack as u32))).flatten()?;
            Some(sites::frame(snapshot, site))
        })
    }

    fn columns<'a>(self, stack: impl Fn(At) -> StackId + Clone + 'a) -> Vec<Column<'a>> {
        let key = move |at| Some(stack(at)).filter(|stack| *stack != StackId::NONE).map(|stack| stack.0);
        let row = {
            let key = key.clone();
            move |at| key(at).map(|key| key as usize)
        };
        let mut columns = vec![
            Column::maybe_int("stack_id", move |at| key(at).map(u64::from)),
            Column::text("site", self.sites, row.clone()),
        ];
        columns.extend(self.texts.map(|texts| Column::text("stack", texts, row)));
        columns
    }
}

fn stack_text(snapshot: &Snapshot, stack: StackId) -> String {
    let mut text = String::new();
    for frame in snapshot.stacks.frames(stack) {
        if !text.is_empty() {
            text.push(';');
        }
        text.push_str(&sites::frame(snapshot, frame));
    }
    text
}

/// The columns of an event's rarer texts.
struct Notes<'a> {
    snapshot: &'a Snapshot,
    compile_context: Dictionary,
    user_metadata: Dictionary,
    category: Dictionary,
}

impl<'a> Notes<'a> {
    fn new(snapshot: &'a Snapshot) -> Result<Self, ExportError> {
        let extras = snapshot.trace.extras.iter();
        let said = |text: fn(&Extra) -> Option<StrId>| {
            extras.clone().filter_map(move |extra| snapshot.said(text(extra)))
        };
        Ok(Self {
            snapshot,
            compile_context: strings(snapshot, "compile_context", said(|extra| extra.compile_context))?,
            user_metadata: strings(snapshot, "user_metadata", said(|extra| extra.user_metadata))?,
            category: strings(snapshot, "category", said(|extra| extra.category))?,
        })
    }

    /// `event` finds the row of the trace.
    fn columns(self, event: impl Fn(At) -> Option<usize> + Clone + 'a) -> Vec<Column<'a>> {
        let trace = &self.snapshot.trace;
        let extra = move |at: At| event(at).map(|event| trace.extra(event)).unwrap_or_default();
        let key = |text: Option<StrId>| text.map(|text| text.0 as usize);
        vec![
            Column::text("compile_context", self.compile_context, {
                let extra = extra.clone();
                move |at| key(extra(at).compile_context)
            }),
            Column::text("user_metadata", self.user_metadata, {
                let extra = extra.clone();
                move |at| key(extra(at).user_metadata)
            }),
            Column::text("category", self.category, move |at| key(extra(at).category)),
        ]
    }
}

/// The column of a pool's name.
struct Pools {
    known: Vec<(u64, u64)>,
    names: Dictionary,
}

impl Pools {
    fn new(snapshot: &Snapshot) -> Result<Self, ExportError> {
        let in_events = snapshot.trace.extras.iter().filter_map(|extra| extra.pool);
        let mut known: Vec<(u64, u64)> = in_events.chain(snapshot.segments.pool.iter().copied()).collect();
        known.sort_unstable();
        known.dedup();
        let names = Dictionary::new("pool", known.len(), |key| Some(words::pool(known[key])))?;
        Ok(Self { known, names })
    }

    fn column<'a>(self, pool: impl Fn(At) -> Option<(u64, u64)> + 'a) -> Column<'a> {
        let known = self.known;
        Column::text("pool", self.names, move |at| known.binary_search(&pool(at)?).ok())
    }
}

fn actions(snapshot: &Snapshot) -> Result<Dictionary, ExportError> {
    let is_known =
        |action: Action| action.known_name().is_some() || snapshot.action_names.name(action).is_some();
    Dictionary::new("action", usize::from(u8::MAX) + 1, |key| {
        let action = Action(key as u8);
        is_known(action).then(|| snapshot.action_name(action).to_owned())
    })
}

/// Those texts of a snapshot that a column uses, by their number.
fn strings(
    snapshot: &Snapshot,
    column: &'static str,
    used: impl Iterator<Item = StrId>,
) -> Result<Dictionary, ExportError> {
    let is_used = marked(snapshot.strings.len(), used.map(|text| text.0 as usize));
    Dictionary::new(column, is_used.len(), |text| {
        is_used[text].then(|| snapshot.strings.text(StrId(text as u32)).into_owned())
    })
}

fn marked(n: usize, used: impl Iterator<Item = usize>) -> Vec<bool> {
    let mut marks = vec![false; n];
    for at in used {
        // No stack is a number too, beyond all others.
        if let Some(mark) = marks.get_mut(at) {
            *mark = true;
        }
    }
    marks
}
