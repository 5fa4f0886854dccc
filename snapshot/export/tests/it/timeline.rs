//! Perfetto: counters that follow the levels, slices that nest, instants for what is rare.

use std::collections::BTreeMap;

use tidegauge_export::{Part, perfetto};
use tidegauge_snapshot::model::{Action, Annotation, ShapeId};

use crate::{FIXTURES, Opened, wire::Fields};

/// What a trace holds.
#[derive(Debug, Default)]
struct Decoded {
    /// Name and parent by track.
    tracks: BTreeMap<u64, (String, Option<u64>)>,
    /// Time in nanoseconds and value, by counter track.
    counters: BTreeMap<u64, Vec<(u64, u64)>>,
    /// Name and time of instants.
    instants: Vec<(String, u64)>,
    /// Track, time, and the name of a beginning or nothing for an end.
    slices: Vec<(u64, u64, Option<String>)>,
}

fn decoded(part: &Part<'_>) -> Decoded {
    let mut out = Vec::new();
    perfetto::write(part, &mut out).unwrap();
    let mut decoded = Decoded::default();
    for packet in Fields::of(&out).messages(1) {
        assert_eq!(packet.number(10), Some(1), "every packet names its sequence");
        if let Some(track) = packet.message(60) {
            let name = track.text(2).unwrap().to_owned();
            decoded.tracks.insert(track.number(1).unwrap(), (name, track.number(5)));
            continue;
        }
        let (time, event) = (packet.number(8).unwrap(), packet.message(11).unwrap());
        let track = event.number(11).unwrap();
        assert!(decoded.tracks.contains_key(&track), "tracks are told before they are used");
        let name = event.text(23).map(str::to_owned);
        match event.number(9).unwrap() {
            1 => decoded.slices.push((track, time, Some(name.unwrap()))),
            2 => decoded.slices.push((track, time, None)),
            3 => decoded.instants.push((name.unwrap(), time)),
            4 => decoded.counters.entry(track).or_default().push((time, event.number(30).unwrap())),
            other => panic!("type {other}"),
        }
    }
    decoded
}

impl Decoded {
    fn counter(&self, device: i64, name: &str) -> &[(u64, u64)] {
        let process = self
            .tracks
            .iter()
            .find(|(_, (name, parent))| parent.is_none() && *name == format!("device {device}"));
        let process = *process.unwrap().0;
        let is_it =
            |(_, (track, parent)): &(&u64, &(String, Option<u64>))| track == name && *parent == Some(process);
        let track = self.tracks.iter().find(is_it).unwrap().0;
        &self.counters[track]
    }
}

#[test]
fn counters_end_and_peak_where_the_levels_do_and_time_never_goes_back() {
    for name in FIXTURES {
        let opened = Opened::fixture(name);
        let part = opened.whole();
        let decoded = decoded(&part);
        for (device, replay) in part.devices.iter().zip(&opened.replays) {
            let levels = [
                ("requested", replay.peak.requested, replay.end.requested),
                ("allocated", replay.peak.allocated, replay.end.allocated),
                ("active", replay.peak.active, replay.end.active),
                ("reserved", replay.peak.reserved, replay.end.reserved),
            ];
            for (level, peak, end) in levels {
                let values = decoded.counter(device.ordinal(), level);
                assert_eq!(values.last().unwrap().1, end, "{name} {level}");
                assert_eq!(values.iter().map(|(_, value)| *value).max().unwrap(), peak, "{name} {level}");
                assert!(values.is_sorted_by_key(|(time, _)| *time), "{name} {level}");
            }
        }
        let is_rare = |action: &Action| {
            !matches!(*action, Action::ALLOC | Action::FREE_REQUESTED | Action::FREE_COMPLETED)
        };
        let events = opened.snapshot.devices.iter().flat_map(|device| device.events.clone());
        let n_rare = events.map(|event| opened.snapshot.trace.action[event]).filter(is_rare).count();
        assert_eq!(decoded.instants.len(), n_rare, "{name}");
    }
}

#[test]
fn out_of_memory_is_an_instant_at_its_time() {
    let opened = Opened::fixture("oom_plain_2gib.pickle");
    let trace = &opened.snapshot.trace;
    let event = trace.action.iter().position(|action| *action == Action::OOM).unwrap();
    let time = trace.time_us(event).unwrap() as u64 * 1000;
    assert!(decoded(&opened.whole()).instants.contains(&("oom".to_owned(), time)));
}

#[test]
fn annotations_nest_on_their_tracks_even_where_they_overlap_or_miss_an_end() {
    let mut opened = Opened::fixture("oom_plain_2gib.pickle");
    let times = &opened.snapshot.trace.time_us;
    let (first, last) = (times[0], *times.last().unwrap());
    let mut name = |text: &str| opened.snapshot.strings.intern(text.as_bytes());
    let (a, b, c, d) = (name("a"), name("b"), name("c"), name("d"));
    // a and b overlap; c lies in both; d ends without a beginning; a begins once more and never ends.
    let ends = [
        (a, true, 1),
        (b, true, 2),
        (c, true, 3),
        (c, false, 4),
        (a, false, 5),
        (b, false, 6),
        (d, false, 7),
        (a, true, 8),
    ];
    opened.snapshot.annotations = ends
        .map(|(name, is_start, after)| Annotation {
            is_start,
            name,
            device: 0,
            time_us: first + after,
            shape: ShapeId::NONE,
        })
        .to_vec();
    let opened = Opened::of(opened.snapshot);
    let slices = decoded(&opened.whole()).slices;
    let mut by_track: BTreeMap<u64, Vec<(u64, Option<String>)>> = BTreeMap::new();
    for (track, time, name) in slices {
        by_track.entry(track).or_default().push((time, name));
    }
    let mut found = Vec::new();
    for mut slices in by_track.into_values() {
        // As a viewer sorts: by time, ends before beginnings.
        slices.sort_by_key(|(time, name)| (*time, name.is_some()));
        let mut open: Vec<(u64, String)> = Vec::new();
        for (time, name) in slices {
            match name {
                Some(name) => open.push((time, name)),
                None => {
                    let (start, name) = open.pop().expect("an end has a beginning on its track");
                    let micros = |time: u64| time as i64 / 1000 - first;
                    found.push((name, micros(start), micros(time)));
                }
            }
        }
        assert!(open.is_empty());
    }
    found.sort();
    let text = |text: &str| text.to_owned();
    let end = (last - first).max(8);
    assert_eq!(
        found,
        [(text("a"), 1, 5), (text("a"), 8, end), (text("b"), 2, 6), (text("c"), 3, 4), (text("d"), 0, 7)]
    );
}
