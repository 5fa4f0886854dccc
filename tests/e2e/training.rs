//! Real training on two ranks, the agent in it, and a grid that fills. `cargo xtask test --torch` runs these.

mod native;

use std::{
    collections::BTreeMap,
    fs,
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::PathBuf,
    thread,
};

use serde_json::{Value, json};
use tidegauge_api::{
    inspection::DeviceInspection,
    paths::{self, page},
    run::Grid,
    samples::GridSamples,
    snapshot::{SnapshotDetails, State},
};
use tidegauge_tests::{
    Browser, Server, Training, eventually,
    training::{EXIT_CODE, described, free_port},
};

mod life;

/// The curves of a device, and what torch calls them.
const CURVES: [&str; 4] = ["requested", "allocated", "active", "reserved"];

/// All snapshots of a run, by rank, in order of their steps, once the server has read them.
async fn all_of(server: &Server, run: &str, n_snapshots: usize) -> BTreeMap<u32, Vec<SnapshotDetails>> {
    let (_, grid) = grid_of(server, run, n_snapshots).await;
    let mut ranks = BTreeMap::<u32, Vec<SnapshotDetails>>::new();
    for cell in &grid.cells {
        for id in &cell.snapshots {
            let details = server.read(id).await;
            assert_eq!(details.state, State::Ready, "{:?}", details.problem);
            ranks.entry(details.place.rank.unwrap()).or_default().push(details);
        }
    }
    for snapshots in ranks.values_mut() {
        snapshots.sort_by_key(|snapshot| snapshot.place.last_step);
    }
    ranks
}

async fn grid_of(server: &Server, run: &str, n_snapshots: usize) -> (String, Grid) {
    eventually(&format!("{n_snapshots} snapshots of {run}"), || async {
        let row = server.runs().into_iter().find(|row| row.name == run);
        let Some(row) = row else { return Err("no such run".to_owned()) };
        match row.n_snapshots {
            n if n >= n_snapshots as u64 => Ok((row.id.clone(), server.grid(&row.id))),
            n => Err(format!("{n} snapshots")),
        }
    })
    .await
}

fn columns(grid: &Grid) -> Vec<&str> {
    grid.columns.iter().map(|column| column.label.as_str()).collect()
}

/// The bytes the server keeps, unpacked.
fn original(server: &Server, folder: &tempfile::TempDir, id: &str) -> PathBuf {
    let mut answer = ureq::get(format!("{}{}", server.address(), paths::original(id))).call().unwrap();
    let mut bytes = Vec::new();
    answer.body_mut().as_reader().read_to_end(&mut bytes).unwrap();
    let path = folder.path().join(format!("{id}.pickle"));
    fs::write(&path, zstd::decode_all(bytes.as_slice()).unwrap()).unwrap();
    path
}

fn level(device: &DeviceInspection, curve: &str) -> (u64, u64) {
    let levels = match curve {
        "requested" => device.requested,
        "allocated" => device.allocated,
        "active" => device.active,
        _ => device.reserved,
    };
    (levels.peak, levels.end)
}

/// Holds what the server has against what the training process saw of itself.
fn check_against_witness(server: &Server, training: &Training, ranks: &BTreeMap<u32, Vec<SnapshotDetails>>) {
    let folder = tempfile::tempdir().unwrap();
    for (rank, snapshots) in ranks {
        let witness = training.witness(*rank);
        let taken: Vec<_> = witness.iter().filter(|line| line.get("digest").is_some()).collect();
        assert_eq!(taken.len(), snapshots.len(), "rank {rank}");

        // Every event that `_snapshot()` returned is on the server, with all its fields, and in one window only.
        let pickles: Vec<_> =
            snapshots.iter().map(|snapshot| original(server, &folder, &snapshot.id)).collect();
        let lines = described(&pickles);
        let (together, kept) = lines.split_last().unwrap();
        for ((taken, kept), snapshot) in taken.iter().zip(kept).zip(snapshots) {
            assert_eq!(**taken, *kept, "rank {rank}, {}", snapshot.place.step_label());
            let inspection = snapshot.inspection.as_ref().unwrap();
            let n_events: u64 = inspection.devices.iter().map(|device| device.events).sum();
            assert_eq!(kept["events"], n_events);
        }
        assert_eq!(together["in_two"], 0, "rank {rank}");

        for snapshot in snapshots {
            check_window(&witness, snapshot);
        }
        check_levels(snapshots);
    }
}

