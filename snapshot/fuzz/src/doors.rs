//! The doors that strangers' bytes come through, and the laws that hold behind them.
//!
//! Each target of the fuzzer is one function here, so that the tests of the crate replay what the fuzzer found
//! through the very same code (`snapshot/tests/it/found.rs`). A door panics when a law is broken.

use std::io::Cursor;
use std::ops::ControlFlow;

use tidegauge_snapshot::findings::findings;
use tidegauge_snapshot::model::Device;
use tidegauge_snapshot::pack;
use tidegauge_snapshot::picture::{ID_NONE, ID_OTHER, Index, Palette, Raster, View};
use tidegauge_snapshot::read::{self, archive};
use tidegauge_snapshot::replay::{Replay, fragmentation, replay};
use tidegauge_snapshot::{Snapshot, window, write};

/// A door by the name of its target.
pub fn door(target: &str) -> Option<fn(&[u8])> {
    Some(match target {
        "pickle" | "json" | "html" => file,
        "archive" => archives,
        "pack" => packs,
        _ => return None,
    })
}

/// A file of any kind, as the command line, the server and the page open it.
pub fn file(bytes: &[u8]) {
    let recognized = read::recognize(&bytes[..bytes.len().min(read::HEAD_BYTES)]);
    match read::open_file(Cursor::new(bytes)) {
        Ok(snapshot) => {
            assert!(recognized.is_ok(), "it opens and is not recognized: {recognized:?}");
            read_snapshots(&snapshot);
        }
        Err(error) => assert!(!error.to_string().is_empty() && !error.code().is_empty()),
    }
    read::copy_content(Cursor::new(bytes), std::io::sink()).ok();
}

/// An archive: listed, passed, and each snapshot opened.
pub fn archives(bytes: &[u8]) {
    let mut passed = Vec::new();
    let listed = archive::list(Cursor::new(bytes));
    let each = archive::each(Cursor::new(bytes), |member, bytes| {
        assert!(!member.path.chars().any(char::is_control));
        if let Ok(snapshot) = read::open(bytes) {
            read_snapshots(&snapshot);
        }
        passed.push(member.clone());
        Ok(ControlFlow::Continue(()))
    });
    if let (Ok(Some(listed)), Ok(Some(each))) = (&listed, &each) {
        assert_eq!(listed, each);
        assert_eq!(listed.snapshots, passed);
    }
    if let Some(member) = passed.first() {
        archive::open_member(Cursor::new(bytes), &member.path).ok();
    }
    file(bytes);
}

/// A pack, with its checksums put right: a damaged byte is found by them, a malicious one is not.
pub fn packs(bytes: &[u8]) {
    pack::read(bytes).ok();
    let bytes = with_right_checksums(bytes);
    let Ok(Some(header)) = pack::header(&bytes) else { return };
    if let Ok(snapshot) = pack::read(&bytes) {
        snapshots(&snapshot);
    }
    // What the page does: the first part is drawn before the rest is there.
    let first = usize::try_from(header.first_bytes).ok().and_then(|len| bytes.get(..len));
    let Some((mut snapshot, palette)) = first.and_then(|first| pack::read_first(&header, first).ok()) else {
        return;
    };
    for device in &snapshot.devices {
        draw(&replay(&snapshot, device), &palette);
    }
    if pack::add_stacks(&mut snapshot, &header, &bytes[header.first_bytes as usize..]).is_ok() {
        snapshots(&snapshot);
    }
}

/// What holds of every snapshot that the reader made of a file.
fn read_snapshots(snapshot: &Snapshot) {
    assert!(snapshot.findings.iter().all(|finding| !finding.message.is_empty()));
    let replays = snapshots(snapshot);
    written(snapshot);
    for (device, replay) in snapshot.devices.iter().zip(&replays) {
        let n_events = device.events.len();
        written(&window::cut(snapshot, device, replay, n_events / 3..n_events / 2));
    }
}

/// What holds of every snapshot, also of one from a pack that nobody wrote.
fn snapshots(snapshot: &Snapshot) -> Vec<Replay> {
    let replays: Vec<Replay> = snapshot.devices.iter().map(|device| replayed(snapshot, device)).collect();
    drop(findings(snapshot, &replays));
    let palette = Palette::new(snapshot);
    for replay in &replays {
        draw(replay, &palette);
    }
    let packed = pack::write(snapshot);
    let unpacked = pack::read(&packed).expect("what we wrote can be read");
    // A NaN in a setting is not equal to itself, and is written the same.
    if unpacked != *snapshot {
        assert_eq!(format!("{unpacked:?}"), format!("{snapshot:?}"), "a pack holds the snapshot");
    }
    replays
}

/// What we write can be read, and holds as much.
fn written(snapshot: &Snapshot) {
    write::json(snapshot, std::io::sink()).expect("a sink takes everything");
    let mut pickle = Vec::new();
    write::pickle(snapshot, &mut pickle).expect("memory takes everything");
    let again = read::open(&pickle[..]).expect("what we wrote can be read");
    let n_events = |snapshot: &Snapshot| devices(snapshot).map(|device| device.events.len()).sum::<usize>();
    let n_segments =
        |snapshot: &Snapshot| devices(snapshot).map(|device| device.segments.len()).sum::<usize>();
    assert_eq!(n_events(&again), n_events(snapshot), "a pickle holds all events");
    assert_eq!(n_segments(&again), n_segments(snapshot), "and all segments");
}

/// All devices; rows of tables that belong to none stand under a key nobody knows.
fn devices(snapshot: &Snapshot) -> impl Iterator<Item = &Device> {
    snapshot.devices.iter().chain(snapshot.host.iter())
}

