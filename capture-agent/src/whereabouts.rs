//! Who this process is in its run: run, attempt, role, rank, host, pid.
//!
//! Each is looked for on a ladder, what was said first, and a guess last. Pure: the environment and the process
//! group are handed in.

use tidegauge_api::Place;

use crate::{choice::RankAmong, recorder::Group};

/// What the process can be asked.
#[derive(Clone, Copy)]
pub struct Surroundings<'a> {
    /// An environment variable.
    pub env: &'a dyn Fn(&str) -> Option<String>,
    /// The process group, once joined.
    pub group: Option<Group>,
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
}

impl Whereabouts {
    /// Looks around.
    pub fn find(said: &Said, around: Surroundings<'_>) -> Self {
        Self {
            run: said.run.clone().or_else(|| run(around)).unwrap_or_else(|| run_from_script(around.script)),
            attempt: number(around, "TORCHELASTIC_RESTART_COUNT"),
            role: said.role.clone().or_else(|| role(around)),
            rank: said.rank.or(around.group.map(|group| group.rank)).or_else(|| rank(around)).unwrap_or(0),
            local_rank: local_rank(around),
            world_size: around.group.map(|group| group.world_size).or_else(|| world_size(around)),
            host: around.host.to_owned(),
            pid: around.pid,
        }
    }

    /// What a choice of ranks is asked about.
    pub fn among(&self) -> RankAmong {
        RankAmong { rank: self.rank, local_rank: self.local_rank, world_size: self.world_size }
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
}

fn rank(around: Surroundings<'_>) -> Option<u32> {
    // SLURM_PROCID counts tasks: with one task, as in an interactive shell or under torchrun, it is no rank.
    let slurm =
        || number(around, "SLURM_NTASKS").filter(|n| *n > 1).and_then(|_| number(around, "SLURM_PROCID"));
    let others = [
        "OMPI_COMM_WORLD_RANK",
        "PMI_RANK",
        "PMIX_RANK",
        "MV2_COMM_WORLD_RANK",
        "JSM_NAMESPACE_RANK",
        "RANK_ID",
    ];
    number(around, "RANK").or_else(slurm).or_else(|| others.iter().find_map(|name| number(around, name)))
}

fn local_rank(around: Surroundings<'_>) -> Option<u32> {
    let slurm =
        || number(around, "SLURM_NTASKS").filter(|n| *n > 1).and_then(|_| number(around, "SLURM_LOCALID"));
    let others = ["OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"];
    number(around, "LOCAL_RANK")
        .or_else(slurm)
        .or_else(|| others.iter().find_map(|name| number(around, name)))
}

fn world_size(around: Surroundings<'_>) -> Option<u32> {
    let slurm = || number(around, "SLURM_NTASKS").filter(|n| *n > 1);
    let others =
        ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "JSM_NAMESPACE_SIZE", "RANK_SIZE"];
    number(around, "WORLD_SIZE")
        .or_else(slurm)
        .or_else(|| others.iter().find_map(|name| number(around, name)))
}

fn role(around: Surroundings<'_>) -> Option<String> {
    let names = ["VERL_PROFILE_ROLE", "WORKER_NAME", "WG_PREFIX"];
    // torchrun names every role "default" unless told otherwise.
    let torchrun = || text(around, "ROLE_NAME").filter(|role| role != "default");
    names.iter().find_map(|name| text(around, name)).or_else(torchrun)
}

fn run(around: Surroundings<'_>) -> Option<String> {
    let array =
        || Some(format!("{}_{}", text(around, "SLURM_ARRAY_JOB_ID")?, text(around, "SLURM_ARRAY_TASK_ID")?));
    text(around, "WANDB_RUN_ID")
        .or_else(|| text(around, "MLFLOW_RUN_ID"))
        // torchrun's id is the word "none" unless it was given one.
        .or_else(|| text(around, "TORCHELASTIC_RUN_ID").filter(|id| id != "none"))
        .or_else(array)
        .or_else(|| text(around, "SLURM_JOB_ID"))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn found(said: Said, env: &[(&str, &str)], group: Option<Group>) -> Whereabouts {
        let env = |name: &str| env.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        let around =
            Surroundings { env: &env, group, host: "node1", pid: 42, script: Some("/home/me/train_gpt.py") };
        Whereabouts::find(&said, around)
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
}
