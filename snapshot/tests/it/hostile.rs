//! Files that are cut, damaged, something else or meant to harm: each gets a sentence, none a panic.

use std::io::Write as _;

use tidegauge_snapshot::read::{self, ReadError, open, recognize};

const SMALL: &[u8] = include_bytes!("../../fixtures/torch2.15.0/new_pinned_metadata_annotate.pickle");
const POOLS: &[u8] = include_bytes!("../../fixtures/pools_graphs_mempool.pickle");

fn refused(bytes: &[u8]) -> ReadError {
    open(bytes).expect_err("this must not open")
}

/// `{"segments": [], "device_traces": [[event]]}` in protocol 2, without a memo, around the given event items.
fn with_event(items: &[u8]) -> Vec<u8> {
    let mut bytes = b"\x80\x02}(X\x08\0\0\0segments]X\x0d\0\0\0device_traces](](}(".to_vec();
    bytes.extend(items);
    bytes.extend(b"ueeu.");
    bytes
}

fn text(text: &str) -> Vec<u8> {
    let mut bytes = vec![0x8c, u8::try_from(text.len()).unwrap()];
    bytes.extend(text.as_bytes());
    bytes
}

fn event(action: &str, size: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in [text("action"), text(action), text("addr"), b"K\x00".to_vec(), text("size"), size.to_vec()] {
        bytes.extend(part);
    }
    for part in [text("stream"), b"K\x00".to_vec()] {
        bytes.extend(part);
    }
    bytes
}

#[test]
fn a_file_cut_at_any_byte_says_where_it_ends() {
    for len in 1..SMALL.len() {
        let error = refused(&SMALL[..len]);
        assert_eq!(error.code(), ReadError::CUT, "cut at {len}: {error}");
        assert!(error.to_string().contains(&format!("ends at byte {len}")), "{error}");
        assert!(recognize(&SMALL[..len]).is_ok(), "a cut file can still be a snapshot");
    }
    assert_eq!(refused(&[]).code(), ReadError::EMPTY);
}

#[test]
fn a_compressed_file_cut_at_any_byte_is_cut() {
    let zstd = zstd::bulk::compress(SMALL, 3).unwrap();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(SMALL).unwrap();
    let gzip = gzip.finish().unwrap();
    for packed in [&zstd, &gzip] {
        assert!(open(&packed[..]).is_ok());
        for len in 8..packed.len() {
            let error = refused(&packed[..len]);
            assert_eq!(error.code(), ReadError::CUT, "cut at {len} of {}: {error}", packed.len());
        }
    }
}

#[test]
fn no_changed_byte_makes_it_panic() {
    for (file, step) in [(SMALL, 1), (POOLS, 7)] {
        for at in (0..file.len()).step_by(step) {
            for change in [0xff, 0x01, 0x80] {
                let mut bytes = file.to_vec();
                bytes[at] ^= change;
                if let Ok(snapshot) = open(&bytes[..]) {
                    for device in &snapshot.devices {
                        tidegauge_snapshot::replay::replay(&snapshot, device);
                    }
                }
            }
        }
    }
}

#[test]
fn what_would_run_code_is_refused_by_name_and_offset() {
    let calls: [(&[u8], &str); 9] = [
        (b"cos\nsystem\n(S'true'\ntR.", "GLOBAL at byte 0"),
        (b"\x80\x04cos\nsystem\n.", "GLOBAL at byte 2"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "STACK_GLOBAL at byte 14"),
        (b"\x80\x04)R.", "REDUCE at byte 3"),
        (b"\x80\x04}b.", "BUILD at byte 3"),
        (b"\x80\x04(ios\nsystem\n.", "INST at byte 3"),
        (b"\x80\x04)\x81.", "NEWOBJ at byte 3"),
        (b"\x80\x04\x82\x01.", "EXT1 at byte 2"),
        (b"\x80\x04NQ.", "BINPERSID at byte 3"),
    ];
    for (pickle, named) in calls {
        let error = refused(pickle);
        assert_eq!(error.code(), ReadError::REFUSED);
        assert!(error.to_string().starts_with(named), "{error}");
        assert!(recognize(pickle).is_err());
    }
}

#[test]
fn claimed_lengths_cost_nothing() {
    let claims: [&[u8]; 6] = [
        b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fabc",
        b"\x80\x04\x8b\xff\xff\xff\x7fabc",
        b"\x80\x04X\xff\xff\xff\xffabc",
        b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\xff}",
        b"\x80\x04]r\xff\xff\xff\x7f.",
        b"\x80\x04j\xff\xff\xff\x7f.",
    ];
    for bytes in claims {
        let error = refused(bytes);
        assert!([ReadError::CUT, ReadError::DAMAGED].contains(&error.code()), "{error}");
    }
    let negative = refused(b"\x80\x04\x8b\xff\xff\xff\xffabc");
    assert!(negative.to_string().contains("negative length"), "{negative}");
}

