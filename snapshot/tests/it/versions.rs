//! What each release of PyTorch writes, as the smallest file that has all its fields.

use serde_json::{Value, json};
use tidegauge_snapshot::Snapshot;
use tidegauge_snapshot::model::{Frame, MoreValue};
use tidegauge_snapshot::read::open;
use tidegauge_snapshot::replay::{Doubts, replay};
use tidegauge_snapshot::write;

use crate::story::{HERE, KIB, MIB};

/// Releases that added or took away fields, as numbers that compare, and what their files are recognized as. Where
/// nothing tells two releases apart, both are named.
const RELEASES: [(u32, &str); 14] = [
    (200, "torch 2.0"),
    (201, "torch 2.1"),
    (202, "torch 2.2"),
    (203, "torch 2.3–2.4"),
    (205, "torch 2.5–2.7"),
    (207, "torch 2.5–2.7"),
    (208, "torch 2.8"),
    (209, "torch 2.9"),
    (210, "torch 2.10+"),
    (211, "torch 2.10+"),
    (212, "torch 2.12"),
    (213, "torch 2.13"),
    (214, "torch 2.14+"),
    (215, "torch 2.14+"),
];

/// A dict of those fields that a release has: first and last release, name, value.
fn fields(release: u32, fields: &[(u32, u32, &str, Value)]) -> Value {
    let has = |(first, last, _, _): &&(u32, u32, &str, Value)| (*first..=*last).contains(&release);
    fields.iter().filter(has).map(|(_, _, name, value)| ((*name).to_owned(), value.clone())).collect()
}

const ALWAYS: u32 = u32::MAX;

fn frame(release: u32) -> Value {
    fields(
        release,
        &[
            (200, ALWAYS, "name", json!("forward")),
            (200, ALWAYS, "filename", json!("model.py")),
            (200, ALWAYS, "line", json!(12)),
            (210, ALWAYS, "fx_node_op", json!("call_module")),
            (210, ALWAYS, "fx_node_name", json!("linear")),
            (210, ALWAYS, "fx_node_target", json!("layers.0")),
            (210, ALWAYS, "fx_original_trace", json!("File \"model.py\", line 3\n  x = self.linear(x)\n")),
        ],
    )
}

fn event(release: u32, action: &str, size: u64, time: u64) -> Value {
    let forward = json!(["  File \"train.py\", line 9, in step\n", "    loss = model(x)\n"]);
    fields(
        release,
        &[
            (200, ALWAYS, "action", json!(action)),
            (200, ALWAYS, "addr", json!(HERE)),
            (200, ALWAYS, "size", json!(size)),
            (200, ALWAYS, "stream", json!(0)),
            (202, ALWAYS, "time_us", json!(time)),
            (208, ALWAYS, "compile_context", json!("N/A")),
            (210, ALWAYS, "user_metadata", json!("step=1")),
            (211, ALWAYS, "forward_frames", forward),
            (212, ALWAYS, "pool_id", json!([0, 0])),
            (215, ALWAYS, "internal_metadata", json!("mallocWithAddress")),
            (200, ALWAYS, "frames", json!([frame(release)])),
        ],
    )
}

fn segment(release: u32, device: i64) -> Value {
    let uses = json!([{"addr": HERE, "real_size": 600, "frames": [frame(release)]}]);
    let block = |address: u64, size: u64, requested: u64, state: &str| {
        fields(
            release,
            &[
                (201, ALWAYS, "address", json!(address)),
                (200, ALWAYS, "size", json!(size)),
                (201, ALWAYS, "requested_size", json!(requested)),
                (200, ALWAYS, "state", json!(state)),
                (201, ALWAYS, "frames", if requested > 0 { json!([frame(release)]) } else { json!([]) }),
                (200, 200, "history", if requested > 0 { uses.clone() } else { json!([]) }),
            ],
        )
    };
    let rest = 2 * MIB - KIB;
    fields(
        release,
        &[
            (200, ALWAYS, "device", json!(device)),
            (200, ALWAYS, "address", json!(HERE)),
            (200, ALWAYS, "total_size", json!(2 * MIB)),
            (200, ALWAYS, "allocated_size", json!(KIB)),
            (200, ALWAYS, "active_size", json!(KIB)),
            (200, ALWAYS, "requested_size", json!(600)),
            (200, ALWAYS, "stream", json!(0)),
            (200, ALWAYS, "segment_type", json!("small")),
            (201, ALWAYS, "segment_pool_id", json!([0, 0])),
            (201, ALWAYS, "is_expandable", json!(false)),
            (201, ALWAYS, "frames", json!([])),
            (211, ALWAYS, "forward_frames", json!(["  File \"train.py\"\n"])),
            (
                200,
                ALWAYS,
                "blocks",
                json!([block(HERE, KIB, 600, "active_allocated"), block(HERE + KIB, rest, 0, "inactive")]),
            ),
        ],
    )
}

