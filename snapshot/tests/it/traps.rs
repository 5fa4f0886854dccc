//! What everybody who reads snapshots falls into once: each trap as the smallest story that shows it.
//!
//! Their numbers are those of docs/formats.md.

use tidegauge_snapshot::findings::{Known, findings_knowing};
use tidegauge_snapshot::model::{BlockState, Frame, StackId};
use tidegauge_snapshot::overlap::overlap;
use tidegauge_snapshot::read::{ReadError, open};
use tidegauge_snapshot::replay::{Doubts, FreeSite, FreeSites, NEVER, replay};
use tidegauge_snapshot::words;

use crate::story::{HERE, KIB, MIB, Story, at, codes, frame, replayed, story};

/// A small segment that is empty at the end, taken by the first event.
fn small() -> Story {
    story().segment(HERE, &[(2 * MIB, 0, "inactive")]).event("segment_alloc", HERE, 2 * MIB)
}

#[test]
fn t01_allocated_falls_when_a_free_is_requested_and_active_when_it_is_completed() {
    let snapshot = small()
        .event("alloc", HERE, KIB)
        .event("free_requested", HERE, KIB)
        .event("snapshot", 0, 0)
        .event("free_completed", HERE, KIB)
        .read();
    let curves = replayed(&snapshot).curves;
    assert_eq!(curves.allocated, [0, 0, KIB, 0, 0, 0]);
    assert_eq!(curves.active, [0, 0, KIB, KIB, KIB, 0]);
    assert_eq!(curves.requested, curves.active);
}

#[test]
fn t02_the_two_halves_of_a_free_are_one_free() {
    let snapshot = small()
        .event("alloc", HERE, KIB)
        .event("alloc", HERE + KIB, KIB)
        .free(HERE, KIB)
        .free(HERE + KIB, KIB);
    let replay = replayed(&snapshot.read());
    assert_eq!(replay.curves.active, [0, 0, KIB, 2 * KIB, 2 * KIB, KIB, KIB, 0]);
    assert_eq!(replay.doubts, Doubts::default());
}

#[test]
fn t03_a_free_happened_where_it_was_requested_not_where_its_completion_was_noticed() {
    let snapshot = small()
        .event_with("alloc", HERE, KIB, &at("make"))
        .event_with("free_requested", HERE, KIB, &at("drop"))
        .event_with("free_completed", HERE, KIB, &at("somebody_elses_malloc"))
        .read();
    let replay = replayed(&snapshot);
    let FreeSite::At(stack) = FreeSites::new(&snapshot, &snapshot.devices[0], &replay).of(0) else {
        panic!()
    };
    let name = snapshot.stacks.frames(stack).next().unwrap().name;
    assert_eq!(snapshot.strings.text(name), "drop");
}

#[test]
fn t04_frees_that_all_repeat_their_allocations_stack_tell_no_free_site() {
    let snapshot = small()
        .event_with("alloc", HERE, KIB, &at("make"))
        .event_with("free_requested", HERE, KIB, &at("make"))
        .event_with("free_completed", HERE, KIB, &at("make"))
        .read();
    let replay = replayed(&snapshot);
    let sites = FreeSites::new(&snapshot, &snapshot.devices[0], &replay);
    assert_eq!(sites.of(0), FreeSite::AllocStack);
    assert!(codes(&snapshot).contains(&"no-free-sites".to_owned()));
}

#[test]
fn t05_an_address_that_is_used_again_is_another_allocation() {
    let snapshot = small()
        .event("alloc", HERE, KIB)
        .free(HERE, KIB)
        .event("alloc", HERE, 3 * KIB)
        .free(HERE, 3 * KIB)
        .read();
    let allocations = replayed(&snapshot).allocations;
    assert_eq!(allocations.address, [HERE, HERE]);
    assert_eq!(allocations.size, [KIB, 3 * KIB]);
    assert_eq!((allocations.from, allocations.to), (vec![2, 5], vec![4, 7]));
}

