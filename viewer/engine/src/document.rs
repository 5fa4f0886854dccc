//! An open snapshot and the answers to the page's questions about it.

use tidegauge_api::Inspection;
use tidegauge_api::breakdown::{Breakdown, breakdown, frames, levels_at};
use tidegauge_api::holders::{self, HoldersAnswer, HoldersQuestion, MarkedQuestion};
use tidegauge_api::inspection::inspect_replayed;
use tidegauge_api::memory::{Block, MemoryAnswer, MemoryQuestion, OomAnswer, SegmentAnswer, SegmentTotal};
use tidegauge_api::picture::{
    AllocationAnswer, AllocationQuestion, Curves, LevelsAnswer, LevelsQuestion, Opened, OpenedDevice,
    PictureAnswer, PictureQuestion,
};
use tidegauge_snapshot::Snapshot;
use tidegauge_snapshot::filter::Filter;
use tidegauge_snapshot::model::{Action, BlockState, Device, StackId};
use tidegauge_snapshot::origins::Origins;
use tidegauge_snapshot::picture::{Bands, Index, Map, MapRect, MapView, Palette, Raster, View};
use tidegauge_snapshot::replay::{NEVER, Replay, SegmentAt, StateAt, replay};
use tidegauge_snapshot::sums::By;
use tidegauge_snapshot::{pack, words};

/// Stacks that are named where memory ran out.
const N_TOP_STACKS: usize = 5;

/// An open snapshot: every device replayed and indexed.
#[derive(Debug)]
pub struct Document {
    snapshot: Snapshot,
    /// In the order of `snapshot.devices`.
    replays: Vec<Replay>,
    indexes: Vec<Index>,
    palette: Palette,
    inspection: Inspection,
}

impl Document {
    /// Replays and indexes a snapshot. A pack brings its palette along, since its stacks come later.
    pub fn new(snapshot: Snapshot, palette: Option<Palette>, name: &str, bytes: u64) -> Self {
        let replays: Vec<Replay> = snapshot.devices.iter().map(|device| replay(&snapshot, device)).collect();
        let indexes = replays.iter().map(Index::new).collect();
        let inspection = inspect_replayed(&snapshot, &replays, name, bytes);
        let palette = palette.unwrap_or_else(|| Palette::new(&snapshot));
        Self { snapshot, replays, indexes, palette, inspection }
    }

    /// Adds the texts and stacks of a pack.
    ///
    /// # Errors
    /// When the bytes are damaged or too few.
    pub fn add_stacks(&mut self, header: &pack::Header, rest: &[u8]) -> Result<(), pack::PackError> {
        pack::add_stacks(&mut self.snapshot, header, rest)
    }

    /// What there is to look at.
    pub fn opened(&self) -> Opened {
        let mut devices: Vec<OpenedDevice> = self
            .snapshot
            .devices
            .iter()
            .zip(&self.replays)
            .map(|(device, replay)| self.device(device, replay))
            .collect();
        devices.sort_by_key(|device| {
            std::cmp::Reverse((device.n_events > 0, device.peak_active, device.n_events))
        });
        Opened { inspection: self.inspection.clone(), devices }
    }

    fn device(&self, device: &Device, replay: &Replay) -> OpenedDevice {
        let times = self.snapshot.trace.time_us.get(device.events.clone()).unwrap_or(&[]);
        OpenedDevice {
            device: device.ordinal,
            n_events: device.events.len() as u32,
            n_allocations: replay.allocations.len() as u32,
            time_us: times.first().zip(times.last()).map(|(first, last)| [*first, *last]),
            peak_active: replay.peak.active,
            peak_state: replay.peak_state,
        }
    }

    fn find(&self, ordinal: u32) -> Result<(&Device, &Replay, &Index), String> {
        let at = self.snapshot.devices.iter().position(|device| device.ordinal == ordinal);
        let at = at.ok_or_else(|| format!("the snapshot has nothing on device {ordinal}"))?;
        Ok((&self.snapshot.devices[at], &self.replays[at], &self.indexes[at]))
    }

    /// The stacked picture of a window, and the curves over the same columns.
    ///
    /// # Errors
    /// When the snapshot has nothing on that device.
    pub fn picture(&self, question: &PictureQuestion) -> Result<(PictureAnswer, Raster), String> {
        let (_, replay, index) = self.find(question.device)?;
        let view = View {
            from: question.from,
            to: question.to,
            width: question.width,
            height: question.height,
            top: question.top,
        };
        let (raster, bands) = Raster::draw(index, replay, &self.palette, view);
        let answer = PictureAnswer {
            question: PictureQuestion {
                device: question.device,
                from: bands.view.from,
                to: bands.view.to,
                width: bands.view.width,
                height: bands.view.height,
                top: Some(bands.top),
            },
            n_drawn: bands.n_drawn,
            other_max: bands.other.iter().copied().max().unwrap_or(0),
            curves: curves(replay, bands),
        };
        Ok((answer, raster))
    }

