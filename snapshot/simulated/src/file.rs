//! A simulated history as the file torch would have written.

use std::{
    collections::HashMap,
    io::{self, Write},
};

use crate::{
    allocator::{Action, Allocator, Block, Event, Segment, State},
    pickle::{Memo, Pickler},
    rules::Rules,
    stacks::{Stack, Stacks},
};

/// Unix epoch microseconds of the first event.
const FIRST_TIME_US: u64 = 1_764_500_000_000_000;
/// Microseconds between two events.
const TICK_US: u64 = 7;

/// Whose file it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// torch 2.9.
    Torch,
    /// torch_npu: no times, settings or annotations.
    TorchNpu,
}

/// One device, as it stands at the end, and the part of its history that was recorded.
#[derive(Debug, Clone, Copy)]
pub struct Recorded<'a> {
    /// Its allocator.
    pub allocator: &'a Allocator,
    /// Its trace.
    pub events: &'a [Event],
}

/// Writes the snapshot of a process.
pub fn write(devices: &[Recorded<'_>], stacks: &Stacks, dialect: Dialect, out: impl Write) -> io::Result<()> {
    let allocators: Vec<&Allocator> = devices.iter().map(|device| device.allocator).collect();
    stream(&allocators, stacks, dialect, out, |device, write| {
        devices[device].events.iter().try_for_each(write)
    })
}

/// Writes the snapshot of a process whose events come one by one: `trace` hands over those of a device.
pub fn stream<W: Write>(
    allocators: &[&Allocator],
    stacks: &Stacks,
    dialect: Dialect,
    out: W,
    mut trace: impl FnMut(usize, &mut dyn FnMut(&Event) -> io::Result<()>) -> io::Result<()>,
) -> io::Result<()> {
    let pickler = Pickler::start(out)?;
    let mut file = File { pickler, stacks, dialect, frames: HashMap::new(), freed: None };
    file.pickler.dict();
    file.pickler.mark();
    file.pickler.name("segments");
    file.pickler.list();
    let segments: Vec<_> = (0..)
        .zip(allocators)
        .flat_map(|(device, allocator)| ranges(allocator).into_iter().map(move |range| (device, range)))
        .collect();
    file.items(&segments, |file, (device, range)| file.segment(*device, range))?;
    file.pickler.name("device_traces");
    file.pickler.list();
    let devices: Vec<usize> = (0..allocators.len()).collect();
    file.items(&devices, |file, device| {
        file.pickler.list();
        let mut time_us = FIRST_TIME_US;
        file.pickler.start_stream();
        trace(*device, &mut |event| {
            time_us += TICK_US;
            file.pickler.start_streamed();
            file.event(event, time_us)?;
            file.pickler.end_streamed()
        })?;
        file.pickler.end_stream()
    })?;
    if dialect == Dialect::Torch {
        let default = Rules::default();
        file.settings(allocators.first().map_or(&default, |allocator| &allocator.rules))?;
        file.pickler.name("external_annotations");
        file.pickler.list();
    }
    file.pickler.set_items()?;
    file.pickler.finish()
}

/// What the file calls a segment: a plain one, or one contiguous mapped part of an expandable one.
struct Range {
    segment: Segment,
    is_expandable: bool,
    blocks: Vec<(u64, Block)>,
}

fn ranges(allocator: &Allocator) -> Vec<Range> {
    let mut ranges: Vec<Range> = Vec::new();
    for (start, segment) in &allocator.segments {
        let mut is_open = false;
        for (address, block) in allocator.blocks.range(start..&(start + segment.size)) {
            if block.state == State::Unmapped {
                is_open = false;
                continue;
            }
            if !is_open {
                let is_expandable = allocator.rules.is_expandable;
                ranges.push(Range { segment: *segment, is_expandable, blocks: Vec::new() });
                is_open = true;
            }
            let range = ranges.last_mut().expect("one was just begun");
            range.blocks.push((*address, *block));
        }
    }
    ranges
}

struct File<'a, W> {
    pickler: Pickler<W>,
    stacks: &'a Stacks,
    dialect: Dialect,
    /// Frames written before.
    frames: HashMap<u32, Memo>,
    /// The address and the frames of the last `free_requested`: torch lets its `free_completed` share them.
    freed: Option<(u64, Memo)>,
}

