//! Which of the watched files it is time for: those that stood still since the last look. Time is counted in looks.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use super::stamp::Stamp;

/// Looks after which a file that is not whole is taken for one that never will be: half a minute, as looks go by
/// default. A process that writes pauses for a slow disk, not for so long.
pub(super) const PATIENCE: u32 = 15;

/// The watched files, as they were at the last look.
#[derive(Debug, Default)]
pub(super) struct Lookout {
    files: BTreeMap<PathBuf, Watched>,
}

/// A file, and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Watched {
    /// Whether its name is one that other files have, too.
    pub(super) is_guess: bool,
    pub(super) stamp: Stamp,
    /// Looks since it last changed.
    n_still: u32,
    stands: Stands,
    /// Whether something about it was said; it is said once for each content.
    pub(super) was_said: bool,
    /// How often the server was away when it was its turn. Those with fewer come first, so that one at which the
    /// server stumbles does not hold up the others.
    n_failures: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Stands {
    /// To be read once it stood still for so many looks.
    ToBeRead { n_still: u32 },
    /// Whole, and to be sent.
    ToBeSent { digest: String },
    /// There is nothing to do until it changes.
    Settled,
}

impl Lookout {
    /// Takes in what a look found. `is_settled` says which new or changed files nothing is to be done about.
    pub(super) fn look(
        &mut self,
        found: BTreeMap<PathBuf, (bool, Stamp)>,
        is_settled: &dyn Fn(&Path, Stamp) -> bool,
    ) {
        let before = std::mem::take(&mut self.files);
        let mut before = before.into_iter().peekable();
        for (path, (is_guess, stamp)) in found {
            // Both are in order, so what is skipped is gone.
            while before.next_if(|(known, _)| *known < path).is_some() {}
            let known = before.next_if(|(known, _)| *known == path).map(|(_, watched)| watched);
            let watched = match known.filter(|watched| watched.stamp == stamp) {
                Some(watched) => Watched { n_still: watched.n_still.saturating_add(1), ..watched },
                None => Watched::new(is_guess, stamp, is_settled(&path, stamp)),
            };
            self.files.insert(path, watched);
        }
    }

    /// Files that it is time for, in the order in which to try them.
    pub(super) fn due(&self) -> Vec<PathBuf> {
        let mut due: Vec<_> = self.files.iter().filter(|(_, watched)| watched.is_due()).collect();
        due.sort_by_key(|(path, watched)| (watched.n_failures, *path));
        due.into_iter().map(|(path, _)| path.clone()).collect()
    }

    /// Files that something is still to be done about, whole or not.
    pub(super) fn unsettled(&self) -> impl Iterator<Item = (&Path, &Watched)> {
        let unsettled = self.files.iter().filter(|(_, watched)| watched.stands != Stands::Settled);
        unsettled.map(|(path, watched)| (path.as_path(), watched))
    }

    pub(super) fn is_watched(&self, path: &Path) -> bool {
        self.files.contains_key(path)
    }

    pub(super) fn get(&self, path: &Path) -> Option<&Watched> {
        self.files.get(path)
    }

    pub(super) fn get_mut(&mut self, path: &Path) -> Option<&mut Watched> {
        self.files.get_mut(path)
    }
}

impl Watched {
    fn new(is_guess: bool, stamp: Stamp, is_settled: bool) -> Self {
        let stands = if is_settled { Stands::Settled } else { Stands::ToBeRead { n_still: 1 } };
        Self { is_guess, stamp, n_still: 0, stands, was_said: false, n_failures: 0 }
    }

    fn is_due(&self) -> bool {
        match self.stands {
            Stands::ToBeRead { n_still } => self.n_still >= n_still,
            Stands::ToBeSent { .. } => true,
            Stands::Settled => false,
        }
    }

    /// The digest of its content, once it was read and is whole.
    pub(super) fn digest(&self) -> Option<&str> {
        match &self.stands {
            Stands::ToBeSent { digest } => Some(digest),
            _ => None,
        }
    }

    /// Whether it has stood still for so long that it will not become whole.
    pub(super) fn is_out_of_patience(&self) -> bool {
        self.n_still >= PATIENCE
    }

    /// Whether it did not change between the last two looks.
    pub(super) fn stood_still(&self) -> bool {
        self.n_still > 0
    }

    pub(super) fn is_whole(&mut self, digest: String) {
        self.stands = Stands::ToBeSent { digest };
    }

    /// It is read once more when patience is at its end.
    pub(super) fn is_not_whole_yet(&mut self) {
        self.stands = Stands::ToBeRead { n_still: PATIENCE };
    }

    /// It is tried again a while later, however long it takes.
    pub(super) fn cannot_be_read(&mut self) {
        self.stands = Stands::ToBeRead { n_still: self.n_still.saturating_add(PATIENCE) };
    }

