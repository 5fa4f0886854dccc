//! Pickle values to tables, field by field, as they stream past.
//!
//! A dict is recognized by its keys: one with `action` is an event, with `blocks` a segment, with `state` a
//! block, with `stage` an annotation, with `name` and `filename` a frame. Dicts of one kind come with the same
//! keys in the same order, so the mapping from keys to columns is found once and remembered.

use super::ReadError;
use super::findings::Findings;
use super::pickle::{Heap, Kind, Object, Val};
use crate::model::{
    Action, ActionNames, Annotation, BlockState, Blocks, Device, Extra, Frame, History, Kept, KeptOf, Keys,
    More, MoreValue, Segments, ShapeId, StackId, Stacks, StrId, Strings, Texts, Trace, Value,
};

/// Tables whose rows come from dicts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Row {
    Event,
    Block,
    Segment,
    Annotation,
}

impl Row {
    pub(crate) fn from_index(index: u64) -> Self {
        match index {
            0 => Self::Event,
            1 => Self::Block,
            2 => Self::Segment,
            _ => Self::Annotation,
        }
    }
}

/// A field of a dict we know.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Field {
    Action,
    Address,
    DeviceFree,
    Size,
    Stream,
    Time,
    Frames,
    CompileContext,
    UserMetadata,
    Pool,
    Category,
    Internal,
    ForwardFrames,
    Requested,
    State,
    History,
    Device,
    TotalSize,
    SegmentKind,
    IsExpandable,
    Blocks,
    Stage,
    Name,
    Filename,
    Line,
    /// Of a frame, since torch 2.10 with `augment_with_fx_traces`.
    Fx,
    AllocatedSize,
    ActiveSize,
    RequestedSize,
    /// Kept as it is, and counted.
    Unknown,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    Row(Row),
    Frame,
    Other,
}

struct Shape {
    keys: Vec<Val>,
    target: Target,
    fields: Vec<Field>,
    /// Under which the keys are remembered in the snapshot.
    id: ShapeId,
}

/// Different key sequences remembered; real files have fewer than ten.
const MAX_SHAPES: usize = 64;

/// Segments that even the smallest file may have.
const FREE_SEGMENTS: u64 = 65_536;

/// Beyond these, each must take so many bytes of the file. A real one has some ten fields and a block.
const SEGMENT_BYTES: u64 = 24;

/// Sizes beyond 1 EiB are no sizes: torch writes -1 as 2^64-1.
const MAX_SIZE: u64 = 1 << 60;

/// Which fields were seen: the fingerprints of torch's releases.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) history: bool,
    pub(super) compile_context: bool,
    pub(super) user_metadata: bool,
    pub(super) pool: bool,
    pub(super) category: bool,
    pub(super) torch_npu: bool,
}

/// The tables while they fill.
#[derive(Default)]
pub(crate) struct Builder {
    pub(crate) strings: Strings,
    pub(crate) stacks: Stacks,
    pub(super) streams: Vec<u64>,
    pub(super) action_names: ActionNames,
    pub(super) actions: Vec<(StrId, Action)>,
    pub(super) trace: Trace,
    pub(super) has_time: bool,
    pub(super) last_extra: (Extra, u32),
    pub(super) segments: Segments,
    pub(super) blocks: Blocks,
    pub(super) annotations: Vec<Annotation>,
    shapes: Vec<Shape>,
    pub(super) last_shape: usize,
    /// Key sequences, by [`ShapeId`].
    pub(super) keys: Keys,
    pub(super) forward: Texts,
    pub(super) kept: Vec<Kept>,
    /// What is left of [`KEPT_BYTES`].
    pub(super) kept_budget: u64,
    /// The keys of frames that have only the usual ones.
    pub(super) plain_frame: Option<ShapeId>,
    /// Fields of the dict at hand that no column holds.
    pub(super) loose: Vec<(Val, Val)>,
    pub(super) seen: Seen,
}

/// Values that no column holds are kept up to this many bytes, all together; beyond it they are only counted.
const KEPT_BYTES: u64 = 24 << 20;

/// And one of them up to this many.
const KEPT_BYTES_EACH: u64 = 1 << 20;

impl Builder {
    pub(crate) fn new() -> Self {
        Self { kept_budget: KEPT_BYTES, ..Self::default() }
    }
}

