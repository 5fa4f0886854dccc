//! The demo run: a Llama-8B trained by FSDP on eight ranks, from the committed snapshots.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};

use crate::http;

/// The run's name.
const RUN: &str = "llama8b-fsdp8";

/// Ranks of the run.
const RANKS: u32 = 8;

/// First and last step of each window: the history was cleared after every snapshot.
const WINDOWS: [(u64, u64); 3] = [(1, 1), (2, 3), (4, 5)];

/// Uploads the run's snapshots; what the server has already it keeps as it is.
pub(crate) fn fill(server: &str, fixtures: &Path) -> Result<()> {
    for rank in 0..RANKS {
        for (first, last) in WINDOWS {
            let name = format!("llama8b_fsdp8_rank{rank}_step{last}.pickle.zst");
            let bytes = fs::read(fixtures.join(&name)).with_context(|| {
                format!("cannot read the demo's snapshot {}", fixtures.join(&name).display())
            })?;
            let path = format!(
                "/api/v1/snapshots?run={RUN}&rank={rank}&first_step={first}&step={last}&file_name={name}"
            );
            http::post(server, &path, &bytes).with_context(|| format!("cannot upload {name}"))?;
        }
    }
    Ok(())
}
