//! Who this process is in its run: run, attempt, role, rank, host, pid, and how each is known.
//!
//! Each is looked for on a ladder, what was said first, and a guess last. Pure: the environment, the process
//! group and what other packages know are handed in.

use std::collections::BTreeMap;

use serde_json::json;
use tidegauge_api::{Place, Sidecar};

use crate::{choice::RankAmong, neighbors::Neighbors, recorder::Group};

/// What the process can be asked.
#[derive(Clone, Copy)]
pub struct Surroundings<'a> {
    /// An environment variable.
    pub env: &'a dyn Fn(&str) -> Option<String>,
    /// The process group, once joined.
    pub group: Option<Group>,
    /// What other packages in the process know.
    pub neighbors: &'a Neighbors,
    /// Name of this machine.
    pub host: &'a str,
    /// Process id.
    pub pid: u32,
    /// The script that runs.
    pub script: Option<&'a str>,
}

/// What was said, by keyword or `TIDEGAUGE_*`, and wins over what is found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Said {
    /// The run's name.
    pub run: Option<String>,
    /// The process's role.
    pub role: Option<String>,
    /// The rank.
    pub rank: Option<u32>,
}

/// Who this process is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Whereabouts {
    /// The run's name; always found.
    pub run: String,
    /// Restart count.
    pub attempt: Option<u32>,
    /// Role.
    pub role: Option<String>,
    /// Global rank; 0 when nothing tells.
    pub rank: u32,
    /// Number on its machine.
    pub local_rank: Option<u32>,
    /// Number of ranks.
    pub world_size: Option<u32>,
    /// Name of the machine.
    pub host: String,
    /// Process id.
    pub pid: u32,
    /// Where each of them that was found comes from: a variable, "setting", "torch.distributed", "script", …
    pub sources: BTreeMap<&'static str, String>,
}

/// A value, and where it comes from.
type Found<T> = Option<(T, String)>;

impl Whereabouts {
    /// Looks around.
    pub fn find(said: &Said, around: Surroundings<'_>) -> Self {
        let run = setting(said.run.clone()).or_else(|| run(around));
        let run = run.unwrap_or_else(|| (run_from_script(around.script), "script".to_owned()));
        let attempt = first_number(around, &["TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"]);
        let role = setting(said.role.clone()).or_else(|| role(around));
        let group = |number: fn(Group) -> u32| Some((number(around.group?), "torch.distributed".to_owned()));
        let rank = setting(said.rank).or_else(|| group(|group| group.rank)).or_else(|| rank(around));
        let rank = rank.unwrap_or((0, "default".to_owned()));
        let local_rank = local_rank(around);
        let world_size = group(|group| group.world_size).or_else(|| world_size(around));

        let mut sources = BTreeMap::from([("run", run.1), ("rank", rank.1)]);
        Self {
            run: run.0,
            attempt: noted("attempt", attempt, &mut sources),
            role: noted("role", role, &mut sources),
            rank: rank.0,
            local_rank: noted("local_rank", local_rank, &mut sources),
            world_size: noted("world_size", world_size, &mut sources),
            host: around.host.to_owned(),
            pid: around.pid,
            sources,
        }
    }

    /// What a choice of ranks is asked about.
    pub fn among(&self) -> RankAmong {
        RankAmong { rank: self.rank, local_rank: self.local_rank, world_size: self.world_size }
    }

    /// Whether nothing names the run: another run of the same script would be called the same.
    pub fn is_unnamed(&self) -> bool {
        self.sources.get("run").is_some_and(|source| source == "script")
    }

    /// As a place, without steps.
    pub fn place(&self) -> Place {
        Place {
            run: Some(self.run.clone()),
            attempt: self.attempt,
            role: self.role.clone(),
            rank: Some(self.rank),
            host: Some(self.host.clone()),
            pid: Some(self.pid),
            ..Place::default()
        }
    }

    /// Writes into a sidecar how the place is known.
    pub fn describe(&self, sidecar: &mut Sidecar) {
        sidecar.world_size = self.world_size;
        sidecar.more.insert("identity".to_owned(), json!(self.sources));
        if let Some(local_rank) = self.local_rank {
            sidecar.more.insert("local_rank".to_owned(), local_rank.into());
        }
    }
}

fn setting<T>(said: Option<T>) -> Found<T> {
    Some((said?, "setting".to_owned()))
}

fn noted<T>(name: &'static str, found: Found<T>, sources: &mut BTreeMap<&'static str, String>) -> Option<T> {
    let (value, source) = found?;
    sources.insert(name, source);
    Some(value)
}