impl Builder {
    /// The row or frame that a dict with these items is, or nothing when it is some other dict.
    pub(crate) fn row(
        &mut self,
        items: &[Val],
        heap: &Heap,
        findings: &mut Findings,
        at: u64,
    ) -> Result<Option<Val>, ReadError> {
        let shape = self.shape_of(items);
        let n_rows = self.trace.len().max(self.blocks.len()).max(self.annotations.len());
        if n_rows >= u32::MAX as usize - 1 {
            let message =
                format!("the file holds more than four billion entries at byte {at}; split it first");
            return Err(ReadError::new(ReadError::TOO_LARGE, at, message));
        }
        let target = self.shapes[shape].target;
        if target == Target::Other {
            return Ok(None);
        }
        if target == Target::Row(Row::Segment)
            && self.segments.len() as u64 > FREE_SEGMENTS + at / SEGMENT_BYTES
        {
            let message =
                format!("more segments than a snapshot has are listed by byte {at}: it is no snapshot's");
            return Err(ReadError::new(ReadError::REFUSED, at, message));
        }
        let id = self.shapes[shape].id;
        let fields = std::mem::take(&mut self.shapes[shape].fields);
        let loose = std::mem::take(&mut self.loose);
        let mut dict = Dict { items, fields: &fields, shape: id, heap, findings, loose };
        let val = match target {
            Target::Row(Row::Event) => self.event(&mut dict),
            Target::Row(Row::Block) => self.block(&mut dict),
            Target::Row(Row::Segment) => self.segment(&mut dict),
            Target::Row(Row::Annotation) => self.annotation(&mut dict),
            _ => self.frame(&mut dict),
        };
        if fields.contains(&Field::Unknown) {
            dict.count_unknown(target, &self.strings);
        }
        let mut loose = std::mem::take(&mut dict.loose);
        if let Kind::Row(row, at) = val.kind() {
            for (key, val) in loose.drain(..) {
                self.keep(row, at, key, val, heap, findings);
            }
        }
        loose.clear();
        self.loose = loose;
        self.shapes[shape].fields = fields;
        Ok(Some(val))
    }

    /// Keeps a field that no column holds.
    #[cold]
    fn keep(&mut self, row: Row, at: u32, key: Val, val: Val, heap: &Heap, findings: &mut Findings) {
        let Kind::Str(key) = key.kind() else { return };
        let of = match row {
            Row::Event => KeptOf::Event,
            Row::Block => KeptOf::Block,
            Row::Segment => KeptOf::Segment,
            Row::Annotation => KeptOf::Annotation,
        };
        match self.budgeted(heap, val) {
            Some(value) => self.kept.push(Kept { of, row: at, key, value }),
            None => findings.count("not-kept", &self.strings.text(key)),
        }
    }

    /// A value in full, unless it is too large, or all that is kept would be. What was tried in vain counts, too: it took
    /// its time.
    fn budgeted(&mut self, heap: &Heap, val: Val) -> Option<Value> {
        let most = self.kept_budget.min(KEPT_BYTES_EACH);
        let mut left = most;
        let value = self.value(heap, val, 0, &mut left);
        self.kept_budget -= if value.is_some() { most - left } else { most };
        value
    }

    fn shape_of(&mut self, items: &[Val]) -> usize {
        let is_like = |shape: &Shape| {
            shape.keys.len() * 2 == items.len()
                && shape.keys.iter().zip(items.chunks_exact(2)).all(|(key, pair)| *key == pair[0])
        };
        if self.shapes.get(self.last_shape).is_some_and(is_like) {
            return self.last_shape;
        }
        if let Some(at) = self.shapes.iter().position(is_like) {
            self.last_shape = at;
            return at;
        }
        let keys: Vec<Val> = items.chunks_exact(2).map(|pair| pair[0]).collect();
        let (target, fields) = self.classify(&keys);
        if self.shapes.len() == MAX_SHAPES {
            self.shapes.pop();
        }
        let texts = keys.iter().map(|key| match key.kind() {
            Kind::Str(id) => Some(id),
            _ => None,
        });
        let id = match target {
            Target::Other => ShapeId::NONE,
            _ => texts.collect::<Option<Vec<_>>>().map_or(ShapeId::NONE, |keys| self.keys.intern(keys)),
        };
        self.shapes.push(Shape { keys, target, fields, id });
        self.last_shape = self.shapes.len() - 1;
        self.last_shape
    }

