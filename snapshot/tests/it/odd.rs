//! Reports of people whose file did not open, or opened as nothing; and fields that hold what no field should.

use tidegauge_snapshot::Snapshot;
use tidegauge_snapshot::model::BlockState;
use tidegauge_snapshot::read::open;
use tidegauge_snapshot::replay::{Replay, replay};

/// A snapshot of one device from JSON: its segments and its events.
fn snapshot(segments: &str, events: &str) -> Snapshot {
    let json = format!(r#"{{"segments": [{segments}], "device_traces": [[{events}]]}}"#);
    open(json.as_bytes()).unwrap_or_else(|error| panic!("{json}: {error}"))
}

fn event(action: &str, rest: &str) -> String {
    format!(r#"{{"action": "{action}", "stream": 0, {rest}}}"#)
}

fn replayed(snapshot: &Snapshot) -> Replay {
    replay(snapshot, &snapshot.devices[0])
}

fn codes(snapshot: &Snapshot) -> Vec<(&str, u64)> {
    snapshot.findings.iter().map(|finding| (&*finding.code, finding.count)).collect()
}

const SEGMENT: &str = r#"{"device": 0, "address": 4096, "total_size": 2097152, "stream": 0, "segment_type": "small",
    "segment_pool_id": [0, 0], "is_expandable": false, "frames": [],
    "blocks": [{"address": 4096, "size": 1024, "requested_size": 600, "state": "active_allocated", "frames": []},
               {"address": 5120, "size": 2096128, "requested_size": 77, "state": "inactive", "frames": []}]}"#;

#[test]
fn a_list_of_segments_opens_as_a_snapshot_without_history() {
    let snapshot = open(format!("[{SEGMENT}]").as_bytes()).unwrap();
    assert_eq!((snapshot.segments.len(), snapshot.blocks.len(), snapshot.trace.len()), (1, 2, 0));
    let replay = replayed(&snapshot);
    assert_eq!((replay.end.requested, replay.end.allocated, replay.end.reserved), (600, 1024, 2_097_152));
}

#[test]
fn blocks_of_torch_2_0_get_their_address_from_those_before_and_their_stack_from_their_history() {
    let frame = r#"{"name": "f", "filename": "a.py", "line": 7}"#;
    let segment = format!(
        r#"{{"device": 0, "address": 4096, "total_size": 2097152, "allocated_size": 1024, "active_size": 1024,
        "stream": 0, "segment_type": "small", "blocks": [
          {{"size": 512, "state": "inactive", "history": [{{"addr": 4096, "real_size": 300}}]}},
          {{"size": 1024, "state": "active_allocated",
            "history": [{{"addr": 4608, "real_size": 600, "frames": [{frame}]}}, {{"addr": 4608, "real_size": 9}}]}},
          {{"size": 2095616, "state": "inactive"}}]}}"#
    );
    let snapshot = snapshot(&segment, "");
    assert_eq!(snapshot.blocks.address, [4096, 4608, 5632]);
    assert_eq!(snapshot.producer, "torch 2.0");
    let replay = replayed(&snapshot);
    // What an inactive block was used for is past.
    assert_eq!((replay.end.requested, replay.end.allocated), (600, 1024));
    let frames: Vec<_> = snapshot.stacks.frames(snapshot.blocks.stack[1]).collect();
    assert_eq!((frames.len(), frames[0].line), (1, 7));
}

