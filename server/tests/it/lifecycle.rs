//! The life of the process: started twice, stopped, killed in the middle of everything.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tidegauge_api::paths;
use tidegauge_api::snapshot::{SnapshotDetails, State};

use crate::app::{Caller, count_files, gzipped, oom, streams};
use crate::process::{Process, command, command_on, refused};

#[test]
fn a_second_server_on_the_same_folder_says_who_holds_it() {
    let folder = tempfile::tempdir().unwrap();
    let first = Process::start(folder.path());
    let (code, sentence) = refused(&mut command(folder.path()));
    assert_eq!(code, Some(1));
    assert_eq!(
        sentence,
        format!(
            "tidegauge-server: the data folder {} is in use by another tidegauge-server (process {}, {}); stop that \
             one, or give this one another folder with --data",
            folder.path().display(),
            first.id(),
            first.caller.url("")
        )
    );
    first.kill();
    // The lock died with its holder.
    Process::start(folder.path());
}

#[test]
fn a_server_that_others_could_reach_does_not_start_without_a_token() {
    let folder = tempfile::tempdir().unwrap();
    let (code, sentence) = refused(&mut command_on("0.0.0.0:0", folder.path()));
    assert_eq!(code, Some(1));
    assert!(sentence.contains("TIDEGAUGE_TOKEN") && sentence.contains("--insecure"), "{sentence}");
}

#[cfg(unix)]
#[test]
fn an_orderly_end_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let first = Process::start(folder.path());
    let ids: Vec<_> = (0..5)
        .map(|rank| first.caller.accepted(&format!("run=a&rank={rank}"), &gzipped(&streams(), rank)).id)
        .collect();
    assert_eq!(first.terminate(), Some(0));
    assert!(!folder.path().join("catalog.sqlite-wal").exists(), "a copy of catalog.sqlite alone is whole");
    let second = Process::start(folder.path());
    for id in ids {
        assert_eq!(second.caller.until_read(&id).state, State::Ready);
    }
}

/// Ten callers at once, each for its own rank, one step after the other; the server is killed in the middle, four
/// times, and each time callers send again what was not accepted.
#[test]
fn killed_during_ten_uploads_it_keeps_all_it_accepted_none_twice_none_half() {
    const N_RANKS: u32 = 10;
    const N_STEPS: u32 = 8;
    let folder = tempfile::tempdir().unwrap();
    let accepted: Mutex<BTreeMap<(u32, u32), String>> = Mutex::default();
    for until in [1, 15, 30, 50] {
        let server = Process::start(folder.path());
        let caller = server.caller.clone();
        let n_accepted = AtomicUsize::new(accepted.lock().unwrap().len());
        std::thread::scope(|scope| {
            for rank in 0..N_RANKS {
                let (caller, accepted, n_accepted) = (&caller, &accepted, &n_accepted);
                scope.spawn(move || {
                    for step in 0..N_STEPS {
                        if accepted.lock().unwrap().contains_key(&(rank, step)) {
                            continue;
                        }
                        let Some(details) = try_send(caller, rank, step) else { return };
                        accepted.lock().unwrap().insert((rank, step), details.id);
                        n_accepted.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
            while n_accepted.load(Ordering::SeqCst) < until {
                std::thread::sleep(Duration::from_millis(1));
            }
            server.kill();
        });
        assert!(
            accepted.lock().unwrap().len() < (N_RANKS * N_STEPS) as usize,
            "killed too late to tell anything"
        );
    }

    let accepted = accepted.into_inner().unwrap();
    let server = Process::start(folder.path());
    let caller = &server.caller;
    assert_eq!(count_files(&folder.path().join("spool")), 0);
    for (&(rank, step), id) in &accepted {
        let details = caller.until_read(id);
        assert_eq!((details.state, details.problem), (State::Ready, None));
        assert_eq!((details.place.rank, details.place.last_step), (Some(rank), Some(step.into())));
        assert!(caller.get(&paths::original(id)).body == body(rank, step), "rank {rank} step {step}");
    }

    // What was not accepted, and for good measure what was: sent again, everything is there once.
    for rank in 0..N_RANKS {
        for step in 0..N_STEPS {
            let details = try_send(caller, rank, step).expect("nobody kills the server now");
            if let Some(id) = accepted.get(&(rank, step)) {
                assert_eq!((&details.id, details.already_here), (id, true));
            }
            assert_eq!(caller.until_read(&details.id).state, State::Ready);
        }
    }
    let runs = caller.runs();
    assert_eq!(runs.len(), 1);
    assert_eq!(
        (runs[0].n_snapshots, runs[0].n_failed, runs[0].n_pending),
        ((N_RANKS * N_STEPS).into(), 0, 0)
    );
    let grid = caller.grid(&runs[0].id);
    assert_eq!(grid.cells.len(), (N_RANKS * N_STEPS) as usize);
    assert!(grid.cells.iter().all(|cell| cell.snapshots.len() == 1));
    assert_eq!(count_files(&folder.path().join("originals")), (N_RANKS * N_STEPS) as usize);
}

/// Other bytes for each rank and step.
fn body(rank: u32, step: u32) -> Vec<u8> {
    let content = if step.is_multiple_of(2) { oom() } else { streams() };
    gzipped(&content, 1000 * rank + step)
}

/// Sends a snapshot, sometimes slowly; nothing when the server went away.
fn try_send(caller: &Caller, rank: u32, step: u32) -> Option<SnapshotDetails> {
    let body = body(rank, step);
    let query = format!("run=killed&rank={rank}&step={step}");
    let reply = match (rank + step) % 3 {
        0 => caller.try_upload(&query, &[], &body).ok()?,
        _ => caller.upload_stream(&query, Slow(&body)).ok()?,
    };
    assert!(matches!(reply.status, 200 | 201), "{} {}", reply.status, reply.text());
    Some(reply.json())
}

/// Bytes that come in pieces, with pauses.
struct Slow<'a>(&'a [u8]);

impl Read for Slow<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        std::thread::sleep(Duration::from_millis(1));
        let n = self.0.len().min(buffer.len()).min(2000);
        let (now, later) = self.0.split_at(n);
        buffer[..n].copy_from_slice(now);
        self.0 = later;
        Ok(n)
    }
}
