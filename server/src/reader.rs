//! Reads what has arrived, in the background and a bounded number at a time.
//!
//! The queue is the catalog itself: a snapshot waits there in the state `received`, so nothing is lost when the
//! server ends. Packs that are missing later, because the format moved on or somebody removed them, are made
//! again by the same hands.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::http::StatusCode;
use tidegauge_api::{Inspection, Sidecar, inspection};
use tidegauge_snapshot::replay::replay;
use tidegauge_snapshot::{Snapshot, pack, read};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinSet;

use crate::App;
use crate::catalog::ToRead;
use crate::refusal::Refusal;
use crate::store::{Digest, Store};

/// Callers that may wait for a missing pack to be made again; a further one is told to come back.
pub(crate) const MAX_WAITING_FOR_PACKS: usize = 16;

/// Pause before the catalog is asked again after it failed.
const CATALOG_PAUSE: Duration = Duration::from_secs(1);

/// Tries to write down what reading found. After them the snapshot waits for the next start, and is read again.
const MAX_CATALOG_TRIES: u32 = 10;

/// Starts the readers. They stop when the set is dropped.
pub(crate) fn start(app: &Arc<App>) -> JoinSet<()> {
    let mut readers = JoinSet::new();
    for _ in 0..app.config.readers {
        let app = Arc::clone(app);
        readers.spawn(async move {
            loop {
                match app.catalog.next_to_read().await {
                    Ok(Some(next)) => {
                        // Each wakes the next one, so that several readers share a burst.
                        app.received.notify_one();
                        read_one(&app, next).await;
                    }
                    Ok(None) => app.received.notified().await,
                    Err(error) => {
                        tracing::error!("cannot ask the catalog for what to read: {error:#}");
                        tokio::time::sleep(CATALOG_PAUSE).await;
                    }
                }
            }
        });
    }
    readers
}

async fn read_one(app: &Arc<App>, next: ToRead) {
    let permit = permit(app).await;
    let begun = (app.clock)();
    let outcome = read_and_pack(app, next.clone()).await;
    drop(permit);
    let elapsed_ms = begun.duration_until((app.clock)()).as_millis();
    let (id, bytes) = (next.id.as_str(), next.bytes);
    match &outcome {
        Ok(_) => tracing::info!(snapshot.id = id, size_bytes = bytes, elapsed_ms, "read a snapshot"),
        Err(problem) => {
            tracing::warn!(
                snapshot.id = id,
                size_bytes = bytes,
                elapsed_ms,
                "cannot read a snapshot: {problem}"
            );
        }
    }
    for _ in 0..MAX_CATALOG_TRIES {
        let written = match &outcome {
            Ok(inspection) => app.catalog.set_ready(id, inspection).await,
            Err(problem) => app.catalog.set_failed(id, problem).await,
        };
        let Err(error) = written else { return };
        tracing::error!(snapshot.id = id, "cannot write down what reading found: {error:#}");
        tokio::time::sleep(CATALOG_PAUSE).await;
    }
    tracing::error!(snapshot.id = id, "a snapshot stays unread until the server is started again");
}

/// Reads a snapshot and writes its pack; the error is the sentence that the run will show.
async fn read_and_pack(app: &Arc<App>, next: ToRead) -> Result<Inspection, String> {
    let app = Arc::clone(app);
    let reading = tokio::task::spawn_blocking(move || {
        let snapshot = open(&app.store, &next.digest)?;
        let replays: Vec<_> = snapshot.devices.iter().map(|device| replay(&snapshot, device)).collect();
        let known = next.sidecar.as_ref().map(Sidecar::known).unwrap_or_default();
        let inspection =
            inspection::inspect_knowing(&snapshot, &replays, &next.file_name, next.bytes, &known);
        drop(replays);
        // A pack can be made again when somebody asks for it.
        if let Err(error) = write_pack(&app, &next.digest, &snapshot) {
            tracing::warn!(snapshot.id = next.id, "cannot keep a pack: {error}");
        }
        Ok(inspection)
    });
    reading.await.unwrap_or_else(|_panic| Err(fault()))
}

/// Makes sure that the pack of a ready snapshot is there.
pub(crate) async fn make_pack(app: &Arc<App>, digest: &Digest) -> Result<(), Refusal> {
    if app.store.pack_path(digest).exists() {
        return Ok(());
    }
    let Ok(_place) = app.waiting_for_packs.try_acquire() else {
        return Err(Refusal::busy("many packs are being made again; try again in a few seconds"));
    };
    let permit = permit(app).await;
    // Somebody else may have waited for the same one.
    if app.store.pack_path(digest).exists() {
        return Ok(());
    }
    let (app, digest) = (Arc::clone(app), digest.clone());
    let making = tokio::task::spawn_blocking(move || {
        // Kept until the work is done, though the caller may be gone by then.
        let _permit = permit;
        let snapshot = open(&app.store, &digest)
            .map_err(|problem| Refusal::new(StatusCode::CONFLICT, "failed", "It cannot be read", problem))?;
        write_pack(&app, &digest, &snapshot).map_err(|error| match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Refusal::full(
                "the server's disk is full; there is no room to make this snapshot's pack again",
            ),
            _ => Refusal::from(anyhow::Error::new(error).context("cannot keep a pack")),
        })
    });
    making.await.context("making a pack panicked")?
}

async fn permit(app: &App) -> OwnedSemaphorePermit {
    Arc::clone(&app.reading).acquire_owned().await.expect("the semaphore is never closed")
}

fn open(store: &Store, digest: &Digest) -> Result<Snapshot, String> {
    let file = store
        .original(digest)
        .map_err(|error| format!("its original cannot be opened in the server's data folder: {error}"))?;
    read::open_file(file).map_err(|error| error.to_string())
}

fn write_pack(app: &App, digest: &Digest, snapshot: &Snapshot) -> io::Result<()> {
    let pack = pack::write(snapshot);
    if app.store.write_pack(digest, &pack)? {
        app.space.add_stored(pack.len() as u64);
    }
    Ok(())
}

/// The panic itself is on stderr.
fn fault() -> String {
    "reading it ran into a fault of the reader, which the server's log describes; please report it, the original \
     can be downloaded"
        .to_owned()
}
