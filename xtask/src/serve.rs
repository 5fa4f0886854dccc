//! `cargo xtask serve`: the dashboard on this machine, with or without a run to look at.

use std::{
    env,
    io::{BufRead as _, BufReader},
    process::{Child, Command, ExitCode, Stdio},
};

use anyhow::{Context as _, Result, bail};

use crate::{
    arguments::Arguments,
    demo,
    site::{self, Build},
    workspace::Workspace,
};

/// The line a server prints once it can be reached.
const LISTENING: &str = "listening on ";

/// The chore.
pub(crate) fn run(workspace: &Workspace, mut arguments: Arguments) -> Result<ExitCode> {
    let build = if arguments.flag("--quick") { Build::Quick } else { Build::Shipped };
    let profile = if arguments.flag("--release") { "release" } else { "dev" };
    let has_demo = arguments.flag("--demo");
    let opens_browser = !arguments.flag("--no-open");
    let listen = arguments.value("--listen")?;
    let data = arguments.value("--data")?;
    arguments.end()?;

    println!("building the page and the server; the first time takes some minutes");
    let site = site::build_site(workspace, build)?;
    let program = workspace.build("tidegauge-server", "tidegauge-server", profile)?;
    let mut command = Command::new(program);
    command.arg("--site").arg(&site);
    if let Some(listen) = listen {
        command.args(["--listen", &listen]);
    }
    match data {
        Some(folder) => command.args(["--data", &folder]),
        // The demo stays apart from what people collect.
        None if has_demo => command.arg("--data").arg(workspace.folder("demo")?),
        None => &mut command,
    };
    let mut server = Server::start(command)?;
    let address = server.address()?;
    if has_demo {
        demo::fill(&address, &workspace.root.join("snapshot/fixtures"))?;
    }
    println!("the dashboard is at {address} (Ctrl-C ends it)");
    if opens_browser {
        open_browser(&address);
    }
    let status = server.0.wait().context("cannot wait for the server")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A server of ours; ended when we end.
struct Server(Child);

impl Server {
    fn start(mut command: Command) -> Result<Self> {
        let child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("cannot start the server")?;
        let pid = child.id().to_string();
        // A terminal's Ctrl-C reaches the server too; a plain kill of ours does not, so it is passed on.
        ctrlc::set_handler(move || {
            if let Err(error) = Command::new("kill").args(["-TERM", &pid]).stderr(Stdio::null()).status() {
                eprintln!("cannot end the server (pid {pid}): {error}");
            }
        })
        .context("cannot listen for Ctrl-C")?;
        Ok(Self(child))
    }

    /// Waits for the line that names the address; later lines go to our output.
    fn address(&mut self) -> Result<String> {
        let stdout = self.0.stdout.take().context("the server's output is taken already")?;
        let mut lines = BufReader::new(stdout).lines();
        for line in lines.by_ref() {
            let line = line.context("cannot read what the server prints")?;
            if let Some(address) = line.strip_prefix(LISTENING) {
                let address = address.trim().trim_end_matches('/').to_owned();
                std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| println!("{line}")));
                return Ok(address);
            }
            println!("{line}");
        }
        bail!("the server ended before it listened; what it said stands above")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself, which is as good.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Shows the dashboard where there is a screen; where there is none, the printed address is all there is.
fn open_browser(address: &str) {
    let opener = if cfg!(target_os = "macos") {
        "open"
    } else if env::var_os("DISPLAY").is_some() || env::var_os("WAYLAND_DISPLAY").is_some() {
        "xdg-open"
    } else {
        return;
    };
    if let Err(error) = Command::new(opener).arg(address).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
    {
        println!("cannot open a browser ({opener}: {error}); open the address by hand");
    }
}
