//! Random programs on a simulated allocator: what the replay says after every event is what was so.
//!
//! A program that fails is made as small as it can be and printed, step by step.

use tidegauge_simulated::Dice;
use tidegauge_simulated::allocator::{Event, State};
use tidegauge_simulated::program::{Kind, Program, Run};
use tidegauge_snapshot::model::{BlockState, Device};
use tidegauge_snapshot::replay::{Doubts, Fragmentation, Levels, NEVER, Replay, fragmentation, replay};

/// Programs of each kind.
const PROGRAMS: u64 = 24;

/// Steps of each program; a step is an event or three.
const STEPS: usize = 1500;

/// States of each trace whose blocks are compared one by one.
const MOMENTS: usize = 5;

fn levels(event: &Event) -> Levels {
    let truth = event.levels;
    Levels {
        requested: truth.requested,
        allocated: truth.allocated,
        active: truth.active,
        reserved: truth.reserved,
    }
}

/// The replays of every device, when each trace began at the event given for it.
fn replays(run: &Run, firsts: &[usize]) -> Result<Vec<(Replay, Fragmentation)>, String> {
    let pickle = run.snapshot(firsts);
    let snapshot = tidegauge_snapshot::read::open(&pickle[..]).map_err(|error| error.to_string())?;
    let nothing = |ordinal| Device { ordinal, events: 0..0, segments: 0..0 };
    let of_device = |ordinal| {
        let nothing = nothing(ordinal);
        let device = snapshot.device(ordinal).unwrap_or(&nothing);
        (replay(&snapshot, device), fragmentation(&snapshot, device))
    };
    Ok((0..run.devices.len() as u32).map(of_device).collect())
}

/// How the truth and the replay of a trace that began at event `first` differ, in one sentence.
fn difference(run: &Run, device: usize, first: usize, replay: &Replay) -> Result<(), String> {
    let events = &run.events(device)[first..];
    let before = run.events(device)[..first].last();
    let head = before.map(levels).unwrap_or_default();
    let n_states = events.len() + 1;
    if replay.curves.n_states() != n_states {
        return Err(format!("{} states instead of {n_states}", replay.curves.n_states()));
    }
    let open_bytes = replay.doubts.ambiguous_bytes;
    let mut peak = head;
    let truths: Vec<Levels> = std::iter::once(head).chain(events.iter().map(levels)).collect();
    for (state, truth) in truths.iter().enumerate() {
        let said = replay.curves.at(state);
        let is_exact = said == *truth;
        let is_near = said.requested == truth.requested
            && said.reserved == truth.reserved
            && said.allocated.abs_diff(truth.allocated) <= open_bytes
            && said.active.abs_diff(truth.active) <= open_bytes;
        if !is_exact && !is_near {
            return Err(format!("state {state}: {said:?}, but it was {truth:?} ({:?})", replay.doubts));
        }
        peak.requested = peak.requested.max(truth.requested);
        peak.allocated = peak.allocated.max(truth.allocated);
        peak.active = peak.active.max(truth.active);
        peak.reserved = peak.reserved.max(truth.reserved);
    }
    if replay.end != truths[n_states - 1] {
        return Err(format!("ends {:?}, but it was {:?}", replay.end, truths[n_states - 1]));
    }
    if open_bytes == 0 && (replay.peak, replay.head) != (peak, head) {
        return Err(format!("peak {:?}, but it was {peak:?}", replay.peak));
    }
    lives(run, device, first, replay, open_bytes)
}