    /// The levels at one state.
    ///
    /// # Errors
    /// When the snapshot has nothing on that device.
    pub fn levels(&self, question: &LevelsQuestion) -> Result<LevelsAnswer, String> {
        let origins = self.origins(question.device)?;
        Ok(levels_at(&origins, question.state.min(origins.device.events.len() as u32)))
    }

    /// Segments and blocks at one state, and their rectangles.
    ///
    /// # Errors
    /// When the snapshot has nothing on that device.
    pub fn memory(&self, question: &MemoryQuestion) -> Result<(MemoryAnswer, Vec<Block>), String> {
        let (device, replay, index) = self.find(question.device)?;
        let state = question.state.min(device.events.len() as u32);
        let moment = replay.state_of(state, index.alive_at(replay, state));
        let view =
            MapView { width: question.width, scale: question.scale.into(), order: question.order.into() };
        let map = Map::new(replay, &moment, view);
        let blocks = map.rects.iter().map(|rect| self.block(replay, rect)).collect();
        let segment = |row: &usize| self.segment(replay, &moment, &moment.segments[*row]);
        let segments: Vec<_> = map.segments.iter().map(segment).collect();
        let (total, shown) = (all_of(&moment), total(&segments));
        let levels = replay.curves.at(state as usize);
        let free = moment.free(&replay.reservations);
        let answer = MemoryAnswer {
            question: MemoryQuestion { state, width: map.view.width, ..*question },
            segments,
            total,
            others: SegmentTotal {
                segments: total.segments - shown.segments,
                size: total.size - shown.size,
                active: total.active - shown.active,
            },
            pending: levels.active.saturating_sub(levels.allocated),
            waste: levels.active.saturating_sub(levels.requested),
            inactive_split: free.inactive_split,
            roomiest: free.largest.map(|(row, _)| segment(&row)),
            n_merged: map.n_merged(),
            grain: map.grain,
            n_strays: moment.strays.len() as u64,
            pinned: question
                .pinned
                .and_then(|id| map.spot(&moment, id))
                .map(|spot| [spot.row, spot.x, spot.width]),
            oom: self.oom(&self.origins(question.device)?, state),
        };
        Ok((answer, blocks))
    }

    fn block(&self, replay: &Replay, rect: &MapRect) -> Block {
        let stack = replay.allocations.stack.get(rect.allocation as usize);
        Block::new(rect, self.palette.color(stack.copied().unwrap_or(StackId::NONE)))
    }

    fn segment(&self, replay: &Replay, moment: &StateAt, segment: &SegmentAt) -> SegmentAnswer {
        let reservations = &replay.reservations;
        let row = segment.reservation as usize;
        let stream = self.snapshot.streams.get(reservations.stream[row] as usize);
        let free = moment.blocks_of(segment).iter().filter(|block| block.state == BlockState::Inactive);
        SegmentAnswer {
            address: format!("{:#x}", segment.address),
            size: segment.size,
            active: active_of(moment, segment),
            largest_free: free.map(|block| block.size).max().unwrap_or(0),
            pool: reservations.pool(segment.reservation).map(words::pool),
            stream: stream.filter(|handle| **handle != 0).map(|handle| format!("{handle:#x}")),
            stream_number: reservations.stream[row],
            is_expandable: reservations.is_expandable[row],
        }
    }

    fn oom(&self, origins: &Origins<'_>, state: u32) -> Option<OomAnswer> {
        let trace = &self.snapshot.trace;
        let event = origins.event_before(state).filter(|event| trace.action[*event] == Action::OOM)?;
        Some(OomAnswer { asked: trace.size[event], device_free: trace.address[event] })
    }

    /// The stacks that hold most at one state.
    ///
    /// # Errors
    /// When the snapshot has nothing on that device.
    pub fn top_stacks(&self, question: &LevelsQuestion) -> Result<Breakdown, String> {
        let origins = self.origins(question.device)?;
        let state = question.state.min(origins.device.events.len() as u32);
        Ok(breakdown(&origins, state, By::Stack, &Filter::default(), N_TOP_STACKS))
    }

