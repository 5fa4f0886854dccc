//! A caching allocator without a device, and the snapshots it would have written.
//!
//! Tests ask it for a random [`Program`], run it, write what torch would have written ([`file`]) and hold what the
//! reader says against what was so: the levels after every event and the size of every block, which no real file
//! tells. Measurements ask it for a [`trainer`]'s history of any length.
//!
//! It depends on nothing, least of all on what it is there to test.

pub mod rules;
pub mod allocator;
pub mod program;
pub mod trainer;
pub mod stacks;
pub mod file;
mod addresses;
mod dice;
mod pickle;

pub use allocator::{Action, Allocator, Event, Levels};
pub use dice::Dice;
pub use program::{Program, Run};
pub use rules::Rules;
