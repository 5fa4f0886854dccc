//! Flame graphs: the same bytes in every format, and the level they add up to.

use std::{collections::BTreeMap, io::Read as _};

use serde_json::Value;
use tidegauge_export::{ExportError, Moment, Part, collapsed, pprof, speedscope};

use crate::{FIXTURES, Opened, wire::Fields};

/// "outermost;…;innermost" and the bytes.
type Flames = BTreeMap<String, u64>;

fn collapsed(part: &Part<'_>, moment: Moment) -> Flames {
    let mut out = Vec::new();
    collapsed::write(part, moment, &mut out).unwrap();
    let mut flames = Flames::new();
    for line in String::from_utf8(out).unwrap().lines() {
        let (path, bytes) = line.rsplit_once(' ').unwrap();
        *flames.entry(path.to_owned()).or_default() += bytes.parse::<u64>().unwrap();
    }
    flames
}

fn speedscope(part: &Part<'_>, moment: Moment) -> Value {
    let mut out = Vec::new();
    speedscope::write(part, moment, &mut out).unwrap();
    serde_json::from_slice(&out).unwrap()
}

fn pprof(part: &Part<'_>, moment: Moment) -> Vec<u8> {
    let mut out = Vec::new();
    pprof::write(part, moment, &mut out).unwrap();
    let mut message = Vec::new();
    flate2::read::GzDecoder::new(out.as_slice()).read_to_end(&mut message).unwrap();
    message
}

/// A frame as collapsed stacks have it.
fn frame(name: &str, file: &str, line: u64) -> String {
    match (file, line) {
        ("" | "??", _) => name.to_owned(),
        (file, 0) => format!("{file} {name}"),
        (file, line) => format!("{file}:{line} {name}"),
    }
}

#[test]
fn the_bytes_of_all_stacks_are_the_allocated_level_at_every_moment() {
    for name in FIXTURES {
        let opened = Opened::fixture(name);
        let part = opened.whole();
        let sum = |moment| collapsed(&part, moment).values().sum::<u64>();
        let levels =
            |of: fn(&tidegauge_snapshot::replay::Replay) -> u64| opened.replays.iter().map(of).sum::<u64>();
        assert_eq!(sum(Moment::Peak), levels(|replay| replay.peak.allocated), "{name}");
        assert_eq!(sum(Moment::End), levels(|replay| replay.end.allocated), "{name}");
    }
    let opened = Opened::fixture("streams_2dev_lag40.pickle");
    let part = opened.window(0..opened.snapshot.devices[0].events.len() as u32);
    for event in (0..part.devices[0].events.end).step_by(7) {
        let level = opened.replays[0].curves.allocated[event as usize + 1];
        assert_eq!(collapsed(&part, Moment::After(event)).values().sum::<u64>(), level, "event {event}");
    }
}

#[test]
fn stacks_begin_with_their_outermost_frame_and_several_devices_are_roots() {
    let opened = Opened::fixture("fsdp1_w2_clear_rank0_step5.pickle");
    let flames = collapsed(&opened.whole(), Moment::Peak);
    let with_frames = flames.keys().filter(|path| !path.starts_with('(')).collect::<Vec<_>>();
    assert!(!with_frames.is_empty());
    assert!(
        with_frames.iter().all(|path| path.split(';').next().unwrap().ends_with("<module>")),
        "{flames:?}"
    );
    let two = collapsed(&Opened::fixture("streams_2dev_lag40.pickle").whole(), Moment::Peak);
    assert!(two.keys().any(|path| path.starts_with("device 0;")));
    assert!(two.keys().any(|path| path.starts_with("device 1;")));
}

#[test]
fn speedscope_has_the_fields_of_its_schema_and_the_same_stacks() {
    for name in FIXTURES {
        let opened = Opened::fixture(name);
        let part = opened.whole();
        let file = speedscope(&part, Moment::Peak);
        assert_eq!(file["$schema"], "https://www.speedscope.app/file-format-schema.json");
        let frames = file["shared"]["frames"].as_array().unwrap();
        for frame in frames {
            let known = ["name", "file", "line", "col"];
            assert!(frame["name"].is_string());
            assert!(frame.as_object().unwrap().keys().all(|key| known.contains(&key.as_str())), "{frame}");
        }
        let profiles = file["profiles"].as_array().unwrap();
        assert_eq!(profiles.len(), 2 * part.devices.len());
        let mut bytes = Flames::new();
        for (at, profile) in profiles.iter().enumerate() {
            let device = &part.devices[at / 2];
            assert_eq!(profile["type"], "sampled");
            assert!(profile["name"].as_str().unwrap().starts_with(&format!("device {}", device.ordinal())));
            assert_eq!(profile["unit"], ["bytes", "none"][at % 2]);
            assert_eq!(profile["startValue"], 0);
            let samples = profile["samples"].as_array().unwrap();
            let weights = profile["weights"].as_array().unwrap();
            assert_eq!(samples.len(), weights.len());
            let total: u64 = weights.iter().map(|weight| weight.as_u64().unwrap()).sum();
            assert_eq!(profile["endValue"], total);
            if at % 2 == 0 {
                assert_eq!(total, device.origins.replay.peak.allocated, "{name}");
                let root = if part.devices.len() > 1 {
                    format!("device {};", device.ordinal())
                } else {
                    String::new()
                };
                for (sample, weight) in samples.iter().zip(weights) {
                    let path: Vec<String> = sample
                        .as_array()
                        .unwrap()
                        .iter()
                        .map(|number| {
                            let entry = &frames[number.as_u64().unwrap() as usize];
                            let file = entry["file"].as_str().unwrap_or_default();
                            frame(entry["name"].as_str().unwrap(), file, entry["line"].as_u64().unwrap_or(0))
                        })
                        .collect();
                    *bytes.entry(format!("{root}{}", path.join(";"))).or_default() +=
                        weight.as_u64().unwrap();
                }
            }
        }
        assert_eq!(bytes, collapsed(&part, Moment::Peak), "{name}");
    }
}