    /// Everything known of one allocation.
    ///
    /// # Errors
    /// When there is no such allocation.
    pub fn allocation(&self, question: &AllocationQuestion) -> Result<AllocationAnswer, String> {
        let (device, replay, _) = self.find(question.device)?;
        let allocations = &replay.allocations;
        let row = question.id as usize;
        if row >= allocations.len() {
            return Err(format!("device {} has no allocation {}", question.device, question.id));
        }
        let (from, to) = (allocations.from[row], allocations.to[row]);
        let origins = self.origins(question.device)?;
        let is_older = origins.is_older(row);
        let (made, freed) = (origins.made_in(row), origins.ended_in(row));
        let trace = &self.snapshot.trace;
        let time = |event: Option<usize>| event.and_then(|event| trace.time_us(event));
        let stack = allocations.stack[row];
        let stream = made.or(freed).map(|event| u64::from(trace.stream[event]));
        let free_requested = allocations.free_requested[row];
        Ok(AllocationAnswer {
            id: question.id,
            address: format!("{:#x}", allocations.address[row]),
            requested: allocations.requested[row],
            size: allocations.size[row],
            from,
            to: (to != NEVER).then_some(to),
            free_requested: (free_requested != NEVER && free_requested != to).then_some(free_requested),
            preexisting: is_older,
            lifetime_us: time(made).zip(time(freed)).map(|(made, freed)| freed - made),
            stream: stream.or_else(|| self.stream_of_segment(device, allocations.address[row])),
            stack: frames(&self.snapshot, stack),
            stack_missing: stack_missing(stack, is_older, to != NEVER),
            notes: made.map_or_else(Vec::new, |event| self.notes(event)),
        })
    }

    /// Who holds the memory at one state.
    ///
    /// # Errors
    /// When the filter is none, or the question names what is not there.
    pub fn holders(&self, question: &HoldersQuestion) -> Result<HoldersAnswer, String> {
        holders::holders(&self.origins(question.device)?, &self.palette, question)
    }

    /// One bit for each allocation that a filter means and a holder holds.
    ///
    /// # Errors
    /// When the filter is none, or the question names what is not there.
    pub fn marked(&self, question: &MarkedQuestion) -> Result<Vec<u8>, String> {
        holders::marked(&self.origins(question.device)?, question)
    }

    fn origins(&self, ordinal: u32) -> Result<Origins<'_>, String> {
        let (device, replay, _) = self.find(ordinal)?;
        Ok(Origins { snapshot: &self.snapshot, device, replay })
    }

    fn notes(&self, event: usize) -> Vec<String> {
        let extra = self.snapshot.trace.extra(event);
        let texts = [extra.compile_context, extra.user_metadata, extra.category];
        texts
            .into_iter()
            .filter_map(|text| self.snapshot.said(text))
            .map(|id| self.snapshot.strings.text(id).into_owned())
            .collect()
    }

    fn stream_of_segment(&self, device: &Device, address: u64) -> Option<u64> {
        let segments = &self.snapshot.segments;
        let holds = |segment: &usize| {
            let start = segments.address[*segment];
            start <= address && address - start < segments.total_size[*segment]
        };
        device.segments.clone().find(holds).map(|segment| u64::from(segments.stream[segment]))
    }
}

fn active_of(moment: &StateAt, segment: &SegmentAt) -> u64 {
    let active = moment.blocks_of(segment).iter().filter(|block| block.state != BlockState::Inactive);
    active.map(|block| block.size).sum()
}

fn all_of(moment: &StateAt) -> SegmentTotal {
    SegmentTotal {
        segments: moment.segments.len() as u64,
        size: moment.segments.iter().map(|segment| segment.size).fold(0, u64::saturating_add),
        active: moment.segments.iter().map(|segment| active_of(moment, segment)).fold(0, u64::saturating_add),
    }
}

fn total(segments: &[SegmentAnswer]) -> SegmentTotal {
    SegmentTotal {
        segments: segments.len() as u64,
        size: segments.iter().map(|segment| segment.size).fold(0, u64::saturating_add),
        active: segments.iter().map(|segment| segment.active).fold(0, u64::saturating_add),
    }
}

fn curves(replay: &Replay, bands: Bands) -> Curves {
    let column = |level: &[u64]| bands.states.iter().map(|state| level[*state as usize]).collect();
    Curves {
        requested: column(&replay.curves.requested),
        allocated: column(&replay.curves.allocated),
        active: column(&replay.curves.active),
        reserved: column(&replay.curves.reserved),
        states: bands.states,
    }
}

fn stack_missing(stack: StackId, is_older: bool, is_freed: bool) -> Option<String> {
    let reason = match stack {
        StackId::EMPTY => {
            "its stack is empty: it was made by a thread without Python frames, such as the backward pass; record \
             with stacks=\"all\" to see C++ frames"
        }
        StackId::NONE if is_older && is_freed => {
            "it was allocated before the trace begins and freed within it: neither the trace nor the segments hold \
             its stack"
        }
        StackId::NONE if is_older => "it was allocated before recording began",
        StackId::NONE => "it was recorded without a stack (context=None or context=\"state\")",
        _ => return None,
    };
    Some(reason.to_owned())
}
