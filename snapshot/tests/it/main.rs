//! Whole files: real snapshots against what the allocator itself reported, and hostile ones.

mod exact;
mod hostile;
mod wrapped;
mod pack;
mod pictures;
