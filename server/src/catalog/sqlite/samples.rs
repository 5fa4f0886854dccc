//! Samples in SQLite: a row per process, step and device.

use jiff::Timestamp;
use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, Sqlite, Transaction};
use tidegauge_api::samples::Lost;

use super::{Catalog, Query, date, kept, known, new_run, run_id};
use crate::catalog::{
    MAX_LOST_PER_PROCESS, MAX_PROCESSES_PER_RUN, MAX_SAMPLES_PER_RUN, Sampled, SamplesRefused,
};
use crate::samples::{Asked, Batch, Found, Process, Stretch, Summary, wanted_width};

type Tx = Transaction<'static, Sqlite>;

impl Catalog {
    /// Keeps what a batch holds and was not here yet, all of it or nothing.
    pub(crate) async fn keep_samples(
        &self,
        batch: &Batch,
        now: Timestamp,
    ) -> anyhow::Result<Result<Sampled, SamplesRefused>> {
        let mut tx = self.write().await?;
        let run_id = match run_id(&mut tx, &batch.run).await? {
            Some(id) => id,
            None => new_run(&mut tx, &batch.run, now).await?,
        };
        let Some((process, is_new_process)) = process(&mut tx, &run_id, batch).await? else {
            return Ok(Err(SamplesRefused::TooManyProcesses));
        };
        let n_new = insert_samples(&mut tx, process, batch).await?;
        let n_new_lost = insert_lost(&mut tx, process, &batch.lost).await?;
        let counted = update_process(&mut tx, process, batch).await?;
        let changes_grid = n_new_lost > 0 || counted.more_lost || is_new_process;
        if n_new > 0 || counted.more_dropped || changes_grid {
            let n_samples: i64 = sqlx::query_scalar(
                "UPDATE runs SET updated_at = MAX(updated_at, ?), n_samples = n_samples + ?,
                        sample_change = sample_change + 1, change = change + ? WHERE id = ? RETURNING n_samples",
            )
            .bind(now.as_millisecond())
            .bind(kept(n_new))
            .bind(changes_grid)
            .bind(&run_id)
            .fetch_one(&mut *tx)
            .await?;
            if n_samples > MAX_SAMPLES_PER_RUN {
                thin(&mut tx, &run_id, n_samples, MAX_SAMPLES_PER_RUN).await?;
            }
        }
        tx.commit().await?;
        Ok(Ok(Sampled { run_id, n_new }))
    }

    /// The numbers that go up with each change of a run's samples, and of its grid.
    pub(crate) async fn sample_change(&self, run_id: &str) -> anyhow::Result<Option<(i64, i64)>> {
        Ok(sqlx::query_as("SELECT sample_change, change FROM runs WHERE id = ?")
            .bind(run_id)
            .fetch_optional(&self.readers)
            .await?)
    }

    /// What is asked of a run's samples, with the changes it is of.
    pub(crate) async fn samples(
        &self,
        run_id: &str,
        asked: &Asked,
    ) -> anyhow::Result<Option<((i64, i64), Found)>> {
        let mut tx = self.readers.begin().await?;
        let Some(summary) = sqlx::query(
            "SELECT r.sample_change, r.change, r.n_samples, r.sample_stride,
                    COALESCE(SUM(p.n_dropped), 0) AS n_dropped, MIN(p.first_step) AS first_step,
                    MAX(p.last_step) AS last_step, MAX(p.sampled_at) AS sampled_at,
                    MIN(p.lowest_peak) AS lowest_peak, MAX(p.highest_peak) AS highest_peak
             FROM runs AS r LEFT JOIN processes AS p ON p.run_id = r.id WHERE r.id = ? GROUP BY r.id",
        )
        .bind(run_id)
        .fetch_optional(&mut *tx)
        .await?
        else {
            return Ok(None);
        };
        let changes = (summary.try_get("sample_change")?, summary.try_get("change")?);
        let summary = summary_from(&summary)?;
        let rows: Vec<(String, i64)> = sqlx::query_as(
            "SELECT role, rank FROM snapshots WHERE run_id = ?1 UNION SELECT role, rank FROM processes WHERE run_id = ?1",
        )
        .bind(run_id)
        .fetch_all(&mut *tx)
        .await?;
        let rows = asked.rows(rows.into_iter().map(|(role, rank)| (role, known(rank))));
        let processes: Vec<(i64, String, i64, i64)> =
            sqlx::query_as("SELECT process, role, rank, attempt FROM processes WHERE run_id = ?")
                .bind(run_id)
                .fetch_all(&mut *tx)
                .await?;
        let processes: Vec<_> = processes
            .into_iter()
            .filter_map(|(process, role, rank, attempt)| {
                let row = rows.iter().position(|row| row.role == role && row.rank == rank_from(rank))?;
                Some(Process { process, row, attempt })
            })
            .collect();
        let among = serde_json::to_string(&processes.iter().map(|p| p.process).collect::<Vec<_>>())?;
        let steps = asked.steps(&summary);
        let width = wanted_width(steps, asked.n_columns);
        let (first, last) = (kept(asked.first_step), kept(asked.last_step));
        let mut found = stretches(
            sqlx::query(put_together!(
                "WHERE process IN (SELECT value FROM json_each(?1)) AND step BETWEEN ?3 AND ?4"
            ))
            .bind(&among)
            .bind(kept(width))
            .bind(first)
            .bind(last)
            .fetch_all(&mut *tx)
            .await?,
            false,
        )?;
        if width > 1 {
            // Ranks without a snapshot at a step that has a column shall not be holes in it; of very many such
            // steps the latest.
            let at_snapshots = sqlx::query(put_together!(
                "WHERE process IN (SELECT value FROM json_each(?1)) AND step BETWEEN ?3 AND ?4 AND step IN (
                     SELECT last_step FROM snapshots WHERE run_id = ?5 AND last_step BETWEEN ?3 AND ?4
                     UNION SELECT l.last_step FROM lost AS l JOIN processes AS p ON p.process = l.process
                           WHERE p.run_id = ?5 AND l.last_step BETWEEN ?3 AND ?4
                     ORDER BY last_step DESC LIMIT 512)"
            ))
            .bind(&among)
            .bind(1)
            .bind(first)
            .bind(last)
            .bind(run_id)
            .fetch_all(&mut *tx)
            .await?;
            found.extend(stretches(at_snapshots, true)?);
        }
        Ok(Some((changes, Found { summary, steps, width, rows, processes, stretches: found })))
    }
}

