//! From a request's body to bytes and a row that last.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::body::{Body, BodyDataStream, Bytes};
use axum::http::StatusCode;
use futures_util::StreamExt as _;
use tidegauge_snapshot::{
    read::{self, ReadError},
    words::size,
};

use crate::App;
use crate::catalog::{Claimed, Upload};
use crate::place::Said;
use crate::refusal::Refusal;
use crate::space::Promise;
use crate::store::{Spool, Spooled};

/// Uploads under way at the same time; a further one is told to come back.
pub(crate) const MAX_UPLOADS: usize = 256;

/// Longest wait for the next bytes of an upload. Slow networks trickle; a caller that is gone does not.
const MAX_SILENCE: Duration = Duration::from_secs(60);

/// Takes a body in. When this returns, the snapshot is on disk, and no end of the server can lose it.
///
/// `length` is what the request announces; a length that cannot be taken is refused before the body is read.
pub(crate) async fn accept(
    app: &Arc<App>,
    said: Said,
    length: Option<u64>,
    body: Body,
) -> Result<Claimed, Refusal> {
    let Ok(_slot) = app.uploads.try_acquire() else {
        return Err(Refusal::busy(format!(
            "{MAX_UPLOADS} uploads are under way; try again in a few seconds"
        )));
    };
    if let Some(bytes) = length {
        check_size(app, bytes)?;
    }
    let mut promise = app.space.promise(length.unwrap_or_default())?;
    let spool = receive(app, body, &mut promise).await?;
    recognize(spool.head())?;
    let spooled = spool.finish().await.map_err(cannot_store)?;
    take_in(app, said, spooled, promise).await
}

/// Takes in bytes that are all here, however they came. The one way into the catalog.
pub(crate) async fn take_in(
    app: &Arc<App>,
    said: Said,
    spooled: Spooled,
    promise: Promise,
) -> Result<Claimed, Refusal> {
    let (spooled, content_digest) = digest_content(app, spooled).await?;
    if let Some(announced) = said.sidecar.as_ref().and_then(|sidecar| sidecar.content_digest.as_deref())
        && !announced.eq_ignore_ascii_case(content_digest.as_str())
    {
        return Err(Refusal::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "digest-mismatch",
            "Damaged on the way",
            format!(
                "the sidecar announces the content {announced}, what arrived is {}; send it again",
                content_digest.as_str()
            ),
        ));
    }
    let upload = Upload { said, content_digest, digest: spooled.digest.clone(), bytes: spooled.bytes };
    // On its own, because a caller who hangs up now must not leave half of it done.
    let app = Arc::clone(app);
    let keeping = tokio::spawn(async move { keep(&app, upload, spooled, promise).await });
    Ok(keeping.await.context("keeping an upload panicked")??)
}

async fn receive(app: &App, body: Body, promise: &mut Promise) -> Result<Spool, Refusal> {
    let mut spool = app.store.spool().map_err(cannot_store)?;
    let mut chunks = body.into_data_stream();
    loop {
        let Some(chunk) = next_chunk(&mut chunks).await? else { return Ok(spool) };
        let bytes = spool.bytes() + chunk.len() as u64;
        check_size(app, bytes)?;
        promise.cover(bytes)?;
        let had_head = spool.has_head();
        spool.write(&chunk).await.map_err(cannot_store)?;
        if spool.has_head() && !had_head {
            recognize(spool.head())?;
        }
    }
}

/// The next bytes of a body, or nothing at its end.
pub(crate) async fn next_chunk(chunks: &mut BodyDataStream) -> Result<Option<Bytes>, Refusal> {
    match tokio::time::timeout(MAX_SILENCE, chunks.next()).await {
        Ok(None) => Ok(None),
        Ok(Some(Ok(chunk))) => Ok(Some(chunk)),
        Ok(Some(Err(error))) => Err(Refusal::bad_request(format!("the body broke off: {error}"))),
        Err(_too_long) => Err(Refusal::new(
            StatusCode::REQUEST_TIMEOUT,
            "silence",
            "Nothing arrived",
            format!("nothing arrived for {} seconds; send it again", MAX_SILENCE.as_secs()),
        )),
    }
}

pub(crate) fn check_size(app: &App, bytes: u64) -> Result<(), Refusal> {
    let limit = app.config.max_upload_bytes;
    if bytes <= limit {
        return Ok(());
    }
    Err(Refusal::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        "too-large",
        "The upload is too large",
        format!(
            "an upload may be at most {} ({limit} bytes) here; raise the server's --max-upload-bytes or \
             TIDEGAUGE_MAX_UPLOAD_BYTES",
            size(limit)
        ),
    ))
}

/// Refuses what does not begin as a snapshot does.
pub(crate) fn recognize(head: &[u8]) -> Result<(), Refusal> {
    read::recognize(head).map_err(|error| no_snapshot(&error))
}

fn no_snapshot(error: &ReadError) -> Refusal {
    let unprocessable =
        |kind, title, detail| Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, kind, title, detail);
    match error.code() {
        ReadError::ARCHIVE => unprocessable(
            "archive",
            "The archive holds several snapshots",
            format!("{error}; tidegauge push sends each of them to its place"),
        ),
        _ => unprocessable("not-a-snapshot", "This is no memory snapshot", error.to_string()),
    }
}

async fn digest_content(app: &App, spooled: Spooled) -> Result<(Spooled, crate::store::Digest), Refusal> {
    // One at a time per core: decompressing sixty uploads at once would take sixty windows of memory.
    let permit = Arc::clone(&app.digesting).acquire_owned().await.expect("the semaphore is never closed");
    let digesting = tokio::task::spawn_blocking(move || {
        // Kept until the work is done, though the caller may be gone by then.
        let _permit = permit;
        let digest = spooled.content_digest();
        (spooled, digest)
    });
    let (spooled, digest) = digesting.await.context("digesting an upload panicked")?;
    let digest = digest.map_err(cannot_store)?.map_err(|error| no_snapshot(&error))?;
    Ok((spooled, digest))
}

async fn keep(app: &Arc<App>, upload: Upload, spooled: Spooled, promise: Promise) -> anyhow::Result<Claimed> {
    // One at a time, so that of two equal uploads the second finds the first.
    let _turn = app.accepting.lock().await;
    if let Some(here) = app.catalog.find(&upload.said, upload.content_digest.as_str()).await? {
        return Ok(Claimed::Here(here));
    }
    let bytes = spooled.bytes;
    let keeper = Arc::clone(app);
    let keeping = tokio::task::spawn_blocking(move || keeper.store.keep(spooled));
    if keeping.await?.context("cannot keep an original")? {
        app.space.add_stored(bytes);
    }
    drop(promise);
    // The file comes first: a row without its file would be half a snapshot, a file without a row is merely room
    // that a repeat takes again.
    let claimed = app.catalog.claim(&upload, (app.clock)()).await?;
    app.received.notify_one();
    Ok(claimed)
}

pub(crate) fn cannot_store(error: io::Error) -> Refusal {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            Refusal::full("the server's disk is full; free some room on it, then send the snapshot again")
        }
        _ => anyhow::Error::new(error).context("cannot write an upload to the spool").into(),
    }
}
