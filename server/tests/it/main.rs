//! The server over HTTP: what callers send, and what they get.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on stops")]

mod app;
mod process;

mod uploads;
mod resumable;
mod reading;
mod runs;
mod samples;
mod snapshots;
mod access;
mod page;
mod lifecycle;
