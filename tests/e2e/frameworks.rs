//! Real clients: trainings with frameworks as published, which know nothing of the agent. `tidegauge run` starts
//! them, and each step's snapshot arrives at its place and holds its window only.
//!
//! `cargo xtask test --torch` runs these; the releases stand in tests/training/clients.txt.

use std::collections::BTreeMap;

use serde_json::Value;
use tidegauge_api::snapshot::{SnapshotDetails, State};
use tidegauge_tests::{
    Server, eventually,
    framed::Framed,
    place::cli,
    training::{EXIT_CODE, free_port},
};

use crate::training::check_levels;

/// All snapshots of the only run, by role and rank, once the server has read them.
async fn rows(server: &Server, n_snapshots: usize) -> (String, BTreeMap<String, Vec<SnapshotDetails>>) {
    let (run, grid) = eventually(&format!("{n_snapshots} snapshots"), || async {
        match server.runs().as_slice() {
            [row] if row.n_snapshots == n_snapshots as u64 => Ok((row.name.clone(), server.grid(&row.id))),
            rows => {
                Err(format!("{:?}", rows.iter().map(|row| (&row.name, row.n_snapshots)).collect::<Vec<_>>()))
            }
        }
    })
    .await;
    let mut rows = BTreeMap::<String, Vec<SnapshotDetails>>::new();
    for id in grid.cells.iter().flat_map(|cell| &cell.snapshots) {
        let details = server.read(id).await;
        assert_eq!(details.state, State::Ready, "{:?}", details.problem);
        let role = details.place.role.as_deref().map(|role| format!("{role} ")).unwrap_or_default();
        let rank = details.place.rank.unwrap();
        rows.entry(format!("{role}{rank}")).or_default().push(details);
    }
    for snapshots in rows.values_mut() {
        snapshots.sort_by_key(|snapshot| snapshot.place.last_step);
    }
    (run, rows)
}

fn labels(snapshots: &[SnapshotDetails]) -> Vec<String> {
    snapshots.iter().map(|snapshot| snapshot.place.step_label()).collect()
}

/// A field of the sidecar that this version of it does not spell out.
fn said<'s>(snapshot: &'s SnapshotDetails, name: &str) -> &'s Value {
    snapshot.sidecar.as_ref().unwrap().more.get(name).unwrap_or(&Value::Null)
}

fn n_allocations(snapshot: &SnapshotDetails) -> u64 {
    let devices = &snapshot.inspection.as_ref().unwrap().devices;
    devices.iter().map(|device| device.actions.get("alloc").copied().unwrap_or(0)).sum()
}

/// Each snapshot holds the allocations of its steps, as the training itself counted them.
fn check_windows(training: &Framed, rank: u32, snapshots: &[SnapshotDetails]) {
    for snapshot in snapshots {
        let last = snapshot.place.last_step.unwrap();
        let expected = training.allocations(rank, snapshot.place.first_step.unwrap_or(last), last);
        assert!(expected > 0);
        assert_eq!(n_allocations(snapshot), expected, "rank {rank}, step {}", snapshot.place.step_label());
    }
}

/// "native" or "python": how a snapshot was taken.
fn way(snapshot: &SnapshotDetails) -> &str {
    snapshot.sidecar.as_ref().unwrap().recording.as_ref().unwrap()["way"].as_str().unwrap()
}

/// One process, five steps, snapshots of steps 1, 3 and 5; `steps_by` is who numbered them.
async fn trains_alone(script: &str, steps_by: &str, env: &[(&str, &str)]) {
    trains_alone_in(script, steps_by, "native", env).await;
}