#[test]
fn t06_an_allocation_on_memory_in_use_ends_the_older_one_and_is_said() {
    let snapshot = small().event("alloc", HERE, KIB).event("alloc", HERE, 2 * KIB).free(HERE, 2 * KIB).read();
    let replay = replayed(&snapshot);
    assert_eq!(replay.curves.active, [0, 0, KIB, 2 * KIB, 2 * KIB, 0]);
    assert_eq!(replay.doubts.alloc_on_live, 1);
    assert!(codes(&snapshot).contains(&"free-missing".to_owned()));
}

#[test]
fn t07_a_free_without_an_allocation_frees_what_was_there_before() {
    let snapshot = story().segment(HERE, &[(2 * MIB, 0, "inactive")]).free(HERE, 600).read();
    let replay = replayed(&snapshot);
    assert_eq!((replay.head.requested, replay.head.allocated), (600, KIB));
    assert_eq!(replay.allocations.stack, [StackId::NONE]);
    assert_eq!(replay.doubts, Doubts::default());
}

#[test]
fn t08_a_block_no_event_names_was_there_all_the_time_with_its_own_stack() {
    let snapshot = story()
        .segment(HERE, &[(KIB, 600, "active_allocated"), (2 * MIB - KIB, 0, "inactive")])
        .event("alloc", HERE + KIB, KIB)
        .free(HERE + KIB, KIB)
        .read();
    let replay = replayed(&snapshot);
    assert_eq!((replay.n_preexisting, replay.head.requested), (1, 600));
    assert_eq!((replay.allocations.from[0], replay.allocations.to[0]), (0, NEVER));
    let first = snapshot.stacks.frames(replay.allocations.stack[0]).next().unwrap();
    assert_eq!(snapshot.strings.text(first.name), "of_the_block");
}

#[test]
fn t09_a_completion_without_a_request_means_that_the_block_waited_at_the_head() {
    let snapshot = story()
        .segment(HERE, &[(2 * MIB, 0, "inactive")])
        .event("alloc", HERE + KIB, KIB)
        .event("free_completed", HERE, KIB)
        .free(HERE + KIB, KIB)
        .read();
    let head = replayed(&snapshot).head;
    assert_eq!((head.allocated, head.active), (0, KIB));
}

#[test]
fn t10_the_head_is_what_the_segments_say_minus_the_trace_never_zero() {
    let snapshot = story()
        .segment(
            HERE,
            &[(MIB, MIB, "active_allocated"), (KIB, KIB, "active_allocated"), (MIB - KIB, 0, "inactive")],
        )
        .event("alloc", HERE + MIB, KIB)
        .read();
    let replay = replayed(&snapshot);
    assert_eq!((replay.head.allocated, replay.head.reserved), (MIB, 2 * MIB));
    assert_eq!(replay.curves.allocated, [MIB, MIB + KIB]);
    assert!(codes(&snapshot).contains(&"older-than-trace".to_owned()));
}

#[test]
fn t11_an_event_says_what_was_asked_for_and_a_block_what_was_given() {
    let snapshot = small().event("alloc", HERE, 513).free(HERE, 513).read();
    let peak = replayed(&snapshot).peak;
    assert_eq!((peak.requested, peak.allocated), (513, KIB));
}

#[test]
fn t12_what_was_asked_of_an_inactive_block_is_past() {
    let snapshot = story().segment(HERE, &[(2 * MIB, 77 * KIB, "inactive")]).read();
    assert_eq!(replayed(&snapshot).end.requested, 0);
}

