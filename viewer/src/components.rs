//! Parts that more than one page shows.

pub(crate) mod problem;
pub(crate) mod unanswered;
pub(crate) mod polling;
pub(crate) mod size;
pub(crate) mod stack;
pub(crate) mod holders;
pub(crate) mod icicle;
pub(crate) mod memory_map;
pub(crate) mod device_pane;
pub(crate) mod snapshot_view;
