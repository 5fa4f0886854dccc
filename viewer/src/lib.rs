//! The dashboard in the browser: runs, one run's grid of ranks and steps, one snapshot's timeline.
//!
//! Modules in reading order: first the pure ones, which know no browser and are tested by plain `cargo test`;
//! then what talks to the server and to the worker; then drawing; then the pages. What touches the browser is
//! built for wasm32 only. Opening files and drawing bands is the worker's work (`viewer/engine`): this page asks
//! and shows.

#![cfg_attr(
    target_arch = "wasm32",
    expect(unreachable_pub, reason = "#[component] makes public properties of any function")
)]

pub mod format;
pub mod link;
pub mod story;
pub mod holders;
pub mod heat;
pub mod samples;
pub mod grid;
pub mod memory;
pub mod uploads;
pub mod timeline;

#[cfg(target_arch = "wasm32")]
mod browser;
#[cfg(target_arch = "wasm32")]
mod client;
#[cfg(target_arch = "wasm32")]
mod worker;
#[cfg(target_arch = "wasm32")]
mod components;
#[cfg(target_arch = "wasm32")]
mod pages;
#[cfg(target_arch = "wasm32")]
pub mod app;
