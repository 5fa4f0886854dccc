//! A part of a trace as a snapshot of its own: what torch would have written, had the history been cleared before the
//! first of these events and the snapshot been taken after the last.

use std::ops::Range;

use crate::Snapshot;
use crate::model::{
    BlockState, Blocks, Device, Extra, History, Kept, KeptOf, Segments, ShapeId, StackId, StrId, Trace, Value,
};
use crate::replay::{NEVER, Replay, replay};

/// The part at the top under which [`cut`] says what a trace without its beginning cannot tell: for each device
/// ordinal the sizes of blocks by address, where they are larger than a reader would conclude. Other programs leave it
/// alone.
pub(crate) const HEAD_SIZES: &str = "tidegauge_head_sizes";

/// Segments of torch's small pool have this size.
const SMALL_SEGMENT: u64 = 2 << 20;

/// Some events of one device, counted from the first of its trace, with the segments and blocks as they stood after the
/// last of them. Beyond the trace's end the window ends there. Other devices, whose state at that moment is not known,
/// and pinned host memory stay out; of the annotations those are kept whose time lies within.
pub fn cut(snapshot: &Snapshot, device: &Device, replayed: &Replay, events: Range<usize>) -> Snapshot {
    let n_events = device.events.len();
    let (from, until) = (events.start.min(n_events), events.end.min(n_events));
    let rows = device.events.start + from..device.events.start + until.max(from);
    let mut part = Snapshot {
        producer: snapshot.producer.clone(),
        strings: snapshot.strings.clone(),
        stacks: snapshot.stacks.clone(),
        streams: snapshot.streams.clone(),
        action_names: snapshot.action_names.clone(),
        trace: events_of(&snapshot.trace, rows.clone()),
        settings: snapshot.settings.clone(),
        keys: snapshot.keys.clone(),
        forward: snapshot.forward.clone(),
        n_traces: snapshot.n_traces,
        ..Snapshot::default()
    };
    let is_kept =
        |name: &&String| !name.starts_with("host_") && snapshot.rest.iter().all(|(rest, _)| rest != *name);
    part.top = snapshot.top.iter().filter(is_kept).cloned().collect();
    // A trace alone gets the segments that stood at its end.
    for name in ["segments", "device_traces"] {
        if !part.top.is_empty() && part.top.iter().all(|found| found != name) {
            part.top.push(name.to_owned());
        }
    }
    let kept =
        snapshot.kept.iter().filter(|kept| kept.of == KeptOf::Event && rows.contains(&(kept.row as usize)));
    part.kept = kept.map(|kept| Kept { row: kept.row - rows.start as u32, ..kept.clone() }).collect();
    if let Some((first, last)) = part.trace.time_us.first().zip(part.trace.time_us.last()) {
        let within = *first..=*last;
        let annotations =
            snapshot.annotations.iter().filter(|annotation| within.contains(&annotation.time_us));
        part.annotations = annotations.cloned().collect();
    }
    memory_at(snapshot, device, replayed, until as u32, &mut part);
    let cut = Device { ordinal: device.ordinal, events: 0..rows.len(), segments: 0..part.segments.len() };
    let head_sizes = head_sizes(&part, &cut, replayed, from as u32);
    say_head_sizes(&mut part, head_sizes.into_iter().collect());
    if device.is_host() {
        part.host = Some(cut);
        part.top = ["segments", "device_traces", "host_segments", "host_traces"].map(str::to_owned).to_vec();
    } else {
        part.devices.push(cut);
    }
    part
}