    pub(super) fn server_was_away(&mut self) {
        self.n_failures = self.n_failures.saturating_add(1);
    }

    pub(super) fn settle(&mut self) {
        self.stands = Stands::Settled;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A look that found these files of so many bytes, none of them known from before.
    fn look(lookout: &mut Lookout, files: &[(&str, u64)]) -> Vec<String> {
        let found = files.iter().map(|(path, bytes)| {
            (PathBuf::from(path), (false, Stamp { bytes: *bytes, modified_ns: *bytes }))
        });
        lookout.look(found.collect(), &|_, _| false);
        lookout.due().iter().map(|path| path.display().to_string()).collect()
    }

    fn watched<'l>(lookout: &'l mut Lookout, path: &str) -> &'l mut Watched {
        lookout.get_mut(Path::new(path)).unwrap()
    }

    #[test]
    fn a_file_is_due_once_it_stood_still_for_a_look() {
        let mut lookout = Lookout::default();
        assert!(look(&mut lookout, &[("a", 1), ("b", 5)]).is_empty());
        assert_eq!(look(&mut lookout, &[("a", 2), ("b", 5)]), ["b"]);
        watched(&mut lookout, "b").settle();
        assert_eq!(look(&mut lookout, &[("a", 2), ("b", 5)]), ["a"]);
        assert!(look(&mut lookout, &[("a", 3), ("b", 5)]).is_empty());
        assert_eq!(look(&mut lookout, &[("a", 3), ("b", 5)]), ["a"]);
    }

    #[test]
    fn a_settled_file_is_due_again_when_it_is_overwritten() {
        let mut lookout = Lookout::default();
        look(&mut lookout, &[("a", 1)]);
        look(&mut lookout, &[("a", 1)]);
        watched(&mut lookout, "a").settle();
        watched(&mut lookout, "a").was_said = true;
        assert!(look(&mut lookout, &[("a", 1)]).is_empty());
        assert!(look(&mut lookout, &[("a", 2)]).is_empty());
        assert_eq!(look(&mut lookout, &[("a", 2)]), ["a"]);
        assert!(!watched(&mut lookout, "a").was_said);
    }

    #[test]
    fn a_file_that_is_not_whole_is_read_again_when_it_changes_or_patience_ends() {
        let mut lookout = Lookout::default();
        look(&mut lookout, &[("a", 1)]);
        look(&mut lookout, &[("a", 1)]);
        watched(&mut lookout, "a").is_not_whole_yet();
        for _ in 2..PATIENCE {
            assert!(look(&mut lookout, &[("a", 1)]).is_empty());
            assert!(!watched(&mut lookout, "a").is_out_of_patience());
        }
        assert_eq!(look(&mut lookout, &[("a", 1)]), ["a"]);
        assert!(watched(&mut lookout, "a").is_out_of_patience());
        look(&mut lookout, &[("a", 2)]);
        assert_eq!(look(&mut lookout, &[("a", 2)]), ["a"]);
    }

    #[test]
    fn a_file_that_cannot_be_read_is_tried_for_ever_but_not_at_each_look() {
        let mut lookout = Lookout::default();
        look(&mut lookout, &[("a", 1)]);
        let mut n_due = 0;
        for _ in 0..10 * PATIENCE {
            if !look(&mut lookout, &[("a", 1)]).is_empty() {
                n_due += 1;
                watched(&mut lookout, "a").cannot_be_read();
            }
        }
        assert_eq!(n_due, 10);
    }

    #[test]
    fn what_is_whole_waits_for_the_server_with_the_rest_before_what_it_stumbled_over() {
        let mut lookout = Lookout::default();
        look(&mut lookout, &[("a", 1), ("b", 1)]);
        look(&mut lookout, &[("a", 1), ("b", 1)]);
        watched(&mut lookout, "a").is_whole("digest".to_owned());
        watched(&mut lookout, "a").server_was_away();
        assert_eq!(look(&mut lookout, &[("a", 1), ("b", 1)]), ["b", "a"]);
        assert_eq!(watched(&mut lookout, "a").digest(), Some("digest"));
        assert!(look(&mut lookout, &[("b", 2)]).is_empty(), "a is gone, b changed");
        assert_eq!(lookout.unsettled().count(), 1);
    }

    #[test]
    fn what_was_dealt_with_before_is_settled_at_first_sight() {
        let mut lookout = Lookout::default();
        let found = || BTreeMap::from([(PathBuf::from("a"), (false, Stamp { bytes: 1, modified_ns: 1 }))]);
        lookout.look(found(), &|path, _| path == Path::new("a"));
        lookout.look(found(), &|_, _| false);
        assert!(lookout.due().is_empty());
    }
}
