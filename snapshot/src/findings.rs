//! What a reader of the pictures should know first: what the file is, what it cannot say, what is odd in it.

use crate::Snapshot;
use crate::model::{Action, BlockState, Device, Finding, StackId};
use crate::replay::{Replay, n_workspace_events};

/// The findings of reading, then those of the devices, in the order of [`Snapshot::devices`]; `replays` are theirs.
pub fn findings(snapshot: &Snapshot, replays: &[Replay]) -> Vec<Finding> {
    let mut all = snapshot.findings.clone();
    if snapshot.devices.is_empty() {
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
    for (device, replay) in snapshot.devices.iter().zip(replays) {
        of_device(snapshot, device, replay, &mut all);
    }
    all
}

fn finding(code: &str, count: u64, message: impl Into<String>) -> Finding {
    Finding { code: code.to_owned(), count, message: message.into() }
}

fn of_device(snapshot: &Snapshot, device: &Device, replay: &Replay, all: &mut Vec<Finding>) {
    // A process usually works on one device: its number only matters when there are several.
    let on =
        if snapshot.devices.len() > 1 { format!(" on device {}", device.ordinal) } else { String::new() };
    if device.events.is_empty() {
        return;
    }
    if replay.n_preexisting > 0 {
        let count = replay.n_preexisting as u64;
        let bytes = mib(replay.head.active);
        let blocks = plural(count, "block");
        let message = format!(
            "{blocks}{on}, {bytes}, are older than the first event: the history was cleared before, began late or its \
             ring was full; they are drawn as the base"
        );
        all.push(finding("older-than-trace", count, message));
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
            "{n_bare} of {n_allocs} allocations{on} have no stack: recording ran with context=None or \
             context=\"state\""
        );
        all.push(finding("no-stack", n_bare, message));
    }
    if n_empty > 0 {
        let message = format!(
            "{n_empty} of {n_allocs} allocations{on} have an empty stack: they were made by threads without Python \
             frames, such as the backward pass; stacks=\"all\" would show their C++ frames"
        );
        all.push(finding("empty-stack", n_empty, message));
    }
    let n_oom = device.events.clone().filter(|event| trace.action[*event] == Action::OOM).count() as u64;
    if n_oom > 0 {
        let event = device.events.clone().rfind(|event| trace.action[*event] == Action::OOM).unwrap_or(0);
        let message = format!(
            "the device ran out of memory{on} ({}): the last request was for {}, with {} free on the device",
            if n_oom == 1 { "once".to_owned() } else { format!("{n_oom} times") },
            mib(trace.size[event]),
            mib(trace.address[event]),
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
            plural(n_pending, "block"),
            if n_pending == 1 { "was" } else { "were" },
        );
        all.push(finding("pending-free", n_pending, message));
    }
    let backwards = backwards(&trace.time_us, device);
    if backwards > 0 {
        let message = format!(
            "time goes backwards {}{on}; the order of the events is kept as it stands in the file",
            if backwards == 1 { "once".to_owned() } else { format!("{backwards} times") },
        );
        all.push(finding("time-backwards", backwards, message));
    }
    of_doubts(replay, &on, all);
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
            plural(doubts.alloc_on_live, "allocation")
        ),
    );
    say(
        "free-unknown",
        doubts.free_of_unknown,
        format!(
            "{}{on} named memory that was not in use; they were left out",
            plural(doubts.free_of_unknown, "free")
        ),
    );
    say(
        "free-not-requested",
        doubts.unrequested_frees,
        format!(
            "{}{on} were completed without a request in the trace: \"allocated\" cannot be told from \"active\" there",
            plural(doubts.unrequested_frees, "free")
        ),
    );
    say(
        "end-mismatch",
        doubts.end_mismatch,
        format!(
            "{}{on} at the end of the trace differ from the segments: events were skipped or lost, so levels may be \
             off by their size",
            plural(doubts.end_mismatch, "block")
        ),
    );
    say(
        "size-open",
        doubts.ambiguous_sizes,
        format!(
            "the real size of {}{on} older than the trace is open by at most 1 MiB each: they were freed in it",
            plural(doubts.ambiguous_sizes, "block")
        ),
    );
}

fn backwards(time_us: &[i64], device: &Device) -> u64 {
    let Some(times) = time_us.get(device.events.clone()) else { return 0 };
    times.windows(2).filter(|pair| pair[1] < pair[0]).count() as u64
}

fn plural(n: u64, noun: &str) -> String {
    if n == 1 { format!("1 {noun}") } else { format!("{n} {noun}s") }
}

/// A size as people read it: three significant digits, binary units.
fn mib(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    let mut size = bytes as f64;
    while size >= 999.5 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    let digits = if unit == 0 || size >= 99.95 {
        0
    } else if size >= 9.995 {
        1
    } else {
        2
    };
    format!("{size:.digits$} {}", UNITS[unit])
}
