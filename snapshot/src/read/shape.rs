//! Pickle values to tables, field by field, as they stream past.
//!
//! A dict is recognized by its keys: one with `action` is an event, with `blocks` a segment, with `state` a
//! block, with `stage` an annotation, with `name` and `filename` a frame. Dicts of one kind come with the same
//! keys in the same order, so the mapping from keys to columns is found once and remembered.

use super::ReadError;
use super::findings::Findings;
use super::pickle::{Heap, Kind, Object, Val};
use crate::Snapshot;
use crate::model::{
    Action, ActionNames, Annotation, BlockState, Blocks, Device, Extra, Frame, Segments, StackId, Stacks,
    StrId, Strings, Trace, Value,
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
    IsInternal,
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
    /// Known, and derivable from the rest.
    Derived,
    /// Kept as a finding.
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
}

/// Different key sequences remembered; real files have fewer than ten.
const MAX_SHAPES: usize = 64;

/// Sizes beyond 1 EiB are no sizes: torch writes -1 as 2^64-1.
const MAX_SIZE: u64 = 1 << 60;

/// Which fields were seen: the fingerprints of torch's releases.
#[derive(Default)]
struct Seen {
    history: bool,
    compile_context: bool,
    user_metadata: bool,
    pool: bool,
    torch_npu: bool,
    category: bool,
}