impl<W: Write> File<'_, W> {
    fn items<T>(
        &mut self,
        items: &[T],
        mut write: impl FnMut(&mut Self, &T) -> io::Result<()>,
    ) -> io::Result<()> {
        for batch in Pickler::<W>::batches(items) {
            self.pickler.start_items(batch);
            batch.iter().try_for_each(|item| write(self, item))?;
            self.pickler.end_items(batch)?;
        }
        Ok(())
    }

    fn segment(&mut self, device: u64, range: &Range) -> io::Result<()> {
        let Range { segment, is_expandable, blocks } = range;
        let sum = |states: &[State], of: fn(&Block) -> u64| {
            blocks.iter().filter(|(_, block)| states.contains(&block.state)).map(|(_, block)| of(block)).sum()
        };
        self.pickler.dict();
        self.pickler.mark();
        self.number("device", device);
        self.number("address", blocks.first().map_or(0, |(address, _)| *address));
        self.number("total_size", blocks.iter().map(|(_, block)| block.size).sum());
        self.number("allocated_size", sum(&[State::Allocated], |block| block.size));
        self.number("active_size", sum(&[State::Allocated, State::Pending], |block| block.size));
        self.number("requested_size", sum(&[State::Allocated, State::Pending], |block| block.requested));
        self.number("stream", segment.stream);
        self.word("segment_type", if segment.pool.is_small { "small" } else { "large" });
        self.pickler.name("segment_pool_id");
        self.pickler.int(segment.pool.id.0);
        self.pickler.int(segment.pool.id.1);
        self.pickler.pair();
        self.pickler.name("is_expandable");
        self.pickler.boolean(*is_expandable);
        self.pickler.name("frames");
        self.stack(segment.stack)?;
        self.pickler.name("blocks");
        self.pickler.list();
        self.items(blocks, |file, (address, block)| {
            file.pickler.dict();
            file.pickler.mark();
            file.number("address", *address);
            file.number("size", block.size);
            file.number("requested_size", block.requested);
            let state = match block.state {
                State::Allocated => "active_allocated",
                State::Pending => "active_pending_free",
                State::Free | State::Unmapped => "inactive",
            };
            file.word("state", state);
            file.pickler.name("frames");
            match block.stack {
                Some(stack) => _ = file.stack(stack)?,
                None => _ = file.pickler.list(),
            }
            file.pickler.set_items()
        })?;
        self.pickler.set_items()
    }

    fn event(&mut self, event: &Event, time_us: u64) -> io::Result<()> {
        self.pickler.dict();
        self.pickler.mark();
        let action = match event.action {
            Action::SegmentAlloc => "segment_alloc",
            Action::SegmentFree => "segment_free",
            Action::SegmentMap => "segment_map",
            Action::SegmentUnmap => "segment_unmap",
            Action::Alloc => "alloc",
            Action::FreeRequested => "free_requested",
            Action::FreeCompleted => "free_completed",
            Action::Oom => "oom",
            Action::Snapshot => "snapshot",
        };
        self.word("action", action);
        self.number(if event.action == Action::Oom { "device_free" } else { "addr" }, event.address);
        self.number("size", event.size);
        self.number("stream", event.stream);
        if self.dialect == Dialect::Torch {
            self.number("time_us", time_us);
            self.pickler.name("compile_context");
            // Torch makes this string anew for every event.
            self.pickler.text("N/A");
        }
        if event.action == Action::Snapshot {
            return self.pickler.set_items();
        }
        self.pickler.name("frames");
        match (event.action, self.freed.take()) {
            (Action::FreeCompleted, Some((address, frames))) if address == event.address => {
                self.pickler.again(frames);
            }
            (Action::FreeRequested, _) => self.freed = Some((event.address, self.stack(event.stack)?)),
            _ => _ = self.stack(event.stack)?,
        }
        self.pickler.set_items()
    }

    /// A new list of frames, each a dict shared by all lists.
    fn stack(&mut self, stack: Stack) -> io::Result<Memo> {
        let stacks = self.stacks;
        let list = self.pickler.list();
        self.items(&stacks.stacks[stack as usize], |file, frame| {
            if let Some(memo) = file.frames.get(frame) {
                file.pickler.again(*memo);
                return Ok(());
            }
            let (name, filename, line) = &stacks.frames[*frame as usize];
            let memo = file.pickler.dict();
            file.frames.insert(*frame, memo);
            file.pickler.mark();
            file.pickler.name("name");
            file.pickler.text(name);
            file.pickler.name("filename");
            file.pickler.text(filename);
            file.number("line", *line);
            file.pickler.set_items()
        })?;
        Ok(list)
    }

    fn settings(&mut self, rules: &Rules) -> io::Result<()> {
        self.pickler.name("allocator_settings");
        self.pickler.dict();
        self.pickler.mark();
        self.word("PYTORCH_CUDA_ALLOC_CONF", "");
        match rules.max_split {
            Some(max_split) => self.number("max_split_size", max_split),
            None => {
                self.pickler.name("max_split_size");
                self.pickler.minus_one();
            }
        }
        self.pickler.name("expandable_segments");
        self.pickler.boolean(rules.is_expandable);
        self.pickler.name("graph_capture_record_stream_reuse");
        self.pickler.boolean(false);
        self.pickler.name("roundup_power2_divisions");
        self.pickler.dict();
        self.pickler.mark();
        for (power, divisions) in rules.divisions.iter().enumerate() {
            self.pickler.text(&(1u64 << power).to_string());
            self.pickler.int(*divisions);
        }
        self.pickler.set_items()?;
        self.pickler.set_items()
    }

    fn number(&mut self, key: &'static str, value: u64) {
        self.pickler.name(key);
        self.pickler.int(value);
    }

    fn word(&mut self, key: &'static str, value: &'static str) {
        self.pickler.name(key);
        self.pickler.name(value);
    }
}
