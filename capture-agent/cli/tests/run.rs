//! `tidegauge run`: what becomes of its settings, and of the program.

#![expect(clippy::unwrap_used, reason = "a test fails by it, with a message")]
#![cfg(unix)]

use std::process::{Command, Output};

fn run(arguments: &[&str], env: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegauge"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TIDEGAUGE_")) {
        command.env_remove(name);
    }
    command.arg("run").args(arguments).envs(env.iter().copied()).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn settings_become_variables_and_the_exit_status_is_the_programs() {
    let program = ["sh", "-c", "env | grep ^TIDEGAUGE_ | sort; echo $0 $1; exit 5", "--flag", "steps=7"];
    let arguments = [["steps=every:100", "run=gpt", "--"].as_slice(), &program].concat();
    let output = run(&arguments, &[("TIDEGAUGE_RUN", "other")]);
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    let expected = "TIDEGAUGE_AUTO=1\nTIDEGAUGE_RUN=gpt\nTIDEGAUGE_STEPS=every:100\n--flag steps=7\n";
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
    assert_eq!(said(&output), "");
}

#[test]
fn what_is_looked_for_can_be_narrowed_beforehand() {
    let output = run(&["--", "sh", "-c", "echo $TIDEGAUGE_AUTO"], &[("TIDEGAUGE_AUTO", "verl")]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "verl\n");
}

#[test]
fn a_choice_that_makes_no_sense_is_said_before_anything_starts() {
    let output = run(&["steps=sometimes", "--", "echo", "started"], &[]);
    assert_eq!(output.status.code(), Some(64), "{output:?}");
    assert!(output.stdout.is_empty() && said(&output).contains("steps: expected"), "{output:?}");
    let output = run(&["step=1", "--", "echo", "started"], &[]);
    assert!(output.stdout.is_empty() && said(&output).contains(r#"no setting "step""#), "{output:?}");
}

#[test]
fn a_token_is_not_taken_from_a_command_line() {
    let output = run(&["token=secret", "--", "echo", "started"], &[]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.is_empty() && said(&output).contains("give it in TIDEGAUGE_TOKEN"), "{output:?}");
    assert!(!said(&output).contains("secret"), "{output:?}");
}

#[test]
fn a_program_that_is_not_there_is_said_as_shells_say_it() {
    let output = run(&["--", "/nowhere/train"], &[]);
    assert_eq!(output.status.code(), Some(127), "{output:?}");
    assert!(said(&output).contains("/nowhere/train does not start"), "{output:?}");
}
