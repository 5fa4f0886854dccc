//! Which columns lie in which chunk, and how.

use super::bytes::{Reader, put_bytes, put_differences, put_varint};
use super::{Chunk, PackError};
use crate::Snapshot;
use crate::model::{
    Action, Annotation, BlockState, Device, Extra, Finding, Frame, History, Kept, KeptOf, More, MoreValue,
    ShapeId, StackId, Stacks, StrId, Strings, Texts, Value,
};
use crate::picture::Palette;

/// Events per chunk of a column: large enough to compress well, small enough to fetch alone.
const ROWS: usize = 262_144;

/// As when reading: larger sizes are no sizes.
const MAX_SIZE: u64 = 1 << 60;

/// Settings nest two deep.
const MAX_DEPTH: u32 = 16;

/// What a chunk holds. Numbers are in the file and never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Summary = 1,
    Segments = 2,
    Blocks = 3,
    Action = 4,
    Address = 5,
    Size = 6,
    Stream = 7,
    Stack = 8,
    Time = 9,
    Extra = 10,
    Extras = 11,
    Palette = 12,
    Annotations = 13,
    Strings = 14,
    Frames = 15,
    Stacks = 16,
    More = 17,
    Whole = 18,
    Kept = 19,
    History = 20,
}

impl Kind {
    const ALL: [Self; 20] = [
        Self::Summary,
        Self::Segments,
        Self::Blocks,
        Self::Action,
        Self::Address,
        Self::Size,
        Self::Stream,
        Self::Stack,
        Self::Time,
        Self::Extra,
        Self::Extras,
        Self::Palette,
        Self::Annotations,
        Self::Strings,
        Self::Frames,
        Self::Stacks,
        Self::More,
        Self::Whole,
        Self::Kept,
        Self::History,
    ];

    pub(super) fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == byte)
    }

    /// Whether a first picture needs it.
    pub(super) fn is_first(self) -> bool {
        (self as u8) < Self::Strings as u8
    }
}

/// A chunk before it is compressed.
pub(super) struct Raw {
    pub(super) kind: Kind,
    pub(super) first_row: u64,
    pub(super) n_rows: u64,
    pub(super) bytes: Vec<u8>,
}

/// All chunks of a snapshot, those of the first picture first.
pub(super) fn encode(snapshot: &Snapshot, palette: &Palette) -> Vec<Raw> {
    let mut chunks = vec![
        whole(Kind::Summary, 1, summary(snapshot)),
        whole(Kind::Segments, snapshot.segments.len(), segments(snapshot)),
        whole(Kind::Blocks, snapshot.blocks.len(), blocks(snapshot)),
        whole(Kind::Extras, snapshot.trace.extras.len(), extras(snapshot)),
        whole(Kind::Palette, palette.indices().len(), palette.indices().to_vec()),
        whole(Kind::Annotations, snapshot.annotations.len(), annotations(snapshot)),
    ];
    let trace = &snapshot.trace;
    for first in (0..trace.len()).step_by(ROWS) {
        let rows = first..trace.len().min(first + ROWS);
        let mut column = |kind, bytes| {
            chunks.push(Raw { kind, first_row: first as u64, n_rows: rows.len() as u64, bytes });
        };
        let differences = |column: &mut dyn Iterator<Item = u64>| {
            let mut bytes = Vec::with_capacity(rows.len() * 2);
            put_differences(&mut bytes, column);
            bytes
        };
        column(Kind::Action, trace.action[rows.clone()].iter().map(|action| action.0).collect());
        column(Kind::Address, differences(&mut trace.address[rows.clone()].iter().copied()));
        column(Kind::Size, differences(&mut trace.size[rows.clone()].iter().copied()));
        column(Kind::Stream, differences(&mut trace.stream[rows.clone()].iter().map(|id| u64::from(*id))));
        column(Kind::Stack, differences(&mut trace.stack[rows.clone()].iter().map(|id| u64::from(id.0))));
        if !trace.time_us.is_empty() {
            column(Kind::Time, differences(&mut trace.time_us[rows.clone()].iter().map(|time| *time as u64)));
        }
        column(Kind::Extra, differences(&mut trace.extra[rows.clone()].iter().map(|id| u64::from(*id))));
    }
    chunks.push(whole(Kind::Strings, snapshot.strings.len(), strings(&snapshot.strings)));
    chunks.push(whole(Kind::More, snapshot.stacks.all_more().len(), more(&snapshot.stacks)));
    chunks.push(whole(Kind::Frames, snapshot.stacks.all_frames().len(), frames(&snapshot.stacks)));
    chunks.push(whole(Kind::Stacks, snapshot.stacks.len(), stacks(&snapshot.stacks)));
    chunks.push(whole(Kind::Whole, 1, what_makes_it_whole(snapshot)));
    chunks.push(whole(Kind::Kept, snapshot.kept.len(), kept(&snapshot.kept)));
    chunks.push(whole(Kind::History, snapshot.blocks.history.len(), history(&snapshot.blocks.history)));
    chunks
}

