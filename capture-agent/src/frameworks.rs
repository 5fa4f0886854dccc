//! Frameworks whose training loops tell us where steps end, and who is believed when several do.
//!
//! A trainer of transformers steps an optimizer of accelerate, which steps one of torch: all three could count.
//! The one that stands highest knows what a step is for whoever reads its logs.

use std::cmp::Ordering;

/// A framework with an adapter.
#[derive(Debug)]
pub struct Framework {
    /// What its adapter is called: the module in `tidegauge`, and the word in sidecars and `TIDEGAUGE_AUTO`.
    pub name: &'static str,
    /// Its distribution on PyPI.
    pub package: &'static str,
    /// The release with which a test of ours drove the real package; none, where no test did.
    pub driven: Option<&'static str>,
    /// Frameworks that stand on others have the higher number.
    height: u8,
}

/// All adapters.
pub const FRAMEWORKS: &[Framework] = &[
    Framework { name: "accelerate", package: "accelerate", driven: Some("1.15.0"), height: 1 },
    Framework { name: "deepspeed", package: "deepspeed", driven: Some("0.19.8"), height: 2 },
    Framework { name: "transformers", package: "transformers", driven: Some("5.10.4"), height: 3 },
    Framework { name: "lightning", package: "lightning", driven: Some("2.6.6"), height: 3 },
    Framework { name: "megatron_bridge", package: "megatron-bridge", driven: None, height: 3 },
    Framework { name: "verl", package: "verl", driven: Some("0.9.1"), height: 4 },
];

/// Who says where steps end.
#[derive(Debug, Clone, Copy)]
pub enum StepsBy {
    /// Nobody does: the steps of the first optimizer are counted.
    Optimizer,
    /// An adapter.
    Framework(&'static Framework),
    /// The script itself.
    Script,
}

impl StepsBy {
    /// From the word in a sidecar.
    pub fn from_word(word: &str) -> Option<Self> {
        match word {
            "opt_step" => Some(Self::Optimizer),
            "tidegauge.step" => Some(Self::Script),
            name => FRAMEWORKS.iter().find(|framework| framework.name == name).map(Self::Framework),
        }
    }

    /// "opt_step", "transformers", "tidegauge.step"
    pub fn word(self) -> &'static str {
        match self {
            Self::Optimizer => "opt_step",
            Self::Framework(framework) => framework.name,
            Self::Script => "tidegauge.step",
        }
    }

    fn height(self) -> u8 {
        match self {
            Self::Optimizer => 0,
            Self::Framework(framework) => framework.height,
            Self::Script => u8::MAX,
        }
    }
}

/// Whether somebody who says that a step ended is believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hearing {
    /// Nobody else spoke so far, or it spoke before.
    Believed,
    /// From now on it is; the one with this name was before.
    InsteadOf(&'static str),
    /// Somebody is who knows better.
    Ignored,
}

/// Who is believed, so far.
#[derive(Debug, Clone, Copy, Default)]
pub struct Believed(Option<StepsBy>);

impl Believed {
    /// Hears somebody. Among equals the first stays.
    pub fn hear(&mut self, by: StepsBy) -> Hearing {
        let Some(before) = self.0 else {
            self.0 = Some(by);
            return Hearing::Believed;
        };
        match by.height().cmp(&before.height()) {
            Ordering::Less => Hearing::Ignored,
            Ordering::Equal if by.word() == before.word() => Hearing::Believed,
            Ordering::Equal => Hearing::Ignored,
            Ordering::Greater => {
                self.0 = Some(by);
                Hearing::InsteadOf(before.word())
            }
        }
    }

    /// Its word for the sidecar.
    pub fn word(&self) -> Option<&'static str> {
        self.0.map(StepsBy::word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(words: &[&str]) -> Vec<Hearing> {
        let mut believed = Believed::default();
        words.iter().map(|word| believed.hear(StepsBy::from_word(word).unwrap())).collect()
    }

    #[test]
    fn a_trainer_is_believed_before_what_it_steps() {
        use Hearing::{Believed, Ignored, InsteadOf};
        assert_eq!(heard(&["transformers", "accelerate", "opt_step"]), [Believed, Ignored, Ignored]);
        let heard_late = heard(&["opt_step", "accelerate", "transformers", "transformers"]);
        assert_eq!(heard_late, [Believed, InsteadOf("opt_step"), InsteadOf("accelerate"), Believed]);
    }

    #[test]
    fn the_script_is_believed_before_all_others_and_among_equals_the_first() {
        use Hearing::{Believed, Ignored, InsteadOf};
        assert_eq!(heard(&["verl", "tidegauge.step", "verl"]), [Believed, InsteadOf("verl"), Ignored]);
        assert_eq!(heard(&["lightning", "transformers", "lightning"]), [Believed, Ignored, Believed]);
    }

    #[test]
    fn what_is_called_driven_is_what_the_tests_of_the_whole_product_install() {
        let clients = include_str!("../../tests/training/clients.txt");
        for framework in FRAMEWORKS {
            let Some(driven) = framework.driven else { continue };
            let line = format!("{}=={driven}", framework.package);
            assert!(clients.lines().any(|client| client == line), "{line} is not among them");
        }
    }

    #[test]
    fn every_word_of_a_sidecar_is_read_again() {
        let names = FRAMEWORKS.iter().map(|framework| framework.name);
        for word in names.chain(["opt_step", "tidegauge.step"]) {
            assert_eq!(StepsBy::from_word(word).map(StepsBy::word), Some(word));
        }
        assert!(StepsBy::from_word("numpy").is_none());
    }
}
