//! The catalog in SQLite: one connection writes, a few read.

mod samples;

use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use jiff::Timestamp;
use sqlx::sqlite::{
    SqliteArguments, SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteRow,
    SqliteSynchronous,
};
use sqlx::{FromRow, Row as _, Sqlite, Transaction};
use tidegauge_api::run::RunRow;
use tidegauge_api::snapshot::{SnapshotDetails, State};
use tidegauge_api::{Inspection, Place};
use ulid::Ulid;

use super::{Claimed, MAX_LOST_IN_GRID, MAX_READS, MAX_RUNS, ToRead, Upload};
use crate::grid::{GridContents, GridSnapshot, LostSnapshot};
use crate::place::Said;
use crate::store::Digest;

/// Connections that read at the same time; a further query waits.
const N_READERS: u32 = 4;

/// The catalog.
#[derive(Debug)]
pub(crate) struct Catalog {
    /// A pool of one, so that writers queue here and not inside SQLite.
    writer: SqlitePool,
    readers: SqlitePool,
}

type Query<'q> = sqlx::query::Query<'q, Sqlite, SqliteArguments>;

impl Catalog {
    /// Opens or makes the catalog and brings its tables up to date.
    pub(crate) async fn open(path: &Path) -> anyhow::Result<Self> {
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .foreign_keys(true)
            .journal_mode(SqliteJournalMode::Wal)
            // What was answered with 201 survives a power cut.
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(Duration::from_secs(10));
        let pool = |n| SqlitePoolOptions::new().max_connections(n).idle_timeout(None).max_lifetime(None);
        let opening = || format!("cannot open the catalog {}", path.display());
        let writer = pool(1).connect_with(options.clone()).await.with_context(opening)?;
        sqlx::migrate!("migrations/sqlite")
            .run(&writer)
            .await
            .with_context(|| format!("cannot bring the catalog {} up to date", path.display()))?;
        let readers = pool(N_READERS).connect_with(options.read_only(true)).await.with_context(opening)?;
        Ok(Self { writer, readers })
    }

    /// Says whether the catalog can be written and read.
    pub(crate) async fn check(&self) -> anyhow::Result<()> {
        self.write().await?.rollback().await?;
        sqlx::query("SELECT 1 FROM runs LIMIT 1").fetch_optional(&self.readers).await?;
        Ok(())
    }

    /// The snapshot of the same content for the same place, if it is here.
    pub(crate) async fn find(
        &self,
        said: &Said,
        content_digest: &str,
    ) -> anyhow::Result<Option<SnapshotDetails>> {
        let mut tx = self.readers.begin().await?;
        let Some(run_id) = run_id(&mut tx, &said.run).await? else { return Ok(None) };
        match at_place(&mut tx, &run_id, &said.place, content_digest).await?.here {
            Some(arrival) => details(&mut tx, arrival).await.map(Some),
            None => Ok(None),
        }
    }