fn whole(kind: Kind, n_rows: usize, bytes: Vec<u8>) -> Raw {
    Raw { kind, first_row: 0, n_rows: n_rows as u64, bytes }
}

/// Puts one unpacked chunk into its place.
pub(super) fn decode(
    snapshot: &mut Snapshot,
    palette: &mut Palette,
    chunk: &Chunk,
    raw: &[u8],
) -> Result<(), PackError> {
    let n = usize::try_from(chunk.n_rows).ok().filter(|n| *n <= raw.len() || *n == 1);
    let n = n.ok_or_else(|| {
        PackError::new("a chunk of the pack claims more rows than it holds; build it again")
    })?;
    let mut reader = Reader::new(raw);
    let trace = &mut snapshot.trace;
    match chunk.kind {
        Kind::Summary => read_summary(snapshot, &mut reader)?,
        Kind::Segments => read_segments(snapshot, &mut reader, n)?,
        Kind::Blocks => read_blocks(snapshot, &mut reader, n)?,
        Kind::Action => trace.action.extend(raw.iter().map(|byte| Action(*byte))),
        Kind::Address => reader.differences(n, |address| trace.address.push(address))?,
        Kind::Size => reader.differences(n, |size| trace.size.push(size))?,
        Kind::Stream => reader.differences(n, |id| trace.stream.push(id as u32))?,
        Kind::Stack => reader.differences(n, |id| trace.stack.push(StackId(id as u32)))?,
        Kind::Time => reader.differences(n, |time| trace.time_us.push(time as i64))?,
        Kind::Extra => reader.differences(n, |id| trace.extra.push(id as u32))?,
        Kind::Extras => read_extras(snapshot, &mut reader, n)?,
        Kind::Palette => *palette = Palette::from_indices(raw.to_vec()),
        Kind::Annotations => read_annotations(snapshot, &mut reader, n)?,
        Kind::Strings => snapshot.strings = read_strings(&mut reader, n)?,
        Kind::Frames => {
            let frames = read_frames(&mut reader, n)?;
            let more = snapshot.stacks.all_more().to_vec();
            snapshot.stacks = Stacks::from_parts(more, frames, Vec::new(), Vec::new());
        }
        Kind::Stacks => read_stacks(&mut snapshot.stacks, &mut reader, n)?,
        Kind::More => {
            let more = read_more(&mut reader, n)?;
            snapshot.stacks = Stacks::from_parts(more, Vec::new(), Vec::new(), Vec::new());
        }
        Kind::Whole => read_what_makes_it_whole(snapshot, &mut reader)?,
        Kind::Kept => snapshot.kept = read_kept(&mut reader, n)?,
        Kind::History => snapshot.blocks.history = read_history(&mut reader, n)?,
    }
    Ok(())
}