/// Some events of each device, counted from the first of its trace, with segments and blocks as they stood after the
/// last of them: what torch would have written of all devices, had their histories been cleared before the first of
/// these events and the snapshot been taken after the last. `windows` stands in the order of [`Snapshot::devices`];
/// beyond a trace's end a window ends there. Pinned host memory stays as it is; of the annotations those are kept whose
/// time is not before `since_us`.
///
/// Where a window reaches to the end of its trace, the segments are the file's own.
pub fn trim(mut snapshot: Snapshot, windows: &[Range<usize>], since_us: i64) -> Snapshot {
    let windows: Vec<_> =
        snapshot.devices.iter().zip(windows).map(|(device, window)| within(device, window)).collect();
    let is_whole = |device: &Device, window: &Range<usize>| *window == (0..device.events.len());
    if snapshot.devices.iter().zip(&windows).all(|(device, window)| is_whole(device, window)) {
        return snapshot;
    }
    // What the whole trace tells of its devices is needed where something is left out.
    let replays: Vec<_> = snapshot
        .devices
        .iter()
        .zip(&windows)
        .map(|(device, window)| (!is_whole(device, window)).then(|| replay(&snapshot, device)))
        .collect();
    let mut part = Snapshot { strings: std::mem::take(&mut snapshot.strings), ..Snapshot::default() };
    let mut rows = Vec::new();
    for ((device, window), replayed) in snapshot.devices.iter().zip(&windows).zip(&replays) {
        let first_segment = part.segments.len();
        match replayed {
            Some(replayed) if window.end < device.events.len() => {
                memory_at(&snapshot, device, replayed, window.end as u32, &mut part);
            }
            _ => memory_of(&snapshot, device.segments.clone(), &mut part),
        }
        let first_event = rows.len();
        rows.extend(device.events.start + window.start..device.events.start + window.end);
        part.devices.push(Device {
            ordinal: device.ordinal,
            events: first_event..rows.len(),
            segments: first_segment..part.segments.len(),
        });
    }
    if let Some(host) = &snapshot.host {
        let (first_segment, first_event) = (part.segments.len(), rows.len());
        memory_of(&snapshot, host.segments.clone(), &mut part);
        rows.extend(host.events.clone());
        let segments = first_segment..part.segments.len();
        part.host = Some(Device { ordinal: host.ordinal, events: first_event..rows.len(), segments });
    }
    let kept = snapshot.kept.iter().filter(|kept| kept.of == KeptOf::Event);
    let kept = kept.filter_map(|kept| Some(Kept { row: new_row(&rows, kept.row)?, ..kept.clone() }));
    part.kept.extend(kept);
    part.kept.sort_by_key(|kept| (kept.of, kept.row));
    part.trace = rows_of(&snapshot.trace, &rows);
    snapshot.annotations.retain(|annotation| annotation.time_us >= since_us);
    let mut part = Snapshot {
        strings: part.strings,
        trace: part.trace,
        segments: part.segments,
        blocks: part.blocks,
        devices: part.devices,
        host: part.host,
        kept: part.kept,
        ..snapshot
    };
    let stated =
        replays.iter().zip(&part.devices).zip(&windows).filter_map(|((replayed, device), window)| {
            head_sizes(&part, device, replayed.as_ref()?, window.start as u32)
        });
    let stated = stated.collect();
    say_head_sizes(&mut part, stated);
    part
}

fn within(device: &Device, window: &Range<usize>) -> Range<usize> {
    let until = window.end.min(device.events.len());
    window.start.min(until)..until
}

/// Where a row is now; rows are in ascending order.
fn new_row(rows: &[usize], row: u32) -> Option<u32> {
    rows.binary_search(&(row as usize)).ok().map(|at| at as u32)
}

fn rows_of(trace: &Trace, rows: &[usize]) -> Trace {
    fn of<T: Copy>(column: &[T], rows: &[usize]) -> Vec<T> {
        rows.iter().filter_map(|row| column.get(*row).copied()).collect()
    }
    Trace {
        action: of(&trace.action, rows),
        address: of(&trace.address, rows),
        size: of(&trace.size, rows),
        stream: of(&trace.stream, rows),
        stack: of(&trace.stack, rows),
        time_us: of(&trace.time_us, rows),
        extra: of(&trace.extra, rows),
        extras: trace.extras.clone(),
    }
}

