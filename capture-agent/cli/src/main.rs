//! The program `tidegauge`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(tidegauge_cli::run(std::env::args_os()))
}