/// Makes sure that no row points outside its table, so that nobody else has to.
pub(super) fn check(snapshot: &Snapshot) -> Result<(), PackError> {
    let trace = &snapshot.trace;
    let n = trace.len();
    let columns = [
        trace.address.len(),
        trace.size.len(),
        trace.stream.len(),
        trace.stack.len(),
        trace.extra.len(),
        if trace.time_us.is_empty() { n } else { trace.time_us.len() },
    ];
    let n_blocks = snapshot.blocks.len();
    let are_blocks_inside = snapshot
        .segments
        .blocks
        .iter()
        .all(|range| range.start <= range.end && range.end as usize <= n_blocks);
    let are_devices_inside = snapshot.devices.iter().chain(&snapshot.host).all(|device| {
        device.events.start <= device.events.end
            && device.events.end <= n
            && device.segments.start <= device.segments.end
            && device.segments.end <= snapshot.segments.len()
    });
    // The reader lets no larger size in: sums of them stay numbers.
    let columns_of_sizes =
        [&trace.size, &snapshot.segments.total_size, &snapshot.blocks.size, &snapshot.blocks.requested];
    let are_sizes_possible = columns_of_sizes.into_iter().flatten().all(|size| *size <= MAX_SIZE);
    if columns.iter().all(|len| *len == n) && are_blocks_inside && are_devices_inside && are_sizes_possible {
        Ok(())
    } else {
        Err(PackError::new("the tables of the pack do not fit together; build it again"))
    }
}

fn summary(snapshot: &Snapshot) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_texts(&mut bytes, &snapshot.wrapping);
    put_varint(&mut bytes, snapshot.content_bytes);
    put_bytes(&mut bytes, snapshot.producer.as_bytes());
    put_texts(&mut bytes, &snapshot.action_names.0);
    put_varint(&mut bytes, snapshot.streams.len() as u64);
    for stream in &snapshot.streams {
        put_varint(&mut bytes, *stream);
    }
    put_varint(&mut bytes, (snapshot.devices.len() + usize::from(snapshot.host.is_some())) as u64);
    for device in snapshot.devices.iter().chain(&snapshot.host) {
        put_varint(&mut bytes, u64::from(device.ordinal));
        for range in [&device.events, &device.segments] {
            put_varint(&mut bytes, range.start as u64);
            put_varint(&mut bytes, range.end as u64);
        }
    }
    put_varint(&mut bytes, snapshot.settings.len() as u64);
    for (name, value) in &snapshot.settings {
        put_bytes(&mut bytes, name.as_bytes());
        put_value(&mut bytes, value);
    }
    put_varint(&mut bytes, snapshot.findings.len() as u64);
    for finding in &snapshot.findings {
        put_bytes(&mut bytes, finding.code.as_bytes());
        put_varint(&mut bytes, finding.count);
        put_bytes(&mut bytes, finding.message.as_bytes());
    }
    bytes
}

fn read_summary(snapshot: &mut Snapshot, reader: &mut Reader<'_>) -> Result<(), PackError> {
    snapshot.wrapping = read_texts(reader)?;
    snapshot.content_bytes = reader.varint()?;
    snapshot.producer = reader.text()?;
    snapshot.action_names.0 = read_texts(reader)?;
    for _ in 0..reader.count()? {
        snapshot.streams.push(reader.varint()?);
    }
    for _ in 0..reader.count()? {
        let ordinal = reader.number()?;
        let events = reader.number()?..reader.number()?;
        let segments = reader.number()?..reader.number()?;
        let device = Device { ordinal, events, segments };
        if device.is_host() {
            snapshot.host = Some(device);
        } else {
            snapshot.devices.push(device);
        }
    }
    for _ in 0..reader.count()? {
        let name = reader.text()?;
        snapshot.settings.push((name, read_value(reader, 0)?));
    }
    for _ in 0..reader.count()? {
        let code = reader.text()?;
        let count = reader.varint()?;
        snapshot.findings.push(Finding { code, count, message: reader.text()? });
    }
    Ok(())
}