/// The tables while they fill.
#[derive(Default)]
pub(crate) struct Builder {
    pub(crate) strings: Strings,
    pub(crate) stacks: Stacks,
    streams: Vec<u64>,
    action_names: ActionNames,
    actions: Vec<(StrId, Action)>,
    trace: Trace,
    has_time: bool,
    last_extra: (Extra, u32),
    segments: Segments,
    blocks: Blocks,
    annotations: Vec<Annotation>,
    shapes: Vec<Shape>,
    last_shape: usize,
    seen: Seen,
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
        let fields = std::mem::take(&mut self.shapes[shape].fields);
        let mut dict = Dict { items, fields: &fields, heap, findings };
        let val = match target {
            Target::Row(Row::Event) => self.event(&mut dict),
            Target::Row(Row::Block) => self.block(&mut dict),
            Target::Row(Row::Segment) => self.segment(&mut dict),
            Target::Row(Row::Annotation) => self.annotation(&mut dict),
            _ => self.frame(&mut dict),
        };
        dict.count_unknown(target, &self.strings);
        self.shapes[shape].fields = fields;
        Ok(Some(val))
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
        self.shapes.push(Shape { keys, target, fields });
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
        let target = if has(b"action") && has(b"size") {
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
        let mut extra = Extra::default();
        for (field, val) in dict.fields.iter().zip(dict.items.chunks_exact(2)) {
            let val = val[1];
            match field {
                Field::Action => event.action = self.action(val, dict.findings),
                Field::Address | Field::DeviceFree => event.address = dict.number(val, "addr"),
                Field::Size => event.size = dict.size(val, "size"),
                Field::Stream => event.stream = dict.number(val, "stream"),
                Field::Time => {
                    event.time_us = dict.number(val, "time_us") as i64;
                    self.has_time = true;
                }
                Field::Frames => event.stack = self.stack(val, dict),
                Field::CompileContext => {
                    self.seen.compile_context = true;
                    // Torch writes "N/A" for none.
                    extra.compile_context = self.note(val, b"N/A");
                }
                Field::UserMetadata => {
                    self.seen.user_metadata = true;
                    extra.user_metadata = self.note(val, b"");
                }
                Field::Pool => {
                    self.seen.pool = true;
                    extra.pool = dict.pair(val, "pool_id");
                }
                Field::Category => {
                    self.seen.category = true;
                    extra.category = self.note(val, b"");
                }
                Field::IsInternal => extra.is_internal = true,
                _ => {}
            }
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

    fn action(&mut self, val: Val, findings: &mut Findings) -> Action {
        let Kind::Str(id) = val.kind() else {
            findings.count("odd-field", "action");
            return self.action_names.intern("?");
        };
        if let Some((_, action)) = self.actions.iter().find(|(name, _)| *name == id) {
            if action.known_name().is_none() {
                findings.count("unknown-action", &self.strings.text(id));
            }
            return *action;
        }
        let name = self.strings.text(id);
        let action = Action::known(&name).unwrap_or_else(|| {
            findings.count("unknown-action", &name);
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

    fn note(&self, val: Val, none: &[u8]) -> Option<StrId> {
        match val.kind() {
            Kind::Str(id) if self.strings.bytes(id) != none && !self.strings.bytes(id).is_empty() => Some(id),
            _ => None,
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

    fn stack(&mut self, val: Val, dict: &mut Dict<'_>) -> StackId {
        match val.kind() {
            Kind::Stack(id) => id,
            Kind::EmptyList(_) | Kind::EmptyTuple => StackId::EMPTY,
            Kind::None => StackId::NONE,
            Kind::Object(object) => match &dict.heap.objects[object as usize] {
                // A stack of more than a thousand frames.
                Object::List(items) => {
                    let frames: Vec<u32> = items
                        .iter()
                        .filter_map(|item| match item.kind() {
                            Kind::Frame(id) => Some(id.0),
                            _ => None,
                        })
                        .collect();
                    if frames.len() < items.len() {
                        dict.findings.count("odd-field", "frames");
                    }
                    self.stacks.intern(&frames)
                }
                _ => dict.odd("frames", StackId::NONE),
            },
            _ => dict.odd("frames", StackId::NONE),
        }
    }

    fn block(&mut self, dict: &mut Dict<'_>) -> Val {
        let row = self.blocks.len() as u32;
        let mut block = (None, 0, None, BlockState::Inactive, StackId::NONE);
        let mut history = None;
        for (field, val) in dict.fields.iter().zip(dict.items.chunks_exact(2)) {
            let val = val[1];
            match field {
                Field::Address => block.0 = Some(dict.number(val, "addr")),
                Field::Size => block.1 = dict.size(val, "size"),
                Field::Requested => block.2 = Some(dict.size(val, "requested_size")),
                Field::State => block.3 = self.block_state(val, dict.findings),
                Field::Frames => block.4 = self.stack(val, dict),
                Field::History => history = self.history(val, dict),
                _ => {}
            }
        }
        if let Some((address, requested, stack)) = history {
            // Torch 2.0: the latest use of the block; its address is the block's while it is in use.
            self.seen.history = true;
            block.0 = block.0.or(Some(address).filter(|_| block.3 != BlockState::Inactive));
            block.2 = block.2.or(Some(requested));
            block.4 = stack;
        }
        // Torch 2.0 writes no address: it follows from the blocks before, once the segment is known.
        self.blocks.address.push(block.0.unwrap_or(u64::MAX));
        self.blocks.size.push(block.1);
        self.blocks.requested.push(block.2.unwrap_or(block.1));
        self.blocks.state.push(block.3);
        self.blocks.stack.push(block.4);
        Kind::Row(Row::Block, row).into()
    }

    fn block_state(&self, val: Val, findings: &mut Findings) -> BlockState {
        let Kind::Str(id) = val.kind() else {
            findings.count("odd-field", "state");
            return BlockState::Inactive;
        };
        match self.strings.bytes(id) {
            b"active_allocated" => BlockState::Allocated,
            // Torch's documents say "awaiting", its code writes "pending".
            b"active_pending_free" | b"active_awaiting_free" => BlockState::PendingFree,
            b"inactive" => BlockState::Inactive,
            _ => {
                findings.count("unknown-state", &self.strings.text(id));
                BlockState::Inactive
            }
        }
    }

    /// Address, requested bytes and stack of the latest use.
    fn history(&mut self, val: Val, dict: &mut Dict<'_>) -> Option<(u64, u64, StackId)> {
        let latest = match val.kind() {
            Kind::Object(list) => match &dict.heap.objects[list as usize] {
                Object::List(items) => *items.first()?,
                _ => return None,
            },
            _ => return None,
        };
        let Kind::Object(latest) = latest.kind() else { return dict.odd("history", None) };
        let Object::Dict(entries) = &dict.heap.objects[latest as usize] else {
            return dict.odd("history", None);
        };
        let mut used = (u64::MAX, 0, StackId::NONE);
        for (key, val) in entries {
            let Kind::Str(key) = key.kind() else { continue };
            match self.strings.bytes(key) {
                b"addr" => used.0 = dict.number(*val, "history.addr"),
                b"real_size" => used.1 = dict.size(*val, "history.real_size"),
                b"frames" => used.2 = self.stack(*val, dict),
                _ => {}
            }
        }
        Some(used)
    }

    fn segment(&mut self, dict: &mut Dict<'_>) -> Val {
        let row = self.segments.len() as u32;
        let mut segment = SegmentRow::default();
        for (field, val) in dict.fields.iter().zip(dict.items.chunks_exact(2)) {
            let val = val[1];
            match field {
                Field::Device => {
                    let device = dict.number(val, "device");
                    segment.device = u32::try_from(device)
                        .ok()
                        .filter(|d| *d <= MAX_DEVICE)
                        .unwrap_or_else(|| dict.odd("device", 0));
                }
                Field::Address => segment.address = dict.number(val, "address"),
                Field::TotalSize => segment.total_size = dict.size(val, "total_size"),
                Field::Stream => segment.stream = dict.number(val, "stream"),
                Field::SegmentKind => {
                    if let Kind::Str(id) = val.kind() {
                        segment.kind = Some(id);
                    }
                }
                Field::Pool => segment.pool = dict.pair(val, "segment_pool_id").unwrap_or((0, 0)),
                Field::IsExpandable => segment.is_expandable = val.kind() == Kind::Bool(true),
                Field::Frames => segment.stack = self.stack(val, dict),
                Field::Blocks => segment.blocks = self.blocks_of(val, dict),
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
        Kind::Row(Row::Segment, row).into()
    }

    fn blocks_of(&mut self, val: Val, dict: &mut Dict<'_>) -> std::ops::Range<u32> {
        match val.kind() {
            Kind::EmptyList(_) => 0..0,
            Kind::Object(object) => match dict.heap.objects[object as usize] {
                Object::Run(Row::Block, start, end) => start..end,
                _ => dict.odd("blocks", 0..0),
            },
            _ => dict.odd("blocks", 0..0),
        }
    }

    fn annotation(&mut self, dict: &mut Dict<'_>) -> Val {
        let row = self.annotations.len() as u32;
        let mut annotation = Annotation { is_start: false, name: StrId(u32::MAX), device: 0, time_us: 0 };
        for (field, val) in dict.fields.iter().zip(dict.items.chunks_exact(2)) {
            let val = val[1];
            match field {
                Field::Stage => {
                    annotation.is_start =
                        matches!(val.kind(), Kind::Str(id) if self.strings.bytes(id) == b"START");
                }
                Field::Name => {
                    if let Kind::Str(id) = val.kind() {
                        annotation.name = id;
                    }
                }
                Field::Device => annotation.device = dict.number(val, "device") as u32,
                Field::Time => annotation.time_us = dict.number(val, "time_us") as i64,
                _ => {}
            }
        }
        self.annotations.push(annotation);
        Kind::Row(Row::Annotation, row).into()
    }

    fn frame(&mut self, dict: &mut Dict<'_>) -> Val {
        let empty = self.strings.intern(b"");
        let mut frame = Frame { name: empty, filename: empty, line: 0 };
        for (field, val) in dict.fields.iter().zip(dict.items.chunks_exact(2)) {
            match (field, val[1].kind()) {
                (Field::Name, Kind::Str(id)) => frame.name = id,
                (Field::Filename, Kind::Str(id)) => {
                    frame.filename = id;
                    if !self.seen.torch_npu && contains(self.strings.bytes(id), b"torch_npu") {
                        self.seen.torch_npu = true;
                    }
                }
                // -1 arrives as 2^64-1: unknown, like every line that is no line.
                (Field::Line, _) => {
                    frame.line = u32::try_from(dict.heap.int(val[1]).unwrap_or(0)).unwrap_or(0)
                }
                _ => {}
            }
        }
        Kind::Frame(self.stacks.intern_frame(frame)).into()
    }

    /// Puts the tables together once the pickle has ended with `top`.
    pub(crate) fn finish(
        mut self,
        heap: Heap,
        mut findings: Findings,
        top: Val,
        wrapping: String,
        content_bytes: u64,
    ) -> Result<Snapshot, ReadError> {
        let parts = self.parts(&heap, top, &mut findings)?;
        let settings = parts.settings.map_or_else(Vec::new, |val| self.settings(&heap, val));
        self.warn_of_host_memory(&heap, &parts, &mut findings);
        let segments_by_device = self.segments_by_device(&heap, parts.segments, &mut findings);
        let traces = self.traces(&heap, parts.traces, &mut findings);
        let annotations = self.annotations_of(&heap, parts.annotations, &mut findings);
        let producer = self.producer(&parts, &settings);
        if self.seen.category {
            findings.count("from-the-profiler", "");
        }
        if !self.has_time {
            self.trace.time_us = Vec::new();
        }
        if self.trace.extras.is_empty() {
            self.trace.extras.push(Extra::default());
        }
        let (trace, event_ranges) = arrange_trace(self.trace, traces);
        let (segments, segment_ranges) = arrange_segments(self.segments, segments_by_device);
        let n = event_ranges.len().max(segment_ranges.len());
        let devices = (0..n)
            .map(|at| Device {
                ordinal: at as u32,
                events: event_ranges.get(at).cloned().unwrap_or(0..0),
                segments: segment_ranges.get(at).cloned().unwrap_or(0..0),
            })
            .filter(|device| !device.events.is_empty() || !device.segments.is_empty())
            .collect();
        Ok(Snapshot {
            wrapping: vec![wrapping],
            content_bytes,
            producer,
            strings: self.strings,
            stacks: self.stacks,
            streams: self.streams,
            action_names: self.action_names,
            trace,
            segments,
            blocks: self.blocks,
            devices,
            host: None,
            annotations,
            settings,
            findings: findings.into_findings(),
        })
    }

    fn parts(&self, heap: &Heap, top: Val, findings: &mut Findings) -> Result<Parts, ReadError> {
        let mut parts = Parts::default();
        match top.kind() {
            // torch.cuda.memory_snapshot(): the segments alone.
            Kind::Object(object)
                if matches!(heap.objects[object as usize], Object::Run(Row::Segment, ..)) =>
            {
                parts.segments = Some(top);
                return Ok(parts);
            }
            Kind::Object(object) => {
                if let Object::Dict(entries) = &heap.objects[object as usize] {
                    for (key, val) in entries {
                        let Kind::Str(key) = key.kind() else { continue };
                        match self.strings.bytes(key) {
                            b"segments" => parts.segments = Some(*val),
                            b"device_traces" => parts.traces = Some(*val),
                            b"allocator_settings" => parts.settings = Some(*val),
                            b"external_annotations" => parts.annotations = Some(*val),
                            b"host_segments" => parts.host_segments = Some(*val),
                            b"host_traces" => parts.host_traces = Some(*val),
                            _ => findings
                                .count("unknown-key", &format!("\"{}\" at the top", self.strings.text(key))),
                        }
                    }
                }
            }
            _ => {}
        }
        if parts.segments.is_some() || parts.traces.is_some() {
            return Ok(parts);
        }
        let message = "the pickle is readable but holds no memory snapshot: there is neither \"segments\" nor \
                       \"device_traces\" at its top; snapshots come from torch.cuda.memory._dump_snapshot()";
        Err(ReadError::new(ReadError::NOT_A_SNAPSHOT, None, message))
    }

    fn settings(&self, heap: &Heap, val: Val) -> Vec<(String, Value)> {
        let mut budget = MAX_SETTING_NODES;
        match self.value(heap, val, 0, &mut budget) {
            Value::Dict(entries) => entries
                .into_iter()
                .filter_map(|(key, value)| match key {
                    Value::Str(key) => Some((key, value)),
                    _ => None,
                })
                .collect(),
            _ => Vec::new(),
        }
    }

    /// A plain copy of a small value; deep or endlessly shared ones are cut off.
    fn value(&self, heap: &Heap, val: Val, depth: u32, budget: &mut u32) -> Value {
        const MAX_DEPTH: u32 = 16;
        if depth > MAX_DEPTH || *budget == 0 {
            return Value::None;
        }
        *budget -= 1;
        match val.kind() {
            Kind::Bool(is_true) => Value::Bool(is_true),
            Kind::Int(number) => Value::Int(i128::from(number)),
            Kind::Big(row) => Value::Int(heap.bigs[row as usize]),
            Kind::Float(row) => Value::Float(heap.floats[row as usize]),
            Kind::Str(id) => Value::Str(self.strings.text(id).into_owned()),
            Kind::EmptyList(_) | Kind::EmptyTuple => Value::List(Vec::new()),
            Kind::EmptyDict(_) => Value::Dict(Vec::new()),
            Kind::Pair(row) => {
                let (first, second) = heap.pairs[row as usize];
                Value::List(vec![Value::Int(first.into()), Value::Int(second.into())])
            }
            Kind::Object(object) => match &heap.objects[object as usize] {
                Object::List(items) => {
                    let mut values = Vec::new();
                    for item in items.iter().take(*budget as usize) {
                        values.push(self.value(heap, *item, depth + 1, budget));
                    }
                    Value::List(values)
                }
                Object::Dict(entries) => {
                    let mut values = Vec::new();
                    for (key, item) in entries.iter().take(*budget as usize) {
                        let key = self.value(heap, *key, depth + 1, budget);
                        values.push((key, self.value(heap, *item, depth + 1, budget)));
                    }
                    Value::Dict(values)
                }
                Object::Run(..) | Object::Became(_) => Value::None,
            },
            _ => Value::None,
        }
    }

    fn warn_of_host_memory(&self, heap: &Heap, parts: &Parts, findings: &mut Findings) {
        let len = |val: Option<Val>| match val.map(Val::kind) {
            Some(Kind::Object(object)) => match &heap.objects[object as usize] {
                Object::List(items) => items.len(),
                Object::Run(_, start, end) => (end - start) as usize,
                Object::Dict(entries) => entries.len(),
                Object::Became(_) => 0,
            },
            _ => 0,
        };
        let (n_segments, n_events) = (len(parts.host_segments), len(parts.host_traces));
        if n_segments + n_events > 0 {
            findings.count("host-memory", &format!("{n_segments} segments, {n_events} events"));
        }
    }

    /// Rows of segments, by device.
    fn segments_by_device(&self, heap: &Heap, val: Option<Val>, findings: &mut Findings) -> Vec<Vec<u32>> {
        let mut by_device: Vec<Vec<u32>> = Vec::new();
        for row in rows_of(heap, val, Row::Segment, "segments", findings) {
            let device = self.segments.device[row as usize] as usize;
            if by_device.len() <= device {
                by_device.resize(device + 1, Vec::new());
            }
            by_device[device].push(row);
        }
        by_device
    }

    /// Rows of events, by device ordinal.
    fn traces(&self, heap: &Heap, val: Option<Val>, findings: &mut Findings) -> Vec<Rows> {
        let Some(val) = val else { return Vec::new() };
        let lists: &[Val] = match val.kind() {
            Kind::Object(object) => match &heap.objects[object as usize] {
                Object::List(items) => items,
                _ => {
                    findings.count("odd-entry", "device_traces");
                    &[]
                }
            },
            _ => &[],
        };
        if lists.len() > MAX_DEVICE as usize + 1 {
            findings.count("odd-entry", "device_traces");
        }
        lists
            .iter()
            .take(MAX_DEVICE as usize + 1)
            .map(|list| match list.kind() {
                Kind::Object(object) => match &heap.objects[object as usize] {
                    Object::Run(Row::Event, start, end) => Rows::Run(*start, *end),
                    _ => Rows::Each(rows_of(heap, Some(*list), Row::Event, "device_traces", findings)),
                },
                _ => Rows::Each(rows_of(heap, Some(*list), Row::Event, "device_traces", findings)),
            })
            .collect()
    }

    fn annotations_of(&self, heap: &Heap, val: Option<Val>, findings: &mut Findings) -> Vec<Annotation> {
        rows_of(heap, val, Row::Annotation, "external_annotations", findings)
            .into_iter()
            .map(|row| self.annotations[row as usize].clone())
            .collect()
    }

    /// What wrote the file, from the fields that each release added.
    fn producer(&self, parts: &Parts, settings: &[(String, Value)]) -> String {
        let has = |name: &str| settings.iter().any(|(key, _)| key == name);
        let has_events = !self.trace.is_empty();
        let name = if self.seen.category {
            // torch.cuda._memory_viz.profile_plot's conversion; no allocator writes categories.
            "torch.profiler"
        } else if self.seen.torch_npu {
            "torch_npu"
        } else if self.seen.history {
            "torch 2.0"
        } else if parts.host_traces.is_some() {
            "torch 2.14+"
        } else if has("max_cached_size") {
            "torch 2.13"
        } else if self.seen.pool {
            "torch 2.12"
        } else if self.seen.user_metadata {
            "torch 2.10+"
        } else if has("graph_capture_record_stream_reuse") {
            if has_events { "torch 2.9" } else { "torch 2.9+" }
        } else if self.seen.compile_context {
            "torch 2.8"
        } else if parts.annotations.is_some() {
            if has_events { "torch 2.5–2.7" } else { "torch 2.5–2.8" }
        } else if parts.settings.is_some() {
            "torch 2.3–2.4"
        } else if has_events && !self.has_time {
            "torch 2.1"
        } else if has_events {
            "torch 2.2"
        } else {
            "unknown"
        };
        name.to_owned()
    }
}

/// Device ordinals beyond this are no ordinals.
const MAX_DEVICE: u32 = 1023;

/// Values kept of `allocator_settings`; a real one has some thirty.
const MAX_SETTING_NODES: u32 = 10_000;

#[derive(Default)]
struct Parts {
    segments: Option<Val>,
    traces: Option<Val>,
    settings: Option<Val>,
    annotations: Option<Val>,
    host_segments: Option<Val>,
    host_traces: Option<Val>,
}

enum Rows {
    Run(u32, u32),
    Each(Vec<u32>),
}

fn rows_of(heap: &Heap, val: Option<Val>, row: Row, what: &str, findings: &mut Findings) -> Vec<u32> {
    match val.map(Val::kind) {
        None | Some(Kind::EmptyList(_) | Kind::EmptyTuple | Kind::None) => Vec::new(),
        Some(Kind::Object(object)) => match &heap.objects[object as usize] {
            Object::Run(found, start, end) if *found == row => (*start..*end).collect(),
            Object::List(items) => items
                .iter()
                .filter_map(|item| match item.kind() {
                    Kind::Row(found, at) if found == row => Some(at),
                    _ => {
                        findings.count("odd-entry", what);
                        None
                    }
                })
                .collect(),
            _ => {
                findings.count("odd-entry", what);
                Vec::new()
            }
        },
        Some(_) => {
            findings.count("odd-entry", what);
            Vec::new()
        }
    }
}

/// Brings the events into device order; does nothing when they are in it, as in every real file.
fn arrange_trace(trace: Trace, traces: Vec<Rows>) -> (Trace, Vec<std::ops::Range<usize>>) {
    let mut ranges = Vec::with_capacity(traces.len());
    let mut next = 0;
    let mut is_in_order = true;
    for rows in &traces {
        match rows {
            Rows::Run(start, end) => {
                is_in_order &= *start as usize == next;
                next += (end - start) as usize;
            }
            Rows::Each(rows) => {
                is_in_order &= rows.is_empty();
                next += rows.len();
            }
        }
        let start = ranges.last().map_or(0, |range: &std::ops::Range<usize>| range.end);
        ranges.push(start..next);
    }
    if is_in_order && next == trace.len() {
        return (trace, ranges);
    }
    let rows = || {
        traces.iter().flat_map(|rows| match rows {
            Rows::Run(start, end) => (*start..*end).collect::<Vec<_>>(),
            Rows::Each(rows) => rows.clone(),
        })
    };
    fn gather<T: Copy>(column: &[T], rows: impl Iterator<Item = u32>) -> Vec<T> {
        if column.is_empty() { Vec::new() } else { rows.map(|row| column[row as usize]).collect() }
    }
    let arranged = Trace {
        action: gather(&trace.action, rows()),
        address: gather(&trace.address, rows()),
        size: gather(&trace.size, rows()),
        stream: gather(&trace.stream, rows()),
        stack: gather(&trace.stack, rows()),
        time_us: gather(&trace.time_us, rows()),
        extra: gather(&trace.extra, rows()),
        extras: trace.extras,
    };
    (arranged, ranges)
}

/// Brings the segments into device order.
fn arrange_segments(segments: Segments, by_device: Vec<Vec<u32>>) -> (Segments, Vec<std::ops::Range<usize>>) {
    let mut ranges = Vec::with_capacity(by_device.len());
    let mut next = 0;
    for rows in &by_device {
        ranges.push(next..next + rows.len());
        next += rows.len();
    }
    let rows = || by_device.iter().flatten().map(|row| *row as usize);
    let arranged = Segments {
        device: rows().map(|row| segments.device[row]).collect(),
        address: rows().map(|row| segments.address[row]).collect(),
        total_size: rows().map(|row| segments.total_size[row]).collect(),
        stream: rows().map(|row| segments.stream[row]).collect(),
        kind: rows().map(|row| segments.kind[row]).collect(),
        pool: rows().map(|row| segments.pool[row]).collect(),
        is_expandable: rows().map(|row| segments.is_expandable[row]).collect(),
        stack: rows().map(|row| segments.stack[row]).collect(),
        blocks: rows().map(|row| segments.blocks[row].clone()).collect(),
    };
    (arranged, ranges)
}

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
        (Target::Row(Row::Event), b"internal_metadata") => Field::IsInternal,
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
        (Target::Row(Row::Segment), b"allocated_size" | b"active_size" | b"requested_size") => Field::Derived,
        (Target::Row(Row::Annotation), b"stage") => Field::Stage,
        (Target::Row(Row::Annotation) | Target::Frame, b"name") => Field::Name,
        (Target::Frame, b"filename") => Field::Filename,
        (Target::Frame, b"line") => Field::Line,
        _ => Field::Unknown,
    }
}

struct EventRow {
    action: Action,
    address: u64,
    size: u64,
    stream: u64,
    time_us: i64,
    stack: StackId,
}

impl Default for EventRow {
    fn default() -> Self {
        Self { action: Action::SNAPSHOT, address: 0, size: 0, stream: 0, time_us: 0, stack: StackId::NONE }
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
    heap: &'a Heap,
    findings: &'a mut Findings,
}

impl Dict<'_> {
    fn number(&mut self, val: Val, what: &str) -> u64 {
        self.heap.unsigned(val).unwrap_or_else(|| self.odd(what, 0))
    }

    fn size(&mut self, val: Val, what: &str) -> u64 {
        match self.heap.unsigned(val) {
            Some(size) if size <= MAX_SIZE => size,
            _ => self.odd(what, 0),
        }
    }

    fn pair(&mut self, val: Val, what: &str) -> Option<(u64, u64)> {
        match val.kind() {
            Kind::Pair(row) => Some(self.heap.pairs[row as usize]),
            // A list of two, as files that went through JSON have it.
            Kind::Object(object) => match &self.heap.objects[object as usize] {
                Object::List(items) => match items[..] {
                    [first, second] => self.heap.unsigned(first).zip(self.heap.unsigned(second)),
                    _ => self.odd(what, None),
                },
                _ => self.odd(what, None),
            },
            _ => self.odd(what, None),
        }
    }

    #[cold]
    fn odd<T>(&mut self, what: &str, instead: T) -> T {
        self.findings.count("odd-field", what);
        instead
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
        }
    }
}