    /// Claims the upload's place for it, unless the same content is there already. What is committed here lasts.
    pub(crate) async fn claim(&self, upload: &Upload, now: Timestamp) -> anyhow::Result<Claimed> {
        let mut tx = self.write().await?;
        let run_id = match run_id(&mut tx, &upload.said.run).await? {
            Some(id) => id,
            None => new_run(&mut tx, &upload.said.run, now).await?,
        };
        let at_place = at_place(&mut tx, &run_id, &upload.said.place, upload.content_digest.as_str()).await?;
        if let Some(arrival) = at_place.here {
            return details(&mut tx, arrival).await.map(Claimed::Here);
        }
        let sidecar = upload.said.sidecar.as_ref().map(serde_json::to_string).transpose()?;
        let query = sqlx::query(
            "INSERT INTO snapshots
                 (id, run_id, attempt, role, rank, host, pid, first_step, last_step, reason, content_digest,
                  seq, digest, bytes, file_name, sidecar, received_at, state)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'received')",
        )
        .bind(new_id(now))
        .bind(&run_id);
        let arrival = bind_place(query, &upload.said.place)
            .bind(upload.content_digest.as_str())
            .bind(at_place.next_seq)
            .bind(upload.digest.as_str())
            .bind(kept(upload.bytes))
            .bind(upload.said.file_name.as_deref().unwrap_or_default())
            .bind(sidecar)
            .bind(now.as_millisecond())
            .execute(&mut *tx)
            .await?
            .last_insert_rowid();
        sqlx::query("UPDATE runs SET updated_at = ?, change = change + 1 WHERE id = ?")
            .bind(now.as_millisecond())
            .bind(&run_id)
            .execute(&mut *tx)
            .await?;
        let details = details(&mut tx, arrival).await?;
        tx.commit().await?;
        Ok(Claimed::New(details))
    }

    /// One snapshot.
    pub(crate) async fn snapshot(&self, id: &str) -> anyhow::Result<Option<SnapshotDetails>> {
        let mut tx = self.readers.begin().await?;
        let arrival = sqlx::query_scalar("SELECT arrival FROM snapshots WHERE id = ?")
            .bind(id)
            .fetch_optional(&mut *tx)
            .await?;
        match arrival {
            Some(arrival) => details(&mut tx, arrival).await.map(Some),
            None => Ok(None),
        }
    }

    /// The runs, latest arrival first, at most [`MAX_RUNS`].
    pub(crate) async fn runs(&self) -> anyhow::Result<Vec<RunRow>> {
        let rows = sqlx::query(run_rows!("GROUP BY r.id ORDER BY r.updated_at DESC, r.id DESC LIMIT ?"))
            .bind(MAX_RUNS)
            .fetch_all(&self.readers)
            .await?;
        rows.iter().map(|row| Ok(run_row(row)?)).collect()
    }

    /// The number that goes up with each change of a run's grid.
    pub(crate) async fn change(&self, run_id: &str) -> anyhow::Result<Option<i64>> {
        Ok(sqlx::query_scalar("SELECT change FROM runs WHERE id = ?")
            .bind(run_id)
            .fetch_optional(&self.readers)
            .await?)
    }

    /// A run with all that its grid shows, snapshots in order of arrival, and the change they are of.
    pub(crate) async fn run(&self, run_id: &str) -> anyhow::Result<Option<(i64, RunRow, GridContents)>> {
        let mut tx = self.readers.begin().await?;
        let Some(run) = sqlx::query(run_rows!("WHERE r.id = ? GROUP BY r.id"))
            .bind(run_id)
            .fetch_optional(&mut *tx)
            .await?
        else {
            return Ok(None);
        };
        let snapshots = sqlx::query(
            "SELECT s.id, s.attempt, s.role, s.rank, s.host, s.pid, s.first_step, s.last_step, s.reason, s.state,
                    s.problem, s.n_events, s.n_findings, d.allocated_peak, d.reserved_peak
             FROM snapshots AS s LEFT JOIN devices AS d ON d.arrival = s.arrival AND d.busiest = 1
             WHERE s.run_id = ? ORDER BY s.arrival",
        )
        .bind(run_id)
        .fetch_all(&mut *tx)
        .await?;
        let sampled: Vec<(String, i64)> =
            sqlx::query_as("SELECT DISTINCT role, rank FROM processes WHERE run_id = ?")
                .bind(run_id)
                .fetch_all(&mut *tx)
                .await?;
        let lost = sqlx::query(
            "SELECT p.attempt, p.role, p.rank, p.host, p.pid, l.first_step, l.last_step, 'step' AS reason, l.why
             FROM lost AS l JOIN processes AS p ON p.process = l.process WHERE p.run_id = ?
             ORDER BY l.process, l.last_step, l.first_step LIMIT ?",
        )
        .bind(run_id)
        .bind(MAX_LOST_IN_GRID)
        .fetch_all(&mut *tx)
        .await?;
        let contents = GridContents {
            snapshots: snapshots.iter().map(grid_snapshot).collect::<Result<_, _>>()?,
            sampled: sampled.into_iter().map(|(role, rank)| (role, u32::try_from(rank).ok())).collect(),
            lost: lost.iter().map(lost_snapshot).collect::<Result<_, _>>()?,
        };
        Ok(Some((run.try_get("change")?, run_row(&run)?, contents)))
    }

    /// Takes the snapshot that has waited longest for its reading.
    pub(crate) async fn next_to_read(&self) -> anyhow::Result<Option<ToRead>> {
        let mut tx = self.write().await?;
        let next = sqlx::query(
            "UPDATE snapshots SET state = 'reading', n_reads = n_reads + 1
             WHERE arrival = (SELECT MIN(arrival) FROM snapshots WHERE state = 'received')
             RETURNING id, run_id, digest, bytes, file_name, sidecar",
        )
        .fetch_optional(&mut *tx)
        .await?;
        let Some(next) = next else { return Ok(None) };
        touch(&mut tx, next.try_get("run_id")?).await?;
        tx.commit().await?;
        Ok(Some(ToRead {
            id: next.try_get("id")?,
            digest: Digest::from_catalog(next.try_get("digest")?),
            bytes: known(next.try_get("bytes")?).unwrap_or_default(),
            file_name: next.try_get("file_name")?,
            // It was read when the snapshot came; one that cannot be read any more must not hold up the snapshot.
            sidecar: next
                .try_get::<Option<String>, _>("sidecar")?
                .and_then(|text| serde_json::from_str(&text).ok()),
        }))
    }

    /// A snapshot was read: keeps what was found.
    pub(crate) async fn set_ready(&self, id: &str, inspection: &Inspection) -> anyhow::Result<()> {
        let mut tx = self.write().await?;
        let n_events = inspection.devices.iter().fold(0_u64, |sum, device| sum.saturating_add(device.events));
        let row = sqlx::query(
            "UPDATE snapshots SET state = 'ready', inspection = ?, producer = ?, n_events = ?, n_findings = ?
             WHERE id = ? RETURNING arrival, run_id",
        )
        .bind(serde_json::to_string(inspection)?)
        .bind(&inspection.producer)
        .bind(kept(n_events))
        .bind(kept(inspection.findings.len() as u64))
        .bind(id)
        .fetch_one(&mut *tx)
        .await?;
        let busiest = inspection.busiest_device().map(|device| device.device);
        for device in &inspection.devices {
            sqlx::query("INSERT INTO devices VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")
                .bind(row.try_get::<i64, _>("arrival")?)
                .bind(device.device)
                .bind(Some(device.device) == busiest)
                .bind(kept(device.requested.peak))
                .bind(kept(device.requested.end))
                .bind(kept(device.allocated.peak))
                .bind(kept(device.allocated.end))
                .bind(kept(device.active.peak))
                .bind(kept(device.active.end))
                .bind(kept(device.reserved.peak))
                .bind(kept(device.reserved.end))
                .bind(kept(device.events))
                .execute(&mut *tx)
                .await?;
        }
        touch(&mut tx, row.try_get("run_id")?).await?;
        Ok(tx.commit().await?)
    }

    /// A snapshot cannot be read: keeps the sentence that says why.
    pub(crate) async fn set_failed(&self, id: &str, problem: &str) -> anyhow::Result<()> {
        let mut tx = self.write().await?;
        let run_id = sqlx::query_scalar(
            "UPDATE snapshots SET state = 'failed', problem = ? WHERE id = ? RETURNING run_id",
        )
        .bind(problem)
        .bind(id)
        .fetch_one(&mut *tx)
        .await?;
        touch(&mut tx, run_id).await?;
        Ok(tx.commit().await?)
    }

    /// After a crash: what was being read waits again, unless reading it ended the server too often.
    pub(crate) async fn requeue_cut_readings(&self) -> anyhow::Result<u64> {
        let mut tx = self.write().await?;
        sqlx::query(
            "UPDATE runs SET change = change + 1
             WHERE id IN (SELECT run_id FROM snapshots WHERE state = 'reading')",
        )
        .execute(&mut *tx)
        .await?;
        sqlx::query(
            "UPDATE snapshots SET state = 'failed', problem = ? WHERE state = 'reading' AND n_reads >= ?",
        )
        .bind(format!(
            "reading it ended the server {MAX_READS} times, perhaps for want of memory; the original can be \
                 downloaded"
        ))
        .bind(MAX_READS)
        .execute(&mut *tx)
        .await?;
        let requeued = sqlx::query("UPDATE snapshots SET state = 'received' WHERE state = 'reading'")
            .execute(&mut *tx)
            .await?
            .rows_affected();
        tx.commit().await?;
        Ok(requeued)
    }

    /// Before an orderly end: what is being read waits again, and the cut reading is not held against it.
    pub(crate) async fn give_back_readings(&self) -> anyhow::Result<()> {
        let mut tx = self.write().await?;
        sqlx::query("UPDATE snapshots SET state = 'received', n_reads = n_reads - 1 WHERE state = 'reading'")
            .execute(&mut *tx)
            .await?;
        Ok(tx.commit().await?)
    }

    /// Lets go of the files.
    pub(crate) async fn close(&self) {
        self.readers.close().await;
        self.writer.close().await;
    }

    /// How many originals the rows name.
    pub(crate) async fn n_originals(&self) -> anyhow::Result<u64> {
        let n: i64 = sqlx::query_scalar("SELECT COUNT(DISTINCT digest) FROM snapshots")
            .fetch_one(&self.readers)
            .await?;
        Ok(known(n).unwrap_or_default())
    }

    async fn write(&self) -> anyhow::Result<Transaction<'static, Sqlite>> {
        // Immediate: a transaction that reads first and writes later could be refused half way.
        self.writer.begin_with("BEGIN IMMEDIATE").await.context("cannot write to the catalog")
    }
}