fn put_texts(bytes: &mut Vec<u8>, texts: &[String]) {
    put_varint(bytes, texts.len() as u64);
    for text in texts {
        put_bytes(bytes, text.as_bytes());
    }
}

fn read_texts(reader: &mut Reader<'_>) -> Result<Vec<String>, PackError> {
    (0..reader.count()?).map(|_| reader.text()).collect()
}

fn put_value(bytes: &mut Vec<u8>, value: &Value) {
    match value {
        Value::None => bytes.push(0),
        Value::Bool(is_true) => bytes.push(1 + u8::from(*is_true)),
        Value::Int(number) => {
            bytes.push(3);
            bytes.extend(number.to_le_bytes());
        }
        Value::Float(number) => {
            bytes.push(4);
            bytes.extend(number.to_le_bytes());
        }
        Value::Str(text) => {
            bytes.push(5);
            put_bytes(bytes, text.as_bytes());
        }
        Value::List(items) => {
            bytes.push(6);
            put_varint(bytes, items.len() as u64);
            items.iter().for_each(|item| put_value(bytes, item));
        }
        Value::Tuple(items) => {
            bytes.push(8);
            put_varint(bytes, items.len() as u64);
            items.iter().for_each(|item| put_value(bytes, item));
        }
        Value::Dict(entries) => {
            bytes.push(7);
            put_varint(bytes, entries.len() as u64);
            for (key, item) in entries {
                put_value(bytes, key);
                put_value(bytes, item);
            }
        }
    }
}

fn read_value(reader: &mut Reader<'_>, depth: u32) -> Result<Value, PackError> {
    if depth > 2 * MAX_DEPTH {
        return Err(PackError::new("a setting in the pack is nested too deep; build the pack again"));
    }
    Ok(match reader.u8()? {
        0 => Value::None,
        1 => Value::Bool(false),
        2 => Value::Bool(true),
        3 => {
            let (low, high) = (reader.u64()?, reader.u64()?);
            Value::Int((u128::from(high) << 64 | u128::from(low)) as i128)
        }
        4 => Value::Float(f64::from_bits(reader.u64()?)),
        5 => Value::Str(reader.text()?),
        kind @ (6 | 8) => {
            let items =
                (0..reader.count()?).map(|_| read_value(reader, depth + 1)).collect::<Result<_, _>>()?;
            if kind == 6 { Value::List(items) } else { Value::Tuple(items) }
        }
        7 => {
            let mut entries = Vec::new();
            for _ in 0..reader.count()? {
                entries.push((read_value(reader, depth + 1)?, read_value(reader, depth + 1)?));
            }
            Value::Dict(entries)
        }
        _ => return Err(PackError::new("a setting in the pack is of an unknown kind; build the pack again")),
    })
}

fn segments(snapshot: &Snapshot) -> Vec<u8> {
    let segments = &snapshot.segments;
    let mut bytes = Vec::new();
    for row in 0..segments.len() {
        put_varint(&mut bytes, u64::from(segments.device[row]));
        put_varint(&mut bytes, segments.address[row]);
        put_varint(&mut bytes, segments.total_size[row]);
        put_varint(&mut bytes, u64::from(segments.stream[row]));
        put_varint(&mut bytes, u64::from(segments.kind[row].0));
        put_varint(&mut bytes, segments.pool[row].0);
        put_varint(&mut bytes, segments.pool[row].1);
        bytes.push(u8::from(segments.is_expandable[row]));
        put_varint(&mut bytes, u64::from(segments.stack[row].0));
        put_varint(&mut bytes, u64::from(segments.blocks[row].start));
        put_varint(&mut bytes, u64::from(segments.blocks[row].end));
        bytes.push(segments.shape[row].0);
    }
    bytes
}