    fn classify(&self, keys: &[Val]) -> (Target, Vec<Field>) {
        let names: Vec<&[u8]> = keys
            .iter()
            .map(|key| match key.kind() {
                Kind::Str(id) => self.strings.bytes(id),
                _ => b"",
            })
            .collect();
        let has = |name: &[u8]| names.contains(&name);
        let target = if has(b"segments") || has(b"device_traces") {
            // The top of a snapshot, whatever else is in it.
            Target::Other
        } else if has(b"action") && has(b"size") {
            Target::Row(Row::Event)
        } else if has(b"blocks") && has(b"total_size") {
            Target::Row(Row::Segment)
        } else if has(b"state") && has(b"size") {
            Target::Row(Row::Block)
        } else if has(b"stage") && has(b"name") {
            Target::Row(Row::Annotation)
        } else if has(b"name") && has(b"filename") {
            Target::Frame
        } else {
            Target::Other
        };
        let fields = names.iter().map(|name| field(target, name)).collect();
        (target, fields)
    }

    fn event(&mut self, dict: &mut Dict<'_>) -> Val {
        let row = self.trace.len() as u32;
        let mut event = EventRow::default();
        let mut extra = Extra { shape: dict.shape, ..Extra::default() };
        for (at, field) in dict.fields.iter().enumerate() {
            let val = dict.val(at);
            match field {
                Field::Action => event.action = self.action(at, dict),
                Field::Address => event.address = dict.number(at, "addr"),
                Field::DeviceFree => event.device_free = Some(dict.number(at, "device_free")),
                Field::Size => event.size = dict.size(at, "size"),
                Field::Stream => event.stream = dict.number(at, "stream"),
                Field::Time => {
                    event.time_us = dict.number(at, "time_us") as i64;
                    self.has_time = true;
                }
                Field::Frames => event.stack = self.stack(at, dict),
                Field::CompileContext => {
                    self.seen.compile_context = true;
                    extra.compile_context = dict.text(at, "compile_context");
                }
                Field::UserMetadata => {
                    self.seen.user_metadata = true;
                    extra.user_metadata = dict.text(at, "user_metadata");
                }
                Field::Pool => {
                    self.seen.pool = true;
                    extra.pool = dict.pair(at, "pool_id");
                }
                Field::Category => {
                    self.seen.category = true;
                    extra.category = dict.text(at, "category");
                }
                Field::Internal => {
                    extra.is_internal = true;
                    match val.kind() {
                        Kind::Str(id) => extra.internal = Some(id),
                        _ => dict.keep(at),
                    }
                }
                Field::ForwardFrames => extra.forward = self.texts(at, dict),
                _ => {}
            }
        }
        if event.action == Action::OOM {
            event.address = event.device_free.unwrap_or(event.address);
        } else if event.device_free.is_some() {
            dict.keep_named(Field::DeviceFree);
        }
        let stream = self.stream(event.stream);
        let extra = self.extra(extra);
        let trace = &mut self.trace;
        trace.action.push(event.action);
        trace.address.push(event.address);
        trace.size.push(event.size);
        trace.stream.push(stream);
        trace.stack.push(event.stack);
        trace.time_us.push(event.time_us);
        trace.extra.push(extra);
        Kind::Row(Row::Event, row).into()
    }

    fn action(&mut self, at: usize, dict: &mut Dict<'_>) -> Action {
        let Kind::Str(id) = dict.val(at).kind() else {
            dict.odd(at, "action", ());
            return self.action_names.intern("?");
        };
        if let Some((_, action)) = self.actions.iter().find(|(name, _)| *name == id) {
            if action.known_name().is_none() {
                dict.findings.count("unknown-action", &self.strings.text(id));
            }
            return *action;
        }
        let name = self.strings.text(id);
        let action = Action::known(&name).unwrap_or_else(|| {
            dict.findings.count("unknown-action", &name);
            self.action_names.intern(&name)
        });
        if action == Action::WORKSPACE_SNAPSHOT {
            self.seen.torch_npu = true;
        }
        if self.actions.len() < MAX_SHAPES {
            self.actions.push((id, action));
        }
        action
    }

