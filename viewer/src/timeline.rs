//! The timeline of one device: bands of memory over the events of a trace.
//!
//! The worker draws the bands; this side keeps the window, the axes, the curves and the marks. On a pan or a
//! zoom the last picture is stretched to the new window at once, and the sharp one replaces it when it comes.

pub mod viewport;
pub mod ticks;
pub mod spaces;
pub mod marked;

#[cfg(target_arch = "wasm32")]
mod paint;
#[cfg(target_arch = "wasm32")]
mod latest;
#[cfg(target_arch = "wasm32")]
mod stage;
#[cfg(target_arch = "wasm32")]
mod canvas;
#[cfg(target_arch = "wasm32")]
mod tooltip;

#[cfg(target_arch = "wasm32")]
pub(crate) use canvas::{Canvas, Frames, watch_size};
#[cfg(target_arch = "wasm32")]
pub(crate) use latest::Latest;
#[cfg(target_arch = "wasm32")]
pub(crate) use marked::Marked;
#[cfg(target_arch = "wasm32")]
pub(crate) use paint::{Curve, Inks, context};
#[cfg(target_arch = "wasm32")]
pub(crate) use stage::Stage;