fn read_segments(snapshot: &mut Snapshot, reader: &mut Reader<'_>, n: usize) -> Result<(), PackError> {
    let segments = &mut snapshot.segments;
    for _ in 0..n {
        segments.device.push(reader.number()?);
        segments.address.push(reader.varint()?);
        segments.total_size.push(reader.varint()?);
        segments.stream.push(reader.number()?);
        segments.kind.push(StrId(reader.number()?));
        segments.pool.push((reader.varint()?, reader.varint()?));
        segments.is_expandable.push(reader.u8()? != 0);
        segments.stack.push(StackId(reader.number()?));
        segments.blocks.push(reader.number()?..reader.number()?);
        segments.shape.push(ShapeId(reader.u8()?));
    }
    Ok(())
}

fn blocks(snapshot: &Snapshot) -> Vec<u8> {
    let blocks = &snapshot.blocks;
    let mut bytes = Vec::new();
    put_differences(&mut bytes, blocks.address.iter().copied());
    put_differences(&mut bytes, blocks.size.iter().copied());
    put_differences(&mut bytes, blocks.requested.iter().copied());
    put_differences(&mut bytes, blocks.stack.iter().map(|id| u64::from(id.0)));
    bytes.extend(blocks.state.iter().map(|state| match state {
        BlockState::Inactive => 0,
        BlockState::Allocated => 1,
        BlockState::PendingFree => 2,
    }));
    bytes.extend(blocks.shape.iter().map(|shape| shape.0));
    bytes
}

fn read_blocks(snapshot: &mut Snapshot, reader: &mut Reader<'_>, n: usize) -> Result<(), PackError> {
    let blocks = &mut snapshot.blocks;
    reader.differences(n, |address| blocks.address.push(address))?;
    reader.differences(n, |size| blocks.size.push(size))?;
    reader.differences(n, |size| blocks.requested.push(size))?;
    reader.differences(n, |id| blocks.stack.push(StackId(id as u32)))?;
    for _ in 0..n {
        blocks.state.push(match reader.u8()? {
            0 => BlockState::Inactive,
            1 => BlockState::Allocated,
            _ => BlockState::PendingFree,
        });
    }
    for _ in 0..n {
        blocks.shape.push(ShapeId(reader.u8()?));
    }
    Ok(())
}

fn extras(snapshot: &Snapshot) -> Vec<u8> {
    let mut bytes = Vec::new();
    for extra in &snapshot.trace.extras {
        for id in [extra.compile_context, extra.user_metadata, extra.category, extra.internal] {
            put_varint(&mut bytes, id.map_or(0, |id| u64::from(id.0) + 1));
        }
        put_varint(&mut bytes, extra.forward.map_or(0, |list| u64::from(list) + 1));
        bytes.push(extra.shape.0);
        bytes.push(u8::from(extra.pool.is_some()) | u8::from(extra.is_internal) << 1);
        let (first, second) = extra.pool.unwrap_or((0, 0));
        put_varint(&mut bytes, first);
        put_varint(&mut bytes, second);
    }
    bytes
}

fn read_extras(snapshot: &mut Snapshot, reader: &mut Reader<'_>, n: usize) -> Result<(), PackError> {
    fn text(reader: &mut Reader<'_>) -> Result<Option<StrId>, PackError> {
        Ok(reader.number::<u32>()?.checked_sub(1).map(StrId))
    }
    for _ in 0..n {
        let (compile_context, user_metadata, category) = (text(reader)?, text(reader)?, text(reader)?);
        let internal = text(reader)?;
        let forward = reader.number::<u32>()?.checked_sub(1);
        let shape = ShapeId(reader.u8()?);
        let flags = reader.u8()?;
        let pool = (reader.varint()?, reader.varint()?);
        snapshot.trace.extras.push(Extra {
            compile_context,
            user_metadata,
            category,
            pool: (flags & 1 != 0).then_some(pool),
            is_internal: flags & 2 != 0,
            internal,
            forward,
            shape,
        });
    }
    Ok(())
}

