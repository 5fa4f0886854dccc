//! A simulated training's history as the file torch would have written.

use std::{
    collections::HashMap,
    io::{self, Write},
};

use crate::{
    allocator::{Action, Allocator, Event, Segment, Stack},
    pickle::{Memo, Pickler},
    trainer::Stacks,
};

/// Unix epoch microseconds of the first event.
const FIRST_TIME_US: u64 = 1_764_500_000_000_000;
/// Microseconds between two events.
const TICK_US: u64 = 7;

/// Writes the snapshot of an allocator after its training, with python stacks, as torch 2.9 does.
pub(crate) fn write(allocator: &Allocator, stacks: &Stacks, out: impl Write) -> io::Result<()> {
    let pickler = Pickler::start(out)?;
    let mut file = File { pickler, stacks, frames: HashMap::new(), freed: None };
    file.pickler.dict();
    file.pickler.mark();
    file.pickler.name("segments");
    file.pickler.list();
    let segments: Vec<(u64, Segment)> =
        allocator.segments.iter().map(|(at, segment)| (*at, *segment)).collect();
    file.items(&segments, |file, (address, segment)| file.segment(allocator, *address, segment))?;
    file.pickler.name("device_traces");
    file.pickler.list();
    file.items(&[&allocator.events], |file, events| file.trace(events))?;
    file.settings()?;
    file.pickler.name("external_annotations");
    file.pickler.list();
    file.pickler.set_items()?;
    file.pickler.finish()
}

struct File<'a, W> {
    pickler: Pickler<W>,
    stacks: &'a Stacks,
    /// Frames written before.
    frames: HashMap<u32, Memo>,
    /// The frames of the last `free_requested`: torch lets its `free_completed` share them.
    freed: Option<Memo>,
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

    fn segment(&mut self, allocator: &Allocator, address: u64, segment: &Segment) -> io::Result<()> {
        let blocks: Vec<_> = allocator.blocks.range(address..address + segment.size).collect();
        let allocated = blocks.iter().filter(|(_, block)| block.is_allocated);
        let active_bytes = allocated.clone().map(|(_, block)| block.size).sum();
        let requested_bytes = allocated.map(|(_, block)| block.requested).sum();
        self.pickler.dict();
        self.pickler.mark();
        self.number("device", 0);
        self.number("address", address);
        self.number("total_size", segment.size);
        self.number("allocated_size", active_bytes);
        self.number("active_size", active_bytes);
        self.number("requested_size", requested_bytes);
        self.number("stream", 0);
        self.word("segment_type", if segment.is_small { "small" } else { "large" });
        self.pickler.name("segment_pool_id");
        self.pickler.int(0);
        self.pickler.int(0);
        self.pickler.pair();
        self.pickler.name("is_expandable");
        self.pickler.boolean(false);
        self.pickler.name("frames");
        self.stack(segment.stack)?;
        self.pickler.name("blocks");
        self.pickler.list();
        self.items(&blocks, |file, (address, block)| {
            file.pickler.dict();
            file.pickler.mark();
            file.number("address", **address);
            file.number("size", block.size);
            file.number("requested_size", block.requested);
            file.word("state", if block.is_allocated { "active_allocated" } else { "inactive" });
            file.pickler.name("frames");
            if block.is_allocated {
                file.stack(block.stack)?;
            } else {
                file.pickler.list();
            }
            file.pickler.set_items()
        })?;
        self.pickler.set_items()
    }

    fn trace(&mut self, events: &[Event]) -> io::Result<()> {
        self.pickler.list();
        let mut time_us = FIRST_TIME_US;
        self.items(events, |file, event| {
            time_us += TICK_US;
            file.event(event, time_us)
        })
    }

    fn event(&mut self, event: &Event, time_us: u64) -> io::Result<()> {
        self.pickler.dict();
        self.pickler.mark();
        let action = match event.action {
            Action::SegmentAlloc => "segment_alloc",
            Action::Alloc => "alloc",
            Action::FreeRequested => "free_requested",
            Action::FreeCompleted => "free_completed",
        };
        self.word("action", action);
        self.number("addr", event.address);
        self.number("size", event.size);
        self.number("stream", 0);
        self.number("time_us", time_us);
        self.pickler.name("compile_context");
        // Torch makes this string anew for every event.
        self.pickler.text("N/A");
        self.pickler.name("frames");
        match (event.action, self.freed.take()) {
            (Action::FreeCompleted, Some(frames)) => self.pickler.again(frames),
            (Action::FreeRequested, _) => self.freed = Some(self.stack(event.stack)?),
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
            file.number("line", u64::from(*line));
            file.pickler.set_items()
        })?;
        Ok(list)
    }

    fn settings(&mut self) -> io::Result<()> {
        self.pickler.name("allocator_settings");
        self.pickler.dict();
        self.pickler.mark();
        self.word("PYTORCH_CUDA_ALLOC_CONF", "");
        self.pickler.name("expandable_segments");
        self.pickler.boolean(false);
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

#[cfg(test)]
mod tests {
    use tidegauge_snapshot::{read, replay};

    use super::*;
    use crate::trainer::train;

    #[test]
    fn the_reader_sees_what_the_allocator_counted() {
        let (allocator, stacks) = train(20_000);
        let mut pickle = Vec::new();
        write(&allocator, &stacks, &mut pickle).unwrap();

        let snapshot = read::open(pickle.as_slice()).unwrap();
        assert_eq!(snapshot.findings, []);
        assert_eq!(snapshot.trace.len(), allocator.events.len());
        let replay = replay::replay(&snapshot, &snapshot.devices[0]);
        let peak = (replay.peak.requested, replay.peak.allocated, replay.peak.reserved);
        assert_eq!(peak, (allocator.peak.requested, allocator.peak.allocated, allocator.peak.reserved));
        let end = (replay.end.requested, replay.end.allocated, replay.end.reserved);
        assert_eq!(end, (allocator.now.requested, allocator.now.allocated, allocator.now.reserved));
    }

    #[test]
    fn an_event_takes_about_a_hundred_bytes_as_in_real_files() {
        let (allocator, stacks) = train(50_000);
        let mut pickle = Vec::new();
        write(&allocator, &stacks, &mut pickle).unwrap();
        let bytes_per_event = pickle.len() / allocator.events.len();
        assert!((90..125).contains(&bytes_per_event), "{bytes_per_event} bytes per event");
    }
}