/// Samples put together to stretches of ?2 steps: 1 to ?2, and so on; step 0 stands alone.
macro_rules! put_together {
    ($condition:literal) => {
        concat!(
            "SELECT process, device, step / ?2 + (step % ?2 > 0) AS stretch, MAX(allocated) AS allocated,
                    MAX(allocated_peak) AS allocated_peak, MAX(reserved) AS reserved,
                    MAX(device_total - device_free - reserved) AS outside, MAX(step_us) AS step_us,
                    MAX(n_ooms) AS n_ooms, MAX(n_alloc_retries) AS n_alloc_retries
             FROM samples ",
            $condition,
            " GROUP BY process, device, stretch"
        )
    };
}
use put_together;

fn stretches(rows: Vec<SqliteRow>, is_exact: bool) -> sqlx::Result<Vec<Stretch>> {
    let stretch = |row: &SqliteRow| {
        let number = |name| row.try_get::<Option<i64>, _>(name);
        Ok(Stretch {
            process: row.try_get(0)?,
            device: row.try_get(1)?,
            number: known(row.try_get(2)?).unwrap_or_default(),
            is_exact,
            allocated: number("allocated")?.and_then(known),
            allocated_peak: number("allocated_peak")?.and_then(known),
            reserved: number("reserved")?.and_then(known),
            // A hair below zero when memory moved between the two questions.
            outside: number("outside")?.map(|outside| outside.max(0)).and_then(known),
            step_us: number("step_us")?.and_then(known),
            n_ooms: number("n_ooms")?.and_then(known),
            n_alloc_retries: number("n_alloc_retries")?.and_then(known),
        })
    };
    rows.iter().map(stretch).collect()
}

fn summary_from(row: &SqliteRow) -> sqlx::Result<Summary> {
    let number = |name| Ok::<_, sqlx::Error>(row.try_get::<Option<i64>, _>(name)?.and_then(known));
    Ok(Summary {
        n_samples: number("n_samples")?.unwrap_or_default(),
        n_dropped: number("n_dropped")?.unwrap_or_default(),
        stride: number("sample_stride")?.unwrap_or(1),
        first_step: number("first_step")?,
        last_step: number("last_step")?,
        sampled_at: row.try_get::<Option<i64>, _>("sampled_at")?.map(|us| date(us / 1000)),
        lowest_peak: number("lowest_peak")?,
        highest_peak: number("highest_peak")?,
    })
}

fn rank_from(rank: i64) -> Option<u32> {
    u32::try_from(rank).ok()
}

