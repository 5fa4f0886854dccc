//! Which steps and which ranks are chosen.
//!
//! One grammar for both, parts with commas between them: numbers, ranges and strides ("5", "10-20", "0-900/100").
//! Steps also know "every:100" and "first:3", ranks "node-first" and "sample:8".

use std::{fmt, num::NonZeroU64, str::FromStr};

/// The most parts in one choice: more are a mistake, not a plan. A choice with more is refused.
pub const MAX_PARTS: usize = 10_000;

const STEPS: &str = r#""all", "none" or parts such as 1,5,10-20,every:100,first:3"#;
const RANKS: &str = r#""all" or parts such as 0,8-15,node-first,sample:8"#;

/// The steps at whose ends snapshots are taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepChoice(Choice<StepPart>);

/// The ranks that record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankChoice(Choice<RankPart>);

/// What chooses nothing that could be meant.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ChoiceError {
    /// A part of no known kind.
    #[error("expected {expected}, found {found:?}")]
    Unknown {
        /// What there is.
        expected: &'static str,
        /// The part.
        found: String,
    },
    /// "every:0"
    #[error("{0:?} chooses nothing: it needs a whole number from 1 upwards")]
    NotPositive(String),
    /// "20-10"
    #[error("the range {0:?} ends before it begins")]
    Backwards(String),
    /// No part at all.
    #[error("nothing is chosen: expected {0}")]
    Nothing(&'static str),
    /// More than [`MAX_PARTS`].
    #[error("more than {MAX_PARTS} parts; ranges, strides (0-90000/10) and every:N choose many at once")]
    TooMany,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Choice<Part> {
    All,
    Some(Vec<Part>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum StepPart {
    Stretch(Stretch),
    /// The multiples of a number.
    Every(NonZeroU64),
    /// So many that the process makes, whatever their numbers.
    First(NonZeroU64),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum RankPart {
    Stretch(Stretch),
    /// The first rank of each node.
    NodeFirst,
    /// So many, spread evenly over all; rank 0 is always one.
    Sample(NonZeroU64),
}

/// Numbers from `first` to `last`, each so far from the one before it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stretch {
    first: u64,
    last: u64,
    stride: NonZeroU64,
}

/// What a choice of ranks is asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankAmong {
    /// Global rank.
    pub rank: u32,
    /// Its number on its node, as far as it is known.
    pub local_rank: Option<u32>,
    /// Number of ranks, as far as it is known.
    pub world_size: Option<u32>,
}

impl StepChoice {
    /// Whether step `n` is among them, which is the `nth` that this process makes, counted from 1.
    pub fn contains(&self, n: u64, nth: u64) -> bool {
        self.0.is_any(|part| match part {
            StepPart::Stretch(stretch) => stretch.contains(n),
            StepPart::Every(every) => n > 0 && n.is_multiple_of(every.get()),
            StepPart::First(first) => n > 0 && nth <= first.get(),
        })
    }
}

impl RankChoice {
    /// Whether a rank is among them. What is not known of it chooses rank 0 alone, which is the first of a node
    /// and in every sample.
    pub fn contains(&self, RankAmong { rank, local_rank, world_size }: RankAmong) -> bool {
        self.0.is_any(|part| match part {
            RankPart::Stretch(stretch) => stretch.contains(rank.into()),
            RankPart::NodeFirst => local_rank.map_or(rank == 0, |local| local == 0),
            RankPart::Sample(n) => is_in_sample(rank.into(), world_size.unwrap_or(1).into(), n.get()),
        })
    }

    /// Whether all ranks are chosen.
    pub fn is_all(&self) -> bool {
        matches!(self.0, Choice::All)
    }

    /// What it needs to know of a rank and does not: a sentence for people.
    pub fn lacks(&self, among: RankAmong) -> Option<&'static str> {
        let Choice::Some(parts) = &self.0 else { return None };
        let (is_first, is_sample) =
            (parts.contains(&RankPart::NodeFirst), parts.iter().any(|p| matches!(p, RankPart::Sample(_))));
        match (among.local_rank, among.world_size) {
            (None, _) if is_first => {
                Some("ranks=node-first: nothing tells the local rank (LOCAL_RANK), so rank 0 alone is chosen")
            }
            (_, None) if is_sample => Some(
                "ranks=sample: nothing tells the number of ranks (WORLD_SIZE), so rank 0 alone is chosen",
            ),
            _ => None,
        }
    }
}

/// The i-th of `n` chosen among `total` is ⌊i · total / n⌋.
fn is_in_sample(rank: u64, total: u64, n: u64) -> bool {
    // Ranks are 32 bits long and a product with n may not fit in 64: u128 holds it.
    let (rank, total, n) = (u128::from(rank), u128::from(total), u128::from(n));
    if rank >= total || n >= total {
        return rank < total;
    }
    let i = (rank * n).div_ceil(total);
    i < n && i * total / n == rank
}

impl<Part> Choice<Part> {
    fn is_any(&self, is_chosen: impl Fn(&Part) -> bool) -> bool {
        match self {
            Self::All => true,
            Self::Some(parts) => parts.iter().any(is_chosen),
        }
    }

    /// From parts with commas between them; `part` knows one, or does not.
    fn from_text(
        text: &str,
        expected: &'static str,
        part: impl Fn(&str) -> Result<Option<Part>, ChoiceError>,
    ) -> Result<Self, ChoiceError> {
        let texts: Vec<_> =
            text.split(',').map(str::trim).filter(|text| !text.is_empty()).take(MAX_PARTS + 1).collect();
        match texts.as_slice() {
            [] => Err(ChoiceError::Nothing(expected)),
            ["all"] => Ok(Self::All),
            texts if texts.len() > MAX_PARTS => Err(ChoiceError::TooMany),
            texts => {
                let known = |text: &&str| match part(text)? {
                    Some(part) => Ok(part),
                    None => Err(ChoiceError::Unknown { expected, found: (*text).to_owned() }),
                };
                Ok(Self::Some(texts.iter().map(known).collect::<Result<_, _>>()?))
            }
        }
    }
}

impl Stretch {
    /// "5", "10-20", "0-900/100"
    fn from_text(text: &str) -> Result<Option<Self>, ChoiceError> {
        let number = |text: &str| text.trim().parse::<u64>().ok();
        let (range, stride) = match text.split_once('/') {
            Some((range, stride)) => (range, positive(text, stride)?),
            None => (text, NonZeroU64::MIN),
        };
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        match (number(first), number(last)) {
            (Some(first), Some(last)) if first > last => Err(ChoiceError::Backwards(text.to_owned())),
            (Some(first), Some(last)) => Ok(Some(Self { first, last, stride })),
            _ => Ok(None),
        }
    }

    fn contains(&self, n: u64) -> bool {
        (self.first..=self.last).contains(&n) && (n - self.first) % self.stride == 0
    }
}

/// The number that makes `part` choose something.
fn positive(part: &str, number: &str) -> Result<NonZeroU64, ChoiceError> {
    number.trim().parse().ok().ok_or_else(|| ChoiceError::NotPositive(part.to_owned()))
}

impl FromStr for StepChoice {
    type Err = ChoiceError;

    fn from_str(text: &str) -> Result<Self, ChoiceError> {
        if text.trim() == "none" {
            return Ok(Self(Choice::Some(Vec::new())));
        }
        let part = |text: &str| {
            Ok(match text.split_once(':') {
                Some(("every", n)) => Some(StepPart::Every(positive(text, n)?)),
                Some(("first", n)) => Some(StepPart::First(positive(text, n)?)),
                _ => Stretch::from_text(text)?.map(StepPart::Stretch),
            })
        };
        Choice::from_text(text, STEPS, part).map(Self)
    }
}

impl FromStr for RankChoice {
    type Err = ChoiceError;

    fn from_str(text: &str) -> Result<Self, ChoiceError> {
        let part = |text: &str| {
            Ok(match text.split_once(':') {
                Some(("sample", n)) => Some(RankPart::Sample(positive(text, n)?)),
                _ if text == "node-first" => Some(RankPart::NodeFirst),
                _ => Stretch::from_text(text)?.map(RankPart::Stretch),
            })
        };
        Choice::from_text(text, RANKS, part).map(Self)
    }
}

impl fmt::Display for StepChoice {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Choice::Some(parts) if parts.is_empty() => out.write_str("none"),
            choice => choice.fmt(out),
        }
    }
}