    /// A list of texts, as one number.
    fn texts(&mut self, at: usize, dict: &mut Dict<'_>) -> Option<u32> {
        let items: &[Val] = match dict.val(at).kind() {
            Kind::EmptyList(_) | Kind::EmptyTuple => &[],
            Kind::Object(object) => match &dict.heap.objects[object as usize] {
                Object::List(items) => items,
                _ => return dict.odd(at, "forward_frames", None),
            },
            _ => return dict.odd(at, "forward_frames", None),
        };
        let ids = items.iter().map(|item| match item.kind() {
            Kind::Str(id) => Some(id),
            _ => None,
        });
        match ids.collect::<Option<Vec<StrId>>>() {
            Some(ids) => Some(self.forward.intern(&ids)),
            None => dict.odd(at, "forward_frames", None),
        }
    }

    fn extra(&mut self, extra: Extra) -> u32 {
        if self.trace.extras.is_empty() {
            self.trace.extras.push(Extra::default());
        }
        if self.last_extra.0 == extra {
            return self.last_extra.1;
        }
        // Few different ones in real files; a hostile file's are looked up among the latest only.
        let extras = &mut self.trace.extras;
        let from = extras.len().saturating_sub(MAX_SHAPES);
        let row = extras[from..].iter().position(|known| *known == extra).map_or_else(
            || {
                extras.push(extra);
                extras.len() - 1
            },
            |at| from + at,
        ) as u32;
        self.last_extra = (extra, row);
        row
    }

    fn stream(&mut self, handle: u64) -> u32 {
        // A process has a handful of streams; a hostile file's thousands share the last row.
        const MAX_STREAMS: usize = 4096;
        if let Some(at) = self.streams.iter().position(|known| *known == handle) {
            return at as u32;
        }
        if self.streams.len() < MAX_STREAMS {
            self.streams.push(handle);
        }
        self.streams.len() as u32 - 1
    }

    fn stack(&mut self, at: usize, dict: &mut Dict<'_>) -> StackId {
        let val = dict.val(at);
        match self.stack_of(val, dict.heap) {
            Some(stack) => stack,
            None => dict.odd(at, "frames", StackId::NONE),
        }
    }

    /// The stack that a value is, if it is one.
    fn stack_of(&mut self, val: Val, heap: &Heap) -> Option<StackId> {
        Some(match val.kind() {
            Kind::Stack(id) => id,
            Kind::EmptyList(_) | Kind::EmptyTuple => StackId::EMPTY,
            Kind::None => StackId::NONE,
            Kind::Object(object) => match &heap.objects[object as usize] {
                // A stack of more than a thousand frames, or one that was filled frame by frame.
                Object::List(items) => {
                    let frames = items.iter().map(|item| match item.kind() {
                        Kind::Frame(id) => Some(id.0),
                        _ => None,
                    });
                    self.stacks.intern(&frames.collect::<Option<Vec<u32>>>()?)
                }
                _ => return None,
            },
            _ => return None,
        })
    }

    fn block(&mut self, dict: &mut Dict<'_>) -> Val {
        let row = self.blocks.len() as u32;
        let mut block = BlockRow::default();
        let mut latest = None;
        for (at, field) in dict.fields.iter().enumerate() {
            match field {
                Field::Address => block.address = Some(dict.number(at, "address")),
                Field::Size => block.size = dict.size(at, "size"),
                Field::Requested => block.requested = Some(dict.size(at, "requested_size")),
                Field::State => block.state = self.block_state(at, dict),
                Field::Frames => block.stack = self.stack(at, dict),
                Field::History => latest = self.history(at, row, dict),
                Field::ForwardFrames => dict.keep(at),
                _ => {}
            }
        }
        if let Some(latest) = latest {
            // Torch 2.0: the latest use of the block; its address is the block's while it is in use.
            self.seen.history = true;
            let is_used = block.state != BlockState::Inactive;
            block.address = block.address.or(Some(latest.address).filter(|_| is_used));
            block.requested = block.requested.or(Some(latest.real_size));
            block.stack = latest.stack;
        }
        // Torch 2.0 writes no address: it follows from the blocks before, once the segment is known.
        self.blocks.address.push(block.address.unwrap_or(u64::MAX));
        self.blocks.size.push(block.size);
        self.blocks.requested.push(block.requested.unwrap_or(block.size));
        self.blocks.state.push(block.state);
        self.blocks.stack.push(block.stack);
        self.blocks.shape.push(dict.shape);
        Kind::Row(Row::Block, row).into()
    }