#[test]
fn numbers_of_64_bits_stay_themselves_and_unknown_ones_are_unknown() {
    let frame = r#"{"name": "f", "filename": "??", "line": 18446744073709551615}"#;
    let high = u64::MAX - 511;
    let alloc = event("alloc", &format!(r#""addr": {high}, "size": 512, "frames": [{frame}]"#));
    let negative = event("alloc", r#""addr": -1024, "size": 512"#);
    let unknown = event("alloc", r#""addr": 8192, "size": 18446744073709551615"#);
    let snapshot = snapshot("", &format!("{alloc}, {negative}, {unknown}"));
    // torch's C++ pickler writes addresses beyond 2^63 as negative numbers.
    assert_eq!(snapshot.trace.address, [high, 0u64.wrapping_sub(1024), 8192]);
    let frame = snapshot.stacks.frames(snapshot.trace.stack[0]).next().unwrap();
    assert_eq!(frame.known_line(), None, "-1 is no line");
    assert_eq!(replayed(&snapshot).peak.requested, 1024, "an unknown size does not poison the total");
    assert_eq!(codes(&snapshot), [("odd-field", 1)]);
}

#[test]
fn a_stream_with_its_highest_bit_set_is_a_stream() {
    let stream = r#"{"action": "alloc", "addr": 4096, "size": 512, "stream": 9223372036854775809}"#;
    assert_eq!(snapshot("", stream).streams, [9_223_372_036_854_775_809]);
}

#[test]
fn a_value_of_another_kind_is_counted_and_shown_as_unknown() {
    for odd in ["null", "\"many\"", "1.5", "[1]", "{\"a\": 1}", "-1"] {
        let snapshot = snapshot("", &event("alloc", &format!(r#""addr": 4096, "size": {odd}, "frames": 3"#)));
        assert_eq!(replayed(&snapshot).peak.allocated, replayed(&snapshot).end.allocated);
        assert_eq!(snapshot.trace.size, [0], "{odd}");
        let n: u64 = codes(&snapshot).iter().map(|(_, n)| n).sum();
        assert_eq!(n, 2, "{odd}: {:?}", snapshot.findings);
    }
    for odd in [r#""frames": null"#, r#""frames": []"#, r#""frames": {}"#, r#""time_us": null"#] {
        snapshot("", &event("alloc", &format!(r#""addr": 4096, "size": 1, {odd}"#)));
    }
}

#[test]
fn entries_that_are_none_are_left_out_and_said() {
    let json = format!(
        r#"{{"segments": [{SEGMENT}, 7, "x"], "device_traces": [[{}, null, {{"action": 1}}], 5, null], "extra": {{}}}}"#,
        event("alloc", r#""addr": 8192, "size": 512"#)
    );
    let snapshot = open(json.as_bytes()).unwrap();
    assert_eq!((snapshot.segments.len(), snapshot.trace.len()), (1, 1));
    let mut codes: Vec<_> = codes(&snapshot).into_iter().map(|(code, _)| code).collect();
    codes.dedup();
    assert_eq!(codes, ["unknown-key", "odd-entry"], "{:?}", snapshot.findings);
}

#[test]
fn states_and_actions_nobody_knows_are_kept_and_said() {
    let segment = SEGMENT.replace("active_allocated", "active_shared");
    let snapshot = snapshot(&segment, &event("teleport", r#""addr": 1, "size": 1"#));
    assert_eq!(snapshot.blocks.state[0], BlockState::Inactive);
    assert_eq!(codes(&snapshot), [("unknown-state", 1), ("unknown-action", 1)]);
}

#[test]
fn text_that_would_harm_a_page_or_a_terminal_is_only_text() {
    let hostile = [
        "<script>alert(1)</script>",
        "\"><img src=x onerror=alert(1)>",
        "\u{1b}[2J\u{7}",
        "a\0b",
        "\u{202e}gnp.exe",
        "../../etc/passwd",
        "%s%n",
        "'; DROP TABLE runs; --",
    ];
    for text in hostile {
        let frame = serde_json::json!({"name": text, "filename": text, "line": 1});
        let alloc = event("alloc", &format!(r#""addr": 4096, "size": 512, "frames": [{frame}]"#));
        let snapshot = snapshot("", &alloc);
        let frame = snapshot.stacks.frames(snapshot.trace.stack[0]).next().unwrap();
        assert_eq!(snapshot.strings.text(frame.name), text, "kept as it is; whoever shows it escapes it");
    }
}

#[test]
fn half_a_surrogate_pair_is_the_same_in_json_and_in_a_pickle() {
    // Python writes '\ud83d' with surrogatepass into pickles, and as an escape into JSON.
    let name = |snapshot: &Snapshot| {
        let frame = snapshot.stacks.frames(snapshot.trace.stack[0]).next().unwrap();
        snapshot.strings.bytes(frame.name).to_vec()
    };
    let of = |escapes: &str| {
        let frame = format!(r#"{{"name": "{escapes}", "filename": "a.py", "line": 1}}"#);
        name(&snapshot("", &event("alloc", &format!(r#""addr": 4096, "size": 512, "frames": [{frame}]"#))))
    };
    assert_eq!(of(r"\ud83d\ude00"), "😀".as_bytes());
    assert_eq!(of(r"\ud83d"), b"\xed\xa0\xbd");
    assert_eq!(of(r"\ud83dx"), b"\xed\xa0\xbdx");
    assert_eq!(of(r"\ud83d\n"), b"\xed\xa0\xbd\n");
    assert_eq!(of(r"\ud83d\ud83d\ude00"), [b"\xed\xa0\xbd", "😀".as_bytes()].concat());
    assert_eq!(of(r"\u00e9\u20ac"), "é€".as_bytes());
}

#[test]
fn a_byte_order_mark_before_json_is_passed_over() {
    let json = format!("\u{feff}[{SEGMENT}]");
    assert_eq!(open(json.as_bytes()).unwrap().segments.len(), 1);
}

#[test]
fn segments_that_overlap_and_blocks_that_lie_outside_do_not_harm() {
    let outside = SEGMENT.replace("\"address\": 4096, \"size\"", "\"address\": 99999999, \"size\"");
    let snapshot = snapshot(
        &format!("{SEGMENT}, {SEGMENT}, {outside}"),
        &format!(
            "{}, {}",
            event("free_completed", r#""addr": 4096, "size": 600"#),
            event("segment_free", r#""addr": 4096, "size": 2097152"#)
        ),
    );
    replayed(&snapshot);
}