/// Every life of a block: from when to when, and how large.
fn lives(run: &Run, device: usize, first: usize, replay: &Replay, open_bytes: u64) -> Result<(), String> {
    let events = &run.events(device)[first..];
    let before = run.blocks_before(device, first);
    let rows = &replay.allocations;
    let n_allocs = events.iter().filter(|event| event.action == tidegauge_simulated::Action::Alloc).count();
    if replay.n_preexisting != before.len() || rows.len() != before.len() + n_allocs {
        let (older, all) = (replay.n_preexisting, rows.len());
        return Err(format!(
            "{older} older of {all} lives, but {} of {}",
            before.len(),
            before.len() + n_allocs
        ));
    }
    let mut open = 0;
    for row in 0..rows.len() {
        let (address, size, requested) = (rows.address[row], rows.size[row], rows.requested[row]);
        let (true_size, true_requested, was_pending) = match (rows.from[row] as usize).checked_sub(1) {
            Some(event) if events[event].address == address => {
                (events[event].block, events[event].size, false)
            }
            Some(event) => {
                return Err(format!("row {row} begins with event {event}, which is another block's"));
            }
            None => match before.get(&address) {
                Some(block) => (block.size, block.requested, block.state == State::Pending),
                None => return Err(format!("row {row} at {address:#x} was not there before the trace")),
            },
        };
        if requested != true_requested {
            return Err(format!(
                "row {row} at {address:#x}: {requested} requested, but it was {true_requested}"
            ));
        }
        if was_pending != (rows.from[row] == 0 && rows.free_requested[row] == 0) {
            return Err(format!("row {row} at {address:#x}: pending before the trace? {was_pending}"));
        }
        if size != true_size {
            open += size.abs_diff(true_size);
            if open > open_bytes {
                let lived = (rows.from[row], rows.to[row]);
                return Err(format!(
                    "row {row} at {address:#x}, alive in states {lived:?}: {size} bytes, but it was {true_size} ({:?})",
                    replay.doubts
                ));
            }
        }
        let is_alive = run.devices[device]
            .blocks
            .get(&address)
            .is_some_and(|block| matches!(block.state, State::Allocated | State::Pending));
        if rows.to[row] == NEVER && !is_alive {
            return Err(format!("row {row} at {address:#x} outlives the trace, but it did not"));
        }
    }
    Ok(())
}

/// The free memory at every state, where nothing about the head is open.
fn holes(run: &Run, device: usize, first: usize, found: &Fragmentation) -> Result<(), String> {
    for (event, state) in run.events(device)[first..].iter().zip(1..) {
        let said = (found.largest_free[state], found.inactive_split[state]);
        let truth = (event.levels.largest_free, event.levels.inactive_split);
        if said != truth {
            return Err(format!(
                "state {state}: (largest free, inactive split) is {said:?}, but it was {truth:?}"
            ));
        }
    }
    Ok(())
}

/// Every block at a few moments.
fn moments(run: &Run, device: usize, first: usize, replay: &Replay) -> Result<(), String> {
    let n_states = replay.curves.n_states();
    for state in (0..n_states).step_by((n_states / MOMENTS).max(1)) {
        let found = replay.state_at(state as u32);
        let in_use = found.blocks.iter().filter(|block| block.state != BlockState::Inactive);
        let said: Vec<_> = in_use.map(|block| (block.address, block.size, block.state)).collect();
        let lived = run.blocks_before(device, first + state);
        let truth: Vec<_> = lived
            .iter()
            .map(|(address, block)| {
                let is_pending = block.state == State::Pending;
                let doing = if is_pending { BlockState::PendingFree } else { BlockState::Allocated };
                (*address, block.size, doing)
            })
            .collect();
        if said != truth {
            return Err(format!("state {state} has the blocks {said:x?}, but it had {truth:x?}"));
        }
        let bytes: u64 = found.blocks.iter().map(|block| block.size).sum();
        if bytes != replay.curves.reserved[state] || !found.strays.is_empty() {
            return Err(format!("state {state}: {bytes} bytes of blocks, {} strays", found.strays.len()));
        }
    }
    Ok(())
}

/// Where the trace of each device begins, some thousandths into the program.
type Cut = fn(&Run, u64) -> Vec<usize>;

/// Everything was recorded.
fn whole(run: &Run, _: u64) -> Vec<usize> {
    vec![0; run.devices.len()]
}

/// Recording began late, or its history was cleared: at the same step on every device.
fn late(run: &Run, thousandths: u64) -> Vec<usize> {
    let step = run.starts.len() as u64 * thousandths / 1000;
    run.starts.get(step as usize).cloned().unwrap_or_else(|| whole(run, 0))
}

/// A ring that kept the last events of each device.
fn ring(run: &Run, thousandths: u64) -> Vec<usize> {
    let longest = (0..run.devices.len()).map(|device| run.events(device).len() as u64).max().unwrap_or(0);
    let max_entries = longest - longest * thousandths / 1000;
    let first = |device| run.events(device).len().saturating_sub(max_entries as usize);
    (0..run.devices.len()).map(first).collect()
}

/// What a test asks of programs of one kind.
#[derive(Clone, Copy)]
struct Check {
    cut: Cut,
    /// Whether the replay doubts more than it should.
    is_doubted: fn(&Doubts) -> bool,
}