#[test]
fn depth_and_waiting_values_are_bounded() {
    let mut deep = b"\x80\x04".to_vec();
    deep.extend([b']'; 1_000_000]);
    assert_eq!(refused(&deep).code(), ReadError::REFUSED);
    let mut marks = b"\x80\x04".to_vec();
    marks.extend([b'('; 1_000_000]);
    assert_eq!(refused(&marks).code(), ReadError::REFUSED);
}

#[test]
fn a_list_shared_a_million_times_over_stays_small() {
    // allocator_settings = {"a": x} with x = [x', x'] and so on, 200 deep: 2^200 values if copied.
    let mut bytes = b"\x80\x04}(\x8c\x08segments]\x8c\x12allocator_settings}\x8c\x01aK\x00\x94".to_vec();
    for slot in 0..200u8 {
        bytes.extend([b'0', b'(', b'h', slot, b'h', slot, b'l', 0x94]);
    }
    bytes.extend(b"su.");
    let snapshot = open(&bytes[..]).unwrap();
    assert!(snapshot.settings.is_empty());
    assert_eq!(snapshot.findings[0].code, "not-kept");
}

#[test]
fn a_decompression_bomb_is_refused() {
    let mut packed = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
    packed.write_all(b"\x80\x04").unwrap();
    // None, POP: plain opcodes without end.
    let block = b"N0".repeat(1 << 19);
    for _ in 0..700 {
        packed.write_all(&block).unwrap();
    }
    let error = refused(&packed.finish().unwrap());
    assert_eq!(error.code(), ReadError::TOO_LARGE, "{error}");
    assert!(error.to_string().contains("decompression bomb"), "{error}");
}

#[test]
fn growing_a_stack_one_frame_at_a_time_is_linear() {
    // One list of frames, appended to 200,000 times: quadratic copying would take minutes.
    let frame =
        [text("name"), text("f"), text("filename"), text("g"), text("line"), b"K\x01".to_vec()].concat();
    let mut items = text("frames");
    items.extend(b"](}(");
    items.extend(frame);
    items.extend(b"u\x94e");
    for _ in 0..200_000 {
        items.extend(b"h\x00a");
    }
    items.extend(event("alloc", b"K\x01"));
    let snapshot = open(&with_event(&items)[..]).unwrap();
    assert_eq!(snapshot.stacks.frame_ids(snapshot.trace.stack[0]).len(), 200_001);
}

#[test]
fn sizes_that_are_none_are_said_and_do_not_poison_the_totals() {
    let snapshot =
        open(&with_event(&event("alloc", b"\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00"))[..]).unwrap();
    let replay = tidegauge_snapshot::replay::replay(&snapshot, &snapshot.devices[0]);
    assert_eq!(replay.peak.requested, 0);
    assert_eq!(snapshot.findings[0].code, "odd-field");
}

#[test]
fn an_unknown_action_is_kept_with_its_name() {
    let snapshot = open(&with_event(&event("teleport", b"K\x01"))[..]).unwrap();
    assert_eq!(snapshot.action_name(snapshot.trace.action[0]), "teleport");
    assert_eq!(snapshot.findings[0].code, "unknown-action");
}

#[test]
fn trailing_zeros_are_fine_and_other_bytes_are_said() {
    let mut padded = SMALL.to_vec();
    padded.extend([0, 0, 0]);
    let codes = |bytes: &[u8]| {
        open(bytes).unwrap().findings.iter().map(|finding| finding.code.clone()).collect::<Vec<_>>()
    };
    assert_eq!(codes(&padded), codes(SMALL));
    padded.extend(b"more");
    assert!(codes(&padded).contains(&"trailing-bytes".to_owned()));
}

#[test]
fn the_content_of_a_compressed_file_is_the_file() {
    let zstd = zstd::bulk::compress(SMALL, 3).unwrap();
    let mut content = Vec::new();
    read::copy_content(std::io::Cursor::new(zstd), &mut content).unwrap();
    assert_eq!(content, SMALL);
}

#[test]
fn what_the_cpp_pickler_writes_reads_like_what_python_writes() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/torch2.15.0/");
    let read = |name: &str| open(std::fs::File::open(format!("{folder}{name}")).unwrap()).unwrap();
    let (cpp, python) = (read("cpp_pickled_protocol2.pickle"), read("cpp_pickled_twin_protocol4.pickle"));
    assert_eq!(cpp.wrapping, ["pickle2"]);
    assert_eq!(python.wrapping, ["pickle4"]);
    assert!(cpp.trace.len() > 10);
    let replays =
        [&cpp, &python].map(|snapshot| tidegauge_snapshot::replay::replay(snapshot, &snapshot.devices[0]));
    // The C++ one was taken first, so the twin may only have more.
    assert_eq!(replays[0].end, replays[1].end);
    assert_eq!(cpp.segments.address, python.segments.address);
    assert_eq!(cpp.blocks.size, python.blocks.size);
}

#[test]
fn a_value_that_was_never_stored_is_not_recalled_even_between_others() {
    // Memo numbers 0 to 19, and 25; what lies between was never stored.
    let error = refused(&[b"\x80\x04", &b"N\x94".repeat(20)[..], b"NNNNNNNNNNq\x19h\x16."].concat());
    assert!(error.to_string().contains("never stored"), "{error}");
}
