//! The words the agent, the server and the viewer use with one another.
//!
//! Types and addresses, no behavior beyond conversions. Fields are added freely; within `v1` none is removed
//! or renamed. Every type's JSON is what travels over HTTP, into sidecar files and between the page and its
//! worker.

pub mod place;
pub mod from_path;
pub mod sidecar;
pub mod run;
pub mod snapshot;
pub mod samples;
pub mod inspection;
pub mod picture;
pub mod breakdown;
pub mod holders;
pub mod memory;
pub mod event;
pub mod problem;
pub mod paths;
pub mod tus;

pub use inspection::Inspection;
pub use place::Place;
pub use problem::Problem;
pub use sidecar::Sidecar;
