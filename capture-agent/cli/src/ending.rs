//! Programs that go on until they are told to end.

use std::{
    io,
    panic::{self, AssertUnwindSafe},
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result};

/// The longest that a snapshot under way is waited for when the program is told to end. It is sent at the next
/// start otherwise.
pub(crate) const GRACE: Duration = Duration::from_secs(5);

/// The other end's going away asks to stop.
pub(crate) struct Stop(Receiver<()>);

impl Stop {
    pub(crate) fn is_asked(&self) -> bool {
        self.is_asked_within(Duration::ZERO)
    }

    /// Waits for so long, or until it is asked; whether it is.
    pub(crate) fn is_asked_within(&self, wait: Duration) -> bool {
        !matches!(self.0.recv_timeout(wait), Err(RecvTimeoutError::Timeout))
    }
}

/// What the main thread waits for.
enum Event {
    Signal,
    Ended(thread::Result<u8>),
}

/// Does the work until it ends or a signal ends it. Nothing when it did not stop within `grace` after that.
pub(crate) fn until_told(
    grace: Duration,
    work: impl FnOnce(&Stop) -> u8 + Send + 'static,
) -> Result<Option<u8>> {
    let (tell, events) = mpsc::channel();
    let (asked, stop) = mpsc::channel();
    tell_of_signals(tell.clone()).context("cannot listen for the signals that end a program")?;
    thread::spawn(move || {
        let ended = panic::catch_unwind(AssertUnwindSafe(|| work(&Stop(stop))));
        // Whoever waited has lost patience otherwise.
        drop(tell.send(Event::Ended(ended)));
    });
    let mut event = events.recv();
    if let Ok(Event::Signal) = event {
        drop(asked);
        event = events.recv_timeout(grace).map_err(|_too_late| mpsc::RecvError);
    }
    match event {
        Ok(Event::Ended(ended)) => Ok(Some(ended.unwrap_or_else(|panic| panic::resume_unwind(panic)))),
        Ok(Event::Signal) | Err(_) => Ok(None),
    }
}

/// Tells when the program is asked to end. What happens at a hangup stays as it is, so that `nohup` works.
#[cfg(unix)]
fn tell_of_signals(tell: Sender<Event>) -> io::Result<()> {
    use signal_hook::{
        consts::{SIGINT, SIGTERM},
        iterator::Signals,
    };
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    thread::spawn(move || {
        for _ in &mut signals {
            // Nobody listens any more when the program is ending anyhow.
            tell.send(Event::Signal).ok();
        }
    });
    Ok(())
}

/// Elsewhere the system ends the program; what was sent is remembered at any moment.
#[cfg(not(unix))]
fn tell_of_signals(_: Sender<Event>) -> io::Result<()> {
    Ok(())
}