impl fmt::Display for RankChoice {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

impl<Part: fmt::Display> fmt::Display for Choice<Part> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Some(parts) = self else { return out.write_str("all") };
        for (i, part) in parts.iter().enumerate() {
            let comma = if i > 0 { ", " } else { "" };
            write!(out, "{comma}{part}")?;
        }
        Ok(())
    }
}

impl fmt::Display for StepPart {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stretch(stretch) => stretch.fmt(out),
            Self::Every(n) => write!(out, "every {n}"),
            Self::First(n) => write!(out, "the first {n}"),
        }
    }
}

impl fmt::Display for RankPart {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stretch(stretch) => stretch.fmt(out),
            Self::NodeFirst => out.write_str("the first of each node"),
            Self::Sample(n) => write!(out, "{n} spread over all"),
        }
    }
}

impl fmt::Display for Stretch {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first, last, stride } = self;
        match (first == last, stride.get()) {
            (true, _) => write!(out, "{first}"),
            (false, 1) => write!(out, "{first}–{last}"),
            (false, stride) => write!(out, "{first}–{last} by {stride}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_read_from_text_and_shown_as_people_write_them() {
        let steps = |text: &str| text.parse::<StepChoice>().unwrap().to_string();
        assert_eq!(
            steps("1, 5,10-12,0-900/100,every:50,first:3"),
            "1, 5, 10–12, 0–900 by 100, every 50, the first 3"
        );
        assert_eq!((steps("all"), steps(" none ")), ("all".to_owned(), "none".to_owned()));
        let ranks = |text: &str| text.parse::<RankChoice>().unwrap().to_string();
        assert_eq!(ranks("0,8-15,node-first,sample:4"), "0, 8–15, the first of each node, 4 spread over all");
    }

    #[test]
    fn a_choice_of_nothing_is_refused_in_one_sentence() {
        let steps = |text: &str| text.parse::<StepChoice>().unwrap_err().to_string();
        let expected = r#"expected "all", "none" or parts such as 1,5,10-20,every:100,first:3"#;
        for unknown in ["one", "-", "1;5", "-3", "99999999999999999999", "node-first", "every", "all-5"] {
            assert_eq!(steps(unknown), format!("{expected}, found {unknown:?}"));
        }
        assert_eq!(steps("1,all"), format!(r#"{expected}, found "all""#));
        assert_eq!(steps(""), format!("nothing is chosen: {expected}"));
        assert_eq!(steps(" , "), format!("nothing is chosen: {expected}"));
        for part in ["every:0", "every:-1", "first:0", "first:", "every:1.5", "0-9/0"] {
            let sentence = format!("{part:?} chooses nothing: it needs a whole number from 1 upwards");
            assert_eq!(steps(&format!("5,{part}")), sentence);
        }
        assert_eq!(steps("20-10"), r#"the range "20-10" ends before it begins"#);
        assert!(steps(&"1,".repeat(MAX_PARTS + 1)).starts_with("more than 10000 parts"));
        let ranks = |text: &str| text.parse::<RankChoice>().unwrap_err().to_string();
        assert_eq!(
            ranks("sample:0"),
            r#""sample:0" chooses nothing: it needs a whole number from 1 upwards"#
        );
        assert_eq!(
            ranks("none"),
            r#"expected "all" or parts such as 0,8-15,node-first,sample:8, found "none""#
        );
    }

    /// The ranks of a world that are chosen, with `per_node` on each node.
    fn ranks(choice: &str, world_size: u32, per_node: u32) -> Vec<u32> {
        let choice: RankChoice = choice.parse().unwrap();
        let among =
            |rank| RankAmong { rank, local_rank: Some(rank % per_node), world_size: Some(world_size) };
        (0..world_size).filter(|rank| choice.contains(among(*rank))).collect()
    }

    #[test]
    fn ranks_are_chosen_by_list_by_node_and_by_sample() {
        assert_eq!(ranks("0,3-5", 8, 4), [0, 3, 4, 5]);
        assert_eq!(ranks("node-first", 12, 4), [0, 4, 8]);
        assert_eq!(ranks("sample:4", 64, 8), [0, 16, 32, 48]);
        assert_eq!(ranks("sample:3", 8, 8), [0, 2, 5]);
        assert_eq!(ranks("sample:9", 3, 3), [0, 1, 2]);
        assert_eq!(ranks("7,sample:1", 8, 8), [0, 7]);
    }

    #[test]
    fn a_sample_has_its_number_of_ranks_and_always_rank_0() {
        for world_size in 1..=40 {
            for n in 1..=45 {
                let sample = ranks(&format!("sample:{n}"), world_size, 8);
                assert_eq!((sample.len(), sample[0]), (n.min(world_size as usize), 0), "{n} of {world_size}");
                let steps: Vec<_> = sample.windows(2).map(|pair| pair[1] - pair[0]).collect();
                let (least, most) = (steps.iter().min(), steps.iter().max());
                assert!(most.unwrap_or(&1) - least.unwrap_or(&1) <= 1, "{n} of {world_size}: {sample:?}");
            }
        }
    }

    #[test]
    fn where_nothing_tells_the_node_or_the_number_of_ranks_rank_0_stands_for_all() {
        let unknown = |rank| RankAmong { rank, local_rank: None, world_size: None };
        for choice in ["node-first", "sample:4"] {
            let choice: RankChoice = choice.parse().unwrap();
            assert!(choice.contains(unknown(0)) && !choice.contains(unknown(1)));
            assert!(choice.lacks(unknown(0)).is_some_and(|sentence| sentence.contains("rank 0 alone")));
        }
        let list: RankChoice = "0,1".parse().unwrap();
        assert_eq!((list.contains(unknown(1)), list.lacks(unknown(1))), (true, None));
    }
}