#[test]
fn pprof_decodes_to_the_same_stacks_innermost_first() {
    for name in FIXTURES {
        let opened = Opened::fixture(name);
        let part = opened.whole();
        let message = pprof(&part, Moment::Peak);
        let profile = Fields::of(&message);
        let texts: Vec<&str> =
            profile.bytes(6).into_iter().map(|text| str::from_utf8(text).unwrap()).collect();
        let text = |number: Option<u64>| texts[number.unwrap() as usize];
        assert_eq!(texts[0], "");
        let kinds: Vec<_> =
            profile.messages(1).iter().map(|kind| (text(kind.number(1)), text(kind.number(2)))).collect();
        assert_eq!(kinds, [("inuse_objects", "count"), ("inuse_space", "bytes")]);
        assert_eq!(text(profile.number(14)), "inuse_space");

        let functions: BTreeMap<u64, (&str, &str)> = profile
            .messages(5)
            .iter()
            .map(|function| {
                (function.number(1).unwrap(), (text(function.number(2)), text(function.number(4))))
            })
            .collect();
        let locations: BTreeMap<u64, String> = profile
            .messages(4)
            .iter()
            .map(|location| {
                let line = location.message(4).unwrap();
                let (name, file) = functions[&line.number(1).unwrap()];
                (location.number(1).unwrap(), frame(name, file, line.number(2).unwrap()))
            })
            .collect();
        let (mut flames, mut n_blocks) = (Flames::new(), 0);
        for sample in profile.messages(2) {
            let label = sample.message(3).unwrap();
            assert_eq!(text(label.number(1)), "device");
            let root = if part.devices.len() > 1 {
                format!("device {};", label.number(3).unwrap())
            } else {
                String::new()
            };
            let outermost_first = sample.packed(1).into_iter().rev();
            let path: Vec<&str> = outermost_first.map(|location| locations[&location].as_str()).collect();
            let values = sample.packed(2);
            n_blocks += values[0];
            *flames.entry(format!("{root}{}", path.join(";"))).or_default() += values[1];
        }
        assert_eq!(flames, collapsed(&part, Moment::Peak), "{name}");
        let alive = |device: &tidegauge_export::DevicePart<'_>| {
            let state = Moment::Peak.state(device).unwrap();
            tidegauge_snapshot::sums::in_use(&device.origins, state).count() as u64
        };
        assert_eq!(n_blocks, part.devices.iter().map(alive).sum::<u64>(), "{name}");
    }
}

#[test]
fn the_peak_of_a_window_is_its_own() {
    let opened = Opened::fixture("fsdp1_w2_clear_rank0_step5.pickle");
    let allocated = &opened.replays[0].curves.allocated;
    // It ends just before the highest level of all.
    let until = opened.replays[0].peak_state - 1;
    let part = opened.window(100..until);
    let peak = allocated[100..=until as usize].iter().copied().max().unwrap();
    assert!(peak < opened.replays[0].peak.allocated);
    assert_eq!(collapsed(&part, Moment::Peak).values().sum::<u64>(), peak);
    let state = Moment::Peak.state(&part.devices[0]).unwrap();
    assert!(allocated[100..state as usize].iter().all(|level| *level < peak), "the first of equal peaks");
    assert_eq!(Moment::Peak.state(&opened.whole().devices[0]).unwrap(), opened.replays[0].peak_state);
}

#[test]
fn a_moment_outside_the_window_is_refused_with_its_bounds() {
    let opened = Opened::fixture("oom_plain_2gib.pickle");
    let error = collapsed::write(&opened.window(3..9), Moment::After(9), Vec::new()).unwrap_err();
    assert_eq!(error.to_string(), "event 9 of device 0 is not within the events 3..9");
    assert!(matches!(error, ExportError::NoSuchEvent { .. }));
}
