//! Uploads that may be cut and go on: what was announced, whose turn it is, and when they are given up.
//!
//! How much of one is here is the length of its file, and nothing else; a crash therefore forgets nothing that was
//! said. Once all of it is here it is taken in as any other upload.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use axum::body::Body;
use axum::http::StatusCode;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use tidegauge_snapshot::read::HEAD_BYTES;
use tidegauge_snapshot::words::size;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::Mutex as AsyncMutex;
use ulid::Ulid;

use crate::App;
use crate::accept::{cannot_store, next_chunk, recognize, take_in};
use crate::catalog::Claimed;
use crate::place::Said;
use crate::refusal::Refusal;
use crate::space::Promise;
use crate::store;

/// Unfinished uploads at the same time: four thousand ranks may send at once. A further one is told to come back.
const MAX_UNFINISHED: usize = 4096;

/// Bytes that unfinished uploads may have announced in all: 256 GiB. Past it a further one is told to come back;
/// the data folder's own bounds count them, too.
const MAX_ANNOUNCED_BYTES: u64 = 256 << 30;

/// How long an upload may stand still. After that it is given up, and its sender begins anew.
const MAX_IDLE: SignedDuration = SignedDuration::from_hours(24);

/// How often those that stood still too long are looked for, beside each time that one begins.
const SWEEP_EVERY: Duration = Duration::from_secs(600);

/// The unfinished uploads.
#[derive(Debug, Default)]
pub(crate) struct UnfinishedUploads(Mutex<BTreeMap<String, Arc<Unfinished>>>);

/// An upload under way. What it says of itself lies on the disk until it is needed: sidecars are long.
#[derive(Debug)]
pub(crate) struct Unfinished {
    id: String,
    /// The announced length, bytes.
    length: u64,
    /// Room for all of it; gone once it is taken in.
    promise: Mutex<Option<Promise>>,
    /// Held by whoever adds bytes.
    turn: Arc<AsyncMutex<()>>,
    /// When the last bytes came, Unix epoch milliseconds.
    touched: AtomicI64,
}

/// What its beginning says, as it is kept on the disk.
#[derive(Debug, Serialize, Deserialize)]
struct Announced {
    length: u64,
    said: Said,
}

/// What became of some bytes.
#[derive(Debug)]
pub(crate) enum Progress {
    /// So many are here now.
    Here(u64),
    /// All were here, and the snapshot was taken in.
    Taken(Box<Claimed>),
}

impl UnfinishedUploads {
    /// Takes up what lay in the folder at the start. What finds no room any more, or cannot be read, is removed: its
    /// sender begins anew and is told why it cannot.
    pub(crate) fn open(
        store: &store::Store,
        space: &Arc<crate::space::Space>,
        now: Timestamp,
    ) -> anyhow::Result<Self> {
        let mut uploads = BTreeMap::new();
        for found in store.unfinished().context("cannot look through the unfinished uploads")? {
            let taken_up = serde_json::from_slice::<Announced>(&found.announced)
                .context("what was announced cannot be read")
                .and_then(|announced| {
                    anyhow::ensure!(found.n_bytes <= announced.length, "it is longer than was announced");
                    let promise = space.promise(announced.length)?;
                    Ok((announced.length, promise))
                });
            match taken_up {
                Ok((length, promise)) => {
                    let touched = Timestamp::try_from(found.touched).unwrap_or(now).as_millisecond();
                    uploads.insert(
                        found.id.clone(),
                        Arc::new(Unfinished::new(found.id, length, promise, touched)),
                    );
                }
                Err(error) => {
                    tracing::warn!("an unfinished upload is given up: {error:#}");
                    store.remove_unfinished(&found.id)?;
                }
            }
        }
        Ok(Self(Mutex::new(uploads)))
    }

    pub(crate) fn find(&self, id: &str) -> Option<Arc<Unfinished>> {
        self.lock().get(id).cloned()
    }