    fn block_state(&self, at: usize, dict: &mut Dict<'_>) -> BlockState {
        let Kind::Str(id) = dict.val(at).kind() else { return dict.odd(at, "state", BlockState::Inactive) };
        match self.strings.bytes(id) {
            b"active_allocated" => BlockState::Allocated,
            b"active_pending_free" => BlockState::PendingFree,
            // Torch's documents say "awaiting", its code writes "pending".
            b"active_awaiting_free" => {
                dict.keep(at);
                BlockState::PendingFree
            }
            b"inactive" => BlockState::Inactive,
            _ => {
                dict.findings.count("unknown-state", &self.strings.text(id));
                dict.keep(at);
                BlockState::Inactive
            }
        }
    }

    /// The uses of a block, as torch 2.0 lists them, into their table; gives the latest.
    fn history(&mut self, at: usize, block: u32, dict: &mut Dict<'_>) -> Option<History> {
        let items: &[Val] = match dict.val(at).kind() {
            Kind::EmptyList(_) | Kind::EmptyTuple => &[],
            Kind::Object(list) => match &dict.heap.objects[list as usize] {
                Object::List(items) => items,
                _ => return dict.odd(at, "history", None),
            },
            _ => return dict.odd(at, "history", None),
        };
        let first = self.blocks.history.len();
        for item in items {
            match self.use_of(*item, block, dict.heap) {
                Some(used) => self.blocks.history.push(used),
                None => {
                    self.blocks.history.truncate(first);
                    return dict.odd(at, "history", None);
                }
            }
        }
        self.blocks.history.get(first).copied()
    }

    fn use_of(&mut self, val: Val, block: u32, heap: &Heap) -> Option<History> {
        let Kind::Object(object) = val.kind() else { return None };
        let Object::Dict(entries) = &heap.objects[object as usize] else { return None };
        let mut used = History { block, address: u64::MAX, real_size: 0, stack: StackId::NONE };
        for (key, val) in entries {
            let Kind::Str(key) = key.kind() else { return None };
            match self.strings.bytes(key) {
                b"addr" => used.address = heap.unsigned(*val)?,
                b"real_size" => used.real_size = heap.unsigned(*val).filter(|size| *size <= MAX_SIZE)?,
                b"frames" => used.stack = self.stack_of(*val, heap)?,
                _ => return None,
            }
        }
        Some(used)
    }

    fn segment(&mut self, dict: &mut Dict<'_>) -> Val {
        let row = self.segments.len() as u32;
        let mut segment = SegmentRow::default();
        for (at, field) in dict.fields.iter().enumerate() {
            let val = dict.val(at);
            match field {
                Field::Device => segment.device = dict.device(at),
                Field::Address => segment.address = dict.number(at, "address"),
                Field::TotalSize => segment.total_size = dict.size(at, "total_size"),
                Field::Stream => segment.stream = dict.number(at, "stream"),
                Field::SegmentKind => segment.kind = dict.text(at, "segment_type"),
                Field::Pool => segment.pool = dict.pair(at, "segment_pool_id").unwrap_or((0, 0)),
                Field::IsExpandable => match val.kind() {
                    Kind::Bool(is_true) => segment.is_expandable = is_true,
                    _ => dict.odd(at, "is_expandable", ()),
                },
                Field::Frames => segment.stack = self.stack(at, dict),
                Field::ForwardFrames => dict.keep(at),
                Field::Blocks => segment.blocks = self.blocks_of(at, dict),
                _ => {}
            }
        }
        let mut address = segment.address;
        for at in segment.blocks.clone() {
            let at = at as usize;
            if self.blocks.address[at] == u64::MAX {
                self.blocks.address[at] = address;
            }
            address = self.blocks.address[at].saturating_add(self.blocks.size[at]);
        }
        self.check_sums(&segment, dict);
        let kind = segment.kind.unwrap_or_else(|| self.strings.intern(b""));
        let stream = self.stream(segment.stream);
        let segments = &mut self.segments;
        segments.device.push(segment.device);
        segments.address.push(segment.address);
        segments.total_size.push(segment.total_size);
        segments.stream.push(stream);
        segments.kind.push(kind);
        segments.pool.push(segment.pool);
        segments.is_expandable.push(segment.is_expandable);
        segments.stack.push(segment.stack);
        segments.blocks.push(segment.blocks);
        segments.shape.push(dict.shape);
        Kind::Row(Row::Segment, row).into()
    }

