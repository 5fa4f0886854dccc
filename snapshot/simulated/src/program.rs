//! Random programs: what a process asks of its allocators, as a list that can be shortened and printed.
//!
//! A step names blocks by their place among those in use, so that any part of a program is a program: what fails is
//! halved until nothing can be left out.

use crate::{
    allocator::{Allocator, Event, PoolId, State},
    dice::Dice,
    file::{self, Dialect, Recorded},
    rules::Rules,
    stacks::{Stack, Stacks},
};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Streams of a device besides the default one, as their raw handles.
const STREAMS: [u64; 3] = [0, 0x5581_0000_1200, 0xffff_8000_0000_0040];

/// Call stacks a program has.
const STACKS: u64 = 12;

/// What a program is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// One stream, small and large blocks.
    Plain,
    /// Segments that touch one another.
    Touching,
    /// Several streams that use one another's blocks.
    Streams,
    /// `expandable_segments`.
    Expandable,
    /// Expandable segments with few addresses, side by side: a block of one may lie next to one of another.
    Crowded,
    /// `max_split_size`.
    SplitLimit,
    /// `roundup_power2_divisions`.
    Divisions,
    /// CUDA graphs and `MemPool`s.
    Pools,
    /// A device that is too small.
    Tight,
    /// The same with expandable segments.
    TightExpandable,
    /// Several devices.
    Devices,
    /// torch_npu.
    Npu,
    /// torch_npu with expandable segments.
    NpuExpandable,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::Plain,
        Self::Touching,
        Self::Streams,
        Self::Expandable,
        Self::Crowded,
        Self::SplitLimit,
        Self::Divisions,
        Self::Pools,
        Self::Tight,
        Self::TightExpandable,
        Self::Devices,
        Self::Npu,
        Self::NpuExpandable,
    ];

    fn rules(self, dice: &mut Dice) -> Rules {
        let mut rules = Rules { spacing: 2 * MIB * dice.below(2), ..Rules::default() };
        match self {
            Self::Plain | Self::Streams | Self::Pools | Self::Devices => {}
            Self::Touching => rules.spacing = 0,
            Self::Expandable => (rules.is_expandable, rules.spacing) = (true, 2 * MIB),
            Self::Crowded => {
                (rules.is_expandable, rules.spacing) = (true, 0);
                rules.reservation = 20 * MIB * (1 + dice.below(8));
            }
            Self::SplitLimit => rules.max_split = Some(MIB * (21 + dice.below(100))),
            Self::Divisions => {
                rules.divisions.iter_mut().for_each(|divisions| *divisions = 1 << dice.below(5));
                rules.is_expandable = dice.chance(30);
            }
            Self::Tight => {
                rules.capacity = MIB * (100 + dice.below(500));
                rules.max_split = dice.chance(50).then(|| MIB * (21 + dice.below(60)));
            }
            Self::TightExpandable => {
                (rules.is_expandable, rules.spacing) = (true, 2 * MIB);
                rules.capacity = MIB * (100 + dice.below(500));
            }
            Self::Npu => rules.padding = 32,
            Self::NpuExpandable => {
                (rules.padding, rules.is_expandable, rules.spacing) = (32, true, 2 * MIB);
            }
        }
        rules
    }
}

/// What a process asks of one device's allocator. Blocks are named by their place among those in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// A block.
    Alloc {
        /// Bytes.
        bytes: u64,
        /// For this stream.
        stream: u64,
    },
    /// Take one back.
    Free {
        /// Which.
        nth: u64,
    },
    /// Note that another stream uses one.
    Use {
        /// Which.
        nth: u64,
        /// The stream.
        stream: u64,
    },
    /// A stream is done with some of what it uses.
    Finish {
        /// The stream.
        stream: u64,
        /// Of how many blocks.
        n: usize,
    },
    /// `empty_cache()`.
    EmptyCache,
    /// Blocks come from a private pool from here on.
    Enter(PoolId),
    /// They no longer do.
    Leave,
    /// A private pool's owner is gone.
    DropPool(PoolId),
    /// `_snapshot()`.
    Snapshot,
}

/// A process, from its first allocation on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// What it is about.
    pub kind: Kind,
    /// The settings of its allocators.
    pub rules: Rules,
    /// How many devices it sees.
    pub n_devices: usize,
    /// Device, where in the program, and what.
    pub steps: Vec<(usize, Stack, Ask)>,
}

impl Program {
    /// A program of that kind, the same for the same seed.
    pub fn random(kind: Kind, seed: u64, n_steps: usize) -> Self {
        let mut dice = Dice(seed);
        let rules = kind.rules(&mut dice);
        let n_devices = if kind == Kind::Devices { 2 + dice.below(3) as usize } else { 1 };
        let n_streams = match kind {
            Kind::Streams | Kind::Tight | Kind::TightExpandable | Kind::NpuExpandable => STREAMS.len(),
            _ => 1,
        };
        let mut mood = Mood { kind, n_streams: n_streams as u64, is_growing: true };
        let steps = (0..n_steps)
            .map(|_| {
                let device = dice.below(n_devices as u64) as usize;
                (device, dice.below(STACKS) as Stack, mood.ask(&mut dice))
            })
            .collect();
        Self { kind, rules, n_devices, steps }
    }