fn settings(release: u32) -> Value {
    fields(
        release,
        &[
            (203, ALWAYS, "PYTORCH_CUDA_ALLOC_CONF", json!("")),
            (203, ALWAYS, "max_split_size", json!(-1)),
            (203, ALWAYS, "garbage_collection_threshold", json!(0.0)),
            (203, ALWAYS, "expandable_segments", json!(false)),
            (203, ALWAYS, "roundup_power2_divisions", json!({"1": 0, "32768": 0})),
            (209, ALWAYS, "graph_capture_record_stream_reuse", json!(false)),
            (213, ALWAYS, "max_cached_size", json!(-1)),
        ],
    )
}

/// A file of a release: one allocation after a segment, and what was there before it.
fn file(release: u32) -> Value {
    let annotation =
        json!({"stage": "START", "name": "Optimizer.step#AdamW.step", "device": 0, "time_us": 15});
    let trace = json!([event(release, "segment_alloc", 2 * MIB, 10), event(release, "alloc", 600, 20)]);
    fields(
        release,
        &[
            (200, ALWAYS, "segments", json!([segment(release, 0)])),
            (200, ALWAYS, "device_traces", json!([trace, []])),
            (203, ALWAYS, "allocator_settings", settings(release)),
            (205, ALWAYS, "external_annotations", json!([annotation])),
            (214, ALWAYS, "host_segments", json!([segment(release, -1)])),
            (214, ALWAYS, "host_traces", trace),
        ],
    )
}