    fn all(&self) -> Vec<Arc<Unfinished>> {
        self.lock().values().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Unfinished>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Unfinished {
    fn new(id: String, length: u64, promise: Promise, touched: i64) -> Self {
        let (promise, turn, touched) = (Mutex::new(Some(promise)), Arc::default(), AtomicI64::new(touched));
        Self { id, length, promise, turn, touched }
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// The announced length, bytes.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// When it is given up if nothing more comes.
    pub(crate) fn expires(&self) -> Timestamp {
        let touched = Timestamp::from_millisecond(self.touched.load(Ordering::Relaxed)).unwrap_or_default();
        touched.checked_add(MAX_IDLE).unwrap_or(Timestamp::MAX)
    }
}

/// Begins an upload of `length` bytes. Nothing of it has to be here yet.
pub(crate) async fn begin(app: &Arc<App>, said: Said, length: u64) -> Result<Arc<Unfinished>, Refusal> {
    sweep(app).await;
    let promise = app.space.promise(length)?;
    let text =
        serde_json::to_vec(&Announced { length, said }).context("what is announced cannot be written")?;
    let now = (app.clock)().as_millisecond();
    let upload = Arc::new(Unfinished::new(Ulid::generate().to_string(), length, promise, now));
    {
        let mut uploads = app.unfinished.lock();
        let announced_bytes: u64 = uploads.values().map(|upload| upload.length()).sum();
        if uploads.len() >= MAX_UNFINISHED || announced_bytes.saturating_add(length) > MAX_ANNOUNCED_BYTES {
            return Err(Refusal::busy(format!(
                "{} unfinished uploads have announced {}; try again in a few seconds",
                uploads.len(),
                size(announced_bytes)
            )));
        }
        uploads.insert(upload.id.clone(), Arc::clone(&upload));
    }
    let (keeper, id) = (Arc::clone(app), upload.id.clone());
    let begun = tokio::task::spawn_blocking(move || keeper.store.begin_unfinished(&id, &text)).await;
    if let Err(error) = begun.context("beginning an upload panicked")? {
        forget(app, &upload).await;
        return Err(cannot_store(error));
    }
    Ok(upload)
}

/// How many bytes are here.
pub(crate) fn offset(app: &App, upload: &Unfinished) -> Result<u64, Refusal> {
    app.store.unfinished_bytes(&upload.id).map_err(|_gone| is_gone(&upload.id))
}

/// Adds the bytes of `body`, which begin at `offset`; once all are here, takes the snapshot in. Whoever hangs up
/// leaves what had come by then.
pub(crate) async fn add(
    app: &Arc<App>,
    upload: Arc<Unfinished>,
    offset: u64,
    body: Body,
) -> Result<Progress, Refusal> {
    let Ok(turn) = Arc::clone(&upload.turn).try_lock_owned() else { return Err(in_use(&upload.id)) };
    let app = Arc::clone(app);
    // On its own: a caller who hangs up must not let go of the turn while bytes are still being written.
    let adding = tokio::spawn(async move {
        let _turn = turn;
        let Ok(_slot) = app.uploads.try_acquire() else {
            return Err(Refusal::busy("too many uploads are under way; try again in a few seconds"));
        };
        let n_bytes = append(&app, &upload, offset, body).await?;
        if n_bytes < upload.length() {
            return Ok(Progress::Here(n_bytes));
        }
        let taken = finish(&app, &upload).await;
        forget(&app, &upload).await;
        taken.map(|claimed| Progress::Taken(Box::new(claimed)))
    });
    adding.await.context("adding to an upload panicked")?
}

/// Gives an upload up.
pub(crate) async fn give_up(app: &Arc<App>, upload: &Arc<Unfinished>) -> Result<(), Refusal> {
    let Ok(_turn) = upload.turn.try_lock() else { return Err(in_use(&upload.id)) };
    forget(app, upload).await;
    Ok(())
}

/// Takes in what was all here when the server ended, and from then on gives up what stands still.
pub(crate) async fn tend(app: Arc<App>) {
    for upload in app.unfinished.all() {
        let is_complete = offset(&app, &upload).is_ok_and(|n_bytes| n_bytes == upload.length());
        if is_complete && let Err(refusal) = add(&app, upload, u64::MAX, Body::empty()).await {
            tracing::warn!("an upload that was complete at the start is not taken: {}", refusal.detail());
        }
    }
    loop {
        sweep(&app).await;
        tokio::time::sleep(SWEEP_EVERY).await;
    }
}

async fn append(app: &App, upload: &Unfinished, offset: u64, body: Body) -> Result<u64, Refusal> {
    let mut n_bytes = self::offset(app, upload)?;
    // Nobody sends at the end of everything: that is the start, which takes in what is complete.
    if offset != n_bytes && offset != u64::MAX {
        return Err(Refusal::new(
            StatusCode::CONFLICT,
            "offset",
            "Not where the upload is",
            format!(
                "{n_bytes} bytes of it are here, and these begin at {offset}; ask with HEAD where to go on"
            ),
        ));
    }
    let mut file = app.store.append_to_unfinished(&upload.id).map_err(cannot_store)?;
    let mut chunks = body.into_data_stream();
    let broken = loop {
        let chunk = match next_chunk(&mut chunks).await {
            Ok(Some(chunk)) => chunk,
            Ok(None) => break None,
            Err(refusal) => break Some(refusal),
        };
        if n_bytes + chunk.len() as u64 > upload.length() {
            break Some(Refusal::bad_request(format!(
                "there is more of it than the {} bytes that were announced",
                upload.length()
            )));
        }
        if let Err(error) = file.write_all(&chunk).await {
            break Some(cannot_store(error));
        }
        n_bytes += chunk.len() as u64;
        upload.touched.store((app.clock)().as_millisecond(), Ordering::Relaxed);
    };
    // Whatever happened: what is said to be here has to be here after a power cut.
    file.flush().await.map_err(cannot_store)?;
    file.sync_all().await.map_err(cannot_store)?;
    match broken {
        Some(refusal) => Err(refusal),
        None => Ok(n_bytes),
    }
}

async fn finish(app: &Arc<App>, upload: &Unfinished) -> Result<Claimed, Refusal> {
    let (keeper, id) = (Arc::clone(app), upload.id.clone());
    let finishing = tokio::task::spawn_blocking(move || {
        Ok((keeper.store.announced(&id)?, keeper.store.finish_unfinished(&id)?))
    });
    let (announced, spooled) =
        finishing.await.context("finishing an upload panicked")?.map_err(cannot_store)?;
    let announced: Announced =
        serde_json::from_slice(&announced).context("what was announced cannot be read any more")?;
    let promise = upload.promise.lock().unwrap_or_else(PoisonError::into_inner).take();
    let promise = match promise {
        Some(promise) => promise,
        None => app.space.promise(upload.length())?,
    };
    take_in(app, announced.said, spooled, promise).await
}

/// Refuses, and gives up, what turns out to be no snapshot, as soon as enough of it is here to tell.
pub(crate) async fn recognize_early(app: &Arc<App>, upload: &Arc<Unfinished>) -> Result<(), Refusal> {
    let head = app.store.unfinished_head(&upload.id).map_err(cannot_store)?;
    if head.len() < HEAD_BYTES {
        return Ok(());
    }
    let recognized = recognize(&head);
    if recognized.is_err() {
        give_up(app, upload).await?;
    }
    recognized
}

async fn sweep(app: &Arc<App>) {
    let now = (app.clock)();
    for upload in app.unfinished.all().into_iter().filter(|upload| upload.expires() <= now) {
        if give_up(app, &upload).await.is_ok() {
            tracing::info!(size_bytes = upload.length(), "gave up an upload that stood still for a day");
        }
    }
}

/// Removes all traces of it.
async fn forget(app: &Arc<App>, upload: &Unfinished) {
    app.unfinished.lock().remove(&upload.id);
    upload.promise.lock().unwrap_or_else(PoisonError::into_inner).take();
    let (keeper, id) = (Arc::clone(app), upload.id.clone());
    let removing = tokio::task::spawn_blocking(move || keeper.store.remove_unfinished(&id));
    // Files without their entry are found at the next start, and expire.
    if let Ok(Err(error)) = removing.await {
        tracing::warn!("cannot remove an unfinished upload: {error}");
    }
}

/// Nothing goes by that name, or not any more.
pub(crate) fn is_gone(id: &str) -> Refusal {
    Refusal::not_found(format!("there is no upload {id}: it ended, or stood still too long; begin anew"))
}

fn in_use(id: &str) -> Refusal {
    Refusal::new(
        StatusCode::LOCKED,
        "in-use",
        "Somebody else adds to it",
        format!("another request adds to the upload {id}; try again in a second"),
    )
    .with_header(axum::http::header::RETRY_AFTER, axum::http::HeaderValue::from_static("1"))
}