/// The batch's process, and whether it was new; none when the run has too many.
async fn process(tx: &mut Tx, run_id: &str, batch: &Batch) -> sqlx::Result<Option<(i64, bool)>> {
    let query = sqlx::query(
        "SELECT process FROM processes WHERE run_id = ? AND attempt = ? AND role = ? AND rank = ? AND host = ? AND pid = ?",
    );
    if let Some(row) = bind_process(query, run_id, batch).fetch_optional(&mut **tx).await? {
        return Ok(Some((row.try_get(0)?, false)));
    }
    let n: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM processes WHERE run_id = ?")
        .bind(run_id)
        .fetch_one(&mut **tx)
        .await?;
    if n >= MAX_PROCESSES_PER_RUN {
        return Ok(None);
    }
    let query = sqlx::query(
        "INSERT INTO processes (run_id, attempt, role, rank, host, pid) VALUES (?, ?, ?, ?, ?, ?)",
    );
    let inserted = bind_process(query, run_id, batch).execute(&mut **tx).await?;
    Ok(Some((inserted.last_insert_rowid(), true)))
}

fn bind_process<'q>(query: Query<'q>, run_id: &str, Batch { place, .. }: &Batch) -> Query<'q> {
    let number = |number: Option<u32>| number.map_or(-1, i64::from);
    query
        .bind(run_id.to_owned())
        .bind(number(place.attempt))
        .bind(place.role.clone().unwrap_or_default())
        .bind(number(place.rank))
        .bind(place.host.clone().unwrap_or_default())
        .bind(number(place.pid))
}