fn read(file: &Value) -> Snapshot {
    open(file.to_string().as_bytes()).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn written(snapshot: &Snapshot) -> Value {
    let mut json = Vec::new();
    write::json(snapshot, &mut json).unwrap();
    serde_json::from_slice(&json).unwrap()
}

#[test]
fn each_release_is_recognized_by_the_fields_it_added() {
    for (release, expected) in RELEASES {
        assert_eq!(read(&file(release)).producer, expected, "{release}");
    }
}

#[test]
fn every_field_of_every_release_is_known() {
    for (release, _) in RELEASES {
        let snapshot = read(&file(release));
        assert!(snapshot.findings.is_empty(), "{release}: {:?}", snapshot.findings);
    }
}

#[test]
fn every_field_of_every_release_comes_out_again() {
    for (release, _) in RELEASES {
        let file = file(release);
        let snapshot = read(&file);
        assert_eq!(written(&snapshot), file, "{release}");
        let mut pickle = Vec::new();
        write::pickle(&snapshot, &mut pickle).unwrap();
        assert_eq!(written(&open(&pickle[..]).unwrap()), file, "{release} through a pickle");
        let unpacked = tidegauge_snapshot::pack::read(&tidegauge_snapshot::pack::write(&snapshot)).unwrap();
        assert_eq!(written(&unpacked), file, "{release} through a pack");
    }
}

#[test]
fn every_release_gives_the_same_levels() {
    for (release, _) in RELEASES {
        let snapshot = read(&file(release));
        for device in snapshot.devices.iter().chain(&snapshot.host) {
            let found = replay(&snapshot, device);
            assert_eq!(found.curves.requested, [0, 0, 600], "{release}");
            // Pinned host memory is handed out in whole segments; this one only looks split.
            if !device.is_host() {
                assert_eq!(found.curves.allocated, [0, 0, KIB], "{release}");
                assert_eq!(found.doubts, Doubts::default(), "{release}");
            }
            assert_eq!(found.curves.reserved, [0, 2 * MIB, 2 * MIB], "{release}");
        }
        assert_eq!(snapshot.host.is_some(), release >= 214);
    }
}

#[test]
fn the_fields_of_late_releases_are_there_to_be_shown() {
    let snapshot = read(&file(215));
    let extra = snapshot.trace.extra(1);
    let text = |id| snapshot.strings.text(id).into_owned();
    assert_eq!(text(snapshot.said(extra.user_metadata).unwrap()), "step=1");
    assert_eq!(snapshot.said(extra.compile_context), None);
    assert_eq!(extra.pool, Some((0, 0)));
    assert!(extra.is_internal);
    let forward = snapshot.forward.get(extra.forward.unwrap());
    assert_eq!(text(forward[1]), "    loss = model(x)\n");
    let frame: Frame = snapshot.stacks.frames(snapshot.trace.stack[1]).next().unwrap();
    let fx = &snapshot.stacks.more(frame).unwrap().fields;
    let of = |wanted: &str| {
        let found = fx.iter().find(|(name, _)| text(*name) == wanted);
        found.map(|(_, value)| if let MoreValue::Text(id) = value { text(*id) } else { String::new() })
    };
    assert_eq!(of("fx_node_op").as_deref(), Some("call_module"));
    assert_eq!(of("fx_node_name").as_deref(), Some("linear"));
    assert_eq!(of("fx_node_target").as_deref(), Some("layers.0"));
    assert!(of("fx_original_trace").is_some_and(|trace| trace.contains("x = self.linear(x)")));
}

/// A file as torch_npu writes it: no times, no settings, its workspaces first.
fn npu() -> Value {
    let stack = json!([{"name": "f", "filename": "site-packages/torch_npu/npu/utils.py", "line": 1}]);
    let mut events = Vec::new();
    for action in ["workspace_snapshot", "segment_alloc", "alloc"] {
        events.push(json!({"action": action, "addr": HERE, "size": 32 * MIB, "stream": 1_534_455_456}));
    }
    let address = HERE + 64 * MIB;
    for (action, size) in
        [("segment_alloc", 2 * MIB), ("alloc", 512), ("free_requested", 512), ("free_completed", 512)]
    {
        events.push(json!({"action": action, "addr": address, "size": size, "stream": 0, "frames": stack}));
    }
    let segment = |address: u64, size: u64, state: &str| {
        json!({"device": 0, "address": address, "total_size": size, "stream": 0, "segment_type": "large",
            "segment_pool_id": [0, 0], "is_expandable": false, "frames": [], "blocks": [
                {"address": address, "size": size, "requested_size": size, "state": state, "frames": []}]})
    };
    let segments = [segment(HERE, 32 * MIB, "active_allocated"), segment(address, 2 * MIB, "inactive")];
    json!({"segments": segments, "device_traces": [events]})
}

#[test]
fn torch_npu_has_no_times_describes_its_workspaces_and_rounds_after_adding_32_bytes() {
    let snapshot = read(&npu());
    assert_eq!(snapshot.producer, "torch_npu");
    let found = replay(&snapshot, &snapshot.devices[0]);
    assert_eq!(found.peak.requested, 32 * MIB + 512);
    assert_eq!(found.peak.allocated, 32 * MIB + KIB);
    assert_eq!((found.head.reserved, found.end.reserved), (32 * MIB, 34 * MIB));
    assert_eq!(written(&snapshot), npu());
}

#[test]
fn xpu_addresses_lie_beyond_63_bits_and_are_addresses() {
    let high = (1u64 << 63) + (1 << 40);
    let mut file = file(211);
    let text = file.to_string().replace(&HERE.to_string(), &high.to_string());
    let text = text.replace(&(HERE + KIB).to_string(), &(high + KIB).to_string());
    file = serde_json::from_str(&text).unwrap();
    let snapshot = read(&file);
    assert_eq!(snapshot.segments.address, [high]);
    let found = replay(&snapshot, &snapshot.devices[0]);
    assert_eq!((found.peak.allocated, found.doubts), (KIB, Doubts::default()));
    assert_eq!(written(&snapshot), file);
}

#[test]
fn mtia_writes_what_cuda_writes_with_traces_and_segments_only() {
    let file = json!({"segments": [segment(208, 0)], "device_traces": [[event(208, "segment_alloc", 2 * MIB, 1),
        event(208, "alloc", 600, 2)]]});
    let snapshot = read(&file);
    assert_eq!(replay(&snapshot, &snapshot.devices[0]).curves.allocated, [0, 0, KIB]);
    assert_eq!(written(&snapshot), file);
}