fn annotations(snapshot: &Snapshot) -> Vec<u8> {
    let mut bytes = Vec::new();
    for annotation in &snapshot.annotations {
        bytes.push(u8::from(annotation.is_start));
        put_varint(&mut bytes, u64::from(annotation.name.0));
        put_varint(&mut bytes, u64::from(annotation.device));
        put_varint(&mut bytes, annotation.time_us as u64);
        bytes.push(annotation.shape.0);
    }
    bytes
}

fn read_annotations(snapshot: &mut Snapshot, reader: &mut Reader<'_>, n: usize) -> Result<(), PackError> {
    for _ in 0..n {
        snapshot.annotations.push(Annotation {
            is_start: reader.u8()? != 0,
            name: StrId(reader.number()?),
            device: reader.number()?,
            time_us: reader.varint()? as i64,
            shape: ShapeId(reader.u8()?),
        });
    }
    Ok(())
}

fn strings(strings: &Strings) -> Vec<u8> {
    let mut bytes = Vec::new();
    for id in 0..strings.len() {
        put_bytes(&mut bytes, strings.bytes(StrId(id as u32)));
    }
    bytes
}

fn read_strings(reader: &mut Reader<'_>, n: usize) -> Result<Strings, PackError> {
    let mut texts = Vec::with_capacity(n);
    for _ in 0..n {
        texts.push(reader.bytes()?);
    }
    Ok(Strings::from_texts(texts))
}

fn frames(stacks: &Stacks) -> Vec<u8> {
    let mut bytes = Vec::new();
    for frame in stacks.all_frames() {
        put_varint(&mut bytes, u64::from(frame.name.0));
        put_varint(&mut bytes, u64::from(frame.filename.0));
        put_varint(&mut bytes, u64::from(frame.line));
        put_varint(&mut bytes, u64::from(frame.more));
    }
    bytes
}

fn read_frames(reader: &mut Reader<'_>, n: usize) -> Result<Vec<Frame>, PackError> {
    (0..n)
        .map(|_| {
            Ok(Frame {
                name: StrId(reader.number()?),
                filename: StrId(reader.number()?),
                line: reader.number()?,
                more: reader.number()?,
            })
        })
        .collect()
}

fn stacks(stacks: &Stacks) -> Vec<u8> {
    let mut bytes = Vec::new();
    for stack in 0..stacks.len() {
        let ids = stacks.frame_ids(StackId(stack as u32));
        put_varint(&mut bytes, ids.len() as u64);
        // Outer frames are shared by most stacks; outermost first they line up for the compressor.
        put_differences(&mut bytes, ids.iter().rev().map(|id| u64::from(*id)));
    }
    bytes
}

fn read_stacks(stacks: &mut Stacks, reader: &mut Reader<'_>, n: usize) -> Result<(), PackError> {
    let frames = stacks.all_frames().to_vec();
    let (mut flat, mut ends) = (Vec::new(), Vec::with_capacity(n));
    for _ in 0..n {
        let len = reader.count()?;
        let from = flat.len();
        reader.differences(len, |id| flat.push(id as u32))?;
        flat[from..].reverse();
        ends.push(flat.len());
    }
    if flat.iter().any(|id| *id as usize >= frames.len()) {
        return Err(PackError::new(
            "a stack in the pack names a frame that is not there; build the pack again",
        ));
    }
    *stacks = Stacks::from_parts(stacks.all_more().to_vec(), frames, flat, ends);
    Ok(())
}

fn more(stacks: &Stacks) -> Vec<u8> {
    let mut bytes = Vec::new();
    for more in stacks.all_more() {
        bytes.push(more.shape.0);
        put_varint(&mut bytes, more.fields.len() as u64);
        for (key, value) in &more.fields {
            put_varint(&mut bytes, u64::from(key.0));
            match value {
                MoreValue::Text(text) => {
                    bytes.push(0);
                    put_varint(&mut bytes, u64::from(text.0));
                }
                MoreValue::Number(number) => {
                    bytes.push(1);
                    put_varint(&mut bytes, *number as u64);
                }
            }
        }
    }
    bytes
}

