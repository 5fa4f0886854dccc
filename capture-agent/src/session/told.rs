//! What a session is told of by adapters, other packages and the other ranks.

use tidegauge_api::Sidecar;

use super::{Session, State};
use crate::{
    frameworks::{Hearing, StepsBy},
    neighbors::proposed_run,
    plan::Due,
};

impl Session {
    /// Somebody will say where steps end. Who knows less is not heard from now on.
    pub fn steps_from(&mut self, by: StepsBy) {
        self.hears(by);
    }

    /// Somebody says that step `n` ended, or the one after the last.
    pub fn step_by(&mut self, n: Option<u64>, by: StepsBy) {
        self.settle();
        if !self.hears(by) {
            return;
        }
        if std::mem::take(&mut self.is_renumbered) {
            self.windows.renumber(n);
            return self.end_of_step(Some(n.unwrap_or(1)));
        }
        self.end_of_step(n);
    }

    /// Somebody says that step `n` begins now, and that it does not belong to any step before.
    pub fn begin_step(&mut self, n: u64, by: StepsBy) {
        self.settle();
        if self.hears(by) && self.windows.beginning_of_step(n) == Due::Clear {
            self.clear();
        }
    }

    /// An adapter says which role the process plays. A role that a person said stays.
    pub fn plays(&mut self, role: &str, adapter: &str) {
        self.neighbors.role = Some((role.to_owned(), adapter.to_owned()));
        self.look_around();
    }

    /// Whether somebody is believed.
    fn hears(&mut self, by: StepsBy) -> bool {
        match self.steps_by.hear(by) {
            Hearing::Believed => true,
            Hearing::Ignored => false,
            Hearing::InsteadOf(before) => {
                self.is_renumbered = true;
                let word = by.word();
                self.notices
                    .say_once("steps-by", format_args!("{word} numbers the steps from now on, not {before}"));
                true
            }
        }
    }

    /// Gives a run that nothing names a name of its own, the same on all ranks: two trainings of one script are
    /// two runs.
    pub(super) fn agree_on_a_run(&mut self) {
        let Some(group) = self.recorder.group().filter(|_| self.whereabouts.is_unnamed()) else { return };
        // Who neither tells nor records need not wait.
        if group.rank > 0 && !self.is_chosen() {
            return;
        }
        let proposed = proposed_run(&self.whereabouts.run, (self.process.now_us)());
        self.neighbors.agreed_run = self.recorder.agreed_run(&proposed, group);
        self.look_around();
        if group.rank == 0 && self.state == State::Recording && self.neighbors.agreed_run.is_some() {
            let run = &self.whereabouts.run;
            self.notices.say(format_args!("nothing names this run: it is called {run} from now on"));
        }
    }

    /// Writes into a sidecar who the process is and who numbered the steps.
    pub(super) fn describe(&self, sidecar: &mut Sidecar) {
        self.whereabouts.describe(sidecar);
        self.neighbors.describe(sidecar);
        if let Some(word) = self.steps_by.word() {
            sidecar.more.insert("steps_by".to_owned(), word.into());
        }
    }
}
