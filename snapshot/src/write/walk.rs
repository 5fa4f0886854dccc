//! The values of a snapshot in the order in which they stand in a file, given to whoever writes them down.

use std::io;

use crate::Snapshot;
use crate::model::{Action, BlockState, Device, Frame, KeptOf, MoreValue, ShapeId, StackId, StrId, Value};

/// Something many places share, written once where the format can.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Shared {
    Frame(u32),
    Stack(u32),
}

/// Writes values down.
pub(super) trait Sink {
    fn none(&mut self) -> io::Result<()>;
    fn bool(&mut self, is_true: bool) -> io::Result<()>;
    fn int(&mut self, number: i128) -> io::Result<()>;
    fn float(&mut self, number: f64) -> io::Result<()>;
    fn text(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// A text by its number; the same number is always the same text.
    fn known_text(&mut self, id: StrId, bytes: &[u8]) -> io::Result<()>;
    fn begin_list(&mut self) -> io::Result<()>;
    /// Comes before each item of a list.
    fn item(&mut self) -> io::Result<()>;
    fn end_list(&mut self) -> io::Result<()>;
    fn begin_tuple(&mut self) -> io::Result<()>;
    fn end_tuple(&mut self) -> io::Result<()>;
    fn begin_dict(&mut self) -> io::Result<()>;
    /// Comes before each key of a dict.
    fn entry(&mut self) -> io::Result<()>;
    /// Comes between a key and its value.
    fn colon(&mut self) -> io::Result<()>;
    fn end_dict(&mut self) -> io::Result<()>;
    /// Refers to what was remembered; false when it must be written.
    fn recall(&mut self, shared: Shared) -> io::Result<bool>;
    /// Remembers the list or dict that has just been begun.
    fn remember(&mut self, shared: Shared) -> io::Result<()>;
}

/// Gives all values of a snapshot to a sink.
pub(super) fn walk<S: Sink>(snapshot: &Snapshot, sink: &mut S) -> io::Result<()> {
    let mut walker = Walker { snapshot, sink, names: Vec::new(), frames: Vec::new() };
    walker.names = snapshot.keys.0.iter().map(|keys| walker.named(keys)).collect();
    walker.top()
}

/// The fields of rows whose keys are not remembered, as torch 2.9 writes them.
const EVENT_KEYS: [&str; 6] = ["action", "addr", "size", "stream", "time_us", "frames"];
const SEGMENT_KEYS: [&str; 12] = [
    "device",
    "address",
    "total_size",
    "allocated_size",
    "active_size",
    "requested_size",
    "stream",
    "segment_type",
    "segment_pool_id",
    "is_expandable",
    "frames",
    "blocks",
];
const BLOCK_KEYS: [&str; 5] = ["address", "size", "requested_size", "state", "frames"];
const ANNOTATION_KEYS: [&str; 4] = ["stage", "name", "device", "time_us"];
const FRAME_KEYS: [&str; 3] = ["name", "filename", "line"];

struct Walker<'a, S> {
    snapshot: &'a Snapshot,
    sink: &'a mut S,
    /// For each shape its keys, as numbers and texts.
    names: Vec<Vec<(StrId, &'a str)>>,
    /// Scratch for the frames of a stack.
    frames: Vec<u32>,
}

impl<'a, S: Sink> Walker<'a, S> {
    fn named(&self, keys: &[StrId]) -> Vec<(StrId, &'a str)> {
        keys.iter()
            // A key that is not UTF-8 is none we know: it is written from what is kept.
            .map(|key| (*key, std::str::from_utf8(self.snapshot.strings.bytes(*key)).unwrap_or("")))
            .collect()
    }

    fn top(&mut self) -> io::Result<()> {
        let snapshot = self.snapshot;
        if snapshot.top.is_empty() && snapshot.n_traces == 0 {
            return self.segments(snapshot.devices.iter());
        }
        let usual = ["segments".to_owned(), "device_traces".to_owned()];
        let names = if snapshot.top.is_empty() { &usual[..] } else { &snapshot.top[..] };
        self.sink.begin_dict()?;
        for name in names {
            let rest = snapshot.rest.iter().find(|(found, _)| found == name);
            let is_known = matches!(
                name.as_str(),
                "segments"
                    | "device_traces"
                    | "allocator_settings"
                    | "external_annotations"
                    | "host_segments"
                    | "host_traces"
            );
            if !is_known && rest.is_none() {
                continue;
            }
            self.sink.entry()?;
            self.sink.text(name.as_bytes())?;
            self.sink.colon()?;
            match (name.as_str(), rest) {
                ("segments", _) => self.segments(snapshot.devices.iter())?,
                ("device_traces", _) => self.traces()?,
                ("allocator_settings", _) => self.settings()?,
                ("external_annotations", _) => self.annotations()?,
                ("host_segments", _) => self.segments(snapshot.host.iter())?,
                ("host_traces", _) => self.trace(snapshot.host.as_ref())?,
                (_, Some((_, value))) => self.value(value)?,
                (_, None) => self.sink.none()?,
            }
        }
        self.sink.end_dict()
    }

