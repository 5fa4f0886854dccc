//! The tables, column by column; docs/export.md tells them to their readers.

use tidegauge_snapshot::Snapshot;
use tidegauge_snapshot::model::{Action, BlockState, StackId, StrId};
use tidegauge_snapshot::replay::NEVER;
use tidegauge_snapshot::{sites, words};

use crate::column::{At, Column, Rows, Section};
use crate::dictionary::Dictionary;
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
    /// Segments as they stood at the end.
    Segments,
    /// Blocks as they stood at the end.
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
        Column::maybe_int("free_requested_event", move |at| {
            event_of(of(at).replay.allocations.free_requested[at.row])
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
    at_the_end(part, Table::Segments)?;
    let snapshot = part.snapshot;
    let segments = &snapshot.segments;
    let blocks = &snapshot.blocks;
    let rows = |device: &DevicePart<'_>| device.origins.device.segments.clone();
    let stacks = Stacks::new(snapshot, part.devices.iter().flat_map(rows).map(|row| segments.stack[row]))?;
    let pools = Pools::new(snapshot)?;
    let kinds = strings(snapshot, "kind", segments.kind.iter().copied())?;
    // Bytes of those blocks of a segment that are in the given states.
    let sum = |at: At, is_counted: fn(BlockState) -> bool, bytes: &'a [u64]| {
        let inside = segments.blocks[at.row].clone().map(|block| block as usize);
        inside
            .filter(|block| is_counted(blocks.state[*block]))
            .fold(0, |sum: u64, block| sum.saturating_add(bytes[block]))
    };
    let is_active = |state| state != BlockState::Inactive;
    let is_allocated = |state| state == BlockState::Allocated;
    let mut columns = vec![
        Column::device(|at| part.devices[at.section].ordinal()),
        Column::int("segment", |at| at.row as u64),
        Column::wide("address", |at| segments.address[at.row]),
        Column::int("size_bytes", |at| segments.total_size[at.row]),
        Column::int("requested_bytes", move |at| sum(at, is_active, &blocks.requested)),
        Column::int("allocated_bytes", move |at| sum(at, is_allocated, &blocks.size)),
        Column::int("active_bytes", move |at| sum(at, is_active, &blocks.size)),
        Column::int("n_blocks", |at| segments.blocks[at.row].len() as u64),
        Column::maybe_wide("stream", |at| snapshot.streams.get(segments.stream[at.row] as usize).copied()),
        Column::text("kind", kinds, |at| Some(segments.kind[at.row].0 as usize)),
        pools.column(|at| Some(segments.pool[at.row])),
        Column::flag("is_expandable", |at| segments.is_expandable[at.row]),
    ];
    columns.extend(stacks.columns(|at| segments.stack[at.row]));
    Ok(Rows { columns, sections: part.devices.iter().map(|device| Section::range(rows(device))).collect() })
}

fn blocks<'a>(part: &'a Part<'a>) -> Result<Rows<'a>, ExportError> {
    at_the_end(part, Table::Blocks)?;
    let snapshot = part.snapshot;
    let (segments, blocks) = (&snapshot.segments, &snapshot.blocks);
    // Which segment a block lies in; the blocks of a segment stand together.
    let mut segment_of = vec![0u32; blocks.len()];
    let mut sections = Vec::new();
    for device in &part.devices {
        let mut rows = Vec::new();
        for segment in device.origins.device.segments.clone() {
            for block in segments.blocks[segment].clone() {
                segment_of[block as usize] = segment as u32;
                rows.push(block);
            }
        }
        sections.push(rows);
    }
    let stacks = Stacks::new(snapshot, sections.iter().flatten().map(|block| blocks.stack[*block as usize]))?;
    let pools = Pools::new(snapshot)?;
    let states = ["active_allocated", "active_pending_free", "inactive"];
    let states =
        Dictionary::new("state", states.len(), |key| states.get(key).map(|&state| state.to_owned()))?;
    let segment_of = std::rc::Rc::new(segment_of);
    let segment = move |at: At| segment_of[at.row] as usize;
    let is_active = |at: At| blocks.state[at.row] != BlockState::Inactive;
    let mut columns = vec![
        Column::device(|at| part.devices[at.section].ordinal()),
        Column::int("segment", {
            let segment = segment.clone();
            move |at| segment(at) as u64
        }),
        Column::wide("address", |at| blocks.address[at.row]),
        Column::int("size_bytes", |at| blocks.size[at.row]),
        // Of an inactive block the file still names what the last one in it asked for.
        Column::maybe_int("requested_bytes", move |at| is_active(at).then(|| blocks.requested[at.row])),
        Column::text("state", states, |at| {
            Some(match blocks.state[at.row] {
                BlockState::Allocated => 0,
                BlockState::PendingFree => 1,
                BlockState::Inactive => 2,
            })
        }),
        Column::maybe_wide("stream", {
            let segment = segment.clone();
            move |at| snapshot.streams.get(segments.stream[segment(at)] as usize).copied()
        }),
        pools.column(move |at| Some(segments.pool[segment(at)])),
    ];
    columns.extend(stacks.columns(|at| blocks.stack[at.row]));
    Ok(Rows { columns, sections: sections.into_iter().map(Section::list).collect() })
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
    let n_before = std::rc::Rc::new(n_before);
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
        Column::maybe_int("line", move |at| Some(frame(at).line.into()).filter(|line| *line > 0)),
    ];
    Ok(Rows { columns, sections: vec![Section::range(0..n_rows)] })
}

fn annotations<'a>(part: &'a Part<'a>) -> Result<Rows<'a>, ExportError> {
    let snapshot = part.snapshot;
    let ranges: Vec<Vec<annotations::Named>> =
        part.devices.iter().map(|device| annotations::within(snapshot, device)).collect();
    let names = strings(snapshot, "name", ranges.iter().flatten().map(|range| range.name))?;
    let sections = ranges.iter().map(|ranges| Section::range(0..ranges.len())).collect();
    let ranges = std::rc::Rc::new(ranges);
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

/// Segments and blocks are in the file as they stood after the last event.
fn at_the_end(part: &Part<'_>, table: Table) -> Result<(), ExportError> {
    match part.devices.iter().find(|device| !device.is_to_the_end()) {
        None => Ok(()),
        Some(device) => Err(ExportError::NotAtEnd {
            table: table.name(),
            last: device.origins.device.events.len() as u32 - 1,
            until: device.events.end,
        }),
    }
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
        let extras = &snapshot.trace.extras;
        Ok(Self {
            snapshot,
            compile_context: strings(
                snapshot,
                "compile_context",
                extras.iter().filter_map(|extra| extra.compile_context),
            )?,
            user_metadata: strings(
                snapshot,
                "user_metadata",
                extras.iter().filter_map(|extra| extra.user_metadata),
            )?,
            category: strings(snapshot, "category", extras.iter().filter_map(|extra| extra.category))?,
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