/// Segments and blocks as they are, as rows of another snapshot with the same texts and stacks.
fn memory_of(snapshot: &Snapshot, segments: Range<usize>, part: &mut Snapshot) {
    let (from, blocks) = (&snapshot.segments, &snapshot.blocks);
    for segment in segments {
        let (row, first) = (part.segments.len() as u32, part.blocks.len() as u32);
        for block in from.blocks[segment].clone() {
            let block_row = part.blocks.len() as u32;
            let at = block as usize;
            push_block(
                &mut part.blocks,
                blocks.address[at],
                blocks.size[at],
                blocks.requested[at],
                blocks.state[at],
                blocks.stack[at],
                blocks.shape[at],
            );
            let kept = snapshot.kept_of(KeptOf::Block, at).iter();
            part.kept.extend(kept.map(|kept| Kept { row: block_row, ..kept.clone() }));
            let first = blocks.history.partition_point(|history| history.block < block);
            let history = blocks.history[first..].iter().take_while(|history| history.block == block);
            part.blocks.history.extend(history.map(|history| History { block: block_row, ..*history }));
        }
        push_segment(
            &mut part.segments,
            Row {
                device: from.device[segment],
                address: from.address[segment],
                size: from.total_size[segment],
                stream: from.stream[segment],
                kind: from.kind[segment],
                pool: from.pool[segment],
                is_expandable: from.is_expandable[segment],
                stack: from.stack[segment],
                blocks: first..part.blocks.len() as u32,
                shape: from.shape[segment],
            },
        );
        let kept = snapshot.kept_of(KeptOf::Segment, segment).iter();
        part.kept.extend(kept.map(|kept| Kept { row, ..kept.clone() }));
    }
}

fn events_of(trace: &Trace, rows: Range<usize>) -> Trace {
    let extras: Vec<Extra> =
        if trace.extras.is_empty() { vec![Extra::default()] } else { trace.extras.clone() };
    Trace {
        action: trace.action[rows.clone()].to_vec(),
        address: trace.address[rows.clone()].to_vec(),
        size: trace.size[rows.clone()].to_vec(),
        stream: trace.stream[rows.clone()].to_vec(),
        stack: trace.stack[rows.clone()].to_vec(),
        time_us: trace.time_us.get(rows.clone()).unwrap_or(&[]).to_vec(),
        extra: trace.extra[rows].to_vec(),
        extras,
    }
}

/// Segments and blocks at a state, as rows of a snapshot.
fn memory_at(snapshot: &Snapshot, device: &Device, replayed: &Replay, state: u32, part: &mut Snapshot) {
    let known = device.segments.clone().next();
    let shape = known.map_or(ShapeId::NONE, |segment| snapshot.segments.shape[segment]);
    let known_block = known.and_then(|segment| snapshot.segments.blocks[segment].clone().next());
    let known_block = known_block.filter(|_| snapshot.blocks.history.is_empty());
    let block_shape = known_block.map_or(ShapeId::NONE, |block| snapshot.blocks.shape[block as usize]);
    let kinds = [b"small".as_slice(), b"large"].map(|kind| part.strings.intern(kind));
    let moment = replayed.state_at(state);
    for segment in &moment.segments {
        let row = segment.reservation as usize;
        let reservations = &replayed.reservations;
        let at_end = Some(reservations.segment[row]).filter(|segment| *segment != NEVER);
        let kind = at_end.map_or_else(
            || kinds[usize::from(segment.size > SMALL_SEGMENT)],
            |segment| snapshot.segments.kind[segment as usize],
        );
        let first = part.blocks.len() as u32;
        for block in &moment.blocks[segment.blocks.clone()] {
            let (requested, stack) = match block.allocation {
                Some(row) => {
                    let stack = match replayed.allocations.stack[row as usize] {
                        StackId::NONE => StackId::EMPTY,
                        stack => stack,
                    };
                    (replayed.allocations.requested[row as usize], stack)
                }
                None => (0, StackId::EMPTY),
            };
            push_block(
                &mut part.blocks,
                block.address,
                block.size,
                requested,
                block.state,
                stack,
                block_shape,
            );
        }
        let stack = match reservations.stack[row] {
            StackId::NONE => StackId::EMPTY,
            stack => stack,
        };
        let pool = reservations.pool[row].unwrap_or((0, 0));
        let blocks = first..part.blocks.len() as u32;
        push_segment(
            &mut part.segments,
            Row {
                device: device.ordinal,
                address: segment.address,
                size: segment.size,
                stream: reservations.stream[row],
                kind,
                pool,
                is_expandable: reservations.is_expandable[row],
                stack,
                blocks,
                shape,
            },
        );
    }
}

