//! The server's parts, and how they are put together.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::serve::ListenerExt as _;
use tokio::net::TcpListener;
use tokio::sync::{Mutex, Notify, Semaphore, oneshot};

use crate::accept::MAX_UPLOADS;
use crate::catalog::Catalog;
use crate::clock::Clock;
use crate::config::Config;
use crate::guard::Guard;
use crate::reader::{self, MAX_WAITING_FOR_PACKS};
use crate::routes;
use crate::samples::MAX_BATCHES;
use crate::space::Space;
use crate::store::Store;
use crate::unfinished::{self, UnfinishedUploads};

/// How long an orderly end waits for requests under way.
const GRACE: Duration = Duration::from_secs(10);
/// How long an orderly end waits for the catalog to close.
const CLOSING: Duration = Duration::from_secs(2);

/// Everything a request may need.
pub struct App {
    pub(crate) config: Config,
    pub(crate) site: Option<std::path::PathBuf>,
    pub(crate) store: Store,
    pub(crate) catalog: Catalog,
    pub(crate) space: Arc<Space>,
    pub(crate) guard: Guard,
    pub(crate) clock: Clock,
    /// Held while an upload gets its row.
    pub(crate) accepting: Mutex<()>,
    /// Uploads that may be cut and go on.
    pub(crate) unfinished: UnfinishedUploads,
    /// One permit for each upload under way.
    pub(crate) uploads: Semaphore,
    /// One permit for each batch of samples being kept.
    pub(crate) sampling: Semaphore,
    /// One permit for each upload being decompressed for its digest.
    pub(crate) digesting: Arc<Semaphore>,
    /// One permit for each snapshot being read.
    pub(crate) reading: Arc<Semaphore>,
    /// One permit for each caller that waits for a pack.
    pub(crate) waiting_for_packs: Semaphore,
    /// Wakes a reader.
    pub(crate) received: Notify,
}

impl App {
    /// Opens the data folder: takes its lock, brings the catalog up to date, puts right what a crash left.
    ///
    /// # Errors
    /// When the settings contradict themselves, or the folder is in use or cannot be used.
    pub async fn open(config: Config, clock: Clock) -> anyhow::Result<Arc<Self>> {
        config.check()?;
        let folder = config.data()?;
        let store = Store::open(&folder)?;
        let catalog = Catalog::open(&store.catalog_path()).await?;
        let n_requeued = catalog.requeue_cut_readings().await?;
        let contents = store.contents().context("cannot look through the data folder")?;
        // Kept: a row may be lost where a file is not (an older catalog put back, say), and an upload of the same
        // bytes takes such a file up again.
        let n_rowless = contents.n_originals.saturating_sub(catalog.n_originals().await?);
        tracing::info!(
            size_bytes = contents.bytes,
            n_originals = contents.n_originals,
            n_rowless,
            n_requeued,
            "opened the data folder {}",
            folder.display()
        );
        let space = Space::new(folder, config.max_data_bytes, config.min_free_bytes, contents.bytes);
        let unfinished = UnfinishedUploads::open(&store, &space, clock())?;
        let n_cores = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Arc::new(Self {
            site: config.site(),
            space,
            unfinished,
            guard: Guard::new(&config),
            accepting: Mutex::new(()),
            uploads: Semaphore::new(MAX_UPLOADS),
            sampling: Semaphore::new(MAX_BATCHES),
            digesting: Arc::new(Semaphore::new(n_cores)),
            reading: Arc::new(Semaphore::new(config.readers as usize)),
            waiting_for_packs: Semaphore::new(MAX_WAITING_FOR_PACKS),
            received: Notify::new(),
            config,
            store,
            catalog,
            clock,
        }))
    }
}

/// Serves until `stop` comes about, then lets requests under way finish for a little while.
///
/// # Errors
/// When the listener fails, or the catalog does at the end.
pub async fn serve(
    app: Arc<App>,
    listener: TcpListener,
    stop: impl Future<Output = ()> + Send + 'static,
) -> anyhow::Result<()> {
    let address = listener.local_addr().context("cannot tell the address listened on")?;
    app.store.sign_lock(&format!("http://{address}")).context("cannot write to the lock file")?;
    let mut readers = reader::start(&app);
    readers.spawn(unfinished::tend(Arc::clone(&app)));
    let (stopping, stopped) = oneshot::channel();
    let listener = listener.tap_io(|connection| {
        if let Err(error) = connection.set_nodelay(true) {
            tracing::debug!("cannot turn off delays on a connection: {error}");
        }
    });
    let server = axum::serve(listener, routes::router(&app)).with_graceful_shutdown(async move {
        stop.await;
        // Nobody listens when the server has ended for another reason.
        stopping.send(()).ok();
    });
    let out_of_patience = async move {
        if stopped.await.is_err() {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(GRACE).await;
    };
    tokio::select! {
        served = server => served.context("cannot serve any longer")?,
        () = out_of_patience => tracing::warn!("some requests did not end in {} seconds", GRACE.as_secs()),
    }
    readers.shutdown().await;
    app.catalog.give_back_readings().await?;
    // SQLite folds its log into the catalog's file then. Requests that did not end may hold it up; the log stays.
    if tokio::time::timeout(CLOSING, app.catalog.close()).await.is_err() {
        tracing::warn!("the catalog was in use at the end");
    }
    Ok(())
}
