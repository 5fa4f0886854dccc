//! Snapshots, devices and allocations told in sentences.

use tidegauge_api::inspection::DeviceInspection;
use tidegauge_api::picture::{AllocationAnswer, FrameAnswer};

use crate::format::{bytes, count, counted, micros};

/// What was asked for and what it took: "512 MiB", "511 MiB in a block of 512 MiB".
pub fn allocation_size(allocation: &AllocationAnswer) -> String {
    let (requested, size) = (bytes(allocation.requested), bytes(allocation.size));
    if requested == size { size } else { format!("{requested} in a block of {size}") }
}

/// How long an allocation lives, in events and in time where the trace has one.
pub fn allocation_lifetime(allocation: &AllocationAnswer, n_events: u32) -> String {
    let end = allocation.to.unwrap_or(n_events.saturating_add(1));
    let events = counted(u64::from(end.saturating_sub(allocation.from)), "event", "events");
    let time = allocation.lifetime_us.map(|us| format!(", {}", micros(us))).unwrap_or_default();
    match (allocation.preexisting, allocation.to) {
        (false, Some(_)) => format!("lives {events}{time}"),
        (false, None) => format!("lives {events}, to the end of the trace"),
        (true, Some(_)) => format!("older than the trace, lives its first {events}"),
        (true, None) => "older than the trace, and outlives it".to_owned(),
    }
}

/// From which event to which, as numbers to look up.
pub fn allocation_span(allocation: &AllocationAnswer) -> String {
    let from = match allocation.preexisting {
        true => "before event 1".to_owned(),
        false => format!("allocated by event {}", count(u64::from(allocation.from))),
    };
    match (allocation.free_requested, allocation.to) {
        (Some(asked), Some(to)) if asked != to => {
            format!(
                "{from}, free asked for by event {}, done by event {}",
                count(asked.into()),
                count(to.into())
            )
        }
        (Some(asked), None) => {
            format!("{from}, free asked for by event {}, still waiting", count(asked.into()))
        }
        (_, Some(to)) => format!("{from}, freed by event {}", count(to.into())),
        (None, None) => format!("{from}, never freed"),
    }
}

/// Where a frame is: "model/attention.py:88"; empty when the file is not known.
pub fn frame_location(frame: &FrameAnswer) -> String {
    if frame.filename.is_empty() || frame.filename == "??" {
        return String::new();
    }
    match frame.line {
        Some(line) => format!("{}:{line}", frame.filename),
        None => frame.filename.clone(),
    }
}

/// The same with no more than the last three parts of the path, for where there is little room.
pub fn short_frame_location(frame: &FrameAnswer) -> String {
    let location = frame_location(frame);
    match location.rmatch_indices('/').nth(2) {
        Some((i, _)) => location[i + 1..].to_owned(),
        None => location,
    }
}

/// When the highest level was reached: "at event 18,204 of 38,911", "before the first event".
pub fn peak_phrase(peak_state: u32, n_events: u32) -> String {
    match peak_state {
        0 => "before the first event".to_owned(),
        state => format!("at event {} of {}", count(state.into()), count(n_events.into())),
    }
}

/// What a device without events still tells.
pub fn without_events(device: &DeviceInspection) -> String {
    format!(
        "Device {} has no events: its history was not recorded, so there is no timeline to draw. Its {} hold {}, of which {} is allocated in {}.",
        device.device,
        counted(device.segments, "segment", "segments"),
        bytes(device.reserved.end),
        bytes(device.allocated.end),
        counted(device.blocks, "block", "blocks"),
    )
}

#[cfg(test)]
mod tests {
    use tidegauge_api::inspection::Levels;

    use super::*;

    fn allocation() -> AllocationAnswer {
        AllocationAnswer {
            id: 1,
            address: "0x7f00".to_owned(),
            requested: 511 << 20,
            size: 512 << 20,
            from: 1_204,
            to: Some(2_408),
            free_requested: Some(2_408),
            preexisting: false,
            lifetime_us: Some(12_400),
            stream: Some(0),
            stack: Vec::new(),
            stack_missing: None,
            notes: Vec::new(),
        }
    }

    #[test]
    fn a_block_larger_than_the_request_says_both() {
        assert_eq!(allocation_size(&allocation()), "511 MiB in a block of 512 MiB");
        assert_eq!(allocation_size(&AllocationAnswer { requested: 512 << 20, ..allocation() }), "512 MiB");
    }

    #[test]
    fn a_life_is_told_by_its_ends() {
        let told = |a: &AllocationAnswer| (allocation_lifetime(a, 10_000), allocation_span(a));
        let plain = allocation();
        assert_eq!(told(&plain).0, "lives 1,204 events, 12.4 ms");
        assert_eq!(told(&plain).1, "allocated by event 1,204, freed by event 2,408");

        let open = AllocationAnswer { to: None, free_requested: None, lifetime_us: None, ..allocation() };
        assert_eq!(told(&open).0, "lives 8,797 events, to the end of the trace");
        assert_eq!(told(&open).1, "allocated by event 1,204, never freed");

        let old = AllocationAnswer { from: 0, preexisting: true, lifetime_us: None, ..allocation() };
        assert_eq!(told(&old).0, "older than the trace, lives its first 2,408 events");
        assert_eq!(told(&old).1, "before event 1, freed by event 2,408");

        let waits = AllocationAnswer { to: None, free_requested: Some(2_000), ..allocation() };
        assert_eq!(told(&waits).1, "allocated by event 1,204, free asked for by event 2,000, still waiting");

        let late = AllocationAnswer { free_requested: Some(2_000), ..allocation() };
        assert_eq!(
            told(&late).1,
            "allocated by event 1,204, free asked for by event 2,000, done by event 2,408"
        );
    }

    #[test]
    fn a_frame_is_found_by_the_end_of_its_path() {
        let frame =
            |filename: &str, line| FrameAnswer { name: "f".to_owned(), filename: filename.to_owned(), line };
        assert_eq!(frame_location(&frame("/a/b/c/d/e.py", Some(88))), "/a/b/c/d/e.py:88");
        assert_eq!(short_frame_location(&frame("/a/b/c/d/e.py", Some(88))), "c/d/e.py:88");
        assert_eq!(short_frame_location(&frame("e.py", None)), "e.py");
        assert_eq!(frame_location(&frame("??", None)), "");
    }

    #[test]
    fn a_peak_before_the_trace_is_said_so() {
        assert_eq!(peak_phrase(0, 38_911), "before the first event");
        assert_eq!(peak_phrase(18_204, 38_911), "at event 18,204 of 38,911");
    }

    #[test]
    fn a_device_without_events_still_tells_its_totals() {
        let end = |end| Levels { head: end, peak: end, end };
        let device = DeviceInspection {
            device: 3,
            segments: 2,
            blocks: 1,
            reserved: end(4 << 20),
            allocated: end(1 << 20),
            ..DeviceInspection::default()
        };
        let told = without_events(&device);
        assert!(
            told.contains("Its 2 segments hold 4.00 MiB, of which 1.00 MiB is allocated in 1 block."),
            "{told}"
        );
    }
}
