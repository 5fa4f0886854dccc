//! `cargo xtask tidy`: what a machine can see of the house rules.
//!
//! Who may know whom is the picture in ARCHITECTURE.md as a table; a new edge changes both in one commit.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::{
    arguments::Arguments,
    test::Tally,
    workspace::{self, Workspace},
};

/// Each package, and which of ours it may depend on; `None` is any.
const MAY_KNOW: [(&str, Option<&[&str]>); 15] = [
    // Its tests hold it against what the simulated allocator knows.
    ("tidegauge-snapshot", Some(&["tidegauge-simulated"])),
    ("tidegauge-simulated", Some(&[])),
    // Arrow and Parquet stay out of what lives in training processes and browsers.
    ("tidegauge-export", Some(&["tidegauge-snapshot"])),
    ("tidegauge-api", Some(&["tidegauge-snapshot"])),
    ("tidegauge-capture-agent", Some(&["tidegauge-api", "tidegauge-snapshot"])),
    // A call into PyTorch's C++ and nothing else: it has `unsafe`, so it knows as little as can be.
    ("tidegauge-native", Some(&[])),
    (
        "tidegauge-cli",
        Some(&["tidegauge-capture-agent", "tidegauge-export", "tidegauge-api", "tidegauge-snapshot"]),
    ),
    // The wheel brings the program along.
    (
        "tidegauge-python",
        Some(&[
            "tidegauge-cli",
            "tidegauge-capture-agent",
            "tidegauge-native",
            "tidegauge-api",
            "tidegauge-snapshot",
        ]),
    ),
    ("tidegauge-server", Some(&["tidegauge-api", "tidegauge-snapshot"])),
    ("tidegauge-viewer", Some(&["tidegauge-api", "tidegauge-snapshot"])),
    ("tidegauge-engine", Some(&["tidegauge-api", "tidegauge-snapshot"])),
    ("tidegauge-tests", None),
    ("xtask", Some(&[])),
    ("xtask-bindgen", Some(&[])),
    ("xtask-bench", Some(&["tidegauge-snapshot", "tidegauge-simulated"])),
];

/// What must not come along, however indirectly, and why.
const FORBIDDEN: [(&str, &[&str], &str); 2] = [
    (
        "tidegauge-snapshot",
        &["tokio", "pyo3", "web-sys", "js-sys", "wasm-bindgen", "serde"],
        "it is pure and lives in training processes, servers and browsers alike",
    ),
    (
        "tidegauge-capture-agent",
        &["tokio", "pyo3"],
        "it lives in training processes, which fork and have threads enough",
    ),
];

/// One rule: its name, and what breaks it, a sentence each.
struct Rule {
    name: &'static str,
    broken: fn(&Workspace) -> Result<Vec<String>>,
}

const RULES: [Rule; 7] = [
    Rule { name: "crates know only whom they may", broken: strangers },
    Rule { name: "forbidden dependencies stay out", broken: forbidden },
    Rule { name: "every package follows the workspace's lints", broken: lawless },
    Rule { name: "every module says what it is", broken: silent_modules },
    Rule { name: "links in Markdown lead somewhere", broken: dead_links },
    Rule { name: "no path of this machine is written down", broken: machine_paths },
    Rule { name: "the tests that docs/formats.md names exist", broken: missing_proofs },
];