    /// The sizes that a segment states must be the sums over its blocks.
    fn check_sums(&self, segment: &SegmentRow, dict: &mut Dict<'_>) {
        let blocks = &self.blocks;
        let sum = |column: &[u64], is_counted: fn(BlockState) -> bool| -> u64 {
            let rows = segment.blocks.start as usize..segment.blocks.end as usize;
            let counted = rows.filter(|row| is_counted(blocks.state[*row]));
            counted.fold(0, |sum, row| sum.saturating_add(column[row]))
        };
        for (at, field) in dict.fields.iter().enumerate() {
            let expected = match field {
                Field::AllocatedSize => sum(&blocks.size, |state| state == BlockState::Allocated),
                Field::ActiveSize => sum(&blocks.size, |state| state != BlockState::Inactive),
                Field::RequestedSize => sum(&blocks.requested, |state| state != BlockState::Inactive),
                _ => continue,
            };
            if dict.heap.unsigned(dict.val(at)) != Some(expected) {
                // Pinned host memory states other sums: its segments are blocks.
                if segment.device != Device::HOST {
                    dict.findings.count("segment-sums", "");
                }
                dict.keep(at);
            }
        }
    }

    fn blocks_of(&mut self, at: usize, dict: &mut Dict<'_>) -> std::ops::Range<u32> {
        match dict.val(at).kind() {
            Kind::EmptyList(_) | Kind::EmptyTuple => 0..0,
            Kind::Object(object) => match dict.heap.objects[object as usize] {
                Object::Run(Row::Block, start, end) => start..end,
                _ => dict.odd(at, "blocks", 0..0),
            },
            _ => dict.odd(at, "blocks", 0..0),
        }
    }

    fn annotation(&mut self, dict: &mut Dict<'_>) -> Val {
        let row = self.annotations.len() as u32;
        let name = StrId(u32::MAX);
        let mut annotation = Annotation { is_start: false, name, device: 0, time_us: 0, shape: dict.shape };
        for (at, field) in dict.fields.iter().enumerate() {
            match field {
                Field::Stage => match dict.val(at).kind() {
                    Kind::Str(id) if self.strings.bytes(id) == b"START" => annotation.is_start = true,
                    Kind::Str(id) if self.strings.bytes(id) == b"END" => annotation.is_start = false,
                    _ => dict.odd(at, "stage", ()),
                },
                Field::Name => annotation.name = dict.text(at, "name").unwrap_or(name),
                Field::Device => annotation.device = dict.device(at),
                Field::Time => annotation.time_us = dict.number(at, "time_us") as i64,
                _ => {}
            }
        }
        self.annotations.push(annotation);
        Kind::Row(Row::Annotation, row).into()
    }

    fn frame(&mut self, dict: &mut Dict<'_>) -> Val {
        let empty = self.strings.intern(b"");
        let mut frame = Frame { name: empty, filename: empty, line: 0, more: 0 };
        let mut fields = Vec::new();
        for (at, field) in dict.fields.iter().enumerate() {
            let val = dict.val(at);
            match (field, val.kind()) {
                (Field::Name, Kind::Str(id)) => frame.name = id,
                (Field::Filename, Kind::Str(id)) => {
                    frame.filename = id;
                    if !self.seen.torch_npu && contains(self.strings.bytes(id), b"torch_npu") {
                        self.seen.torch_npu = true;
                    }
                }
                (Field::Line, Kind::Int(line @ 0..=0xffff_fffe)) => frame.line = line as u32,
                // -1 arrives as 2^64-1: unknown.
                (Field::Line, _) if dict.heap.unsigned(val) == Some(u64::MAX) => {
                    frame.line = Frame::UNKNOWN_LINE
                }
                (_, Kind::Str(id)) => fields.extend(dict.key(at).map(|key| (key, MoreValue::Text(id)))),
                (_, Kind::Int(number)) => {
                    fields.extend(dict.key(at).map(|key| (key, MoreValue::Number(number))));
                }
                _ => dict.odd(at, "of a frame", ()),
            }
        }
        if !fields.is_empty() || self.plain_frame != Some(dict.shape) {
            frame.more = self.more(dict.shape, fields);
        }
        Kind::Frame(self.stacks.intern_frame(frame)).into()
    }