#[test]
fn t13_a_segments_requested_size_is_that_of_its_active_blocks() {
    let blocks = [
        (KIB, 600, "active_allocated"),
        (KIB, 9, "active_pending_free"),
        (2 * MIB - 2 * KIB, 77, "inactive"),
    ];
    let fields =
        |requested: u64| format!(r#""device": 0, "is_expandable": false, "requested_size": {requested}"#);
    let sound = story().segment_with(&fields(609), HERE, &blocks).read();
    assert!(sound.findings.is_empty(), "{:?}", sound.findings);
    let odd = story().segment_with(&fields(686), HERE, &blocks).read();
    assert_eq!(odd.findings[0].code, "segment-sums");
    assert_eq!(replayed(&odd).end.requested, 609);
}

#[test]
fn t14_a_block_is_larger_than_its_request_by_the_rules_of_who_wrote_the_file() {
    let size_of = |story: Story| replayed(&story.read()).allocations.size[0];
    let large = || story().segment(HERE, &[(20 * MIB, 0, "inactive")]).event("segment_alloc", HERE, 20 * MIB);
    let freed = |story: Story, size: u64| story.event("alloc", HERE, size).free(HERE, size);
    // CUDA and ROCm: multiples of 512, at least 512.
    assert_eq!(size_of(freed(small(), 1)), 512);
    assert_eq!(size_of(freed(small(), 513)), KIB);
    // A large block keeps a rest of up to 1 MiB, and no more.
    assert_eq!(size_of(freed(large(), 19 * MIB)), 20 * MIB);
    assert_eq!(size_of(freed(large(), 19 * MIB - 512)), 19 * MIB - 512);
    // torch_npu adds 32 bytes first.
    let npu = small().event("workspace_snapshot", 0, 0);
    assert_eq!(size_of(freed(npu, 512)), KIB);
    // roundup_power2_divisions, and max_split_size, from which on blocks are never split.
    let divided = r#"{"roundup_power2_divisions": {"1": 4, "2": 4, "4": 4, "8": 4, "16": 4}}"#;
    assert_eq!(size_of(freed(large().part("allocator_settings", divided), 5 * MIB + 1)), 6 * MIB);
    let unsplit = format!(r#"{{"max_split_size": {}}}"#, 4 * MIB);
    assert_eq!(size_of(freed(large().part("allocator_settings", &unsplit), 4 * MIB)), 20 * MIB);
    // Expandable segments split everything.
    let expandable = story()
        .segment_with(r#""device": 0, "is_expandable": true"#, HERE, &[(20 * MIB, 0, "inactive")])
        .event("segment_map", HERE, 20 * MIB);
    assert_eq!(size_of(freed(expandable, 19 * MIB + 512)), 19 * MIB + 512);
}

#[test]
fn t15_a_size_of_zero_is_a_size() {
    let snapshot = small().event("snapshot", 0, 0).event("segment_alloc", HERE + 4 * MIB, 0).read();
    let replay = replayed(&snapshot);
    assert_eq!(replay.end.reserved, 2 * MIB);
    assert_eq!(replay.doubts, Doubts::default());
}

#[test]
fn t16_an_oom_says_what_was_asked_for_and_what_the_device_had_left() {
    let snapshot = small()
        .raw_event(&format!(
            r#""action": "oom", "device_free": {}, "size": {}, "stream": 0"#,
            5 * MIB,
            3 * MIB
        ))
        .read();
    let replays = [replayed(&snapshot)];
    let findings = tidegauge_snapshot::findings::findings(&snapshot, &replays);
    let oom = findings.iter().find(|finding| finding.code == "oom").unwrap();
    assert!(oom.message.contains("request was for 3.00 MiB, with 5.00 MiB free"), "{}", oom.message);
}

#[test]
fn t17_an_oom_has_no_address_and_a_snapshot_event_is_no_memory() {
    let snapshot = small()
        .raw_event(r#""action": "oom", "device_free": 5, "size": 512, "stream": 0"#)
        .event("snapshot", 0, 512)
        .read();
    assert!(snapshot.findings.is_empty(), "{:?}", snapshot.findings);
    assert_eq!(snapshot.trace.address, [HERE, 5, 0]);
    assert_eq!(replayed(&snapshot).end.active, 0);
}

#[test]
fn t18_no_frames_and_an_empty_list_of_frames_are_two_things() {
    let snapshot = small()
        .event_with("alloc", HERE, KIB, "")
        .event_with("alloc", HERE + KIB, KIB, r#""frames": []"#)
        .read();
    assert_eq!(snapshot.trace.stack[1..], [StackId::NONE, StackId::EMPTY]);
    assert!(["no-stack", "empty-stack"].iter().all(|code| codes(&snapshot).contains(&(*code).to_owned())));
}

#[test]
fn t19_a_trace_without_times_is_a_sequence_of_events() {
    let snapshot = small().timeless().event("alloc", HERE, KIB).free(HERE, KIB).read();
    // The first event was told before the clock stopped.
    let timeless = story().timeless().event("segment_alloc", HERE, 2 * MIB).read();
    assert!(timeless.trace.time_us.is_empty());
    assert!(codes(&timeless).contains(&"no-times".to_owned()));
    assert_eq!(replayed(&snapshot).curves.n_states(), 5);
}

#[test]
fn t20_events_stand_in_their_order_whatever_their_times_say() {
    let snapshot = small()
        .event("alloc", HERE, KIB)
        .clock(5)
        .event("free_requested", HERE, KIB)
        .clock(1000)
        .event("free_completed", HERE, KIB)
        .read();
    assert_eq!(snapshot.trace.time_us, [10, 20, 15, 1010]);
    assert!(codes(&snapshot).contains(&"time-backwards".to_owned()));
    assert_eq!(replayed(&snapshot).doubts, Doubts::default());
}

#[test]
fn t21_a_device_may_have_segments_without_a_trace_or_a_trace_without_segments() {
    let snapshot = story()
        .segment_with(r#""device": 3, "is_expandable": false"#, HERE, &[(2 * MIB, 9, "active_allocated")])
        .next_device()
        .event("segment_alloc", HERE, 2 * MIB)
        .event("segment_free", HERE, 2 * MIB)
        .read();
    assert_eq!(snapshot.devices.iter().map(|device| device.ordinal).collect::<Vec<_>>(), [1, 3]);
    let levels = |device| replay(&snapshot, snapshot.device(device).unwrap());
    assert_eq!(levels(1).peak.reserved, 2 * MIB);
    assert_eq!((levels(3).end.requested, levels(3).end.reserved), (9, 2 * MIB));
}

#[test]
fn t22_mapped_ranges_join_with_their_neighbors_and_unmapping_may_leave_two() {
    let expandable = r#""device": 0, "is_expandable": true"#;
    let snapshot = story()
        .segment_with(expandable, HERE, &[(2 * MIB, 0, "inactive")])
        .segment_with(expandable, HERE + 6 * MIB, &[(2 * MIB, 0, "inactive")])
        .event("segment_map", HERE, 4 * MIB)
        .event("segment_map", HERE + 4 * MIB, 4 * MIB)
        // Larger than either range.
        .event("alloc", HERE, 6 * MIB)
        .free(HERE, 6 * MIB)
        .event("segment_unmap", HERE + 2 * MIB, 4 * MIB)
        .read();
    let replay = replayed(&snapshot);
    assert_eq!(replay.doubts, Doubts::default());
    assert_eq!(replay.curves.reserved, [0, 4, 8, 8, 8, 8, 4].map(|n| n * MIB));
    assert_eq!(replay.state_at(5).segments.len(), 1);
    let left: Vec<_> = replay.state_at(6).segments.iter().map(|segment| segment.address).collect();
    assert_eq!(left, [HERE, HERE + 6 * MIB]);
}

#[test]
fn t23_a_block_belongs_to_the_pool_its_segment_had_at_that_time() {
    let of_graph = r#""pool_id": [1, 0]"#;
    let snapshot = story()
        .segment_with(
            r#""device": 0, "is_expandable": false, "segment_pool_id": [0, 0]"#,
            HERE,
            &[(2 * MIB, 0, "inactive")],
        )
        .event_with("segment_alloc", HERE, 2 * MIB, of_graph)
        .event_with("alloc", HERE, KIB, of_graph)
        .free(HERE, KIB)
        .event_with("segment_free", HERE, 2 * MIB, of_graph)
        // The same address again, for another pool; this event does not say which, the segment at the end does.
        .event("segment_alloc", HERE, 2 * MIB)
        .event("alloc", HERE, KIB)
        .free(HERE, KIB)
        // Gone by the end, and never said.
        .event("segment_alloc", HERE + 8 * MIB, 2 * MIB)
        .event("alloc", HERE + 8 * MIB, KIB)
        .free(HERE + 8 * MIB, KIB)
        .event("segment_free", HERE + 8 * MIB, 2 * MIB)
        .read();
    let replay = replayed(&snapshot);
    let pools: Vec<_> =
        replay.allocations.reservation.iter().map(|row| replay.reservations.pool(*row)).collect();
    assert_eq!(pools, [Some((1, 0)), Some((0, 0)), None]);
}

#[test]
fn t24_a_ring_that_was_written_out_from_the_wrong_place_is_turned() {
    // The oldest event is the third: max_entries was changed while recording.
    let snapshot = story()
        .segment(HERE, &[(2 * MIB, 0, "inactive")])
        .clock(30)
        .event("free_requested", HERE, KIB)
        .event("free_completed", HERE, KIB)
        .clock(0)
        .event("segment_alloc", HERE, 2 * MIB)
        .event_with("alloc", HERE, KIB, r#""color": "blue""#)
        .read();
    assert_eq!(snapshot.trace.time_us, [10, 20, 40, 50]);
    assert_eq!(replayed(&snapshot).doubts, Doubts::default());
    assert_eq!(snapshot.findings.last().unwrap().code, "rotated");
    // What no column holds moved along.
    assert_eq!(snapshot.kept[0].row, 1);
}

#[test]
fn t25_a_full_ring_and_a_late_start_look_the_same_unless_somebody_knows_the_rings_size() {
    let late = |parts: &[(&str, &str)]| {
        let story = story().segment(HERE, &[(2 * MIB, 0, "inactive")]).free(HERE, KIB);
        parts.iter().fold(story, |story, (name, value)| story.part(name, value)).read()
    };
    let said = |snapshot: &tidegauge_snapshot::Snapshot, max_entries: Option<u64>| {
        let known = Known { max_entries, ..Known::default() };
        let findings = findings_knowing(snapshot, &[replayed(snapshot)], &known);
        findings.into_iter().find(|finding| finding.code == "older-than-trace").unwrap().message
    };
    assert!(said(&late(&[]), None).contains("the file does not tell which"));
    assert!(said(&late(&[]), Some(2)).contains("the ring holds 2 events and was full"));
    assert!(said(&late(&[]), Some(100)).contains("began late"));
    assert!(said(&late(&[("trace_alloc_overflowed", "true")]), None).contains("the ring was full"));
    assert!(said(&late(&[("trace_alloc_max_entries", "2")]), None).contains("the ring holds 2 events"));
}

#[test]
fn t26_numbers_of_every_width_and_sign_are_what_the_allocator_meant() {
    let event = |address: &[u8], size: &[u8]| {
        let mut bytes = b"\x80\x02}(X\x08\0\0\0segments]X\x0d\0\0\0device_traces](](}(".to_vec();
        for (key, value) in [("action", &b"X\x05\0\0\0alloc"[..]), ("addr", address), ("size", size)] {
            bytes.extend([b'X', key.len() as u8, 0, 0, 0]);
            bytes.extend(key.as_bytes());
            bytes.extend(value);
        }
        bytes.extend(b"ueeu.");
        let trace = open(&bytes[..]).unwrap().trace;
        (trace.address[0], trace.size[0])
    };
    // BININT is signed; sizes from 2^31 on come as LONG1 of five bytes, addresses from 2^63 on as nine.
    assert_eq!(event(b"J\0\0\0\x40", b"\x8a\x05\0\0\0\x80\0"), (1 << 30, 1 << 31));
    assert_eq!(event(b"\x8a\x09\0\0\0\0\0\0\0\x80\0", b"K\x01").0, 1 << 63);
    // The C++ pickler writes those as negative numbers.
    assert_eq!(event(b"\x8a\x08\0\0\0\0\0\0\0\x80", b"K\x01").0, 1 << 63);
    assert_eq!(event(b"J\0\xfe\xff\xff", b"K\x01").0, u64::MAX - 511);
    let line = story().event_with("alloc", 0, 1, &format!(r#""frames": [{}]"#, frame("f", u64::MAX))).read();
    let first = line.stacks.frames(line.trace.stack[0]).next().unwrap();
    assert_eq!(first.known_line(), None);
}

#[test]
fn t27_pool_ids_are_tuples_or_lists_and_unknown_fields_are_kept() {
    let snapshot = small()
        .event_with("alloc", HERE, KIB, r#""pool_id": [0, 2], "color": {"name": ["blue", 7]}"#)
        .free(HERE, KIB)
        .read();
    assert_eq!(snapshot.trace.extra(1).pool, Some((0, 2)));
    assert_eq!((snapshot.kept.len(), snapshot.kept[0].row), (1, 1));
    let message = &snapshot.findings[0].message;
    assert!(message.contains("\"color\" of an event (once)"), "{message}");
}

#[test]
fn t28_names_may_be_of_any_length_and_hold_anything() {
    let long = "std::vector<".repeat(50_000);
    let odd = r#"<script>\u0000\ud800\"\u001b[31m"#;
    let snapshot = small().event_with(
        "alloc",
        HERE,
        KIB,
        &format!(r#""frames": [{}, {}]"#, frame(&long, 1), frame(odd, 2)),
    );
    let snapshot = snapshot.free(HERE, KIB).read();
    let frames: Vec<_> = snapshot.stacks.frames(snapshot.trace.stack[1]).collect();
    assert_eq!(snapshot.strings.bytes(frames[0].name).len(), long.len());
    assert!(snapshot.strings.text(frames[1].name).starts_with("<script>\0"));
}

#[test]
fn t29_the_innermost_frame_comes_first() {
    let frames = format!(r#""frames": [{}, {}]"#, frame("inner", 1), frame("<module>", 2));
    let snapshot = small().event_with("alloc", HERE, KIB, &frames).free(HERE, KIB).read();
    let names = snapshot.stacks.frames(snapshot.trace.stack[1]).map(|frame| frame.name);
    assert_eq!(
        names.map(|name| snapshot.strings.text(name).into_owned()).collect::<Vec<_>>(),
        ["inner", "<module>"]
    );
}

#[test]
fn t30_a_function_that_calls_itself_stands_in_the_stack_as_often() {
    let frames = format!(r#""frames": [{}]"#, vec![frame("again", 1); 1500].join(", "));
    let snapshot = small().event_with("alloc", HERE, KIB, &frames).free(HERE, KIB).read();
    assert_eq!(snapshot.stacks.frames(snapshot.trace.stack[1]).count(), 1500);
    let is_it = |frame: &&Frame| snapshot.strings.text(frame.name) == "again";
    assert_eq!(snapshot.stacks.all_frames().iter().filter(is_it).count(), 1);
}

#[test]
fn t31_marks_and_unknown_actions_leave_the_totals_alone() {
    let snapshot = small()
        .event("alloc", HERE, KIB)
        .event_with("annotate", HERE, KIB, r#""user_metadata": "kv cache""#)
        .event("user_defined", 0, 0)
        .event("teleport", HERE, 64 * MIB)
        .free(HERE, KIB)
        .read();
    let replay = replayed(&snapshot);
    assert_eq!(replay.peak.active, KIB);
    assert_eq!(replay.doubts, Doubts::default());
    assert_eq!(snapshot.findings[0].code, "unknown-action");
    assert!(codes(&snapshot).contains(&"other-recorder".to_owned()));
}

#[test]
fn t32_annotations_nest_and_lack_either_end_and_old_hooks_write_them_twice() {
    let mark = |stage: &str, name: &str, time: i64| {
        format!(r#"{{"stage": "{stage}", "name": "{name}", "device": 0, "time_us": {time}}}"#)
    };
    let marks = [
        mark("END", "before", 1),
        mark("START", "step", 2),
        mark("START", "step", 3),
        mark("END", "step", 4),
        mark("END", "step", 4),
        mark("START", "open", 5),
    ];
    let snapshot = small().part("external_annotations", &format!("[{}]", marks.join(", "))).read();
    let found = codes(&snapshot);
    for code in ["annotation-without-start", "annotation-without-end", "annotation-repeated"] {
        assert!(found.contains(&code.to_owned()), "{code}: {found:?}");
    }
    assert_eq!(snapshot.annotations.len(), 6);
}

#[test]
fn t33_metadata_is_a_threads_own_and_an_empty_text_is_none() {
    let snapshot = small()
        .event_with("alloc", HERE, KIB, r#""user_metadata": "forward", "compile_context": "N/A""#)
        .event_with("alloc", HERE + KIB, KIB, r#""user_metadata": "", "compile_context": "N/A""#)
        .free(HERE, KIB)
        .free(HERE + KIB, KIB)
        .read();
    let said = |event| snapshot.said(snapshot.trace.extra(event).user_metadata);
    assert_eq!(snapshot.strings.text(said(1).unwrap()), "forward");
    assert_eq!(said(2), None);
    assert_eq!(snapshot.said(snapshot.trace.extra(1).compile_context), None);
}

#[test]
fn t34_a_trace_is_never_cut_by_what_its_events_look_like() {
    let snapshot = small()
        .event("alloc", HERE, KIB)
        .event("snapshot", 0, KIB)
        .free(HERE, KIB)
        .event("snapshot", 0, 0)
        .event("alloc", HERE, KIB)
        .free(HERE, KIB)
        .read();
    assert_eq!(snapshot.devices[0].events, 0..9);
    let replay = replayed(&snapshot);
    let part = tidegauge_snapshot::window::cut(&snapshot, &snapshot.devices[0], &replay, 2..4);
    assert_eq!(part.trace.time_us, snapshot.trace.time_us[2..4]);
}

#[test]
fn t35_segments_that_are_newer_than_the_trace_are_tolerated_and_said() {
    // Another thread freed the block between the copy of the trace and that of the segments.
    let snapshot = small().event("alloc", HERE, KIB).read();
    let replay = replayed(&snapshot);
    assert_eq!((replay.end.active, replay.doubts.end_mismatch), (KIB, 1));
    assert!(codes(&snapshot).contains(&"end-mismatch".to_owned()));
}

#[test]
fn t36_memory_beyond_the_device_is_said_and_its_pool_named() {
    let snapshot = story()
        .segment_with(
            r#""device": 0, "is_expandable": false, "segment_pool_id": [0, 1]"#,
            HERE,
            &[(200 << 30, 200 << 30, "active_allocated")],
        )
        .read();
    let known = Known { device_bytes: [(0, 140 << 30)].into(), ..Known::default() };
    let findings = findings_knowing(&snapshot, &[replayed(&snapshot)], &known);
    let above = findings.iter().find(|finding| finding.code == "above-capacity").unwrap();
    assert!(above.message.starts_with("up to 200 GiB were reserved, and the device has 140 GiB"));
    assert_eq!(words::pool(snapshot.segments.pool[0]), "mempool 1");
}

#[test]
fn t37_a_bare_list_of_segments_is_a_snapshot_without_history() {
    let segment = r#"[{"device": 0, "address": 4096, "total_size": 512, "stream": 0, "blocks": [
        {"size": 512, "requested_size": 9, "state": "active_awaiting_free"}]}]"#;
    let snapshot = open(segment.as_bytes()).unwrap();
    assert_eq!(snapshot.blocks.state, [BlockState::PendingFree]);
    assert_eq!((replayed(&snapshot).end.allocated, replayed(&snapshot).end.active), (0, 512));
    assert!(codes(&snapshot).contains(&"no-history".to_owned()));
    assert!(snapshot.top.is_empty());
}

#[test]
fn t38_torch_2_0_lists_past_uses_of_a_block_and_only_the_latest_of_a_used_one_counts() {
    let uses = |address: u64, size: u64| format!(r#"{{"addr": {address}, "real_size": {size}}}"#);
    let segment = format!(
        r#"{{"device": 0, "address": {HERE}, "total_size": {}, "stream": 0, "blocks": [
        {{"size": 1024, "requested_size": 600, "state": "active_allocated", "history": [{}, {}]}},
        {{"size": {}, "requested_size": 0, "state": "inactive", "history": [{}]}}]}}"#,
        2 * MIB,
        uses(HERE, 600),
        uses(HERE + 512, 100),
        2 * MIB - KIB,
        uses(HERE + KIB, 4000)
    );
    let snapshot = story().raw_segment(&segment).read();
    assert_eq!(snapshot.producer, "torch 2.0");
    assert_eq!(snapshot.blocks.address, [HERE, HERE + KIB]);
    assert_eq!(snapshot.blocks.history.len(), 3);
    let end = replayed(&snapshot).end;
    assert_eq!((end.requested, end.allocated), (600, KIB));
}

#[test]
fn t39_what_an_earlier_snapshot_of_the_process_holds_already_is_found() {
    let steps = |n: u64| (0..n).fold(small(), |story, _| story.event("alloc", HERE, KIB).free(HERE, KIB));
    let first = steps(30).read();
    let both = steps(30).event("snapshot", 0, 0).event("alloc", HERE, KIB).free(HERE, KIB).read();
    assert_eq!(overlap((&first, &first.devices[0]), (&both, &both.devices[0])), first.trace.len());
    // Cleared in between, the same steps again are new events.
    let empty = story().segment(HERE, &[(2 * MIB, 0, "inactive")]).clock(1_000_000);
    let again = (0..30).fold(empty, |story, _| story.event("alloc", HERE, KIB).free(HERE, KIB)).read();
    assert_eq!(overlap((&first, &first.devices[0]), (&again, &again.devices[0])), 0);
}

#[test]
fn t40_a_file_from_a_stranger_runs_nothing_and_claims_nothing() {
    let code = |bytes: &[u8]| open(bytes).unwrap_err().code();
    assert_eq!(code(b"\x80\x04cos\nsystem\n."), ReadError::REFUSED);
    assert_eq!(code(b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f}"), ReadError::CUT);
    assert_eq!(code(b"\x80\x04X\xff\xff\xff\xff."), ReadError::CUT);
    // A number of 255 bytes, as the address: no address, and no harm.
    let mut bytes = b"\x80\x02}X\x08\0\0\0segments](}(X\x06\0\0\0blocks]X\x0a\0\0\0total_sizeK\x01".to_vec();
    bytes.extend(b"X\x07\0\0\0address\x8a\xff");
    bytes.extend([0x7f; 255]);
    bytes.extend(b"ues.");
    let snapshot = open(&bytes[..]).unwrap();
    assert_eq!((snapshot.segments.address[0], &*snapshot.findings[0].code), (0, "odd-field"));
}
