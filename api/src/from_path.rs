//! What a file's path tells of its place: the folder and file names that training frameworks give their
//! memory snapshots.
//!
//! A path is a guess that a person can correct, so flags, forms and sidecars win over it. The rules are a table,
//! tried in order; the first that matches is taken. Both `/` and `\` part a path.

use std::sync::LazyLock;

use regex_lite::{Captures, Regex};

use crate::Place;

/// What a path tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FromPath {
    /// The framework that names its files like this; "generic" when only a rank or a step could be told.
    pub framework: &'static str,
    /// What the path says of the place. The run's name is no part of it: see [`run_from_path`].
    pub place: Place,
}

/// The place that a path tells, if it follows one of the known ways of naming.
///
/// ```
/// use tidegauge_api::from_path::place_from_path;
/// let told = place_from_path("out/steps4-5/torch_memory_rank0_pid9.pickle").unwrap();
/// assert_eq!((told.framework, told.place.rank, told.place.step_label()), ("verl", Some(0), "4–5".to_owned()));
/// ```
pub fn place_from_path(path: &str) -> Option<FromPath> {
    let path = plain(path);
    let (rule, found) = first_match(&path)?;
    Some(FromPath { framework: rule.framework, place: place_from_match(&found) })
}

/// The name a run may go by: the nearest folder that is neither a step's, a rank's nor a framework's own.
///
/// ```
/// use tidegauge_api::from_path::run_from_path;
/// assert_eq!(run_from_path("runs/gpt-small/step5/torch_memory_rank3_pid12.pickle").as_deref(), Some("gpt-small"));
/// ```
pub fn run_from_path(path: &str) -> Option<String> {
    let path = plain(path);
    // What a rule matched is a step, a rank, a role; the run's name stands before it.
    let end = first_match(&path).map_or(path.len(), |(_, found)| found.get(0).map_or(0, |all| all.start()));
    let folders = match path[end..].starts_with('/') {
        true => &path[..end],
        false => path[..end].rsplit_once('/').map_or("", |(folders, _)| folders),
    };
    folders.rsplit('/').find(|folder| can_name_a_run(folder)).map(str::to_owned)
}

/// One way of naming. `pattern` is matched against the path with `/` between its parts, without the endings of
/// compression, and with `.pickle` for `.pkl`.
///
/// Groups: `rank`, `step`, `step_end`, `pid`, `role`, `reason`, `tag`; `rank_2` and `reason_2` where an
/// alternative needs its own.
struct Rule {
    framework: &'static str,
    pattern: Regex,
}