/// The rows of the runs list, ready for a condition and an order.
macro_rules! run_rows {
    ($rest:literal) => {
        concat!(
            "SELECT r.id, r.name, r.created_at, r.updated_at, r.change,
                    (SELECT COUNT(*) FROM (SELECT rank FROM snapshots WHERE run_id = r.id AND rank <> -1
                         UNION SELECT rank FROM processes WHERE run_id = r.id AND rank <> -1)) AS n_ranks,
                    COUNT(s.arrival) AS n_snapshots,
                    COALESCE(SUM(s.state = 'failed'), 0) AS n_failed,
                    COALESCE(SUM(s.state IN ('received', 'reading')), 0) AS n_pending,
                    r.n_samples,
                    (SELECT COALESCE(SUM(n_lost), 0) FROM processes WHERE run_id = r.id) AS n_lost,
                    MAX(s.last_step) AS last_step,
                    (SELECT MAX(last_step) FROM processes WHERE run_id = r.id) AS last_sampled_step,
                    MAX(d.allocated_peak) AS peak_allocated,
                    (SELECT producer FROM snapshots WHERE run_id = r.id AND state = 'ready'
                     ORDER BY arrival DESC LIMIT 1) AS producer
             FROM runs AS r LEFT JOIN snapshots AS s ON s.run_id = r.id
                  LEFT JOIN devices AS d ON d.arrival = s.arrival AND d.busiest = 1 ",
            $rest
        )
    };
}
use run_rows;

