//! What is written, read again and held against the replay.

#![expect(clippy::unwrap_used, reason = "a test fails by it, with a message")]

mod flames;
mod tables;
mod timeline;
mod wire;

use std::{fs::File, ops::Range, path::Path};

use tidegauge_export::Part;
use tidegauge_snapshot::{
    Snapshot, read,
    replay::{Replay, replay},
};

/// Fixtures that between them have everything: several devices, pending frees, pools, out of memory, a head, newer
/// fields, a profile.
const FIXTURES: [&str; 8] = [
    "fsdp1_w2_clear_rank0_step5.pickle",
    "streams_2dev_lag40.pickle",
    "pools_graphs_after_delete.pickle",
    "oom_expandable_2gib.pickle",
    "ring_50k_of_200k_python.pickle.zst",
    "torch2.15.0/new_pinned_metadata_annotate.pickle",
    "kineto/mlp.pickle",
    "torch2.4.1/train_gpt4_warm2_step1_cleared.pickle",
];

/// A snapshot with its replays.
struct Opened {
    snapshot: Snapshot,
    replays: Vec<Replay>,
}

impl Opened {
    fn fixture(name: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(name);
        Self::of(read::open(File::open(path).unwrap()).unwrap())
    }

    fn of(snapshot: Snapshot) -> Self {
        let replays = snapshot.devices.iter().map(|device| replay(&snapshot, device)).collect();
        Self { snapshot, replays }
    }

    fn whole(&self) -> Part<'_> {
        Part::whole(&self.snapshot, &self.replays)
    }

    fn window(&self, events: Range<u32>) -> Part<'_> {
        Part::window(&self.snapshot, &self.snapshot.devices[0], &self.replays[0], events).unwrap()
    }
}