fn rank(around: Surroundings<'_>) -> Found<u32> {
    let others = [
        "OMPI_COMM_WORLD_RANK",
        "PMI_RANK",
        "PMIX_RANK",
        "MV2_COMM_WORLD_RANK",
        "JSM_NAMESPACE_RANK",
        "RANK_ID",
    ];
    let of_a_pod = |(rank, source)| match is_in_kubeflow_pod(around) {
        true => (rank, format!("{source} of a Kubeflow pod")),
        false => (rank, source),
    };
    first_number(around, &["RANK"])
        .map(of_a_pod)
        .or_else(|| slurm(around, "SLURM_PROCID"))
        .or_else(|| first_number(around, &others))
}

/// Without torchrun in it, a Kubeflow job gives `RANK` and `WORLD_SIZE` to pods, not to processes. They are right
/// where each pod has one process, and until the process group says better.
fn is_in_kubeflow_pod(around: Surroundings<'_>) -> bool {
    let is_set = |name: &str| text(around, name).is_some();
    ["KUBERNETES_PORT", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"].into_iter().all(is_set)
        && !["GROUP_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"].into_iter().any(is_set)
}

/// Slurm counts tasks: with one task, as in an interactive shell or under torchrun, its numbers say nothing of
/// processes.
fn slurm(around: Surroundings<'_>, name: &str) -> Found<u32> {
    number(around, "SLURM_NTASKS").filter(|n| *n > 1)?;
    first_number(around, &[name])
}

fn local_rank(around: Surroundings<'_>) -> Found<u32> {
    first_number(around, &["LOCAL_RANK"])
        .or_else(|| slurm(around, "SLURM_LOCALID"))
        .or_else(|| first_number(around, &["OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"]))
}

fn world_size(around: Surroundings<'_>) -> Found<u32> {
    let others =
        ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "JSM_NAMESPACE_SIZE", "RANK_SIZE"];
    first_number(around, &["WORLD_SIZE"])
        .or_else(|| slurm(around, "SLURM_NTASKS"))
        .or_else(|| first_number(around, &others))
}

fn role(around: Surroundings<'_>) -> Found<String> {
    let adapter = around.neighbors.role.clone();
    adapter
        .or_else(|| first_text(around, &["VERL_PROFILE_ROLE", "WORKER_NAME"]))
        .or_else(|| first_text(around, &["WG_PREFIX"]).filter(|(prefix, _)| !is_random(prefix)))
        // torchrun names every role "default" unless told otherwise.
        .or_else(|| first_text(around, &["ROLE_NAME"]).filter(|(role, _)| role != "default"))
}

/// verl calls a group of workers by six random characters unless it is given a name.
fn is_random(prefix: &str) -> bool {
    // "critic" has six characters, too; all of them lower case happens once in two hundred times.
    prefix.len() == 6
        && prefix.chars().all(|c| c.is_ascii_alphanumeric())
        && prefix.chars().any(|c| !c.is_ascii_lowercase())
}

fn run(around: Surroundings<'_>) -> Found<String> {
    let array = || {
        let id = format!("{}_{}", text(around, "SLURM_ARRAY_JOB_ID")?, text(around, "SLURM_ARRAY_TASK_ID")?);
        Some((id, "SLURM_ARRAY_JOB_ID".to_owned()))
    };
    let known = |value: &Option<String>, source: &str| Some((value.clone()?, source.to_owned()));
    let in_kubernetes =
        || text(around, "KUBERNETES_SERVICE_HOST").and_then(|_| first_text(around, &["JOB_NAME"]));
    let Neighbors { wandb_run, ray_job, agreed_run, .. } = around.neighbors;
    first_text(around, &["WANDB_RUN_ID"])
        .or_else(|| known(wandb_run, "wandb.run.id"))
        .or_else(|| first_text(around, &["MLFLOW_RUN_ID"]))
        // torchrun's id is the word "none" unless it was given one.
        .or_else(|| first_text(around, &["TORCHELASTIC_RUN_ID"]).filter(|(id, _)| id != "none"))
        .or_else(array)
        .or_else(|| first_text(around, &["SLURM_JOB_ID"]))
        .or_else(|| known(ray_job, "ray"))
        .or_else(in_kubernetes)
        .or_else(|| known(agreed_run, "the process group's store"))
}

/// All ranks run the same script, so they agree without asking one another.
fn run_from_script(script: Option<&str>) -> String {
    let name = script.and_then(|script| script.rsplit(['/', '\\']).next()).unwrap_or_default();
    match name.strip_suffix(".py").unwrap_or(name) {
        "" | "-c" | "-m" | "-" => "training".to_owned(),
        stem => stem.to_owned(),
    }
}