fn run_row(row: &SqliteRow) -> sqlx::Result<RunRow> {
    let count = |name| Ok::<_, sqlx::Error>(known(row.try_get(name)?).unwrap_or_default());
    let step = |name| Ok::<_, sqlx::Error>(row.try_get::<Option<i64>, _>(name)?.and_then(known));
    Ok(RunRow {
        id: row.try_get("id")?,
        name: row.try_get("name")?,
        created_at: date(row.try_get("created_at")?),
        updated_at: date(row.try_get("updated_at")?),
        latest_step: step("last_step")?.max(step("last_sampled_step")?),
        n_ranks: count("n_ranks")?,
        n_snapshots: count("n_snapshots")?,
        n_samples: count("n_samples")?,
        n_lost: count("n_lost")?,
        n_failed: count("n_failed")?,
        n_pending: count("n_pending")?,
        peak_allocated: row.try_get::<Option<i64>, _>("peak_allocated")?.and_then(known),
        producer: row.try_get("producer")?,
    })
}

fn grid_snapshot(row: &SqliteRow) -> sqlx::Result<GridSnapshot> {
    let number = |name| Ok::<_, sqlx::Error>(row.try_get::<Option<i64>, _>(name)?.and_then(known));
    Ok(GridSnapshot {
        id: row.try_get("id")?,
        place: place(row)?,
        state: state(row)?,
        problem: row.try_get("problem")?,
        peak_allocated: number("allocated_peak")?,
        peak_reserved: number("reserved_peak")?,
        n_events: number("n_events")?,
        n_findings: number("n_findings")?,
    })
}

fn lost_snapshot(row: &SqliteRow) -> sqlx::Result<LostSnapshot> {
    Ok(LostSnapshot { place: place(row)?, why: row.try_get("why")? })
}

async fn details(tx: &mut Transaction<'_, Sqlite>, arrival: i64) -> anyhow::Result<SnapshotDetails> {
    let row = sqlx::query(
        "SELECT s.*, r.name AS run_name FROM snapshots AS s JOIN runs AS r ON r.id = s.run_id WHERE s.arrival = ?",
    )
    .bind(arrival)
    .fetch_one(&mut **tx)
    .await?;
    let run_name: String = row.try_get("run_name")?;
    let json = |name| row.try_get::<Option<String>, _>(name);
    Ok(SnapshotDetails {
        id: row.try_get("id")?,
        run_id: row.try_get("run_id")?,
        run_name: run_name.clone(),
        place: Place { run: Some(run_name), ..place(&row)? },
        seq: row.try_get("seq")?,
        state: state(&row)?,
        problem: row.try_get("problem")?,
        file_name: Some(row.try_get("file_name")?).filter(|name: &String| !name.is_empty()),
        bytes: known(row.try_get("bytes")?).unwrap_or_default(),
        digest: row.try_get("digest")?,
        received_at: date(row.try_get("received_at")?),
        inspection: json("inspection")?.map(|text| serde_json::from_str(&text)).transpose()?,
        sidecar: json("sidecar")?.map(|text| serde_json::from_str(&text)).transpose()?,
        already_here: false,
    })
}