    fn settings(&mut self) -> io::Result<()> {
        self.sink.begin_dict()?;
        for (name, value) in &self.snapshot.settings {
            self.sink.entry()?;
            self.sink.text(name.as_bytes())?;
            self.sink.colon()?;
            self.value(value)?;
        }
        self.sink.end_dict()
    }

    fn traces(&mut self) -> io::Result<()> {
        let snapshot = self.snapshot;
        let last = snapshot.devices.iter().filter(|device| !device.events.is_empty());
        let n = last.map(|device| device.ordinal + 1).max().unwrap_or(0).max(snapshot.n_traces);
        self.sink.begin_list()?;
        for ordinal in 0..n {
            self.sink.item()?;
            self.trace(snapshot.device(ordinal))?;
        }
        self.sink.end_list()
    }

    fn trace(&mut self, device: Option<&Device>) -> io::Result<()> {
        self.sink.begin_list()?;
        for event in device.map_or(0..0, |device| device.events.clone()) {
            self.sink.item()?;
            self.event(event)?;
        }
        self.sink.end_list()
    }

    /// Writes a dict: for each of its keys what is kept, or else what `field` writes. `field` says false when it writes
    /// nothing.
    fn dict(
        &mut self,
        shape: ShapeId,
        usual: &[&'static str],
        kept: Option<(KeptOf, usize)>,
        mut field: impl FnMut(&mut Self, &str) -> io::Result<()>,
        has: impl Fn(&str) -> bool,
    ) -> io::Result<()> {
        let snapshot = self.snapshot;
        let kept = kept.filter(|_| !snapshot.kept.is_empty());
        let kept = kept.map_or(&[][..], |(of, row)| snapshot.kept_of(of, row));
        self.sink.begin_dict()?;
        self.entries(shape, usual, kept, &mut field, has)?;
        self.sink.end_dict()
    }

    fn entries(
        &mut self,
        shape: ShapeId,
        usual: &[&'static str],
        kept: &[crate::model::Kept],
        field: &mut impl FnMut(&mut Self, &str) -> io::Result<()>,
        has: impl Fn(&str) -> bool,
    ) -> io::Result<()> {
        let snapshot = self.snapshot;
        if snapshot.keys.of(shape).is_none() {
            for name in usual.iter().filter(|name| has(name)) {
                self.sink.entry()?;
                self.sink.text(name.as_bytes())?;
                self.sink.colon()?;
                field(self, name)?;
            }
            return Ok(());
        }
        let n_keys = self.names[usize::from(shape.0)].len();
        for at in 0..n_keys {
            let (id, name) = self.names[usize::from(shape.0)][at];
            let found = kept.iter().find(|kept| kept.key == id);
            if found.is_none() && !has(name) {
                continue;
            }
            self.sink.entry()?;
            self.sink.known_text(id, snapshot.strings.bytes(id))?;
            self.sink.colon()?;
            match found {
                Some(kept) => self.value(&kept.value)?,
                None => field(self, name)?,
            }
        }
        Ok(())
    }

    fn event(&mut self, event: usize) -> io::Result<()> {
        let snapshot = self.snapshot;
        let trace = &snapshot.trace;
        let extra = trace.extra(event);
        let action = trace.action[event];
        let stack = trace.stack[event];
        let is_unremembered = snapshot.keys.of(extra.shape).is_none();
        let has = |name: &str| match name {
            "action" | "size" | "stream" | "addr" | "device_free" => true,
            // Of keys that are not remembered, what there is.
            "time_us" => !is_unremembered || trace.time_us(event).is_some(),
            "frames" => !is_unremembered || stack != StackId::NONE,
            "compile_context" => extra.compile_context.is_some(),
            "user_metadata" => extra.user_metadata.is_some(),
            "category" => extra.category.is_some(),
            "internal_metadata" => extra.internal.is_some(),
            "pool_id" => extra.pool.is_some(),
            "forward_frames" => extra.forward.is_some(),
            _ => false,
        };
        let write = |this: &mut Self, name: &str| match name {
            "action" => this.sink.text(snapshot.action_name(action).as_bytes()),
            "addr" if action == Action::OOM && !is_unremembered => this.sink.int(0),
            "addr" | "device_free" => this.sink.int(trace.address[event].into()),
            "size" => this.sink.int(trace.size[event].into()),
            "stream" => this.stream(trace.stream[event]),
            "time_us" => this.sink.int(trace.time_us(event).unwrap_or(0).into()),
            "frames" => this.stack(stack),
            "compile_context" => this.optional(extra.compile_context),
            "user_metadata" => this.optional(extra.user_metadata),
            "category" => this.optional(extra.category),
            "internal_metadata" => this.optional(extra.internal),
            "pool_id" => this.pool(extra.pool.unwrap_or((0, 0))),
            _ => this.forward(extra.forward),
        };
        let usual: &[&str] = if action == Action::OOM {
            &["action", "device_free", "size", "stream", "time_us", "frames"]
        } else {
            &EVENT_KEYS
        };
        self.dict(extra.shape, usual, Some((KeptOf::Event, event)), write, has)
    }

    fn segments<'d>(&mut self, devices: impl Iterator<Item = &'d Device>) -> io::Result<()> {
        self.sink.begin_list()?;
        for segment in devices.flat_map(|device| device.segments.clone()) {
            self.sink.item()?;
            self.segment(segment)?;
        }
        self.sink.end_list()
    }

    fn segment(&mut self, row: usize) -> io::Result<()> {
        let snapshot = self.snapshot;
        let (segments, blocks) = (&snapshot.segments, &snapshot.blocks);
        let rows = || segments.blocks[row].clone().map(|block| block as usize);
        let sum = |column: &[u64], is_counted: fn(BlockState) -> bool| -> i128 {
            rows()
                .filter(|block| is_counted(blocks.state[*block]))
                .map(|block| i128::from(column[block]))
                .sum()
        };
        let write = |this: &mut Self, name: &str| match name {
            "device" => {
                let device = segments.device[row];
                this.sink.int(if device == Device::HOST { -1 } else { device.into() })
            }
            "address" => this.sink.int(segments.address[row].into()),
            "total_size" => this.sink.int(segments.total_size[row].into()),
            "allocated_size" => this.sink.int(sum(&blocks.size, |state| state == BlockState::Allocated)),
            "active_size" => this.sink.int(sum(&blocks.size, |state| state != BlockState::Inactive)),
            "requested_size" => this.sink.int(sum(&blocks.requested, |state| state != BlockState::Inactive)),
            "stream" => this.stream(segments.stream[row]),
            "segment_type" => this.optional(Some(segments.kind[row])),
            "segment_pool_id" => this.pool(segments.pool[row]),
            "is_expandable" => this.sink.bool(segments.is_expandable[row]),
            "frames" => this.stack(segments.stack[row]),
            _ => {
                this.sink.begin_list()?;
                for block in rows() {
                    this.sink.item()?;
                    this.block(block)?;
                }
                this.sink.end_list()
            }
        };
        let has = |name: &str| SEGMENT_KEYS.contains(&name);
        self.dict(segments.shape[row], &SEGMENT_KEYS, Some((KeptOf::Segment, row)), write, has)
    }

    fn block(&mut self, row: usize) -> io::Result<()> {
        let blocks = &self.snapshot.blocks;
        let write = |this: &mut Self, name: &str| match name {
            "address" => this.sink.int(blocks.address[row].into()),
            "size" => this.sink.int(blocks.size[row].into()),
            "requested_size" => this.sink.int(blocks.requested[row].into()),
            "state" => this.sink.text(match blocks.state[row] {
                BlockState::Allocated => b"active_allocated",
                BlockState::PendingFree => b"active_pending_free",
                BlockState::Inactive => b"inactive",
            }),
            "history" => this.history(row),
            _ => this.stack(blocks.stack[row]),
        };
        let has = |name: &str| name == "history" || BLOCK_KEYS.contains(&name);
        self.dict(blocks.shape[row], &BLOCK_KEYS, Some((KeptOf::Block, row)), write, has)
    }

    fn history(&mut self, block: usize) -> io::Result<()> {
        let history = &self.snapshot.blocks.history;
        let from = history.partition_point(|used| (used.block as usize) < block);
        self.sink.begin_list()?;
        for used in history[from..].iter().take_while(|used| used.block as usize == block) {
            self.sink.item()?;
            self.sink.begin_dict()?;
            for (name, number) in [("addr", used.address), ("real_size", used.real_size)] {
                self.sink.entry()?;
                self.sink.text(name.as_bytes())?;
                self.sink.colon()?;
                self.sink.int(number.into())?;
            }
            if used.stack != StackId::NONE {
                self.sink.entry()?;
                self.sink.text(b"frames")?;
                self.sink.colon()?;
                self.stack(used.stack)?;
            }
            self.sink.end_dict()?;
        }
        self.sink.end_list()
    }

    fn annotations(&mut self) -> io::Result<()> {
        self.sink.begin_list()?;
        for (row, annotation) in self.snapshot.annotations.iter().enumerate() {
            self.sink.item()?;
            let write = |this: &mut Self, name: &str| match name {
                "stage" => this.sink.text(if annotation.is_start { b"START" } else { b"END" }),
                "name" => this.optional(Some(annotation.name)),
                "device" if annotation.device == Device::HOST => this.sink.int(-1),
                "device" => this.sink.int(annotation.device.into()),
                _ => this.sink.int(annotation.time_us.into()),
            };
            let has = |name: &str| ANNOTATION_KEYS.contains(&name);
            let kept = Some((KeptOf::Annotation, row));
            self.dict(annotation.shape, &ANNOTATION_KEYS, kept, write, has)?;
        }
        self.sink.end_list()
    }

    fn stack(&mut self, stack: StackId) -> io::Result<()> {
        if stack == StackId::NONE {
            return self.sink.none();
        }
        if self.sink.recall(Shared::Stack(stack.0))? {
            return Ok(());
        }
        let mut frames = std::mem::take(&mut self.frames);
        frames.clear();
        frames.extend_from_slice(self.snapshot.stacks.frame_ids(stack));
        self.sink.begin_list()?;
        self.sink.remember(Shared::Stack(stack.0))?;
        for frame in &frames {
            self.sink.item()?;
            self.frame(*frame)?;
        }
        self.frames = frames;
        self.sink.end_list()
    }

    fn frame(&mut self, id: u32) -> io::Result<()> {
        if self.sink.recall(Shared::Frame(id))? {
            return Ok(());
        }
        let snapshot = self.snapshot;
        let Some(frame) = snapshot.stacks.all_frames().get(id as usize).copied() else {
            return self.sink.none();
        };
        self.sink.begin_dict()?;
        self.sink.remember(Shared::Frame(id))?;
        let more = snapshot.stacks.more(frame);
        let shape = more.map_or(ShapeId::NONE, |more| more.shape);
        let fields = more.map_or(&[][..], |more| &more.fields[..]);
        let other = |name: &str| {
            let is_it = |(key, _): &&(StrId, MoreValue)| snapshot.strings.bytes(*key) == name.as_bytes();
            fields.iter().find(is_it).map(|(_, value)| *value)
        };
        let mut write = |this: &mut Self, name: &str| match (other(name), name) {
            (Some(MoreValue::Text(text)), _) => this.optional(Some(text)),
            (Some(MoreValue::Number(number)), _) => this.sink.int(number.into()),
            (None, "name") => this.optional(Some(frame.name)),
            (None, "filename") => this.optional(Some(frame.filename)),
            (None, _) if frame.line == Frame::UNKNOWN_LINE => this.sink.int(u64::MAX.into()),
            (None, _) => this.sink.int(frame.line.into()),
        };
        let has = |name: &str| FRAME_KEYS.contains(&name) || other(name).is_some();
        self.entries(shape, &FRAME_KEYS, &[], &mut write, has)?;
        self.sink.end_dict()
    }

    fn forward(&mut self, list: Option<u32>) -> io::Result<()> {
        self.sink.begin_list()?;
        for id in list.map_or(&[][..], |list| self.snapshot.forward.get(list)) {
            self.sink.item()?;
            self.optional(Some(*id))?;
        }
        self.sink.end_list()
    }

    fn optional(&mut self, text: Option<StrId>) -> io::Result<()> {
        match text {
            Some(id) => self.sink.known_text(id, self.snapshot.strings.bytes(id)),
            None => self.sink.none(),
        }
    }

    fn stream(&mut self, row: u32) -> io::Result<()> {
        self.sink.int(self.snapshot.streams.get(row as usize).copied().unwrap_or(0).into())
    }

    fn pool(&mut self, (first, second): (u64, u64)) -> io::Result<()> {
        self.sink.begin_tuple()?;
        for number in [first, second] {
            self.sink.item()?;
            self.sink.int(number.into())?;
        }
        self.sink.end_tuple()
    }

    fn value(&mut self, value: &Value) -> io::Result<()> {
        match value {
            Value::None => self.sink.none(),
            Value::Bool(is_true) => self.sink.bool(*is_true),
            Value::Int(number) => self.sink.int(*number),
            Value::Float(number) => self.sink.float(*number),
            Value::Str(text) => self.sink.text(text.as_bytes()),
            Value::List(items) => {
                self.sink.begin_list()?;
                self.items(items)?;
                self.sink.end_list()
            }
            Value::Tuple(items) => {
                self.sink.begin_tuple()?;
                self.items(items)?;
                self.sink.end_tuple()
            }
            Value::Dict(entries) => {
                self.sink.begin_dict()?;
                for (key, value) in entries {
                    self.sink.entry()?;
                    self.value(key)?;
                    self.sink.colon()?;
                    self.value(value)?;
                }
                self.sink.end_dict()
            }
        }
    }

    fn items(&mut self, items: &[Value]) -> io::Result<()> {
        for item in items {
            self.sink.item()?;
            self.value(item)?;
        }
        Ok(())
    }
}
