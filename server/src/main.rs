//! Reads the settings, starts logging, serves; nothing else.

use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser as _;
use tidegauge_server::{App, Config, clock, serve};
use tokio::net::TcpListener;
use tracing_subscriber::filter::LevelFilter;

/// How long a reading under way may hold up the end. It is begun again at the next start.
const PATIENCE: Duration = Duration::from_millis(200);

fn main() -> ExitCode {
    let config = Config::parse();
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_max_level(LevelFilter::INFO)
        .init();
    let outcome = tokio::runtime::Runtime::new().context("cannot start threads").and_then(|runtime| {
        let outcome = runtime.block_on(run(config));
        runtime.shutdown_timeout(PATIENCE);
        outcome
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Without stderr there is nobody to tell.
            writeln!(io::stderr(), "tidegauge-server: {error:#}").ok();
            ExitCode::FAILURE
        }
    }
}

async fn run(config: Config) -> anyhow::Result<()> {
    let listen = config.listen;
    let app = App::open(config, clock::system()).await?;
    let listener = TcpListener::bind(listen).await.with_context(|| format!("cannot listen on {listen}"))?;
    let address = listener.local_addr().context("cannot tell the address listened on")?;
    // Scripts wait for this line, then read the port from it.
    writeln!(io::stdout(), "listening on http://{address}")
        .and_then(|()| io::stdout().flush())
        .context("cannot say where we listen")?;
    serve(app, listener, stop_signal()?).await
}

#[cfg(unix)]
fn stop_signal() -> anyhow::Result<impl Future<Output = ()> + Send + 'static> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

#[cfg(not(unix))]
fn stop_signal() -> anyhow::Result<impl Future<Output = ()> + Send + 'static> {
    Ok(async { tokio::signal::ctrl_c().await.unwrap_or_default() })
}
