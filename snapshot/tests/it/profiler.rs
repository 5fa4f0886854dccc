//! What torch.profiler recorded and `torch.cuda._memory_viz` converted: no allocator's file, and still true numbers.

use tidegauge_snapshot::read::open;
use tidegauge_snapshot::replay::replay;

const MLP: &[u8] = include_bytes!("../../fixtures/kineto/mlp.pickle");

/// Bytes before, at the highest and at the end, of one device.
type Levels = [u64; 3];

/// What `profile._memory_profile().timeline` adds up to for the same profile.
const TIMELINE_CUDA: Levels = [546_856, 1_839_144, 1_094_184];
const TIMELINE_CPU: Levels = [0, 65_536, 0];

#[test]
fn a_converted_profile_has_the_profilers_own_levels() {
    let snapshot = open(MLP).unwrap();
    assert_eq!(snapshot.producer, "torch.profiler");
    assert_eq!(snapshot.devices.iter().map(|device| device.events.len()).collect::<Vec<_>>(), [154, 18]);
    for (device, expected) in snapshot.devices.iter().zip([TIMELINE_CUDA, TIMELINE_CPU]) {
        let replay = replay(&snapshot, device);
        let of = |level: fn(&tidegauge_snapshot::replay::Levels) -> u64| {
            [level(&replay.head), level(&replay.peak), level(&replay.end)]
        };
        assert_eq!(of(|levels| levels.requested), expected, "device {}", device.ordinal);
        assert_eq!(of(|levels| levels.allocated), expected, "sizes are not rounded a second time");
        assert_eq!(of(|levels| levels.active), expected);
    }
}

#[test]
fn its_categories_are_kept_and_its_limits_are_said() {
    let snapshot = open(MLP).unwrap();
    let mut categories: Vec<_> = snapshot
        .trace
        .extras
        .iter()
        .filter_map(|extra| Some(snapshot.strings.text(extra.category?).into_owned()))
        .collect();
    categories.sort();
    categories.dedup();
    let expected =
        ["activation", "autograd_detail", "gradient", "input", "optimizer_state", "parameter", "temporary"];
    assert_eq!(categories, expected);
    let finding = snapshot.findings.iter().find(|finding| finding.code == "from-the-profiler").unwrap();
    assert!(finding.message.contains("the last device is the CPU"));
}