impl Check {
    /// The first difference of any device.
    fn first_difference(self, program: &Program, thousandths: u64) -> Result<(), String> {
        let run = program.run();
        let firsts = (self.cut)(&run, thousandths);
        for (device, (replay, fragmentation)) in replays(&run, &firsts)?.iter().enumerate() {
            let first = firsts[device];
            let at = format!("device {device} from event {first}");
            difference(&run, device, first, replay).map_err(|what| format!("{at}: {what}"))?;
            // Two expandable segments side by side look like one unless both are there at the end.
            if replay.doubts.ambiguous_bytes == 0 {
                moments(&run, device, first, replay).map_err(|what| format!("{at}: {what}"))?;
            }
            if replay.doubts.ambiguous_bytes == 0 && program.kind != Kind::Crowded {
                holes(&run, device, first, fragmentation).map_err(|what| format!("{at}: {what}"))?;
            }
            if (self.is_doubted)(&replay.doubts) {
                return Err(format!("{at}: {:?}", replay.doubts));
            }
        }
        Ok(())
    }

    /// Runs many programs of one kind.
    fn all(self, kind: Kind) {
        for seed in 0..PROGRAMS {
            // Short programs too: they reach other corners than long ones.
            let n_steps = if seed % 4 == 0 { STEPS / 10 } else { STEPS };
            let program = Program::random(kind, seed, n_steps);
            let thousandths = Dice(seed).below(1000);
            if let Err(what) = self.first_difference(&program, thousandths) {
                panic!("{kind:?}, seed {seed}: {what}\nin its smallest form:\n{}", self.smallest(&program));
            }
        }
    }

    /// The smallest part of a program that still fails wherever its trace begins, told as a story.
    fn smallest(self, program: &Program) -> String {
        let somewhere = |program: &Program| {
            (0..1000).step_by(37).find(|thousandths| self.first_difference(program, *thousandths).is_err())
        };
        let smallest = program.smallest(|program| somewhere(program).is_some());
        let Some(thousandths) = somewhere(&smallest) else { return "it fails at one place only".to_owned() };
        let run = smallest.run();
        let mut story = format!("{:?}\n", smallest.rules);
        smallest.steps.iter().for_each(|step| story += &format!("{step:?}\n"));
        for (device, first) in (self.cut)(&run, thousandths).into_iter().enumerate() {
            for (number, event) in run.events(device).iter().enumerate() {
                let Event { action, address, size, block, levels, .. } = event;
                let lost = if number < first { "lost" } else { "" };
                story += &format!(
                    "device {device} {lost:4} {action:?} {address:#x} {size} in {block}: allocated {}, reserved {}\n",
                    levels.allocated, levels.reserved
                );
            }
        }
        story + &self.first_difference(&smallest, thousandths).expect_err("it fails there")
    }
}

/// Nothing at all is in doubt.
fn any(doubts: &Doubts) -> bool {
    *doubts != Doubts::default()
}

/// Nothing but the sizes of blocks older than the trace.
fn any_but_open_sizes(doubts: &Doubts) -> bool {
    any(&Doubts { ambiguous_sizes: 0, ambiguous_bytes: 0, ..*doubts })
}

/// Nothing but that, and allocations in the middle of a free range.
fn any_but_touching_ranges(doubts: &Doubts) -> bool {
    any_but_open_sizes(&Doubts { alloc_off_range: 0, ..*doubts })
}

macro_rules! kinds {
    ($($name:ident: $kind:ident, $is_doubted:ident;)*) => {$(
        mod $name {
            use super::*;

            #[test]
            fn a_whole_trace_is_exact_at_every_event() {
                let is_doubted = |doubts: &Doubts| doubts.ambiguous_sizes > 0 || $is_doubted(doubts);
                Check { cut: whole, is_doubted }.all(Kind::$kind);
            }

            #[test]
            fn a_trace_that_began_late_says_what_is_open() {
                Check { cut: late, is_doubted: $is_doubted }.all(Kind::$kind);
            }

            #[test]
            fn a_ring_that_was_full_says_what_is_open() {
                Check { cut: ring, is_doubted: $is_doubted }.all(Kind::$kind);
            }
        }
    )*};
}

