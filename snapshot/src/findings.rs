//! What a reader of the pictures should know first: what the file is, what it cannot say, what is odd in it.

use std::collections::BTreeMap;

use crate::Snapshot;
use crate::annotations::paired;
use crate::model::{Action, Annotation, BlockState, Device, Finding, StackId, Value};
use crate::replay::{FreeSites, Replay, n_workspace_events};
use crate::words::{count, counted, size};

/// What is known of a snapshot from elsewhere: whoever took it may have written it down.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Known {
    /// Bytes of each device, by ordinal.
    pub device_bytes: BTreeMap<u32, u64>,
    /// Events that the recorder's ring holds.
    pub max_entries: Option<u64>,
}

/// The findings of reading, then those of the devices, in the order of [`Snapshot::devices`]; `replays` are theirs.
pub fn findings(snapshot: &Snapshot, replays: &[Replay]) -> Vec<Finding> {
    findings_knowing(snapshot, replays, &Known::default())
}

/// The same, with what is known from elsewhere.
pub fn findings_knowing(snapshot: &Snapshot, replays: &[Replay], known: &Known) -> Vec<Finding> {
    let mut all = snapshot.findings.clone();
    if snapshot.devices.is_empty() && snapshot.host.is_none() {
        let message = "the process held no memory on any device and recorded nothing: the snapshot was probably \
                       taken before the first allocation";
        all.push(finding("empty", 1, message));
    }
    if snapshot.trace.is_empty() && !snapshot.devices.is_empty() {
        let message = "no history was recorded, so only the memory at the end is known; call \
                       torch.cuda.memory._record_memory_history() before the part of interest";
        all.push(finding("no-history", 1, message));
    }
    if !snapshot.trace.is_empty() && snapshot.trace.time_us.is_empty() {
        let message =
            "the trace has no times (torch_npu and torch before 2.2 write none): it is shown by event";
        all.push(finding("no-times", 1, message));
    }
    of_annotations(snapshot, &mut all);
    for (device, replay) in snapshot.devices.iter().zip(replays) {
        of_device(snapshot, device, replay, known, &mut all);
    }
    all
}

fn finding(code: &str, count: u64, message: impl Into<String>) -> Finding {
    Finding { code: code.to_owned(), count, message: message.into() }
}

fn times(n: u64) -> String {
    if n == 1 { "once".to_owned() } else { format!("{} times", count(n)) }
}

/// Ends without a beginning, beginnings without an end, and what torch 2.5 to 2.7 write several times over.
fn of_annotations(snapshot: &Snapshot, all: &mut Vec<Finding>) {
    let ranges = paired(snapshot);
    let n_ends = ranges.iter().filter(|range| range.start_us.is_none()).count() as u64;
    let n_starts = ranges.iter().filter(|range| range.end_us.is_none()).count() as u64;
    let whole = |at: &Annotation| (at.is_start, at.name, at.device, at.time_us);
    let repeats = |pair: &&[Annotation]| whole(&pair[0]) == whole(&pair[1]);
    let n_repeated = snapshot.annotations.windows(2).filter(repeats).count() as u64;
    if n_ends > 0 {
        let message = format!(
            "{} ended without having begun: recording was switched on inside of them, or their ring was full",
            counted(n_ends, "annotation")
        );
        all.push(finding("annotation-without-start", n_ends, message));
    }
    if n_starts > 0 {
        let message =
            format!("{} had not ended when the snapshot was taken", counted(n_starts, "annotation"));
        all.push(finding("annotation-without-end", n_starts, message));
    }
    if n_repeated > 0 {
        let message = format!(
            "{} stand twice or more: torch 2.5 to 2.7 leave a hook behind each time recording is switched, and each \
             hook writes them again",
            counted(n_repeated, "annotation")
        );
        all.push(finding("annotation-repeated", n_repeated, message));
    }
}

