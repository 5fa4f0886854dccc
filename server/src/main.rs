//! Receives, catalogs and serves memory snapshots.

fn main() {}
