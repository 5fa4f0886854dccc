//! Who a training that starts here would be, and which frameworks would tell its steps.

use tidegauge_capture_agent::{
    frameworks::{FRAMEWORKS, Framework},
    neighbors::Neighbors,
    settings::Settings,
    whereabouts::{Surroundings, Whereabouts},
};

use super::{Check, State, interpreter::Interpreter};

/// Run, rank and the rest as the environment tells them, each with its source; the program may know better.
pub(super) fn identity(settings: &Settings, env: &dyn Fn(&str) -> Option<String>) -> Check {
    let neighbors = Neighbors::default();
    let (host, pid) = ("", std::process::id());
    let around = Surroundings { env, group: None, neighbors: &neighbors, host, pid, script: None };
    let found = Whereabouts::find(&settings.said, around);
    let run = match found.is_unnamed() {
        true => "named by the script, and by all ranks together where there is a process group".to_owned(),
        false => format!("{} ({})", found.run, source(&found, "run")),
    };
    let number = |name: &str, number: Option<u32>| {
        let words = name.replace('_', " ");
        number.map(|number| format!("; {words} {number} ({})", source(&found, name))).unwrap_or_default()
    };
    let role = found
        .role
        .as_ref()
        .map(|role| format!("; role {role} ({})", source(&found, "role")))
        .unwrap_or_default();
    let numbers = [
        number("rank", Some(found.rank)),
        number("local_rank", found.local_rank),
        number("world_size", found.world_size),
        number("attempt", found.attempt),
    ];
    Check::fine("identity", format!("run {run}{role}{}", numbers.concat()))
}

fn source<'f>(found: &'f Whereabouts, name: &str) -> &'f str {
    found.sources.get(name).map_or("", String::as_str)
}

/// A line for each framework that is installed and has an adapter, and one for `tidegauge run` itself.
pub(super) fn frameworks(interpreter: &Interpreter) -> Vec<Check> {
    let mut checks = Vec::new();
    if interpreter.versions.contains_key("tidegauge") {
        checks.push(match interpreter.has_auto {
            true => Check::fine("zero code", "tidegauge run works with this interpreter".to_owned()),
            false => Check::red(
                "zero code",
                "tidegauge run does nothing here: tidegauge_auto.pth is not in its site-packages".to_owned(),
                "install the wheel with pip, not by copying the package; or call tidegauge.start() and step()",
            ),
        });
    }
    let installed = FRAMEWORKS.iter().filter_map(|framework| {
        interpreter.frameworks.get(framework.package).map(|version| adapter(framework, version))
    });
    checks.extend(installed);
    checks
}

fn adapter(framework: &Framework, version: &str) -> Check {
    let Framework { name, package, driven, .. } = framework;
    match driven {
        Some(driven) if driven == &version => {
            Check::fine("steps", format!("told by {package} {version}: tested with this release"))
        }
        Some(driven) => {
            let says = format!("told by {package} {version}: tested with {driven}");
            Check::new("steps", State::Untested, says)
        }
        None => {
            let says = format!("told by {package} {version}: no test drove tidegauge.{name}");
            Check::new("steps", State::Untested, says)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn an_adapter_is_fine_with_the_release_that_a_test_drove_and_untested_with_others() {
        let frameworks =
            [("transformers", "5.10.4"), ("accelerate", "0.1"), ("megatron-bridge", "0.3.1"), ("numpy", "2")];
        let interpreter = Interpreter {
            frameworks: frameworks.map(|(name, version)| (name.to_owned(), version.to_owned())).into(),
            versions: BTreeMap::from([("tidegauge".to_owned(), "0.1.0".to_owned())]),
            has_auto: true,
            ..Interpreter::default()
        };
        let lines: Vec<_> = frameworks_of(&interpreter);
        assert_eq!(
            lines,
            [
                "fine zero code: tidegauge run works with this interpreter",
                "untested steps: told by accelerate 0.1: tested with 1.15.0",
                "fine steps: told by transformers 5.10.4: tested with this release",
                "untested steps: told by megatron-bridge 0.3.1: no test drove tidegauge.megatron_bridge",
            ]
        );
    }

    fn frameworks_of(interpreter: &Interpreter) -> Vec<String> {
        let line = |check: Check| format!("{} {}: {}", check.state.word(), check.name, check.says);
        frameworks(interpreter).into_iter().map(line).collect()
    }

    #[test]
    fn who_a_training_would_be_is_said_with_its_sources() {
        let says = |env: &[(&str, &str)]| {
            let env =
                |name: &str| env.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
            identity(&Settings::new(&BTreeMap::new(), &env).unwrap(), &env).says
        };
        let unnamed = "run named by the script, and by all ranks together where there is a process group";
        assert_eq!(says(&[]), format!("{unnamed}; rank 0 (default)"));
        let env =
            [("SLURM_JOB_ID", "77"), ("SLURM_PROCID", "3"), ("SLURM_NTASKS", "8"), ("SLURM_LOCALID", "1")];
        assert_eq!(
            says(&env),
            "run 77 (SLURM_JOB_ID); rank 3 (SLURM_PROCID); local rank 1 (SLURM_LOCALID); world size 8 (SLURM_NTASKS)"
        );
    }
}
