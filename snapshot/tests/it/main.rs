//! Whole files: real snapshots against what the allocator itself reported, and hostile ones.

mod exact;
mod hostile;
mod pack;
mod pictures;