fn read_more(reader: &mut Reader<'_>, n: usize) -> Result<Vec<More>, PackError> {
    let field = |reader: &mut Reader<'_>| {
        let key = StrId(reader.number()?);
        let value = match reader.u8()? {
            0 => MoreValue::Text(StrId(reader.number()?)),
            _ => MoreValue::Number(reader.varint()? as i64),
        };
        Ok((key, value))
    };
    (0..n)
        .map(|_| {
            let shape = ShapeId(reader.u8()?);
            let fields = (0..reader.count()?).map(|_| field(reader)).collect::<Result<_, _>>()?;
            Ok(More { shape, fields })
        })
        .collect()
}

/// The keys of rows, lists of texts, and what stands at the top of the file.
fn what_makes_it_whole(snapshot: &Snapshot) -> Vec<u8> {
    let mut bytes = Vec::new();
    for lists in [&snapshot.keys.0[..], snapshot.forward.all()] {
        put_varint(&mut bytes, lists.len() as u64);
        for list in lists {
            put_varint(&mut bytes, list.len() as u64);
            list.iter().for_each(|id| put_varint(&mut bytes, u64::from(id.0)));
        }
    }
    put_texts(&mut bytes, &snapshot.top);
    put_varint(&mut bytes, u64::from(snapshot.n_traces));
    put_varint(&mut bytes, snapshot.rest.len() as u64);
    for (name, value) in &snapshot.rest {
        put_bytes(&mut bytes, name.as_bytes());
        put_value(&mut bytes, value);
    }
    bytes
}

fn read_what_makes_it_whole(snapshot: &mut Snapshot, reader: &mut Reader<'_>) -> Result<(), PackError> {
    let lists = |reader: &mut Reader<'_>| -> Result<Vec<Vec<StrId>>, PackError> {
        let list = |reader: &mut Reader<'_>| {
            (0..reader.count()?).map(|_| Ok(StrId(reader.number()?))).collect::<Result<_, _>>()
        };
        (0..reader.count()?).map(|_| list(reader)).collect()
    };
    snapshot.keys.0 = lists(reader)?;
    snapshot.forward = Texts::from_lists(lists(reader)?);
    snapshot.top = read_texts(reader)?;
    snapshot.n_traces = reader.number()?;
    for _ in 0..reader.count()? {
        snapshot.rest.push((reader.text()?, read_value(reader, 0)?));
    }
    Ok(())
}

fn kept(kept: &[Kept]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for kept in kept {
        bytes.push(match kept.of {
            KeptOf::Event => 0,
            KeptOf::Segment => 1,
            KeptOf::Block => 2,
            KeptOf::Annotation => 3,
        });
        put_varint(&mut bytes, u64::from(kept.row));
        put_varint(&mut bytes, u64::from(kept.key.0));
        put_value(&mut bytes, &kept.value);
    }
    bytes
}

fn read_kept(reader: &mut Reader<'_>, n: usize) -> Result<Vec<Kept>, PackError> {
    (0..n)
        .map(|_| {
            let of = match reader.u8()? {
                0 => KeptOf::Event,
                1 => KeptOf::Segment,
                2 => KeptOf::Block,
                _ => KeptOf::Annotation,
            };
            Ok(Kept {
                of,
                row: reader.number()?,
                key: StrId(reader.number()?),
                value: read_value(reader, 0)?,
            })
        })
        .collect()
}

fn history(history: &[History]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for used in history {
        put_varint(&mut bytes, u64::from(used.block));
        put_varint(&mut bytes, used.address);
        put_varint(&mut bytes, used.real_size);
        put_varint(&mut bytes, u64::from(used.stack.0));
    }
    bytes
}

fn read_history(reader: &mut Reader<'_>, n: usize) -> Result<Vec<History>, PackError> {
    (0..n)
        .map(|_| {
            Ok(History {
                block: reader.number()?,
                address: reader.varint()?,
                real_size: reader.varint()?,
                stack: StackId(reader.number()?),
            })
        })
        .collect()
}