fn push_block(
    blocks: &mut Blocks,
    address: u64,
    size: u64,
    requested: u64,
    state: BlockState,
    stack: StackId,
    shape: ShapeId,
) {
    blocks.address.push(address);
    blocks.size.push(size);
    blocks.requested.push(requested);
    blocks.state.push(state);
    blocks.stack.push(stack);
    blocks.shape.push(shape);
}

struct Row {
    device: u32,
    address: u64,
    size: u64,
    stream: u32,
    kind: StrId,
    pool: (u64, u64),
    is_expandable: bool,
    stack: StackId,
    blocks: Range<u32>,
    shape: ShapeId,
}

fn push_segment(segments: &mut Segments, row: Row) {
    segments.device.push(row.device);
    segments.address.push(row.address);
    segments.total_size.push(row.size);
    segments.stream.push(row.stream);
    segments.kind.push(row.kind);
    segments.pool.push(row.pool);
    segments.is_expandable.push(row.is_expandable);
    segments.stack.push(row.stack);
    segments.blocks.push(row.blocks);
    segments.shape.push(row.shape);
}

/// The sizes of blocks at the beginning that a replay of the part alone gets wrong, by address, under the device's
/// ordinal; none when it gets all of them right.
fn head_sizes(part: &Snapshot, device: &Device, whole: &Replay, from: u32) -> Option<(Value, Value)> {
    let alone = replay(part, device);
    let mut sizes = Vec::new();
    for row in whole.alive_at(from) {
        let (address, size) = (whole.allocations.address[row as usize], whole.allocations.size[row as usize]);
        let at = alone.allocations.address[..alone.n_preexisting].partition_point(|found| *found < address);
        let is_known =
            alone.allocations.address.get(at) == Some(&address) && alone.allocations.size[at] == size;
        if !is_known {
            sizes.push((Value::Int(address.into()), Value::Int(size.into())));
        }
    }
    (!sizes.is_empty()).then(|| (Value::Str(device.ordinal.to_string()), Value::Dict(sizes)))
}

/// Writes head sizes down.
fn say_head_sizes(part: &mut Snapshot, by_device: Vec<(Value, Value)>) {
    if by_device.is_empty() {
        return;
    }
    // Segments that stand alone have no top to say it in.
    if part.top.is_empty() {
        part.top = ["segments", "device_traces"].map(str::to_owned).to_vec();
    }
    part.rest.push((HEAD_SIZES.to_owned(), Value::Dict(by_device)));
    part.top.push(HEAD_SIZES.to_owned());
}

/// The size that a snapshot cut out of a larger one states of a block at its beginning.
pub(crate) fn stated_head_sizes(snapshot: &Snapshot, device: &Device) -> Vec<(u64, u64)> {
    let stated = snapshot.rest.iter().find(|(name, _)| name == HEAD_SIZES);
    let sizes = stated.and_then(|(_, value)| value.entry(&device.ordinal.to_string()));
    let Some(Value::Dict(sizes)) = sizes else { return Vec::new() };
    let mut sizes: Vec<(u64, u64)> =
        sizes.iter().filter_map(|(address, size)| Some((address.as_u64()?, size.as_u64()?))).collect();
    sizes.sort_unstable();
    sizes
}