/// A window holds the allocations of its steps, as the allocator counted them.
fn check_window(witness: &[Value], snapshot: &SnapshotDetails) {
    let so_far = |step: u64| {
        let line = witness.iter().find(|line| line["step"] == step);
        line.map_or(0, |line| line["allocations_so_far"].as_u64().unwrap())
    };
    let last = snapshot.place.last_step.unwrap();
    let first = snapshot.place.first_step.unwrap_or(last);
    let devices = &snapshot.inspection.as_ref().unwrap().devices;
    let n_allocations: u64 =
        devices.iter().map(|device| device.actions.get("alloc").copied().unwrap_or(0)).sum();
    assert_eq!(n_allocations, so_far(last) - so_far(first - 1), "{}", snapshot.place.step_label());
}

/// The replayed levels are the allocator's own.
pub(super) fn check_levels(snapshots: &[SnapshotDetails]) {
    let mut peaks = BTreeMap::<(u32, &str), u64>::new();
    for snapshot in snapshots {
        let stats = &snapshot.sidecar.as_ref().unwrap().memory_stats;
        assert!(!stats.is_empty());
        for device in &snapshot.inspection.as_ref().unwrap().devices {
            let Some(stats) = stats.get(&device.device.to_string()) else { continue };
            for curve in CURVES {
                let (peak, end) = level(device, curve);
                let label = snapshot.place.step_label();
                assert_eq!(stats[format!("{curve}_bytes.all.current")], end, "{curve} at the end of {label}");
                let highest = peaks.entry((device.device, curve)).or_default();
                *highest = peak.max(*highest);
            }
        }
    }
    let stats = &snapshots.last().unwrap().sidecar.as_ref().unwrap().memory_stats;
    assert!(!peaks.is_empty());
    for ((device, curve), peak) in peaks {
        assert_eq!(stats[&device.to_string()][format!("{curve}_bytes.all.peak")], peak, "peak of {curve}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_appear_on_an_open_grid_while_training_goes_on() {
    let server = Server::start();
    let run = ("TIDEGAUGE_RUN", "fsdp");
    let env = [run, ("TIDEGAUGE_SERVER", server.address()), ("TRAINING_WAITS", "1,5")];
    let mut training = Training::fsdp(10, &env);

    let (run_id, _) = grid_of(&server, "fsdp", 2).await;
    let browser = Browser::open(&format!("{}{}", server.address(), page::run(&run_id))).await;
    browser.run("window.isTheSamePage = true", vec![]).await;
    for label in ["1", "2–5", "6–10"] {
        let cells = format!("[data-testid='cell'][data-state='ready'][data-step-label='{label}']");
        eventually(&format!("two ready cells {label}"), || async {
            match browser.count(&cells).await {
                2 => Ok(()),
                n => Err(format!("{n} of them; {}", browser.seen().await)),
            }
        })
        .await;
        if label != "6–10" {
            training.go_on();
        }
    }
    assert_eq!(browser.run("return window.isTheSamePage", vec![]).await, true, "the page was loaded again");
    browser.screenshot("training").await;

    for rank in training.end() {
        assert_eq!(rank.code, Some(EXIT_CODE), "{}", rank.said);
    }
    let (_, grid) = grid_of(&server, "fsdp", 6).await;
    assert_eq!(columns(&grid), ["1", "2–5", "6–10"]);
    let ranks = all_of(&server, "fsdp", 6).await;
    assert_eq!(ranks.len(), 2);
    check_against_witness(&server, &training, &ranks);
    assert_eq!(training.n_waiting(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_window_of_one_step_holds_that_step_only() {
    let server = Server::start();
    let env = [
        ("TIDEGAUGE_RUN", "single"),
        ("TIDEGAUGE_SERVER", server.address()),
        ("TIDEGAUGE_WINDOW", "step"),
        ("TIDEGAUGE_STEPS", "1,5,10"),
    ];
    let mut training = Training::fsdp(10, &env);
    for rank in training.end() {
        assert_eq!(rank.code, Some(EXIT_CODE), "{}", rank.said);
    }
    let (_, grid) = grid_of(&server, "single", 6).await;
    assert_eq!(columns(&grid), ["1", "5", "10"]);
    for (rank, snapshots) in all_of(&server, "single", 6).await {
        let witness = training.witness(rank);
        for snapshot in &snapshots {
            assert!(snapshot.place.first_step.is_none_or(|first| Some(first) == snapshot.place.last_step));
            check_window(&witness, snapshot);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_between_snapshots_are_sampled_with_what_memory_stats_said_of_them() {
    let server = Server::start();
    // Rank 1 does not record.
    let env = [
        ("TIDEGAUGE_RUN", "sampled"),
        ("TIDEGAUGE_SERVER", server.address()),
        ("TIDEGAUGE_RANKS", "0"),
        ("TIDEGAUGE_STEPS", "5"),
    ];
    let mut training = Training::fsdp(10, &env);
    for rank in training.end() {
        assert_eq!(rank.code, Some(EXIT_CODE), "{}", rank.said);
    }
    let (run_id, grid) = grid_of(&server, "sampled", 1).await;
    assert_eq!((columns(&grid), grid.rows.len()), (vec!["1–5"], 2));
    let samples: GridSamples = server.get(&paths::run_samples(&run_id, 0, 2, 512));
    assert_eq!(samples.n_dropped, 0);
    for (rank, row) in (0..).zip(&samples.rows) {
        let witness = training.witness(rank);
        let mut n_sampled = 0;
        for (i, column) in samples.columns.iter().enumerate() {
            let Some(allocated) = row.allocated[i] else { continue };
            let line = witness.iter().find(|line| line["step"] == column.last_step).unwrap();
            let levels = json!({
                "allocated": allocated,
                "allocated_peak": row.allocated_peak[i],
                "reserved": row.reserved[i],
            });
            assert_eq!(levels, line["levels"], "rank {rank}, step {}", column.label());
            n_sampled += 1;
        }
        // Steps within ten milliseconds of another are not sampled.
        assert!(n_sampled >= 3, "{n_sampled} steps of rank {rank} were sampled");
        assert_eq!(row.outside.iter().flatten().count().min(1), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_away_for_the_whole_run_gets_everything_afterwards() {
    let nobody = format!("http://127.0.0.1:{}", free_port());
    let env =
        [("TIDEGAUGE_RUN", "away"), ("TIDEGAUGE_SERVER", nobody.as_str()), ("TIDEGAUGE_FLUSH_SECS", "1")];
    let mut training = Training::fsdp(10, &env);
    let command = format!("tidegauge push --outbox {} --server {nobody}", training.outbox().display());
    for rank in training.end() {
        assert_eq!(rank.code, Some(EXIT_CODE), "{}", rank.said);
        assert!(rank.said.contains(&command), "{}", rank.said);
    }
    assert_eq!(training.n_waiting(), 6);

    let server = Server::start();
    let pushed = training.push_outbox(server.address());
    assert_eq!(pushed.status.code(), Some(0), "{}", String::from_utf8_lossy(&pushed.stderr));
    let (_, grid) = grid_of(&server, "away", 6).await;
    assert_eq!(columns(&grid), ["1", "2–5", "6–10"]);
    check_against_witness(&server, &training, &all_of(&server, "away", 6).await);
    assert_eq!(training.n_waiting(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_process_took_is_delivered_from_its_outbox() {
    let nobody = format!("http://127.0.0.1:{}", free_port());
    let env = [("TIDEGAUGE_RUN", "killed"), ("TIDEGAUGE_SERVER", nobody.as_str()), ("TRAINING_WAITS", "5")];
    let mut training = Training::fsdp(10, &env);
    eventually("steps 1 and 5 of both ranks in the outbox", || async {
        match training.n_waiting() {
            4 => Ok(()),
            n => Err(format!("{n} snapshots")),
        }
    })
    .await;
    let server = Server::start();
    // While its process lives, its folder is left alone.
    training.push_outbox(server.address());
    assert_eq!(training.n_waiting(), 4);

    training.kill();
    assert!(training.end().iter().all(|rank| rank.code.is_none()));
    let pushed = training.push_outbox(server.address());
    assert_eq!(pushed.status.code(), Some(0), "{}", String::from_utf8_lossy(&pushed.stderr));
    let (_, grid) = grid_of(&server, "killed", 4).await;
    assert_eq!(columns(&grid), ["1", "2–5"]);
    assert_eq!(all_of(&server, "killed", 4).await.len(), 2);
}

/// Takes the head of a request and breaks.
fn answer_500(mut stream: TcpStream) {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|n| n > 0) {
        head.push(byte[0]);
    }
    let answer = "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    stream.write_all(answer.as_bytes()).ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_answers_500_does_not_touch_training() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let broken = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || listener.incoming().map_while(Result::ok).for_each(answer_500));
    let env =
        [("TIDEGAUGE_RUN", "broken"), ("TIDEGAUGE_SERVER", broken.as_str()), ("TIDEGAUGE_FLUSH_SECS", "1")];
    let mut training = Training::fsdp(10, &env);
    for rank in training.end() {
        assert_eq!(rank.code, Some(EXIT_CODE), "{}", rank.said);
        assert!(rank.printed.contains("step 10"), "{}", rank.printed);
        assert!(rank.said.contains("answered 500"), "{}", rank.said);
    }
    assert_eq!(training.n_waiting(), 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_npus_windows_are_its_own_and_the_page_counts_its_events() {
    let server = Server::start();
    let env = [
        ("TIDEGAUGE_RUN", "npu"),
        ("TIDEGAUGE_SERVER", server.address()),
        ("TIDEGAUGE_MAX_ENTRIES", "4321"),
        ("TIDEGAUGE_CONTEXT", "alloc"),
    ];
    let mut training = Training::npu(10, &env);
    let ended = training.end();
    assert_eq!(ended[0].code, Some(EXIT_CODE), "{}", ended[0].said);

    // Recording started, and every option arrived, before and after each clear.
    let witness = training.witness(0);
    let calls = witness.last().unwrap()["calls"].as_array().unwrap();
    let recordings: Vec<_> = calls.iter().filter(|call| call.is_object()).collect();
    assert_eq!(recordings.len(), 3);
    for call in recordings {
        let options = (&call["enabled"], &call["context"], &call["stacks"], &call["max_entries"]);
        assert_eq!(options, (&"all".into(), &"alloc".into(), &"python".into(), &4321.into()));
    }

    let (_, grid) = grid_of(&server, "npu", 3).await;
    assert_eq!(columns(&grid), ["1", "2–5", "6–10"]);
    let snapshots = &all_of(&server, "npu", 3).await[&0];
    for (snapshot, (line, steps)) in snapshots.iter().zip(witness.iter().zip([1, 4, 5])) {
        let inspection = snapshot.inspection.as_ref().unwrap();
        assert_eq!(inspection.producer, "torch_npu");
        let actions = &inspection.devices[0].actions;
        assert_eq!(line["events"], actions.values().sum::<u64>());
        // Twenty a step, the weights before the first, and the workspace's at the head of each window.
        let before = u64::from(steps == 1);
        assert_eq!(actions["alloc"], 20 * steps + before + 1);
        assert_eq!(actions["free_requested"], 20 * steps);
        assert_eq!(actions["workspace_snapshot"], 1);
    }

    let last = snapshots.last().unwrap();
    let browser = Browser::open(&format!("{}{}", server.address(), page::snapshot(&last.id))).await;
    let timeline = browser.find("timeline").await;
    eventually("the timeline to be drawn", || async {
        match browser.n_colors(&timeline).await {
            n @ 0..4 => Err(format!("{n} colors; {}", browser.seen().await)),
            n => Ok(n),
        }
    })
    .await;
    browser.read("shown by event").await;
    browser.screenshot("npu").await;
}
