//! Receives, catalogs and serves memory snapshots.
//!
//! A snapshot arrives as the body of one request ([`routes`]), is kept as it came in a folder of files named for
//! their content ([`store`]), gets a row in the [`catalog`], is read in the background ([`reader`]) and is then
//! served as a pack that the page draws from. Anybody who may look can also download what came.
//!
//! An upload is accepted, and answered with 201, when its bytes and its row are on disk. Whatever happens to the
//! server after that, the snapshot is read sooner or later; whatever happens before, a repeat starts over.

pub mod config;
pub mod app;
mod routes;
mod place;
mod accept;
mod unfinished;
mod reader;
mod grid;
mod samples;
mod catalog;
mod store;
mod space;
mod guard;
mod linger;
mod etag;
mod refusal;
pub mod clock;

pub use app::{App, serve};
pub use config::Config;