const RULES: &[(&str, &str)] = &[
    ("verl", r"(?P<reason>oom)_\d{8}-\d{6}-\d+/torch_memory_oom_rank(?P<rank>\d+)_pid(?P<pid>\d+)\.pickle$"),
    (
        "verl",
        r"steps?(?P<step>\d+)(?:-(?P<step_end>\d+))?/(?P<tag>[A-Za-z_]+?\d*)_rank(?P<rank>\d+)_pid(?P<pid>\d+)\.pickle$",
    ),
    ("verl", r"\d{8}-\d{4,6}(?:-\d+)?/(?P<tag>\w+?)_rank(?P<rank>\d+)_pid(?P<pid>\d+)\.pickle$"),
    (
        "torchtitan",
        r"step_(?P<step>\d{12})(?:_(?P<reason>exit))?/(?:[^/]+/)?(?P<rank>\d{6})_step_\d+\.pickle$",
    ),
    (
        "torchtune",
        r"iteration_(?P<step>\d+)(?:_(?P<reason>exit))?/(?:[^/]+/)?rank(?P<rank>\d+)_memory_snapshot\.pickle$",
    ),
    ("xtuner", r"step-(?P<step>\d+)(?:_(?P<reason>exit))?/rank(?P<rank>\d+)_memory_snapshot\.pickle$"),
    ("prime-rl", r"step_(?P<step>\d+)/rank_(?P<rank>\d+)\.pickle$"),
    ("areal", r"step_(?P<step>\d+)/snapshot_rank(?P<rank>\d+)_p\d+d\d+c\d+t\d+\.pickle$"),
    (
        "torchtnt",
        r"(?:step_(?P<step>\d+)|(?P<reason>oom)|memory_snapshot)_rank(?P<rank>\d+)/snapshot\.pickle$",
    ),
    ("composer", r"rank(?P<rank>\d+)\.(?P<step>\d+)\.memory_snapshot\.pickle$"),
    ("composer", r"rank(?P<rank>\d+)_(?P<reason>oom)_snapshot\.pickle$"),
    ("nemo", r"memory_(?:snapshot-|profile_)rank(?P<rank>\d+)\.pickle$"),
    ("slime", r"memory_snapshot_time\d+(?:\.\d+)?_rank(?P<rank>\d+)_[^/]*$"),
    // SGLang's snapshots know the rank within tensor parallelism only, and its server has no other ranks.
    ("sglang", r"\d+\.\d+-TP-(?P<rank>\d+)-memory[^/]*\.pickle$"),
    ("veomni", r"veomni_rank(?P<rank>\d+)_\d+\.pickle$"),
    ("mindspeed-mm", r"snapshot_\d{4}-\d\d-\d\d-\d\d-\d\d_(?P<rank>\d+)\.pickle$"),
    ("torch_npu", r"(?P<reason>oom)_snapshot_(?P<pid>\d+)_\d{14}\.pickle$"),
    (
        "megatron",
        r"(?:(?P<reason>oom)_rank-(?P<rank>\d+)_[^/]*|[^/]*_(?P<reason_2>oom)_rank[-_](?P<rank_2>\d+))\.pickle$",
    ),
    ("roll", r"(?:^|/)(?P<role>[^/]+?)(?:-(?P<rank>\d+))?/(?P<reason>\w+)/snapshot_\d{8}_\d{6}\.pickle$"),
    ("megatron", r"snapshot_(?P<rank>\d+)\.pickle$"),
    ("tidegauge", r"(?:^|[/_.-])rank(?P<rank>\d+)_step(?P<step>\d+)\.pickle$"),
    (
        "generic",
        r"(?:^|[/_.-])steps?[-_=]?(?P<step>\d+)(?:-(?P<step_end>\d+))?[/_.-](?:.*[/_.-])?rank[-_=]?(?P<rank>\d+)[/_.-]",
    ),
    ("generic", r"(?:^|[/_.-])rank[-_=]?(?P<rank>\d+)[/_.-](?:.*[/_.-])?step[-_=]?(?P<step>\d+)[/_.-]"),
    ("generic", r"(?:^|[/_.-])rank[-_=]?(?P<rank>\d+)[/_.-]"),
];

static COMPILED: LazyLock<Vec<Rule>> = LazyLock::new(|| {
    let compile = |pattern| Regex::new(pattern).expect("the patterns of the table are valid");
    RULES.iter().map(|(framework, pattern)| Rule { framework, pattern: compile(pattern) }).collect()
});

/// Folders that hold snapshots in many runs: a step's, a rank's, a time's, or one a framework makes.
static PASSED_OVER: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(concat!(
        r"^(?:|\.|\.\.|[A-Za-z]:|~",
        r"|(?:global_?)?(?:steps?|iter|iteration)[-_=]?\d+(?:-\d+)?(?:_exit)?(?:_rank\d+)?",
        r"|(?:oom|exit|memory_snapshot)(?:_\d{8}-.*|_rank\d+)?",
        r"|\d{8}-\d{4,6}(?:-\d+)?|rank[-_=]?\d+|replica[-_]\d+",
        r"|profil(?:e|er|es|ing)(?:_memory)?|memory_snapshots?|memory_profile|torch_traces|snapshots?",
        r")$"
    ))
    .expect("the pattern is valid")
});

fn can_name_a_run(folder: &str) -> bool {
    !PASSED_OVER.is_match(folder)
}

fn first_match(path: &str) -> Option<(&'static Rule, Captures<'_>)> {
    COMPILED.iter().find_map(|rule| rule.pattern.captures(path).map(|found| (rule, found)))
}

/// The path as the rules expect it.
fn plain(path: &str) -> String {
    let path = path.replace('\\', "/");
    let path = [".gz", ".zst", ".xz"].iter().find_map(|ending| path.strip_suffix(ending)).unwrap_or(&path);
    match path.strip_suffix(".pkl") {
        Some(stem) => format!("{stem}.pickle"),
        None => path.to_owned(),
    }
}