    /// What a frame has beyond name, file and line, as a number.
    #[cold]
    fn more(&mut self, shape: ShapeId, fields: Vec<(StrId, MoreValue)>) -> u32 {
        // Nearly every frame of a file has the same three keys: these are number 0.
        if self.plain_frame.is_none() && fields.is_empty() {
            self.plain_frame = Some(shape);
            self.stacks.set_plain(shape);
            return 0;
        }
        self.stacks.intern_more(More { shape, fields })
    }
}

/// Device ordinals beyond this are no ordinals.
pub(super) const MAX_DEVICE: u32 = 1023;

const MAX_DEVICE_NUMBER: i128 = MAX_DEVICE as i128;

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

fn field(target: Target, name: &[u8]) -> Field {
    match (target, name) {
        (Target::Row(Row::Event), b"action") => Field::Action,
        (Target::Row(Row::Event), b"addr") => Field::Address,
        (Target::Row(Row::Event), b"device_free") => Field::DeviceFree,
        (Target::Row(Row::Event), b"compile_context") => Field::CompileContext,
        (Target::Row(Row::Event), b"user_metadata") => Field::UserMetadata,
        (Target::Row(Row::Event), b"pool_id") => Field::Pool,
        (Target::Row(Row::Event), b"category") => Field::Category,
        (Target::Row(Row::Event), b"internal_metadata") => Field::Internal,
        (Target::Row(Row::Event | Row::Block | Row::Segment), b"forward_frames") => Field::ForwardFrames,
        (Target::Row(Row::Event | Row::Annotation), b"time_us") => Field::Time,
        (Target::Row(Row::Event | Row::Segment), b"stream") => Field::Stream,
        (Target::Row(Row::Event | Row::Block), b"size") => Field::Size,
        (Target::Row(Row::Event | Row::Block | Row::Segment), b"frames") => Field::Frames,
        (Target::Row(Row::Block | Row::Segment), b"address") => Field::Address,
        (Target::Row(Row::Block), b"requested_size") => Field::Requested,
        (Target::Row(Row::Block), b"state") => Field::State,
        (Target::Row(Row::Block), b"history") => Field::History,
        (Target::Row(Row::Segment | Row::Annotation), b"device") => Field::Device,
        (Target::Row(Row::Segment), b"total_size") => Field::TotalSize,
        (Target::Row(Row::Segment), b"segment_type") => Field::SegmentKind,
        (Target::Row(Row::Segment), b"segment_pool_id") => Field::Pool,
        (Target::Row(Row::Segment), b"is_expandable") => Field::IsExpandable,
        (Target::Row(Row::Segment), b"blocks") => Field::Blocks,
        (Target::Row(Row::Segment), b"allocated_size") => Field::AllocatedSize,
        (Target::Row(Row::Segment), b"active_size") => Field::ActiveSize,
        (Target::Row(Row::Segment), b"requested_size") => Field::RequestedSize,
        (Target::Row(Row::Annotation), b"stage") => Field::Stage,
        (Target::Row(Row::Annotation) | Target::Frame, b"name") => Field::Name,
        (Target::Frame, b"filename") => Field::Filename,
        (Target::Frame, b"line") => Field::Line,
        (Target::Frame, b"fx_node_op" | b"fx_node_name" | b"fx_node_target" | b"fx_original_trace") => {
            Field::Fx
        }
        _ => Field::Unknown,
    }
}

struct EventRow {
    action: Action,
    address: u64,
    device_free: Option<u64>,
    size: u64,
    stream: u64,
    time_us: i64,
    stack: StackId,
}

impl Default for EventRow {
    fn default() -> Self {
        Self {
            action: Action::SNAPSHOT,
            address: 0,
            device_free: None,
            size: 0,
            stream: 0,
            time_us: 0,
            stack: StackId::NONE,
        }
    }
}

struct BlockRow {
    address: Option<u64>,
    size: u64,
    requested: Option<u64>,
    state: BlockState,
    stack: StackId,
}

