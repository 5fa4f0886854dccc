//! What is due at a step's end, and which steps a snapshot covers.
//!
//! Pure: [`Windows`] is told where steps end and says what is due. It is also told whether that worked, so a
//! snapshot that failed leaves its steps to the next one.

use crate::choice::StepChoice;

/// Which steps a snapshot covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Window {
    /// All since the previous snapshot.
    SincePrevious,
    /// The chosen step alone.
    Step,
}

impl Window {
    /// The word in settings and sidecars.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SincePrevious => "since_previous",
            Self::Step => "step",
        }
    }
}

/// What is due at a step's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// Nothing.
    Nothing,
    /// Forget the history: the next step is to stand alone.
    Clear,
    /// Take a snapshot of these steps.
    Take(Steps),
}

/// The steps a snapshot covers; absent before the first step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Steps {
    /// The first step whose events are in it.
    pub first: Option<u64>,
    /// The last.
    pub last: Option<u64>,
}

/// A step that ended before one that had ended already.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("step({said}) after step({done}) is ignored: steps are numbered upwards through the whole run")]
pub struct StepBack {
    said: u64,
    done: u64,
}

/// Where training is, and where the recorded history begins.
#[derive(Debug, Clone)]
pub struct Windows {
    chosen: StepChoice,
    window: Window,
    /// The last step that ended. Before the first: startup.
    done: Option<u64>,
    /// Steps that ended, without a step 0, which is none of the loop's.
    n_done: u64,
    /// The first step in the history. Startup belongs to the first step that ends.
    first: Option<u64>,
}

impl Windows {
    /// Before the first step.
    pub fn new(chosen: StepChoice, window: Window) -> Self {
        Self { chosen, window, done: None, n_done: 0, first: None }
    }

    /// Step `n` ended; without `n`, the one after the last, counting from 1. `step(0)` before the loop parts
    /// startup from step 1.
    ///
    /// # Errors
    /// [`StepBack`] when a later step has ended; nothing changes then.
    pub fn end_of_step(&mut self, n: Option<u64>) -> Result<Due, StepBack> {
        let n = n.unwrap_or_else(|| self.in_progress());
        match self.done {
            Some(done) if n < done => return Err(StepBack { said: n, done }),
            Some(done) if n == done => return Ok(Due::Nothing),
            _ => {}
        }
        self.done = Some(n);
        self.n_done += u64::from(n > 0);
        self.first.get_or_insert(n);
        let is_next_chosen = || self.chosen.contains(n.saturating_add(1), self.n_done + 1);
        Ok(if self.chosen.contains(n, self.n_done) {
            Due::Take(Steps { first: self.first, last: self.done })
        } else if self.window == Window::Step && is_next_chosen() {
            Due::Clear
        } else {
            Due::Nothing
        })
    }

    /// Step `n` begins: all before it have ended, whatever was said of them. Where windows hold their step alone,
    /// what was recorded before it does not belong to it.
    pub fn beginning_of_step(&mut self, n: u64) -> Due {
        let before = n.saturating_sub(1);
        if n == 0 || self.done.is_some_and(|done| done >= before) && self.first.is_none_or(|first| first >= n)
        {
            return Due::Nothing;
        }
        self.done = Some(self.done.unwrap_or(before).max(before));
        self.first.get_or_insert(n);
        if self.window == Window::Step { Due::Clear } else { Due::Nothing }
    }

    /// Somebody else numbers the steps from now on, and says that step `n` ended; without `n`, its first. What is
    /// recorded belongs to that step.
    pub fn renumber(&mut self, n: Option<u64>) {
        if self.done.is_some_and(|done| n.unwrap_or(1) < done) {
            (self.done, self.n_done, self.first) = (None, 0, None);
        }
    }

    /// The steps that ended since the history was cleared, if any did.
    pub fn since_cleared(&self) -> Option<Steps> {
        let (first, last) = (self.first?, self.done?);
        (first <= last).then_some(Steps { first: Some(first), last: Some(last) })
    }

    /// The last step that ended.
    pub fn done(&self) -> Option<u64> {
        self.done
    }

