//! Takes memory snapshots in a training process and sends them to a server.
//!
//! A [`session`] is told where steps end. When the [`plan`] says so it asks a [`recorder`] (cuda, npu: the
//! [`backend`] table) for the history ([`taking`]) and hands it to the [`courier`], whose threads
//! write it to the [`outbox`] on disk and then [`push`] it. Nothing here knows Python, and nothing here makes
//! the training thread wait for the network.
//!
//! ```text
//! step(n) ─ plan ─ recorder: read, clear ─ courier: write ─ outbox ─ courier: push ─ server
//!           training thread                 one thread               another thread
//! step(n) ─ plan ─ recorder: count ─────── beside: read ─ courier: cut, write ─ …      the native way
//! ```

pub mod session;
pub mod settings;
pub mod choice;
pub mod plan;
pub mod growth;
pub mod occasions;
pub mod breaker;
pub mod samples;
pub mod request;
pub mod whereabouts;
pub mod neighbors;
pub mod frameworks;
pub mod recorder;
pub mod reckoning;
pub mod backend;
pub mod taking;
pub mod beside;
pub mod ring;
pub mod proof;
pub mod courier;
pub mod outbox;
pub mod redaction;
pub mod delivery;
pub mod connection;
pub mod proxies;
pub mod push;
pub mod parts;
pub mod backoff;
pub mod notices;

#[cfg(test)]
mod fake_server;
#[cfg(test)]
mod fake_gauge;
#[cfg(test)]
mod ordeal;
#[cfg(test)]
mod ways_there;