/// A run by its id or its name.
async fn run_id(tx: &mut Transaction<'_, Sqlite>, run: &str) -> sqlx::Result<Option<String>> {
    sqlx::query_scalar("SELECT id FROM runs WHERE id = ?1 OR name = ?1 ORDER BY id = ?1 DESC LIMIT 1")
        .bind(run)
        .fetch_optional(&mut **tx)
        .await
}

async fn new_run(tx: &mut Transaction<'_, Sqlite>, name: &str, now: Timestamp) -> sqlx::Result<String> {
    let id = new_id(now);
    sqlx::query("INSERT INTO runs (id, name, created_at, updated_at) VALUES (?1, ?2, ?3, ?3)")
        .bind(&id)
        .bind(name)
        .bind(now.as_millisecond())
        .execute(&mut **tx)
        .await?;
    Ok(id)
}

/// What is at an upload's place.
#[derive(FromRow)]
struct AtPlace {
    /// The row with the same content.
    here: Option<i64>,
    /// The number for another content.
    next_seq: i64,
}

async fn at_place(
    tx: &mut Transaction<'_, Sqlite>,
    run_id: &str,
    place: &Place,
    content_digest: &str,
) -> anyhow::Result<AtPlace> {
    let query = sqlx::query(
        "SELECT MAX(CASE WHEN content_digest = ? THEN arrival END) AS here, COALESCE(MAX(seq) + 1, 0) AS next_seq
         FROM snapshots
         WHERE run_id = ? AND attempt = ? AND role = ? AND rank = ? AND host = ? AND pid = ?
               AND first_step = ? AND last_step = ? AND reason = ?",
    )
    .bind(content_digest)
    .bind(run_id);
    let row = bind_place(query, place).fetch_one(&mut **tx).await?;
    Ok(AtPlace::from_row(&row)?)
}

/// Binds a place's columns in the order of the table: attempt, role, rank, host, pid, first and last step, reason.
fn bind_place<'q>(query: Query<'q>, place: &Place) -> Query<'q> {
    let word = |word: &Option<String>| word.clone().unwrap_or_default();
    let number = |number: Option<u32>| number.map_or(-1, i64::from);
    let step = |step: Option<u64>| step.map_or(-1, kept);
    query
        .bind(number(place.attempt))
        .bind(word(&place.role))
        .bind(number(place.rank))
        .bind(word(&place.host))
        .bind(number(place.pid))
        .bind(step(place.first_step))
        .bind(step(place.last_step))
        .bind(word(&place.reason))
}

/// The same columns back as a place; the run is not among them.
fn place(row: &SqliteRow) -> sqlx::Result<Place> {
    let word =
        |name| Ok::<_, sqlx::Error>(Some(row.try_get::<String, _>(name)?).filter(|word| !word.is_empty()));
    let number = |name| Ok::<_, sqlx::Error>(u32::try_from(row.try_get::<i64, _>(name)?).ok());
    let step = |name| Ok::<_, sqlx::Error>(known(row.try_get(name)?));
    Ok(Place {
        run: None,
        attempt: number("attempt")?,
        role: word("role")?,
        rank: number("rank")?,
        host: word("host")?,
        pid: number("pid")?,
        first_step: step("first_step")?,
        last_step: step("last_step")?,
        reason: word("reason")?,
    })
}

fn state(row: &SqliteRow) -> sqlx::Result<State> {
    let word: &str = row.try_get("state")?;
    [State::Received, State::Reading, State::Ready, State::Failed]
        .into_iter()
        .find(|state| state.as_str() == word)
        .ok_or_else(|| sqlx::Error::Decode(format!("the catalog holds the state {word:?}").into()))
}

/// Says that a run's grid has changed.
async fn touch(tx: &mut Transaction<'_, Sqlite>, run_id: String) -> sqlx::Result<()> {
    sqlx::query("UPDATE runs SET change = change + 1 WHERE id = ?").bind(run_id).execute(&mut **tx).await?;
    Ok(())
}

/// A number as SQLite keeps it. No honest snapshot has more than 2^63 bytes of anything.
fn kept(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A number back from SQLite; -1 stands for none.
fn known(number: i64) -> Option<u64> {
    u64::try_from(number).ok()
}

fn date(unix_millis: i64) -> String {
    Timestamp::from_millisecond(unix_millis).unwrap_or_default().to_string()
}

fn new_id(now: Timestamp) -> String {
    let since_epoch = Duration::from_millis(known(now.as_millisecond()).unwrap_or_default());
    Ulid::from_datetime(SystemTime::UNIX_EPOCH + since_epoch).to_string()
}
