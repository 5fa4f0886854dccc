//! The server over HTTP: what callers send, and what they get.

mod app;
mod process;

mod uploads;
mod reading;
mod runs;
mod snapshots;
mod access;
mod page;
mod lifecycle;