    /// The steps that a snapshot taken now, amid a step, covers.
    pub fn so_far(&self) -> Steps {
        let last = self.done.map(|_| self.in_progress());
        Steps { first: self.first.filter(|_| last.is_some()), last }
    }

    /// The steps that a snapshot covers when no further step will end: those since the history was cleared, or
    /// none but the last that ended.
    pub fn at_end(&self) -> Steps {
        self.since_cleared().unwrap_or(Steps { first: self.done, last: self.done })
    }

    /// The history is empty now: it begins anew with the step after the last that ended.
    pub fn cleared(&mut self) {
        self.first = self.done.map(|_| self.in_progress());
    }

    fn in_progress(&self) -> u64 {
        self.done.map_or(1, |done| done.saturating_add(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is due at the ends of steps 1 to `last`, all of which works: "1: 1, 5: 2–5".
    fn played(chosen: &str, window: Window, last: u64) -> String {
        let mut windows = Windows::new(chosen.parse().unwrap(), window);
        let mut story = Vec::new();
        for n in 1..=last {
            match windows.end_of_step(None).unwrap() {
                Due::Nothing => continue,
                Due::Clear => story.push(format!("{n}: clear")),
                Due::Take(steps) => {
                    story.push(format!("{n}: {}–{}", steps.first.unwrap(), steps.last.unwrap()))
                }
            }
            windows.cleared();
        }
        story.join(", ")
    }

    #[test]
    fn each_snapshot_covers_the_steps_since_the_previous_one() {
        assert_eq!(played("1,5,10", Window::SincePrevious, 12), "1: 1–1, 5: 2–5, 10: 6–10");
        assert_eq!(played("all", Window::SincePrevious, 3), "1: 1–1, 2: 2–2, 3: 3–3");
    }

    #[test]
    fn every_nth_the_first_few_and_strides_are_chosen_beside_a_list() {
        assert_eq!(played("2,every:4,first:1", Window::SincePrevious, 9), "1: 1–1, 2: 2–2, 4: 3–4, 8: 5–8");
        assert_eq!(played("3-9/3", Window::SincePrevious, 12), "3: 1–3, 6: 4–6, 9: 7–9");
        assert_eq!(played("first:2", Window::Step, 4), "1: 1–1, 2: 2–2");
        assert_eq!(played("every:3", Window::Step, 4), "2: clear, 3: 3–3");
        assert_eq!(played("none", Window::SincePrevious, 12), "");
    }

    #[test]
    fn the_first_few_are_those_of_this_process_and_step_0_is_none_of_them() {
        let mut windows = Windows::new("first:2,every:1000".parse().unwrap(), Window::SincePrevious);
        let due: Vec<_> = [0, 1001, 1002, 1003, 2000].map(|n| windows.end_of_step(Some(n)).unwrap()).into();
        let is_taken: Vec<_> = due.iter().map(|due| matches!(due, Due::Take(_))).collect();
        assert_eq!(is_taken, [false, true, true, false, true]);
    }

    #[test]
    fn a_window_of_one_step_is_cleared_for_at_the_end_of_the_step_before() {
        assert_eq!(played("1,5,10", Window::Step, 12), "1: 1–1, 4: clear, 5: 5–5, 9: clear, 10: 10–10");
        assert_eq!(played("5-6", Window::Step, 7), "4: clear, 5: 5–5, 6: 6–6");
    }

    #[test]
    fn a_snapshot_that_failed_leaves_its_steps_to_the_next() {
        let mut windows = Windows::new("1,5".parse().unwrap(), Window::SincePrevious);
        windows.end_of_step(Some(1)).unwrap();
        assert_eq!(windows.end_of_step(Some(5)), Ok(Due::Take(Steps { first: Some(1), last: Some(5) })));
    }

    #[test]
    fn startup_belongs_to_the_first_step_unless_step_0_ends_it() {
        let mut windows = Windows::new("0,1".parse().unwrap(), Window::SincePrevious);
        assert_eq!(windows.so_far(), Steps::default());
        assert_eq!(windows.end_of_step(Some(0)), Ok(Due::Take(Steps { first: Some(0), last: Some(0) })));
        windows.cleared();
        assert_eq!(windows.end_of_step(None), Ok(Due::Take(Steps { first: Some(1), last: Some(1) })));
    }

    #[test]
    fn a_resumed_run_counts_from_where_it_says() {
        let mut windows = Windows::new("1005".parse().unwrap(), Window::SincePrevious);
        for n in 1001..1005 {
            assert_eq!(windows.end_of_step(Some(n)), Ok(Due::Nothing));
        }
        assert_eq!(windows.end_of_step(None), Ok(Due::Take(Steps { first: Some(1001), last: Some(1005) })));
    }

    #[test]
    fn a_snapshot_amid_a_step_covers_that_step_and_leaves_it_its_rest() {
        let mut windows = Windows::new("3".parse().unwrap(), Window::SincePrevious);
        windows.end_of_step(None).unwrap();
        assert_eq!(windows.so_far(), Steps { first: Some(1), last: Some(2) });
        windows.cleared();
        windows.end_of_step(None).unwrap();
        assert_eq!(windows.end_of_step(None), Ok(Due::Take(Steps { first: Some(2), last: Some(3) })));
    }

    #[test]
    fn steps_that_go_back_or_stand_still_change_nothing() {
        let mut windows = Windows::new("all".parse().unwrap(), Window::SincePrevious);
        windows.end_of_step(Some(5)).unwrap();
        assert_eq!(windows.end_of_step(Some(5)), Ok(Due::Nothing));
        assert_eq!(windows.end_of_step(Some(0)), Err(StepBack { said: 0, done: 5 }));
        assert_eq!(windows.so_far().last, Some(6));
    }

    fn begun(windows: &mut Windows, n: u64) -> (Due, Option<u64>) {
        let due = windows.beginning_of_step(n);
        if due == Due::Clear {
            windows.cleared();
        }
        (due, windows.first)
    }

    #[test]
    fn a_step_whose_beginning_is_said_holds_nothing_from_before_it() {
        let mut windows = Windows::new("all".parse().unwrap(), Window::Step);
        assert_eq!(begun(&mut windows, 2), (Due::Clear, Some(2)));
        assert_eq!(windows.end_of_step(Some(2)), Ok(Due::Take(Steps { first: Some(2), last: Some(2) })));
        windows.cleared();
        assert_eq!(begun(&mut windows, 5), (Due::Clear, Some(5)));
        assert_eq!(windows.end_of_step(Some(6)), Ok(Due::Take(Steps { first: Some(5), last: Some(6) })));
        windows.cleared();
        // The step after one that was taken begins by itself.
        assert_eq!(begun(&mut windows, 7), (Due::Nothing, Some(7)));
    }

    #[test]
    fn where_windows_reach_back_the_beginning_of_a_step_changes_nothing() {
        let mut windows = Windows::new("all".parse().unwrap(), Window::SincePrevious);
        assert_eq!(begun(&mut windows, 1).0, Due::Nothing);
        windows.end_of_step(Some(1)).unwrap();
        windows.cleared();
        assert_eq!(begun(&mut windows, 5).0, Due::Nothing);
        assert_eq!(windows.end_of_step(Some(5)), Ok(Due::Take(Steps { first: Some(2), last: Some(5) })));
    }

    #[test]
    fn whoever_numbers_the_steps_anew_may_begin_lower() {
        let mut windows = Windows::new("2".parse().unwrap(), Window::SincePrevious);
        for n in 1..=9 {
            if windows.end_of_step(Some(n)).unwrap() != Due::Nothing {
                windows.cleared();
            }
        }
        windows.renumber(None);
        assert_eq!(windows.end_of_step(Some(1)), Ok(Due::Nothing));
        assert_eq!(windows.end_of_step(None), Ok(Due::Take(Steps { first: Some(1), last: Some(2) })));
        // Where the numbers go on upwards they stay.
        windows.renumber(Some(7));
        assert_eq!(windows.end_of_step(Some(1)), Err(StepBack { said: 1, done: 2 }));
    }
}