async fn insert_samples(tx: &mut Tx, process: i64, batch: &Batch) -> sqlx::Result<u64> {
    let mut n_new = 0;
    for sample in &batch.samples {
        // In the order of the table, which is the order of the columns.
        let mut query = sqlx::query(
            "INSERT OR IGNORE INTO samples VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        )
        .bind(process)
        .bind(kept(sample.step))
        .bind(sample.device)
        .bind(sample.at_us);
        for (_, number) in sample.numbers() {
            query = query.bind(number.map(kept));
        }
        n_new += query.execute(&mut **tx).await?.rows_affected();
    }
    Ok(n_new)
}

async fn insert_lost(tx: &mut Tx, process: i64, lost: &[Lost]) -> sqlx::Result<u64> {
    let step = |step: Option<u64>| step.map_or(-1, kept);
    let mut n_new = 0;
    for Lost { first_step, last_step, why } in lost {
        n_new += sqlx::query(
            "INSERT OR IGNORE INTO lost SELECT ?1, ?2, ?3, ?4
             WHERE (SELECT COUNT(*) FROM lost WHERE process = ?1) < ?5",
        )
        .bind(process)
        .bind(step(*first_step))
        .bind(step(*last_step))
        .bind(why)
        .bind(MAX_LOST_PER_PROCESS)
        .execute(&mut **tx)
        .await?
        .rows_affected();
    }
    Ok(n_new)
}

/// Which of a process's counts a batch raised.
struct Counted {
    more_dropped: bool,
    more_lost: bool,
}

/// Widens what is known of a process by a batch.
async fn update_process(tx: &mut Tx, process: i64, batch: &Batch) -> sqlx::Result<Counted> {
    let (n_dropped, n_lost): (i64, i64) =
        sqlx::query_as("SELECT n_dropped, n_lost FROM processes WHERE process = ?")
            .bind(process)
            .fetch_one(&mut **tx)
            .await?;
    let steps = || batch.samples.iter().map(|sample| sample.step);
    let peaks = || batch.samples.iter().filter_map(|sample| sample.allocated_peak);
    // What a batch does not tell must not wipe out what is known: MIN and MAX of NULL would.
    sqlx::query(
        "UPDATE processes SET n_dropped = MAX(n_dropped, ?2), n_lost = MAX(n_lost, ?3),
                first_step = MIN(COALESCE(first_step, ?4), COALESCE(?4, first_step)),
                last_step = MAX(COALESCE(last_step, ?5), COALESCE(?5, last_step)),
                sampled_at = MAX(COALESCE(sampled_at, ?6), COALESCE(?6, sampled_at)),
                lowest_peak = MIN(COALESCE(lowest_peak, ?7), COALESCE(?7, lowest_peak)),
                highest_peak = MAX(COALESCE(highest_peak, ?8), COALESCE(?8, highest_peak))
         WHERE process = ?1",
    )
    .bind(process)
    .bind(kept(batch.n_dropped))
    .bind(kept(batch.n_lost))
    .bind(steps().min().map(kept))
    .bind(steps().max().map(kept))
    .bind(batch.samples.iter().map(|sample| sample.at_us).max())
    .bind(peaks().min().map(kept))
    .bind(peaks().max().map(kept))
    .execute(&mut **tx)
    .await?;
    Ok(Counted { more_dropped: kept(batch.n_dropped) > n_dropped, more_lost: kept(batch.n_lost) > n_lost })
}

/// Thins a run's older steps until a sixteenth of `most` is free: every second stays, then every
/// fourth, and so on. The newest stay whole, as many as fill a quarter of the bound, and fewer where that does not
/// do. It looks at each row of the run, which takes about a second.
async fn thin(tx: &mut Tx, run_id: &str, mut n_samples: i64, most: i64) -> sqlx::Result<()> {
    /// Halvings after which nothing can be left to halve.
    const MAX_TURNS: u32 = 20;
    let (last, stride, n_processes): (i64, i64, i64) = sqlx::query_as(
        "SELECT MAX(p.last_step), r.sample_stride, COUNT(*)
         FROM runs AS r JOIN processes AS p ON p.run_id = r.id WHERE r.id = ?",
    )
    .bind(run_id)
    .fetch_one(&mut **tx)
    .await?;
    let mut stride = stride.max(2);
    let mut n_newest = (most / 4 / n_processes).max(1);
    let enough = most - most / 16;
    for turn in 0..=MAX_TURNS {
        let is_last_turn = turn == MAX_TURNS;
        let thinned = sqlx::query(
            "DELETE FROM samples WHERE process IN (SELECT process FROM processes WHERE run_id = ?1)
                    AND step <= ?2 AND (?3 OR step % ?4 <> 0)",
        )
        .bind(run_id)
        .bind(last.saturating_sub(n_newest))
        .bind(is_last_turn)
        .bind(stride)
        .execute(&mut **tx)
        .await?;
        n_samples -= i64::try_from(thinned.rows_affected()).unwrap_or(n_samples);
        if n_samples <= enough || is_last_turn {
            break;
        }
        stride *= 2;
        n_newest = (n_newest / 2).max(1);
    }
    sqlx::query("UPDATE runs SET n_samples = ?, sample_stride = ? WHERE id = ?")
        .bind(n_samples)
        .bind(stride)
        .bind(run_id)
        .execute(&mut **tx)
        .await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use tidegauge_api::Place;
    use tidegauge_api::samples::Sample;

    use super::*;

    fn batch(rank: u32, steps: impl Iterator<Item = u64>) -> Batch {
        let place = Place { rank: Some(rank), ..Place::default() };
        let samples = steps.map(|step| Sample { step, allocated: Some(step), ..Sample::default() }).collect();
        Batch { run: "gpt".to_owned(), place, n_dropped: 0, n_lost: 0, lost: Vec::new(), samples }
    }

    async fn steps_left(catalog: &Catalog) -> Vec<i64> {
        sqlx::query_scalar("SELECT DISTINCT step FROM samples ORDER BY step")
            .fetch_all(&catalog.readers)
            .await
            .unwrap()
    }

    #[tokio::test]
    async fn old_steps_are_thinned_and_the_newest_stay_whole() {
        let folder = tempfile::tempdir().unwrap();
        let catalog = Catalog::open(&folder.path().join("catalog.db")).await.unwrap();
        let mut run_id = String::new();
        for rank in 0..4 {
            run_id = catalog
                .keep_samples(&batch(rank, 1..=64), Timestamp::UNIX_EPOCH)
                .await
                .unwrap()
                .unwrap()
                .run_id;
        }
        let thinned = async |n_samples, most| {
            let mut tx = catalog.write().await.unwrap();
            thin(&mut tx, &run_id, n_samples, most).await.unwrap();
            tx.commit().await.unwrap();
            let numbers = "SELECT n_samples, sample_stride FROM runs";
            sqlx::query_as::<_, (i64, i64)>(numbers).fetch_one(&catalog.readers).await.unwrap()
        };
        // A quarter of 256 samples are the 16 newest steps of 4 ranks.
        assert_eq!(thinned(256, 256).await, (160, 2));
        let newest = 49..=64;
        let expected: Vec<_> = (1..=48).filter(|step| step % 2 == 0).chain(newest).collect();
        assert_eq!(steps_left(&catalog).await, expected);
        // Where halving the oldest does not do, fewer stay whole.
        let (n_samples, stride) = thinned(160, 40).await;
        assert!(n_samples <= 38 && stride > 2, "{n_samples} {stride}");
        assert_eq!(steps_left(&catalog).await.last(), Some(&64));
        catalog.close().await;
    }

    #[tokio::test]
    async fn a_bound_is_kept_whatever_the_steps_are() {
        let folder = tempfile::tempdir().unwrap();
        let catalog = Catalog::open(&folder.path().join("catalog.db")).await.unwrap();
        let far_apart = (1..=64).map(|n| n << 40);
        let kept = catalog.keep_samples(&batch(0, far_apart), Timestamp::UNIX_EPOCH).await.unwrap().unwrap();
        let mut tx = catalog.write().await.unwrap();
        thin(&mut tx, &kept.run_id, 64, 16).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!(steps_left(&catalog).await, [64_i64 << 40]);
        catalog.close().await;
    }
}