    /// Runs it.
    pub fn run(&self) -> Run {
        let mut devices = vec![Allocator::new(self.rules.clone()); self.n_devices];
        let mut in_use = vec![Vec::new(); self.n_devices];
        let mut starts = Vec::with_capacity(self.steps.len());
        for (device, stack, ask) in &self.steps {
            starts.push(devices.iter().map(|device| device.events.len()).collect());
            obey(&mut devices[*device], &mut in_use[*device], *ask, *stack);
        }
        let dialect = if self.rules.padding > 0 { Dialect::TorchNpu } else { Dialect::Torch };
        Run { devices, starts, dialect }
    }

    /// The smallest part of it that still shows what `fails` sees: pieces are left out by halves, then by quarters,
    /// down to single steps.
    pub fn smallest(&self, fails: impl Fn(&Self) -> bool) -> Self {
        let mut smallest = self.clone();
        let mut piece = smallest.steps.len().div_ceil(2);
        let mut n_before = smallest.steps.len();
        while piece > 0 {
            let mut at = 0;
            while at < smallest.steps.len() {
                let mut shorter = smallest.clone();
                shorter.steps.drain(at..(at + piece).min(smallest.steps.len()));
                if fails(&shorter) {
                    smallest = shorter;
                } else {
                    at += piece;
                }
            }
            piece /= 2;
            if piece == 0 && smallest.steps.len() < n_before {
                // What was needed before may not be needed now.
                n_before = smallest.steps.len();
                piece = n_before.div_ceil(2);
            }
        }
        smallest
    }
}

fn obey(allocator: &mut Allocator, in_use: &mut Vec<u64>, ask: Ask, stack: Stack) {
    let nth = |in_use: &[u64], nth: u64| (!in_use.is_empty()).then(|| nth as usize % in_use.len());
    match ask {
        Ask::Alloc { bytes, stream } => in_use.extend(allocator.alloc(bytes, stream, stack)),
        Ask::Free { nth: at } => {
            if let Some(at) = nth(in_use, at) {
                allocator.free(in_use.swap_remove(at), stack);
            }
        }
        Ask::Use { nth: at, stream } => {
            if let Some(at) = nth(in_use, at) {
                allocator.use_on(in_use[at], stream);
            }
        }
        Ask::Finish { stream, n } => allocator.finish(stream, n),
        Ask::EmptyCache => allocator.empty_cache(stack),
        Ask::Enter(pool) => allocator.enter(pool),
        Ask::Leave => allocator.leave(),
        Ask::DropPool(pool) => allocator.drop_pool(pool),
        Ask::Snapshot => allocator.snapshot(),
    }
}

/// What a random program is up to.
struct Mood {
    kind: Kind,
    n_streams: u64,
    is_growing: bool,
}

impl Mood {
    fn ask(&mut self, dice: &mut Dice) -> Ask {
        // A few dozen steps up, a few dozen down: memory is used, broken up and used again.
        if dice.chance(3) {
            self.is_growing = !self.is_growing;
        }
        let stream = STREAMS[dice.below(self.n_streams) as usize];
        match dice.below(1000) {
            0..4 => Ask::EmptyCache,
            4..7 => Ask::Snapshot,
            7..100 if self.n_streams > 1 => Ask::Use { nth: dice.below(1000), stream },
            100..200 if self.n_streams > 1 => Ask::Finish { stream, n: 1 + dice.below(12) as usize },
            200..225 if self.kind == Kind::Pools => Ask::Enter(private_pool(dice)),
            225..270 if self.kind == Kind::Pools => Ask::Leave,
            270..280 if self.kind == Kind::Pools => Ask::DropPool(private_pool(dice)),
            _ if dice.chance(if self.is_growing { 65 } else { 35 }) => {
                Ask::Alloc { bytes: size(dice), stream }
            }
            _ => Ask::Free { nth: dice.below(1000) },
        }
    }
}

fn private_pool(dice: &mut Dice) -> PoolId {
    let number = 1 + dice.below(3);
    if dice.chance(50) { (number, 0) } else { (0, number) }
}

