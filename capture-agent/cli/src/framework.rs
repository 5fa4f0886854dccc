//! `tidegauge push --framework verl`: a process that shares its folder with others sends its own files.
//!
//! verl runs `finish_hook_cmd` in each profiled process, with the folder of all of them: without this, every rank
//! would send the snapshots of every other.

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use tidegauge_api::from_path::place_from_path;

/// A framework that runs us once per process and says which one it is.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Framework {
    /// From verl's finish_hook_cmd
    Verl,
}

/// The process whose files are sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    rank: u32,
    pid: u32,
}

impl Framework {
    /// The process that runs us.
    ///
    /// # Errors
    /// When the framework did not say which it is.
    pub(crate) fn owner(self, env: &dyn Fn(&str) -> Option<String>) -> Result<Owner> {
        let Self::Verl = self;
        let number = |name: &str| {
            let text =
                env(name).with_context(|| format!("{name} is not set: it is, in verl's finish_hook_cmd"))?;
            text.parse().with_context(|| format!("{name} is no number: {text:?}"))
        };
        Ok(Owner { rank: number("VERL_PROFILE_RANK")?, pid: number("VERL_PROFILE_PID")? })
    }
}

impl Owner {
    /// Whether the process wrote this file. Numbers of processes are those of a machine: on a disk that several
    /// share, the rank tells them apart.
    pub(crate) fn wrote(&self, path: &str) -> bool {
        let place = place_from_path(path).map(|told| told.place).unwrap_or_default();
        (place.rank, place.pid) == (Some(self.rank), Some(self.pid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(env: &[(&str, &str)]) -> Result<Owner> {
        Framework::Verl
            .owner(&|name| env.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn a_process_of_verl_wrote_what_bears_its_rank_and_its_number() {
        let owner = owner(&[("VERL_PROFILE_RANK", "1"), ("VERL_PROFILE_PID", "42")]).unwrap();
        for own in [
            "profile/step5/torch_memory_rank1_pid42.pickle",
            "profile/steps2-5/torch_memory_rank1_pid42.pickle",
            "profile/oom_20261130-101500-000001/torch_memory_oom_rank1_pid42.pickle",
        ] {
            assert!(owner.wrote(own), "{own}");
        }
        for other in [
            "profile/step5/torch_memory_rank0_pid42.pickle",
            "profile/step5/torch_memory_rank1_pid421.pickle",
            "profile/step5/snapshot.pickle",
        ] {
            assert!(!owner.wrote(other), "{other}");
        }
    }

    #[test]
    fn outside_verls_command_it_says_what_is_missing() {
        let error = format!("{:#}", owner(&[("VERL_PROFILE_RANK", "1")]).unwrap_err());
        assert_eq!(error, "VERL_PROFILE_PID is not set: it is, in verl's finish_hook_cmd");
    }
}