/// Why blocks are older than the first event, as far as that can be known.
fn why_older(snapshot: &Snapshot, device: &Device, known: &Known) -> String {
    let n_events = device.events.len() as u64;
    let stated = |name: &str| {
        let rest = snapshot.rest.iter().find(|(found, _)| found == name).map(|(_, value)| value);
        rest.or_else(|| snapshot.setting(name))
    };
    let max_entries = known.max_entries.or_else(|| stated("trace_alloc_max_entries")?.as_u64());
    match (stated("trace_alloc_overflowed"), max_entries) {
        (Some(Value::Bool(true)), _) => "the ring was full, and the oldest events gave way".to_owned(),
        (Some(Value::Bool(false)), _) => "recording began late, or the history was cleared before".to_owned(),
        (_, Some(most)) if n_events >= most => {
            format!("the ring holds {} events and was full: the oldest gave way", count(most))
        }
        (_, Some(most)) => format!(
            "recording began late, or the history was cleared before: its ring of {} events was not full",
            count(most)
        ),
        _ => "the history was cleared before, began late or its ring was full; the file does not tell which"
            .to_owned(),
    }
}

fn of_device(snapshot: &Snapshot, device: &Device, replay: &Replay, known: &Known, all: &mut Vec<Finding>) {
    // A process usually works on one device: its number only matters when there are several.
    let on =
        if snapshot.devices.len() > 1 { format!(" on device {}", device.ordinal) } else { String::new() };
    if let Some(total) = known.device_bytes.get(&device.ordinal)
        && replay.peak.reserved > *total
    {
        let message = format!(
            "up to {} were reserved{on}, and the device has {}: some of it cannot be device memory, such as pools that \
             sleep mode or a pluggable allocator moved elsewhere, or events are missing",
            size(replay.peak.reserved),
            size(*total)
        );
        all.push(finding("above-capacity", 1, message));
    }
    if device.events.is_empty() {
        return;
    }
    if replay.n_preexisting > 0 {
        let n_older = replay.n_preexisting as u64;
        let message = format!(
            "{}{on}, {}, are older than the first event: {}; they are drawn as the base",
            counted(n_older, "block"),
            size(replay.head.active),
            why_older(snapshot, device, known)
        );
        all.push(finding("older-than-trace", n_older, message));
    }
    let trace = &snapshot.trace;
    // A workspace of torch_npu is described without a stack, however the rest was recorded.
    let first = device.events.start + n_workspace_events(snapshot, device);
    let allocs = || (first..device.events.end).filter(|event| trace.action[*event] == Action::ALLOC);
    let n_allocs = allocs().count() as u64;
    let n_bare = allocs().filter(|event| trace.stack[*event] == StackId::NONE).count() as u64;
    let n_empty = allocs().filter(|event| trace.stack[*event] == StackId::EMPTY).count() as u64;
    if n_bare > 0 {
        let message = format!(
            "{} of {} allocations{on} have no stack: recording ran with context=None or context=\"state\"",
            count(n_bare),
            count(n_allocs)
        );
        all.push(finding("no-stack", n_bare, message));
    }
    if n_empty > 0 {
        let message = format!(
            "{} of {} allocations{on} have an empty stack: they were made by threads without Python frames, such as the \
             backward pass; stacks=\"all\" would show their C++ frames",
            count(n_empty),
            count(n_allocs)
        );
        all.push(finding("empty-stack", n_empty, message));
    }
    let of_action =
        |action| device.events.clone().filter(|event| trace.action[*event] == action).count() as u64;
    let n_marks = of_action(Action::USER_DEFINED);
    if n_marks > 0 {
        let message = format!(
            "{}{on} of the action user_defined were written by a profiler in nightly builds of 2024, not by the allocator; \
             later releases write annotations instead",
            counted(n_marks, "event")
        );
        all.push(finding("other-recorder", n_marks, message));
    }
    if FreeSites::new(snapshot, device, replay).repeat_allocs() {
        let message = format!(
            "where memory was freed is not recorded{on}: each free carries the stack of its allocation \
             (context=\"alloc\"); context=\"all\" records both"
        );
        all.push(finding("no-free-sites", 1, message));
    }
    let n_oom = of_action(Action::OOM);
    if n_oom > 0 {
        let event = device.events.clone().rfind(|event| trace.action[*event] == Action::OOM).unwrap_or(0);
        let message = format!(
            "the device ran out of memory{on} ({}): the last request was for {}, with {} free on the device",
            times(n_oom),
            size(trace.size[event]),
            size(trace.address[event]),
        );
        all.push(finding("oom", n_oom, message));
    }
    let pending = device.segments.clone().flat_map(|segment| snapshot.segments.blocks[segment].clone());
    let n_pending = pending
        .filter(|block| snapshot.blocks.state[*block as usize] == BlockState::PendingFree)
        .count() as u64;
    if n_pending > 0 {
        let message = format!(
            "{}{on} at the end {} given back by the program and still wait for another stream (record_stream)",
            counted(n_pending, "block"),
            if n_pending == 1 { "was" } else { "were" },
        );
        all.push(finding("pending-free", n_pending, message));
    }
    let backwards = backwards(&trace.time_us, device);
    if backwards > 0 {
        let message = format!(
            "time goes backwards {}{on}; the order of the events is kept as it stands in the file",
            times(backwards),
        );
        all.push(finding("time-backwards", backwards, message));
    }
    of_skipped(replay, &on, all);
    of_doubts(replay, &on, all);
}