/// The chore.
pub(crate) fn run(workspace: &Workspace, arguments: Arguments) -> Result<ExitCode> {
    arguments.end()?;
    let tally = tally(workspace)?;
    tally.notes.iter().for_each(|note| println!("{note}"));
    Ok(if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Checks every rule; one test each.
pub(crate) fn tally(workspace: &Workspace) -> Result<Tally> {
    let mut tally = Tally::default();
    for rule in &RULES {
        let broken = (rule.broken)(workspace)?;
        println!("{} {}", if broken.is_empty() { "ok    " } else { "BROKEN" }, rule.name);
        tally = tally.and(Tally::of(broken));
    }
    Ok(tally)
}

/// Names like `traps::t01_something` in the table of formats are functions in the reader's tests.
fn missing_proofs(workspace: &Workspace) -> Result<Vec<String>> {
    let document = fs::read_to_string(workspace.root.join("docs/formats.md"))?;
    let mut problems = Vec::new();
    let mut n_named = 0;
    for name in document.split('`').skip(1).step_by(2) {
        let Some((module, test)) = name.split_once("::") else { continue };
        n_named += 1;
        let file = workspace.root.join("snapshot/tests/it").join(format!("{module}.rs"));
        let is_there = fs::read_to_string(&file).is_ok_and(|source| source.contains(&format!("fn {test}()")));
        if !is_there && !test.ends_with('…') {
            problems.push(format!("docs/formats.md names {name}, and there is no such test"));
        }
    }
    if n_named == 0 {
        problems.push("docs/formats.md names no test at all".to_owned());
    }
    Ok(problems)
}

fn strangers(workspace: &Workspace) -> Result<Vec<String>> {
    let metadata = workspace.metadata(&["--no-deps"])?;
    let mut problems = Vec::new();
    for package in list(&metadata["packages"]) {
        let name = text(&package["name"]);
        let Some((_, may_know)) = MAY_KNOW.iter().find(|(known, _)| *known == name) else {
            problems.push(format!("{name} is not in the table of who may know whom, in xtask/src/tidy.rs"));
            continue;
        };
        let Some(may_know) = may_know else { continue };
        for dependency in
            list(&package["dependencies"]).iter().filter(|dependency| dependency["path"].is_string())
        {
            let known = text(&dependency["name"]);
            if !may_know.contains(&known) {
                problems.push(format!("{name} depends on {known}, and may not"));
            }
        }
    }
    Ok(problems)
}

fn forbidden(workspace: &Workspace) -> Result<Vec<String>> {
    let metadata = workspace.metadata(&[])?;
    let names: BTreeMap<&str, &str> = list(&metadata["packages"])
        .iter()
        .map(|package| (text(&package["id"]), text(&package["name"])))
        .collect();
    let mut edges: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for node in list(&metadata["resolve"]["nodes"]) {
        let linked = list(&node["deps"]).iter().filter(|dependency| {
            // What only tests or build scripts need is not linked; null is cargo's name for "normal".
            list(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"].is_null())
        });
        edges.insert(text(&node["id"]), linked.map(|dependency| text(&dependency["pkg"])).collect());
    }
    let mut problems = Vec::new();
    for (name, unwanted, why) in FORBIDDEN {
        let Some((root, _)) = names.iter().find(|(_, known)| **known == name) else { continue };
        let mut reached = BTreeSet::from([*root]);
        let mut open = vec![*root];
        while let Some(id) = open.pop() {
            for next in edges.get(id).into_iter().flatten() {
                if reached.insert(next) {
                    open.push(next);
                }
            }
        }
        let found = reached.iter().filter_map(|id| names.get(id)).filter(|found| unwanted.contains(found));
        problems.extend(found.map(|found| format!("{name} brings {found} along, and may not: {why}")));
    }
    Ok(problems)
}

fn lawless(workspace: &Workspace) -> Result<Vec<String>> {
    let metadata = workspace.metadata(&["--no-deps"])?;
    let mut problems = Vec::new();
    for package in list(&metadata["packages"]) {
        let manifest = text(&package["manifest_path"]);
        let toml = fs::read_to_string(manifest).with_context(|| format!("cannot read {manifest}"))?;
        if !toml.contains("[lints]\nworkspace = true") {
            problems
                .push(format!("{} needs `[lints] workspace = true`", workspace.shown(Path::new(manifest))));
        }
    }
    Ok(problems)
}

fn silent_modules(workspace: &Workspace) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    for (path, text) in texts(workspace, &["*.rs"])? {
        let head = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
        if !head.starts_with("//!") {
            problems
                .push(format!("{} does not begin with `//!` and a sentence on what it is", path.display()));
        }
    }
    Ok(problems)
}

fn dead_links(workspace: &Workspace) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    for (path, text) in texts(workspace, &["*.md"])? {
        let folder = workspace.root.join(&path).parent().map(Path::to_owned).unwrap_or_default();
        for target in relative_links(&text) {
            if !folder.join(target).exists() {
                problems.push(format!("{} links to {target}, which is not there", path.display()));
            }
        }
    }
    Ok(problems)
}

/// Targets of links and pictures that lie in the repository, without their fragment.
fn relative_links(markdown: &str) -> Vec<&str> {
    let after_bracket = markdown.split("](").skip(1);
    after_bracket
        .filter_map(|rest| rest.split_once(')').map(|(target, _)| target.trim()))
        .filter(|target| !target.contains("://") && !target.starts_with("mailto:"))
        .filter_map(|target| target.split(['#', ' ']).next())
        .filter(|target| !target.is_empty())
        .collect()
}

fn machine_paths(workspace: &Workspace) -> Result<Vec<String>> {
    let mut here = vec![workspace.root.clone()];
    here.extend(env::var_os("HOME").map(PathBuf::from).filter(|home| home.components().count() > 1));
    let mut problems = Vec::new();
    for (path, text) in texts(workspace, &[])? {
        for place in &here {
            let place = format!("{}/", place.display());
            if let Some(at) = text.lines().position(|line| line.contains(&place)) {
                problems.push(format!(
                    "{}:{} names {place}, which is on this machine only",
                    path.display(),
                    at + 1
                ));
            }
        }
    }
    Ok(problems)
}

/// Text files that are committed or about to be, as git sees them.
fn texts(workspace: &Workspace, patterns: &[&str]) -> Result<Vec<(PathBuf, String)>> {
    let mut git = Command::new("git");
    git.current_dir(&workspace.root).args([
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
        "--",
    ]);
    let output = workspace::output(git.args(patterns))?;
    let listed = String::from_utf8_lossy(&output.stdout).into_owned();
    let paths = listed.split('\0').filter(|path| !path.is_empty()).map(PathBuf::from);
    // Snapshots and pictures are not UTF-8; a file deleted but not yet committed is not there.
    Ok(paths
        .filter_map(|path| Some((path.clone(), fs::read_to_string(workspace.root.join(path)).ok()?)))
        .collect())
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_within_the_repository_are_found_without_their_fragment() {
        let markdown = "[a](docs/a.md#part) ![b](docs/b.png) [c](https://example.org/c) [d](#here) [e](<e>)";
        assert_eq!(relative_links(markdown), ["docs/a.md", "docs/b.png", "<e>"]);
    }
}