impl Default for BlockRow {
    fn default() -> Self {
        Self { address: None, size: 0, requested: None, state: BlockState::Inactive, stack: StackId::NONE }
    }
}

struct SegmentRow {
    device: u32,
    address: u64,
    total_size: u64,
    stream: u64,
    kind: Option<StrId>,
    pool: (u64, u64),
    is_expandable: bool,
    stack: StackId,
    blocks: std::ops::Range<u32>,
}

impl Default for SegmentRow {
    fn default() -> Self {
        Self {
            device: 0,
            address: 0,
            total_size: 0,
            stream: 0,
            kind: None,
            pool: (0, 0),
            is_expandable: false,
            stack: StackId::NONE,
            blocks: 0..0,
        }
    }
}

/// The items of one dict and the fields they belong to.
struct Dict<'a> {
    items: &'a [Val],
    fields: &'a [Field],
    shape: ShapeId,
    heap: &'a Heap,
    findings: &'a mut Findings,
    /// Fields that no column holds.
    loose: Vec<(Val, Val)>,
}

impl Dict<'_> {
    #[inline]
    fn val(&self, at: usize) -> Val {
        self.items[2 * at + 1]
    }

    fn key(&self, at: usize) -> Option<StrId> {
        match self.items[2 * at].kind() {
            Kind::Str(id) => Some(id),
            _ => None,
        }
    }

    #[inline]
    fn number(&mut self, at: usize, what: &str) -> u64 {
        match self.heap.unsigned(self.val(at)) {
            Some(number) => number,
            None => self.odd(at, what, 0),
        }
    }

    #[inline]
    fn size(&mut self, at: usize, what: &str) -> u64 {
        match self.heap.unsigned(self.val(at)) {
            Some(size) if size <= MAX_SIZE => size,
            _ => self.odd(at, what, 0),
        }
    }

    #[inline]
    fn text(&mut self, at: usize, what: &str) -> Option<StrId> {
        match self.val(at).kind() {
            Kind::Str(id) => Some(id),
            _ => self.odd(at, what, None),
        }
    }

    /// An ordinal; -1 is pinned host memory.
    fn device(&mut self, at: usize) -> u32 {
        match self.heap.int(self.val(at)) {
            Some(-1) => Device::HOST,
            Some(device @ 0..=MAX_DEVICE_NUMBER) => device as u32,
            _ => self.odd(at, "device", 0),
        }
    }

    fn pair(&mut self, at: usize, what: &str) -> Option<(u64, u64)> {
        match self.val(at).kind() {
            Kind::Pair(row) => Some(self.heap.pairs[row as usize]),
            // A list of two, as files that went through JSON have it.
            Kind::Object(object) => match &self.heap.objects[object as usize] {
                Object::List(items) => match items[..] {
                    [first, second] => self.heap.unsigned(first).zip(self.heap.unsigned(second)),
                    _ => self.odd(at, what, None),
                },
                _ => self.odd(at, what, None),
            },
            _ => self.odd(at, what, None),
        }
    }

    /// A value that its column cannot hold: counted, and kept as it is.
    #[cold]
    fn odd<T>(&mut self, at: usize, what: &str, instead: T) -> T {
        self.findings.count("odd-field", what);
        self.keep(at);
        instead
    }

    #[cold]
    fn keep(&mut self, at: usize) {
        self.loose.push((self.items[2 * at], self.items[2 * at + 1]));
    }

    #[cold]
    fn keep_named(&mut self, field: Field) {
        if let Some(at) = self.fields.iter().position(|found| *found == field) {
            self.keep(at);
        }
    }

    fn count_unknown(&mut self, target: Target, strings: &Strings) {
        for (field, pair) in self.fields.iter().zip(self.items.chunks_exact(2)) {
            if *field != Field::Unknown {
                continue;
            }
            let of = match target {
                Target::Row(Row::Event) => "an event",
                Target::Row(Row::Block) => "a block",
                Target::Row(Row::Segment) => "a segment",
                Target::Row(Row::Annotation) => "an annotation",
                _ => "a frame",
            };
            let name = match pair[0].kind() {
                Kind::Str(id) => strings.text(id).into_owned(),
                _ => "(not a text)".to_owned(),
            };
            self.findings.count("unknown-key", &format!("\"{name}\" of {of}"));
            self.loose.push((pair[0], pair[1]));
        }
    }
}