/// Kinds of events that the recorder was told to leave out.
fn of_skipped(replay: &Replay, on: &str, all: &mut Vec<Finding>) {
    let skipped = replay.skipped;
    let mut say = |is_skipped: bool, action: &str, consequence: &str| {
        if is_skipped {
            let message = format!("the recorder left out every {action}{on} (skip_actions): {consequence}");
            all.push(finding("actions-skipped", 1, message));
        }
    };
    say(skipped.allocs, "alloc", "where memory was allocated, and most of what was in use, is not known");
    say(
        skipped.free_requests,
        "free_requested",
        "a block counts as allocated until its free is completed, so \"allocated\" equals \"active\"",
    );
    say(
        skipped.free_completions,
        "free_completed",
        "a block counts as free as soon as that is requested, so \"active\" may be too low",
    );
}

fn of_doubts(replay: &Replay, on: &str, all: &mut Vec<Finding>) {
    let doubts = &replay.doubts;
    let mut say = |code: &str, count: u64, message: String| {
        if count > 0 {
            all.push(finding(code, count, message));
        }
    };
    say(
        "free-missing",
        doubts.alloc_on_live,
        format!(
            "{}{on} fell on memory that was still in use: a free is missing from the trace; the older block is taken \
             to end there",
            counted(doubts.alloc_on_live, "allocation")
        ),
    );
    say(
        "free-unknown",
        doubts.free_of_unknown,
        format!(
            "{}{on} named memory that was not in use: freed twice, or its allocation is missing; they were left out",
            counted(doubts.free_of_unknown, "free")
        ),
    );
    say(
        "free-not-requested",
        doubts.unrequested_frees,
        format!(
            "{}{on} were completed without a request in the trace: \"allocated\" cannot be told from \"active\" there",
            counted(doubts.unrequested_frees, "free")
        ),
    );
    say(
        "end-mismatch",
        doubts.end_mismatch,
        format!(
            "{}{on} at the end of the trace differ from the segments: events were skipped or lost, so levels may be \
             off by their size",
            counted(doubts.end_mismatch, "block")
        ),
    );
    say(
        "segment-on-segment",
        doubts.segment_on_segment,
        format!(
            "{}{on} were taken where one was already: the event that gave it back is missing; the older one is taken \
             to end there",
            counted(doubts.segment_on_segment, "segment")
        ),
    );
    say(
        "alloc-off-range",
        doubts.alloc_off_range,
        format!(
            "{}{on} did not begin where free memory did: events are missing, or two expandable segments touch",
            counted(doubts.alloc_off_range, "allocation")
        ),
    );
    say(
        "size-open",
        doubts.ambiguous_sizes,
        format!(
            "{}{on}, older than the trace and freed in it, may be larger than shown, by at most {} all together",
            counted(doubts.ambiguous_sizes, "block"),
            size(doubts.ambiguous_bytes)
        ),
    );
}

fn backwards(time_us: &[i64], device: &Device) -> u64 {
    let Some(times) = time_us.get(device.events.clone()) else { return 0 };
    times.windows(2).filter(|pair| pair[1] < pair[0]).count() as u64
}
