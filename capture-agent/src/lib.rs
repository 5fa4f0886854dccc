//! Takes snapshots in a training process and sends them.