fn place_from_match(found: &Captures<'_>) -> Place {
    let text = |group| found.name(group).map(|part| part.as_str());
    let step = text("step").and_then(|digits| digits.parse().ok());
    let step_end = text("step_end").and_then(|digits| digits.parse().ok());
    Place {
        role: text("role").map(str::to_owned),
        rank: text("rank").or(text("rank_2")).and_then(|digits| digits.parse().ok()),
        pid: text("pid").and_then(|digits| digits.parse().ok()),
        first_step: step_end.and(step),
        last_step: step_end.or(step),
        reason: text("reason")
            .or(text("reason_2"))
            .or_else(|| reason_from_tag(text("tag")?))
            .map(str::to_owned),
        ..Place::default()
    }
}

/// Older releases of verl tag their files: "post_update_step11". The usual tag says nothing.
fn reason_from_tag(tag: &str) -> Option<&str> {
    let words = tag.trim_end_matches(|c: char| c.is_ascii_digit());
    let words = words.strip_suffix("_step").unwrap_or(words);
    (words != "torch_memory").then_some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "framework rank=3 step=4–5 reason=oom pid=9 role=actor", or "-".
    fn told(path: &str) -> String {
        let Some(FromPath { framework, place }) = place_from_path(path) else { return "-".to_owned() };
        let mut words = vec![framework.to_owned()];
        let mut say =
            |name: &str, value: Option<String>| words.extend(value.map(|value| format!("{name}={value}")));
        say("rank", place.rank.map(|rank| rank.to_string()));
        say("first", place.first_step.map(|step| step.to_string()));
        say("step", place.last_step.map(|step| step.to_string()));
        say("pid", place.pid.map(|pid| pid.to_string()));
        say("role", place.role);
        say("reason", place.reason);
        words.join(" ")
    }

    #[test]
    fn every_framework_is_told_by_its_way_of_naming() {
        let cases = [
            ("out/step5/torch_memory_rank3_pid1234.pickle", "verl rank=3 step=5 pid=1234"),
            ("out/step5/torch_memory_rank3_pid1234.pickle.zst", "verl rank=3 step=5 pid=1234"),
            ("generated/llama8b_fsdp8_rank0_step1.pickle.zst", "tidegauge rank=0 step=1"),
            ("out/steps4-5/torch_memory_rank0_pid9.pickle", "verl rank=0 first=4 step=5 pid=9"),
            (
                "out/oom_20261001-101112-123456/torch_memory_oom_rank7_pid55.pickle",
                "verl rank=7 pid=55 reason=oom",
            ),
            ("out/20260501-1011/torch_memory_rank0_pid7.pickle", "verl rank=0 pid=7"),
            (
                "out/step11/post_update_step11_rank0_pid7.pickle",
                "verl rank=0 step=11 pid=7 reason=post_update",
            ),
            (
                "outputs/profiling/memory_snapshot/step_000000000010/000003_step_10.pickle",
                "torchtitan rank=3 step=10",
            ),
            (
                "outputs/profiling/memory_snapshot/step_000000000000_exit/replica_0/000003_step_0.pickle",
                "torchtitan rank=3 step=0 reason=exit",
            ),
            ("outputs/memory_snapshot/iteration_10/rank3_memory_snapshot.pickle", "torchtune rank=3 step=10"),
            (
                "outputs/memory_snapshot/iteration_3_exit/rank3_memory_snapshot.pickle",
                "torchtune rank=3 step=3 reason=exit",
            ),
            ("exp/profiling_memory/step-7/rank1_memory_snapshot.pickle", "xtuner rank=1 step=7"),
            ("snap/step_4/rank_2.pickle", "prime-rl rank=2 step=4"),
            ("logs/memory_snapshots/step_1/snapshot_rank05_p0d1c0t1.pickle", "areal rank=5 step=1"),
            ("out/step_10_rank3/snapshot.pickle", "torchtnt rank=3 step=10"),
            ("out/oom_rank3/snapshot.pickle", "torchtnt rank=3 reason=oom"),
            ("run/torch_traces/rank0.4.memory_snapshot.pickle", "composer rank=0 step=4"),
            ("run/torch_traces/rank0_oom_snapshot.pickle", "composer rank=0 reason=oom"),
            ("d/memory_snapshot-rank2.pickle", "nemo rank=2"),
            ("d/memory_profile_rank0.pickle", "nemo rank=0"),
            ("d/memory_snapshot_time1755800000.123_rank4_snapshot.pickle", "slime rank=4"),
            ("dumps/1755800000.123-TP-1-memory-DECODE.pickle", "sglang rank=1"),
            ("trace/veomni_rank0_1755800000.pkl", "veomni rank=0"),
            ("ms/snapshot_2026-08-01-10-22_5.pickle", "mindspeed-mm rank=5"),
            ("npu/oom_snapshot_4242_20260801102233.pickle", "torch_npu pid=4242 reason=oom"),
            ("oom_rank-3_snapshot.pickle", "megatron rank=3 reason=oom"),
            ("/nemo_run/snapshot_oom_rank-3.pickle", "megatron rank=3 reason=oom"),
            ("snapshot_oom_rank_3.pickle", "megatron rank=3 reason=oom"),
            (
                "output/profiler/actor_train-0/train_step/snapshot_20260801_101010.pickle",
                "roll rank=0 role=actor_train reason=train_step",
            ),
            ("snapshot_12.pickle", "megatron rank=12"),
            ("x/oom_rank3.pickle", "generic rank=3"),
            ("step10/mine_rank3.pickle", "generic rank=3 step=10"),
            ("rank_3/dump-step_7.pickle.gz", "generic rank=3 step=7"),
            ("snapshot.pickle", "-"),
            ("photos/cranky3.pickle", "-"),
        ];
        for (path, expected) in cases {
            assert_eq!(told(path), expected, "{path}");
        }
    }

    #[test]
    fn a_windows_path_is_read_like_any_other() {
        assert_eq!(told(r"C:\out\step5\torch_memory_rank3_pid1234.pickle"), "verl rank=3 step=5 pid=1234");
        assert_eq!(run_from_path(r"C:\gpt\step5\torch_memory_rank3_pid1234.pickle").as_deref(), Some("gpt"));
    }

    #[test]
    fn a_number_too_large_for_a_rank_is_no_rank() {
        assert_eq!(told("snapshot_99999999999999999999.pickle"), "megatron");
    }

    #[test]
    fn the_run_is_the_nearest_folder_that_is_its_own() {
        let cases = [
            ("out/step5/torch_memory_rank3_pid1234.pickle", Some("out")),
            ("out/oom_20261001-101112-123456/torch_memory_oom_rank7_pid55.pickle", Some("out")),
            ("outputs/profiling/memory_snapshot/step_000000000010/000003_step_10.pickle", Some("outputs")),
            ("sft/output/profiler/actor_train-0/train_step/snapshot_20260801_101010.pickle", Some("output")),
            ("exp7/torch_traces/rank0.4.memory_snapshot.pickle", Some("exp7")),
            ("llama/llama8b_fsdp8_rank0_step1.pickle.zst", Some("llama")),
            ("/nemo_run/snapshot_oom_rank-3.pickle", Some("nemo_run")),
            ("mine/snapshot.pickle", Some("mine")),
            ("./snapshot_12.pickle", None),
            ("snapshot.pickle", None),
            ("step5/torch_memory_rank3_pid1234.pickle", None),
        ];
        for (path, expected) in cases {
            assert_eq!(run_from_path(path).as_deref(), expected, "{path}");
        }
    }

    #[test]
    fn every_file_in_the_guide_tells_what_the_guide_says() {
        let guide = include_str!("../../docs/guide/frameworks.md");
        let rows = guide.lines().filter(|line| line.contains(".pickle` |") || line.contains(".pkl` |"));
        let mut n_rows = 0;
        for row in rows {
            let cells: Vec<_> = row.split(" | ").map(|cell| cell.trim_matches(['|', '`', ' '])).collect();
            let [_, _, path, says] = cells.as_slice() else { panic!("four cells: {row}") };
            let told = told(path);
            let (framework, tells) = told.split_once(' ').unwrap_or((told.as_str(), ""));
            assert_eq!(tells, *says, "{framework}: {row}");
            assert_ne!(framework, "generic", "{row}");
            n_rows += 1;
        }
        assert!(n_rows >= 20, "{n_rows} rows");
    }
}