async fn trains_alone_in(script: &str, steps_by: &str, expected_way: &str, env: &[(&str, &str)]) {
    let server = Server::start();
    let address = format!("server={}", server.address());
    let settings = ["steps=1,3,5", "run=alone", &address, &format!("way={expected_way}")];
    let training = Framed::train(&[], script, 5, &settings, env);
    assert_eq!(training.ended.code, Some(EXIT_CODE), "{}", training.ended.said);
    let (run, rows) = rows(&server, 3).await;
    assert_eq!(run, "alone");
    let snapshots = &rows["0"];
    assert_eq!(labels(snapshots), ["1", "2–3", "4–5"]);
    check_windows(&training, 0, snapshots);
    check_levels(snapshots);
    for snapshot in snapshots {
        assert_eq!(said(snapshot, "steps_by"), steps_by);
        assert_eq!(said(snapshot, "identity")["run"], "setting");
        assert_eq!(way(snapshot), expected_way);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trainer_of_transformers_tells_its_steps() {
    trains_alone("frame_transformers.py", "transformers", &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_callback_that_is_given_by_hand_does_the_same() {
    let env = [("TRAINING_CALLBACK", "1"), ("TIDEGAUGE_AUTO", "0")];
    trains_alone_in("frame_transformers.py", "transformers", "python", &env).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trainer_of_lightning_tells_its_steps() {
    trains_alone("frame_lightning.py", "lightning", &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_optimizer_of_accelerate_tells_its_steps() {
    trains_alone("frame_accelerate.py", "accelerate", &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_of_deepspeed_tells_its_steps() {
    let port = free_port().to_string();
    trains_alone("frame_deepspeed.py", "deepspeed", &[("MASTER_PORT", &port)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_framework_the_first_optimizers_steps_are_counted() {
    trains_alone("frame_none.py", "opt_step", &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_that_says_its_steps_itself_is_believed_before_all() {
    trains_alone("frame_none.py", "tidegauge.step", &[("TRAINING_STEPS", "1")]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn four_ranks_under_torchrun_agree_on_a_name_and_each_sends_its_own_steps() {
    let server = Server::start();
    let launcher = ["-m", "torch.distributed.run", "--nproc-per-node=4", "--rdzv-endpoint=127.0.0.1:0"];
    let launcher = [launcher.as_slice(), &["--rdzv-backend=c10d"]].concat();
    let address = format!("server={}", server.address());
    let settings = ["steps=1,3", "flush_secs=60", address.as_str()];
    let training =
        Framed::train(&launcher, "frame_transformers.py", 3, &settings, &[("FAKECUDA_DEVICES", "4")]);
    assert_eq!(training.ended.code, Some(0), "{}", training.ended.said);
    let (run, rows) = rows(&server, 8).await;
    assert!(run.starts_with("frame_transformers-"), "{run}");
    assert_eq!(rows.keys().collect::<Vec<_>>(), ["0", "1", "2", "3"]);
    for (rank, snapshots) in (0..).zip(rows.values()) {
        assert_eq!(labels(snapshots), ["1", "2–3"]);
        check_windows(&training, rank, snapshots);
        check_levels(snapshots);
        let sidecar = snapshots[0].sidecar.as_ref().unwrap();
        assert_eq!(sidecar.world_size, Some(4));
        assert_eq!(said(&snapshots[0], "steps_by"), "transformers");
        let identity = said(&snapshots[0], "identity");
        let sources = ["run", "rank", "local_rank"].map(|name| identity[name].as_str().unwrap());
        assert_eq!(sources, ["the process group's store", "torch.distributed", "LOCAL_RANK"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn verl_says_what_is_profiled_and_the_rest_neither_records_nor_loses_its_peaks() {
    let server = Server::start();
    let address = format!("server={}", server.address());
    let settings = ["run=ppo", "flush_secs=60", address.as_str()];
    // Two workers of a group that plays one role, and one of another group with two.
    let worker = |rank: &'static str, roles: &'static str| {
        let env = [
            ("RANK", rank),
            ("TRAINING_ROLES", roles),
            ("FAKECUDA_DEVICES", "2"),
            ("TIDEGAUGE_AUTO", "verl"),
        ];
        let training = Framed::train(&[], "frame_verl.py", 5, &settings, &env);
        assert_eq!(training.ended.code, Some(EXIT_CODE), "{}", training.ended.said);
        training
    };
    let [selected, unselected, two_roles] =
        [worker("0", "ref"), worker("1", "ref"), worker("0", "actor_rollout,critic")];

    let (_, rows) = rows(&server, 4).await;
    assert_eq!(rows.keys().collect::<Vec<_>>(), ["actor_rollout+critic 0", "ref 0"]);
    for (training, snapshots) in [(&two_roles, &rows["actor_rollout+critic 0"]), (&selected, &rows["ref 0"])]
    {
        assert_eq!(labels(snapshots), ["2", "4"]);
        check_windows(training, 0, snapshots);
        for snapshot in snapshots {
            assert_eq!(said(snapshot, "steps_by"), "verl");
            assert_eq!(said(snapshot, "identity")["role"], "verl");
            assert_eq!(snapshot.sidecar.as_ref().unwrap().recording.as_ref().unwrap()["max_entries"], 54_321);
        }
    }
    for (training, rank, is_recording) in
        [(&selected, 0, true), (&unselected, 1, false), (&two_roles, 0, true)]
    {
        let end = training.witness(rank).pop().unwrap();
        assert_eq!(end["is_recording"], is_recording);
        assert_eq!((&end["is_peak_kept"], &end["has_files"]), (&true.into(), &false.into()));
    }
    assert!(!unselected.has_recorded());
}

#[tokio::test(flavor = "multi_thread")]
async fn verl_without_us_records_on_every_rank_and_loses_its_peaks() {
    // What the test above holds against: if verl mends this, its adapter can go.
    let env = [("RANK", "1"), ("TRAINING_ROLES", "ref"), ("FAKECUDA_DEVICES", "2"), ("TIDEGAUGE_AUTO", "0")];
    let training = Framed::train(&[], "frame_verl.py", 5, &[], &env);
    assert_eq!(training.ended.code, Some(EXIT_CODE), "{}", training.ended.said);
    assert_eq!(training.witness(1).pop().unwrap()["is_recording"], true);
    let env = [("RANK", "0"), ("TRAINING_ROLES", "ref"), ("FAKECUDA_DEVICES", "2"), ("TIDEGAUGE_AUTO", "0")];
    let training = Framed::train(&[], "frame_verl.py", 5, &[], &env);
    let end = training.witness(0).pop().unwrap();
    assert_eq!((&end["is_peak_kept"], &end["has_files"]), (&false.into(), &true.into()));
    assert!(!training.has_recorded() && !training.ended.said.contains("tidegauge"));
}

#[tokio::test(flavor = "multi_thread")]
async fn verls_finish_hook_sends_what_its_own_process_wrote_and_nothing_else() {
    let server = Server::start();
    let profiles = tempfile::tempdir().unwrap();
    let push = format!(
        r#"{} push --framework verl --run hooked --server {} "$VERL_PROFILE_SAVE_PATH""#,
        cli().display(),
        server.address()
    );
    let worker = |roles: &str| {
        let env = [
            ("RANK", "0"),
            ("TRAINING_ROLES", roles),
            ("TRAINING_PROFILES", profiles.path().to_str().unwrap()),
            ("TRAINING_FINISH_HOOK", push.as_str()),
            ("TIDEGAUGE_AUTO", "0"),
        ];
        let training = Framed::train(&[], "frame_verl.py", 5, &[], &env);
        assert_eq!(training.ended.code, Some(EXIT_CODE), "{}", training.ended.said);
        training.ended.printed
    };
    let first = worker("actor_rollout");
    assert!(first.contains("0 files of other processes left to them"), "{first}");
    // It finds the files of the first in the folder, too.
    let second = worker("critic");
    assert!(second.contains("2 files of other processes left to them"), "{second}");

    let (run, rows) = rows(&server, 4).await;
    assert_eq!(run, "hooked");
    assert_eq!(rows.keys().collect::<Vec<_>>(), ["actor_rollout 0", "critic 0"]);
    assert!(rows.values().all(|snapshots| labels(snapshots) == ["2", "4"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn in_actors_of_ray_verls_workers_record_and_their_driver_does_not() {
    let server = Server::start();
    let address = format!("server={}", server.address());
    let env = [("TIDEGAUGE_AUTO", "verl")];
    let training = Framed::train(&[], "frame_ray.py", 5, &["flush_secs=60", &address], &env);
    assert_eq!(training.ended.code, Some(EXIT_CODE), "{}", training.ended.said);
    let (run, rows) = rows(&server, 2).await;
    // Nobody gave it a name; Ray's is the same in all actors.
    assert_eq!(run, "ray-01000000");
    assert_eq!(rows.keys().collect::<Vec<_>>(), ["actor_rollout 0"]);
    let snapshots = &rows["actor_rollout 0"];
    assert_eq!(labels(snapshots), ["2", "4"]);
    check_windows(&training, 0, snapshots);
    assert_eq!(said(&snapshots[0], "ray")["actor"], "x8Kq2bWorkerDict_0:0");
    assert_eq!(training.witness(1).pop().unwrap()["is_recording"], false);
}

#[test]
fn the_guides_configuration_for_verl_is_one_that_verl_takes() {
    let guide = Framed::train(&[], "verl_guide.py", 0, &[], &[]);
    assert_eq!(guide.ended.code, Some(0), "{}{}", guide.ended.printed, guide.ended.said);
    assert!(guide.ended.printed.contains("overrides are verl's"), "{}", guide.ended.printed);
}