kinds! {
    plain: Plain, any_but_open_sizes;
    segments_that_touch: Touching, any_but_open_sizes;
    streams: Streams, any_but_open_sizes;
    expandable_segments: Expandable, any_but_open_sizes;
    // The file does not say where one expandable segment ends and the next begins.
    crowded_expandable_segments: Crowded, any_but_touching_ranges;
    a_split_limit: SplitLimit, any_but_open_sizes;
    power_of_two_divisions: Divisions, any_but_open_sizes;
    private_pools: Pools, any_but_open_sizes;
    a_device_too_small: Tight, any_but_open_sizes;
    expandable_segments_on_a_device_too_small: TightExpandable, any_but_open_sizes;
    several_devices: Devices, any_but_open_sizes;
    torch_npu: Npu, any_but_open_sizes;
    torch_npu_with_expandable_segments: NpuExpandable, any_but_open_sizes;
}

/// Corners of a head that was lost, each with the smallest program that shows it.
mod lost_heads {
    use super::*;
    use tidegauge_simulated::Rules;
    use tidegauge_simulated::program::Ask;

    const MIB: u64 = 1 << 20;

    /// Runs some steps before the trace and some in it.
    fn check(rules: Rules, lost: &[Ask], traced: &[Ask]) -> Doubts {
        let steps = [lost, traced].concat().into_iter().map(|ask| (0, 0, ask)).collect();
        let run = Program { kind: Kind::Plain, rules, n_devices: 1, steps }.run();
        let first = run.starts[lost.len()][0];
        let (replay, _) = replays(&run, &[first]).unwrap().remove(0);
        if let Err(what) = difference(&run, 0, first, &replay) {
            panic!("{what}");
        }
        replay.doubts
    }

    fn alloc(bytes: u64) -> Ask {
        Ask::Alloc { bytes, stream: 0 }
    }

    #[test]
    fn a_block_above_the_split_limit_is_its_whole_segment() {
        // A segment of 42 MiB, free again, serves a request of 32 MiB whole: the rest is no block of its own.
        let rules = Rules { max_split: Some(21 * MIB), ..Rules::default() };
        let lost = [alloc(42 * MIB), Ask::Free { nth: 0 }, alloc(32 * MIB)];
        assert_eq!(check(rules, &lost, &[Ask::Free { nth: 0 }]), Doubts::default());
    }

    /// 1.5 MiB in a block of 2 MiB, and free memory behind it.
    const A_BLOCK_WITH_A_REST: [Ask; 5] = [
        Ask::Alloc { bytes: 2 * MIB, stream: 0 },
        Ask::Alloc { bytes: 3 * MIB, stream: 0 },
        Ask::Free { nth: 0 },
        Ask::Alloc { bytes: 3 * MIB / 2, stream: 0 },
        Ask::Free { nth: 0 },
    ];

    #[test]
    fn a_block_may_have_kept_a_rest_however_large_the_gap_behind_it_has_become() {
        let doubts = check(Rules::default(), &A_BLOCK_WITH_A_REST, &[Ask::Free { nth: 0 }]);
        assert_eq!((doubts.ambiguous_sizes, doubts.ambiguous_bytes), (1, MIB));
        assert!(!any_but_open_sizes(&doubts), "{doubts:?}");
    }

    #[test]
    fn an_allocation_behind_a_block_tells_its_size() {
        let traced = [alloc(3 * MIB), Ask::Free { nth: 0 }];
        assert_eq!(check(Rules::default(), &A_BLOCK_WITH_A_REST, &traced), Doubts::default());
    }
}

#[test]
fn a_training_is_read_as_it_was_written_with_either_kind_of_stacks() {
    use tidegauge_simulated::trainer::{self, Recording, Training};

    for recording in [Recording::Python, Recording::All] {
        let mut pickle = Vec::new();
        let n_events = trainer::write(20_000, recording, &mut pickle).unwrap();
        let mut training = Training::start(recording);
        while training.allocator.events.len() < n_events {
            training.step();
        }
        let events = &training.allocator.events;
        assert_eq!(events.len(), n_events);

        let snapshot = tidegauge_snapshot::read::open(&pickle[..]).unwrap();
        assert_eq!(snapshot.findings, []);
        let replay = replay(&snapshot, &snapshot.devices[0]);
        assert_eq!(replay.doubts, Doubts::default());
        let truth: Vec<Levels> = events.iter().map(levels).collect();
        assert_eq!(replay.curves.n_states(), n_events + 1);
        assert!((1..=n_events).all(|state| replay.curves.at(state) == truth[state - 1]));
        let frames = snapshot.stacks.frame_ids(snapshot.trace.stack[0]).len();
        assert_eq!(frames > 24, recording == Recording::All, "{frames} frames");
    }
}