fn replayed(snapshot: &Snapshot, device: &Device) -> Replay {
    let replay = replay(snapshot, device);
    let curves = &replay.curves;
    let n_states = device.events.len() + 1;
    for column in [&curves.requested, &curves.allocated, &curves.active, &curves.reserved] {
        assert_eq!(column.len(), n_states, "one level for each state");
    }
    assert_eq!((curves.at(0), curves.at(n_states - 1)), (replay.head, replay.end));
    let highest = |column: &[u64]| column.iter().copied().max().unwrap_or(0);
    assert_eq!(highest(&curves.allocated), replay.peak.allocated);
    assert_eq!(highest(&curves.active), replay.peak.active);
    assert_eq!(highest(&curves.reserved), replay.peak.reserved);
    assert_eq!(highest(&curves.requested), replay.peak.requested);
    assert_eq!(curves.allocated[replay.peak_state as usize], replay.peak.allocated);
    let n_checked = if goes_beyond(&replay) { 0 } else { n_states };
    for state in 0..n_checked {
        assert!(
            curves.allocated[state] <= curves.active[state],
            "state {state}: allocated blocks are active"
        );
    }
    lives(&replay, n_states);
    let fragmentation = fragmentation(snapshot, device);
    assert_eq!(fragmentation.largest_free.len(), n_states);
    for state in [0, n_states / 2, n_states - 1, replay.peak_state as usize] {
        moment(&replay, state as u32);
    }
    replay
}

/// Allocations in their order, each with a life, and the level is what is alive.
fn lives(replay: &Replay, n_states: usize) {
    let allocations = &replay.allocations;
    assert!(allocations.from.is_sorted());
    let mut steps = vec![0_i128; n_states + 1];
    for row in 0..allocations.len() {
        let (from, to) = (allocations.from[row], allocations.to[row]);
        assert!(from < to && (from as usize) < n_states, "{from}..{to}");
        steps[from as usize] += i128::from(allocations.size[row]);
        steps[(to as usize).min(n_states)] -= i128::from(allocations.size[row]);
    }
    let mut level = 0;
    for (step, active) in steps.iter().zip(&replay.curves.active) {
        level += step;
        if level >= BEYOND {
            return;
        }
        assert_eq!(level, i128::from(*active), "what is alive adds up to the level");
    }
}

/// Levels stop here, and are worth nothing afterwards: 16 EiB is nobody's memory.
const BEYOND: i128 = u64::MAX as i128;

fn goes_beyond(replay: &Replay) -> bool {
    replay.allocations.size.iter().map(|size| i128::from(*size)).sum::<i128>() >= BEYOND
}

/// The blocks of a moment lie in their segments without a gap.
fn moment(replay: &Replay, state: u32) {
    let at = replay.state_at(state);
    for segment in &at.segments {
        let mut next = segment.address;
        for block in &at.blocks[segment.blocks.clone()] {
            assert_eq!(block.address, next, "blocks follow one another");
            next = next.saturating_add(block.size);
        }
    }
    assert!(at.blocks.iter().filter(|block| block.allocation.is_some()).count() <= replay.allocations.len());
}

/// A small picture: every pixel shows an allocation, the rest or nothing.
fn draw(replay: &Replay, palette: &Palette) {
    let index = Index::new(replay);
    let went_beyond = goes_beyond(replay);
    for (from, to, width, height) in [(0, u32::MAX, 64, 32), (1, 3, 7, 5)] {
        let view = View { from, to, width, height, top: None };
        let (raster, bands) = Raster::draw(&index, replay, palette, view);
        assert_eq!(raster.ids.len(), (bands.view.width * bands.view.height) as usize);
        let n = replay.allocations.len() as u32;
        assert!(raster.ids.iter().all(|id| *id < n || [ID_OTHER, ID_NONE].contains(id)));
        for (column, state) in bands.states.iter().enumerate() {
            let drawn: u128 = bands.column(column).iter().map(|band| u128::from(band.size)).sum();
            let (other, active) = (bands.other[column], replay.curves.active[*state as usize]);
            assert!(
                went_beyond || drawn + u128::from(other) == u128::from(active),
                "state {state}: {drawn} drawn and {other} summed up, of {active}"
            );
        }
    }
}

/// Magic, version, directory length, directory checksum.
const FIXED_BYTES: usize = 20;
/// Kind, codec, checksum, first row, rows, stored bytes, raw bytes.
const ENTRY_BYTES: usize = 38;

/// Puts the checksums of a pack right, of the directory and of its chunks. Bytes that are too few stay as they are.
fn with_right_checksums(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let number = |bytes: &[u8], at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    let Some(len) =
        bytes.get(12..16).map(|len| u32::from_le_bytes([len[0], len[1], len[2], len[3]]) as usize)
    else {
        return bytes;
    };
    let Some(mut body) = FIXED_BYTES.checked_add(len).filter(|end| *end <= bytes.len()) else { return bytes };
    for entry in (FIXED_BYTES..body).step_by(ENTRY_BYTES) {
        let Some(stored) = number(&bytes, entry + 22).and_then(|n| usize::try_from(n).ok()) else { break };
        let Some(end) = body.checked_add(stored).filter(|end| *end <= bytes.len()) else { break };
        let checksum = crc32fast::hash(&bytes[body..end]);
        bytes[entry + 2..entry + 6].copy_from_slice(&checksum.to_le_bytes());
        body = end;
    }
    let checksum = crc32fast::hash(&bytes[FIXED_BYTES..FIXED_BYTES + len]);
    bytes[16..20].copy_from_slice(&checksum.to_le_bytes());
    bytes
}