/// Bytes of a request: near the limits where an allocator decides, more often than by chance.
fn size(dice: &mut Dice) -> u64 {
    let near = |dice: &mut Dice, limit: u64| limit - 1024 + dice.below(2048);
    match dice.below(12) {
        0 => 1 + dice.below(2 * KIB),
        1 => 1 + dice.below(MIB),
        2 => 512 * (1 + dice.below(64)),
        3 => near(dice, MIB),
        4 => near(dice, 10 * MIB),
        5 => near(dice, 20 * MIB),
        6 => MIB + dice.below(9 * MIB),
        7 => MIB + 512 * dice.below(4096),
        8 => 10 * MIB + dice.below(60 * MIB),
        // What leaves about a mebibyte of a segment of 20 MiB or of 2 MiB steps.
        9 => 19 * MIB + dice.below(4 * KIB) - 2 * KIB,
        10 => 2 * MIB * (6 + dice.below(20)) - MIB - 512 * dice.below(8) + 2 * KIB,
        _ => 1 << (9 + dice.below(17)),
    }
}

/// What became of a program.
#[derive(Debug)]
pub struct Run {
    /// Its allocators with all they remember.
    pub devices: Vec<Allocator>,
    /// How many events each device had before each step.
    pub starts: Vec<Vec<usize>>,
    dialect: Dialect,
}

impl Run {
    /// The snapshot of it, when each device's trace began at the event given for it.
    pub fn snapshot(&self, firsts: &[usize]) -> Vec<u8> {
        let mut stacks = Stacks::default();
        for number in 0..STACKS {
            let frames =
                (0..1 + number % 4).map(|depth| stacks.frame("f", "program.py", 10 * number + depth));
            let frames = frames.collect();
            stacks.stack(frames);
        }
        let devices: Vec<Recorded<'_>> = self
            .devices
            .iter()
            .zip(firsts)
            .map(|(allocator, first)| Recorded { allocator, events: &allocator.events[*first..] })
            .collect();
        let mut pickle = Vec::new();
        file::write(&devices, &stacks, self.dialect, &mut pickle).expect("a vector takes all bytes");
        pickle
    }

    /// What a device's blocks were before an event: address, and the block with its state.
    pub fn blocks_before(&self, device: usize, event: usize) -> std::collections::BTreeMap<u64, Lived> {
        let mut blocks = std::collections::BTreeMap::new();
        for event in &self.devices[device].events[..event] {
            use crate::allocator::Action;
            match event.action {
                Action::Alloc => {
                    let lived = Lived { size: event.block, requested: event.size, state: State::Allocated };
                    blocks.insert(event.address, lived);
                }
                Action::FreeRequested => {
                    let lived: &mut Lived = blocks.get_mut(&event.address).expect("it was handed out");
                    lived.state = State::Pending;
                }
                Action::FreeCompleted => _ = blocks.remove(&event.address),
                _ => {}
            }
        }
        blocks
    }

    /// The events of a device.
    pub fn events(&self, device: usize) -> &[Event] {
        &self.devices[device].events
    }
}

/// A block in use at some moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lived {
    /// Bytes it occupies.
    pub size: u64,
    /// Bytes asked for.
    pub requested: u64,
    /// In use or pending.
    pub state: State,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocator::Action;

    #[test]
    fn programs_show_what_they_are_about() {
        let run = |kind| Program::random(kind, 1, 4000).run();
        let has = |kind, action| run(kind).events(0).iter().any(|event| event.action == action);
        assert!(has(Kind::Plain, Action::SegmentFree));
        assert!(has(Kind::Expandable, Action::SegmentUnmap));
        assert!(has(Kind::Tight, Action::Oom));
        assert!(has(Kind::TightExpandable, Action::Oom));
        assert!(run(Kind::Pools).events(0).iter().any(|event| event.pool.1 == 2));
        let late = |pair: &[Event]| {
            pair[0].action == Action::FreeRequested && pair[1].action != Action::FreeCompleted
        };
        assert!(run(Kind::Streams).events(0).windows(2).any(late));
    }

    #[test]
    fn levels_are_what_the_blocks_add_up_to() {
        for kind in Kind::ALL {
            for allocator in Program::random(kind, 2, 3000).run().devices {
                let sum = |states: &[State]| -> u64 {
                    let blocks = allocator.blocks.values();
                    blocks.filter(|block| states.contains(&block.state)).map(|block| block.size).sum()
                };
                let now = allocator.now;
                assert_eq!(now.allocated, sum(&[State::Allocated]), "{kind:?}");
                assert_eq!(now.active, sum(&[State::Allocated, State::Pending]), "{kind:?}");
                assert_eq!(now.reserved, sum(&[State::Allocated, State::Pending, State::Free]), "{kind:?}");
            }
        }
    }

    #[test]
    fn what_fails_is_made_as_small_as_it_can_be() {
        let program = Program::random(Kind::Tight, 3, 1000);
        let fails =
            |program: &Program| program.run().events(0).iter().any(|event| event.action == Action::Oom);
        let smallest = program.smallest(fails);
        assert!(fails(&smallest));
        assert!(smallest.steps.len() < 40, "{} steps", smallest.steps.len());
    }
}