fn text(around: Surroundings<'_>, name: &str) -> Option<String> {
    (around.env)(name).filter(|value| !value.is_empty())
}

fn number(around: Surroundings<'_>, name: &str) -> Option<u32> {
    text(around, name)?.trim().parse().ok()
}

fn first_text(around: Surroundings<'_>, names: &[&str]) -> Found<String> {
    names.iter().find_map(|name| Some((text(around, name)?, (*name).to_owned())))
}

fn first_number(around: Surroundings<'_>, names: &[&str]) -> Found<u32> {
    names.iter().find_map(|name| Some((number(around, name)?, (*name).to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(said: Said, env: &[(&str, &str)], group: Option<Group>) -> Whereabouts {
        found_beside(&Neighbors::default(), said, env, group)
    }

    fn found_beside(
        neighbors: &Neighbors,
        said: Said,
        env: &[(&str, &str)],
        group: Option<Group>,
    ) -> Whereabouts {
        let env = |name: &str| env.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        let script = Some("/home/me/train_gpt.py");
        let around = Surroundings { env: &env, group, neighbors, host: "node1", pid: 42, script };
        Whereabouts::find(&said, around)
    }

    /// Value and source, as the sidecar has them.
    fn sourced(found: &Whereabouts, name: &str) -> String {
        found.sources.get(name).cloned().unwrap_or_default()
    }

    fn rank_in(env: &[(&str, &str)]) -> u32 {
        found(Said::default(), env, None).rank
    }

    #[test]
    fn what_was_said_wins_then_the_group_then_the_environment() {
        let env = [("RANK", "2"), ("WORLD_SIZE", "4")];
        let group = Some(Group { rank: 3, world_size: 8 });
        let said = Said { rank: Some(7), ..Said::default() };
        assert_eq!(found(said, &env, group).rank, 7);
        let found_in_group = found(Said::default(), &env, group);
        assert_eq!((found_in_group.rank, found_in_group.world_size), (3, Some(8)));
        let found_in_env = found(Said::default(), &env, None);
        assert_eq!((found_in_env.rank, found_in_env.world_size), (2, Some(4)));
    }

    #[test]
    fn a_lone_slurm_task_is_no_rank() {
        assert_eq!(rank_in(&[("SLURM_PROCID", "5"), ("SLURM_NTASKS", "8")]), 5);
        assert_eq!(rank_in(&[("SLURM_PROCID", "5"), ("SLURM_NTASKS", "1")]), 0);
        assert_eq!(rank_in(&[("SLURM_PROCID", "1"), ("SLURM_NTASKS", "2"), ("RANK", "13")]), 13);
        assert_eq!(rank_in(&[("OMPI_COMM_WORLD_RANK", "4")]), 4);
        assert_eq!(rank_in(&[("RANK_ID", "6")]), 6);
        assert_eq!(rank_in(&[]), 0);
    }

    #[test]
    fn the_rank_on_a_machine_is_the_launchers_word() {
        let local = |env: &[(&str, &str)]| found(Said::default(), env, None).local_rank;
        assert_eq!(local(&[("LOCAL_RANK", "3"), ("OMPI_COMM_WORLD_LOCAL_RANK", "1")]), Some(3));
        assert_eq!(local(&[("SLURM_LOCALID", "2"), ("SLURM_NTASKS", "8")]), Some(2));
        assert_eq!(local(&[("SLURM_LOCALID", "0"), ("SLURM_NTASKS", "1")]), None);
        assert_eq!(local(&[("RANK", "3")]), None);
    }

    #[test]
    fn torchruns_placeholders_name_neither_run_nor_role() {
        let env =
            [("TORCHELASTIC_RUN_ID", "none"), ("ROLE_NAME", "default"), ("TORCHELASTIC_RESTART_COUNT", "2")];
        let found = found(Said::default(), &env, None);
        assert_eq!((found.run.as_str(), found.role, found.attempt), ("train_gpt", None, Some(2)));
    }

    #[test]
    fn a_run_is_named_by_whoever_tracks_it() {
        let run = |env: &[(&str, &str)]| found(Said::default(), env, None).run;
        assert_eq!(run(&[("WANDB_RUN_ID", "abc"), ("SLURM_JOB_ID", "9")]), "abc");
        assert_eq!(run(&[("SLURM_JOB_ID", "9")]), "9");
        let array = [("SLURM_JOB_ID", "9"), ("SLURM_ARRAY_JOB_ID", "7"), ("SLURM_ARRAY_TASK_ID", "3")];
        assert_eq!(run(&array), "7_3");
        assert_eq!(run_from_script(Some("-c")), "training");
    }

    #[test]
    fn each_value_says_where_it_comes_from() {
        let env = [("RANK", "2"), ("LOCAL_RANK", "2"), ("WANDB_RUN_ID", "abc"), ("WORKER_NAME", "actor")];
        let found = found(Said { run: Some("gpt".to_owned()), ..Said::default() }, &env, None);
        let sources = ["run", "rank", "local_rank", "role", "attempt"].map(|name| sourced(&found, name));
        assert_eq!(sources, ["setting", "RANK", "LOCAL_RANK", "WORKER_NAME", ""]);
        let mut sidecar = Sidecar::default();
        found.describe(&mut sidecar);
        let expected =
            json!({"run": "setting", "rank": "RANK", "local_rank": "LOCAL_RANK", "role": "WORKER_NAME"});
        assert_eq!((&sidecar.more["identity"], &sidecar.more["local_rank"]), (&expected, &json!(2)));
    }

    #[test]
    fn a_kubeflow_pods_rank_holds_until_the_process_group_says_better() {
        let pod = [
            ("KUBERNETES_PORT", "tcp://10.0.0.1:443"),
            ("MASTER_ADDR", "train-master-0"),
            ("MASTER_PORT", "23456"),
            ("WORLD_SIZE", "2"),
            ("RANK", "1"),
        ];
        let in_pod = found(Said::default(), &pod, None);
        assert_eq!((in_pod.rank, sourced(&in_pod, "rank").as_str()), (1, "RANK of a Kubeflow pod"));
        let joined = found(Said::default(), &pod, Some(Group { rank: 11, world_size: 16 }));
        assert_eq!((joined.rank, joined.world_size), (11, Some(16)));
        assert_eq!(sourced(&joined, "rank"), "torch.distributed");
        // With torchrun in the pod they are the process's own.
        let torchrun = [pod.as_slice(), &[("LOCAL_RANK", "0")]].concat();
        assert_eq!(sourced(&found(Said::default(), &torchrun, None), "rank"), "RANK");
    }

    #[test]
    fn what_wandb_ray_and_the_other_ranks_call_the_run_is_taken_in_this_order() {
        let some = |text: &str| Some(text.to_owned());
        let mut neighbors = Neighbors {
            wandb_run: some("w1"),
            ray_job: some("ray-02000000"),
            agreed_run: some("train_gpt-01"),
            ..Neighbors::default()
        };
        let run = |neighbors: &Neighbors, env: &[(&str, &str)]| {
            let found = found_beside(neighbors, Said::default(), env, None);
            (found.run.clone(), sourced(&found, "run"))
        };
        let pair = |run: &str, source: &str| (run.to_owned(), source.to_owned());
        assert_eq!(run(&neighbors, &[("WANDB_RUN_ID", "env")]), pair("env", "WANDB_RUN_ID"));
        assert_eq!(run(&neighbors, &[("MLFLOW_RUN_ID", "m")]), pair("w1", "wandb.run.id"));
        neighbors.wandb_run = None;
        assert_eq!(run(&neighbors, &[("SLURM_JOB_ID", "9")]), pair("9", "SLURM_JOB_ID"));
        assert_eq!(run(&neighbors, &[]), pair("ray-02000000", "ray"));
        neighbors.ray_job = None;
        let in_kubernetes = [("KUBERNETES_SERVICE_HOST", "10.0.0.1"), ("JOB_NAME", "nightly")];
        assert_eq!(run(&neighbors, &in_kubernetes), pair("nightly", "JOB_NAME"));
        assert_eq!(
            run(&neighbors, &[("JOB_NAME", "some-job")]),
            pair("train_gpt-01", "the process group's store")
        );
        neighbors.agreed_run = None;
        assert_eq!(run(&neighbors, &[]), pair("train_gpt", "script"));
        assert!(found(Said::default(), &[], None).is_unnamed());
    }

    #[test]
    fn an_adapters_role_wins_over_the_environments_and_random_names_are_none() {
        let neighbors =
            Neighbors { role: Some(("actor_rollout".to_owned(), "verl".to_owned())), ..Neighbors::default() };
        let env = [("WG_PREFIX", "x8Kq2b"), ("ROLE_NAME", "trainer")];
        let found_beside = found_beside(&neighbors, Said::default(), &env, None);
        assert_eq!(found_beside.role.as_deref(), Some("actor_rollout"));
        assert_eq!(sourced(&found_beside, "role"), "verl");
        assert_eq!(found(Said::default(), &env, None).role.as_deref(), Some("trainer"));
        let named = found(Said::default(), &[("WG_PREFIX", "critic")], None);
        assert_eq!(named.role.as_deref(), Some("critic"));
    }
}
