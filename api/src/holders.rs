//! Who holds the memory at one moment, as the page shows it: groups, an icicle of calls, and one of either looked at
//! closely.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidegauge_snapshot::Snapshot;
use tidegauge_snapshot::filter::{Filter, Matcher};
use tidegauge_snapshot::icicle::{Icicle, Node, Paths, Shape, Step};
use tidegauge_snapshot::model::{Frame, StackId};
use tidegauge_snapshot::origins::Origins;
use tidegauge_snapshot::picture::Palette;
use tidegauge_snapshot::replay::NEVER;
use tidegauge_snapshot::sites;
use tidegauge_snapshot::sums::{By, Key, Keys, Sum, largest, sums};

use crate::breakdown::{Total, label, total};
use crate::picture::FrameAnswer;

/// Groups in an answer; the others are summed up.
pub const MAX_GROUPS: usize = 50;
/// Nodes of the icicle in an answer: more would be narrower than a pixel. Smaller ones are left out.
pub const MAX_NODES: usize = 600;
/// Allocations listed of what is looked at closely; smaller ones are left out.
pub const MAX_LARGEST: usize = 20;
/// The longest text of a name in an answer, characters; the end is cut off.
pub const MAX_NAME: usize = 300;

/// Who holds the memory at a state?
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldersQuestion {
    /// Device ordinal.
    pub device: u32,
    /// The state.
    pub state: u32,
    /// Which allocations are meant, as a filter.
    pub only: String,
    /// What groups have in common: "stack", "file", "module", "pool", "stream" or "size".
    pub by: String,
    /// How the icicle is put together.
    pub shape: IcicleShape,
    /// What to look at closely.
    pub chosen: Option<Holder>,
}

/// How an icicle is put together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IcicleShape {
    /// The innermost frame stands at the top.
    pub is_inside_out: bool,
    /// Frames that are not Python's are left out.
    pub folds_native: bool,
}

/// A group or a node, named by one of its allocations: so it stays the same at every state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Holder {
    /// What has the same stack, file, … as the allocation.
    Group {
        /// What groups have in common.
        by: String,
        /// Number of the allocation.
        like: u32,
    },
    /// What was called for in the same way, down to a depth.
    Calls {
        /// How the icicle is put together.
        shape: IcicleShape,
        /// Number of the allocation.
        like: u32,
        /// How many nodes stand above.
        depth: u32,
    },
}

/// Answer to [`HoldersQuestion`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldersAnswer {
    /// The state.
    pub state: u32,
    /// What the groups have in common.
    pub by: String,
    /// How the icicle is put together.
    pub shape: IcicleShape,
    /// The allocated level there, bytes.
    pub level: u64,
    /// What the filter means of it: the groups and the others together.
    pub meant: Total,
    /// Those with most bytes.
    pub groups: Vec<HoldingGroup>,
    /// How many groups are not among them.
    pub n_others: u64,
    /// Those together.
    pub others: Total,
    /// Nodes of the icicle: those above and below the chosen one, or all. A node stands before its children.
    pub nodes: Vec<HoldingCall>,
    /// How many nodes were too small to be among them.
    pub n_nodes_left_out: u64,
    /// What is looked at closely.
    pub chosen: Option<Closely>,
}

/// Blocks that have something in common.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldingGroup {
    /// The oldest of their allocations.
    pub like: u32,
    /// What they have in common, in words.
    pub label: String,
    /// Of a group by stack: the line that somebody can change.
    pub site: Option<FrameAnswer>,
    /// Of a group by stack: where that line led to, if it is elsewhere.
    pub inside: Option<FrameAnswer>,
    /// Of a group by stack: its color in the picture.
    pub color: Option<[u8; 3]>,
    /// Their sizes.
    pub total: Total,
    /// True for the one that is looked at closely.
    pub is_chosen: bool,
}

/// A node of the icicle.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldingCall {
    /// The frame; only a name where it is none.
    pub frame: FrameAnswer,
    /// True for code outside PyTorch.
    pub is_own: bool,
    /// The node it hangs from, by its place in the list.
    pub parent: Option<u32>,
    /// How many nodes stand above it.
    pub depth: u32,
    /// Bytes to its left.
    pub before: u64,
    /// Bytes of its blocks.
    pub allocated: u64,
    /// How many blocks there are.
    pub blocks: u64,
    /// The oldest of their allocations.
    pub like: u32,
    /// True for the one that is looked at closely.
    pub is_chosen: bool,
}

/// What a holder holds at a state.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Closely {
    /// What its blocks have in common, in words.
    pub label: String,
    /// Their sizes.
    pub total: Total,
    /// Its largest allocations.
    pub largest: Vec<HeldAllocation>,
}

/// An allocation in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldAllocation {
    /// Its number.
    pub id: u32,
    /// Bytes of its block.
    pub size: u64,
    /// The state it began in; absent when it is older than the trace.
    pub from: Option<u32>,
    /// The state it is gone in; absent when it outlives the trace.
    pub to: Option<u32>,
}

/// Which allocations does a filter mean, and a holder hold, at whatever state?
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MarkedQuestion {
    /// Device ordinal.
    pub device: u32,
    /// The filter.
    pub only: String,
    /// The holder; all when absent.
    pub chosen: Option<Holder>,
}

/// Who holds the memory.
///
/// # Errors
/// A sentence when the filter is none, or the question names what is not there.
pub fn holders(
    origins: &Origins<'_>,
    palette: &Palette,
    question: &HoldersQuestion,
) -> Result<HoldersAnswer, String> {
    let snapshot = origins.snapshot;
    let only = filter(&question.only)?;
    let by = by_named(&question.by)?;
    let state = question.state.min(origins.device.events.len() as u32);
    let mut chosen = question.chosen.as_ref().map(|holder| Chosen::new(origins, holder)).transpose()?;
    let mut is_chosen = |row| chosen.as_mut().is_some_and(|chosen| chosen.holds(row));

    let by_stack = sums(origins, state, By::Stack, &only);
    let other_sums = (by != By::Stack).then(|| sums(origins, state, by, &only));
    let groups = other_sums.as_ref().unwrap_or(&by_stack);
    let (shown, others) = groups.split_at(MAX_GROUPS.min(groups.len()));
    let is_by_group = matches!(&question.chosen, Some(Holder::Group { by, .. }) if *by == question.by);

    let (nodes, n_nodes_left_out) = calls(snapshot, question, &by_stack, &mut is_chosen);
    let answer = HoldersAnswer {
        state,
        by: question.by.clone(),
        shape: question.shape,
        level: origins.replay.curves.at(state as usize).allocated,
        meant: groups.iter().map(total).fold(Total::default(), Total::and),
        groups: shown
            .iter()
            .map(|sum| HoldingGroup {
                is_chosen: is_by_group && is_chosen(sum.first),
                ..group(snapshot, palette, sum)
            })
            .collect(),
        n_others: others.len() as u64,
        others: others.iter().map(total).fold(Total::default(), Total::and),
        nodes,
        n_nodes_left_out,
        chosen: None,
    };
    let matcher = Matcher::new(&only, origins);
    let closely = chosen.map(|mut chosen| {
        let rows = largest(origins, state, usize::MAX, |row| matcher.matches(row) && chosen.holds(row));
        closely(origins, chosen.label(), &rows)
    });
    Ok(HoldersAnswer { chosen: closely, ..answer })
}

/// The largest nodes of the icicle, of all or around the chosen one, and how many are left out of them.
fn calls(
    snapshot: &Snapshot,
    question: &HoldersQuestion,
    by_stack: &[Sum],
    is_chosen: &mut impl FnMut(usize) -> bool,
) -> (Vec<HoldingCall>, u64) {
    let mut icicle = Icicle::new(&mut Paths::new(snapshot, question.shape.into()), by_stack);
    let chosen_depth = match question.chosen {
        Some(Holder::Calls { shape, depth, .. }) if shape == question.shape => Some(depth),
        _ => None,
    };
    let mut focus = None;
    if let Some(depth) = chosen_depth
        && let Some(at) = icicle.nodes.iter().position(|node| node.depth == depth && is_chosen(node.first))
    {
        icicle = icicle.around(at);
        focus = Some(depth as usize);
    }
    let n_nodes = icicle.nodes.len();
    let Icicle { nodes } = icicle.largest(MAX_NODES);
    let n_left_out = (n_nodes - nodes.len()) as u64;
    let nodes = nodes
        .iter()
        .enumerate()
        .map(|(at, node)| HoldingCall { is_chosen: focus == Some(at), ..call(snapshot, node) });
    (nodes.collect(), n_left_out)
}

/// One bit for each allocation of the device, lowest first.
///
/// # Errors
/// A sentence when the filter is none, or the question names what is not there.
pub fn marked(origins: &Origins<'_>, question: &MarkedQuestion) -> Result<Vec<u8>, String> {
    let only = filter(&question.only)?;
    let mut chosen = question.chosen.as_ref().map(|holder| Chosen::new(origins, holder)).transpose()?;
    let mut bits = vec![0; origins.replay.allocations.len().div_ceil(8)];
    for row in Matcher::new(&only, origins).rows() {
        if chosen.as_mut().is_none_or(|chosen| chosen.holds(row)) {
            bits[row / 8] |= 1 << (row % 8);
        }
    }
    Ok(bits)
}

fn filter(text: &str) -> Result<Filter, String> {
    text.parse().map_err(|error: tidegauge_snapshot::filter::FilterError| error.to_string())
}

fn by_named(name: &str) -> Result<By, String> {
    let found = By::NAMED.iter().find(|(known, _)| *known == name).map(|(_, by)| *by);
    found.ok_or_else(|| format!("nothing is grouped by \"{name}\""))
}

impl From<IcicleShape> for Shape {
    fn from(shape: IcicleShape) -> Self {
        Self { is_inside_out: shape.is_inside_out, folds_native: shape.folds_native }
    }
}

/// Says which allocations are a holder's; looks at each stack once.
struct Chosen<'a> {
    origins: &'a Origins<'a>,
    common: Common<'a>,
}

enum Common<'a> {
    Key { keys: Keys<'a>, key: Key },
    Beginning { paths: Paths<'a>, beginning: Vec<Step>, of_stacks: BTreeMap<(StackId, bool), bool> },
}

impl<'a> Chosen<'a> {
    fn new(origins: &'a Origins<'a>, holder: &Holder) -> Result<Self, String> {
        let (Holder::Group { like, .. } | Holder::Calls { like, .. }) = holder;
        let like = *like as usize;
        if like >= origins.replay.allocations.len() {
            return Err(format!("device {} has no allocation {like}", origins.device.ordinal));
        }
        let common = match holder {
            Holder::Group { by, .. } => {
                let mut keys = Keys::new(origins, by_named(by)?);
                let key = keys.of(like);
                Common::Key { keys, key }
            }
            Holder::Calls { shape, depth, .. } => {
                let mut paths = Paths::new(origins.snapshot, (*shape).into());
                let mut beginning = paths.of(origins, like);
                beginning.truncate((*depth as usize).saturating_add(1));
                Common::Beginning { paths, beginning, of_stacks: BTreeMap::new() }
            }
        };
        Ok(Self { origins, common })
    }

    fn holds(&mut self, row: usize) -> bool {
        let origins = self.origins;
        match &mut self.common {
            Common::Key { keys, key } => keys.of(row) == *key,
            Common::Beginning { paths, beginning, of_stacks } => {
                let stack = (origins.replay.allocations.stack[row], origins.is_older(row));
                *of_stacks.entry(stack).or_insert_with(|| paths.of(origins, row).starts_with(beginning))
            }
        }
    }

    fn label(&self) -> String {
        let snapshot = self.origins.snapshot;
        let label = match &self.common {
            Common::Key { key, .. } => label(snapshot, key),
            Common::Beginning { beginning, .. } => match beginning.last() {
                Some(Step::Frame(id)) => sites::frame(snapshot, snapshot.stacks.all_frames()[id.0 as usize]),
                Some(step) => without_frame(*step, snapshot),
                None => String::new(),
            },
        };
        cut(label)
    }
}

fn closely(origins: &Origins<'_>, label: String, rows: &[usize]) -> Closely {
    let allocations = &origins.replay.allocations;
    let one = |row: &usize| Total {
        allocated: allocations.size[*row],
        requested: allocations.requested[*row],
        blocks: 1,
    };
    let held = |row: &usize| HeldAllocation {
        id: *row as u32,
        size: allocations.size[*row],
        from: (!origins.is_older(*row)).then_some(allocations.from[*row]),
        to: Some(allocations.to[*row]).filter(|to| *to != NEVER),
    };
    Closely {
        label,
        total: rows.iter().map(one).fold(Total::default(), Total::and),
        largest: rows.iter().take(MAX_LARGEST).map(held).collect(),
    }
}

fn group(snapshot: &Snapshot, palette: &Palette, sum: &Sum) -> HoldingGroup {
    let stack = match sum.key {
        Key::Stack(stack) => Some(stack),
        _ => None,
    };
    let site = stack.and_then(|stack| sites::site(snapshot, stack));
    let inside = stack.and_then(|stack| sites::innermost_python(snapshot, stack));
    HoldingGroup {
        like: sum.first as u32,
        label: cut(label(snapshot, &sum.key)),
        site: site.map(|frame| frame_answer(snapshot, frame)),
        inside: inside.filter(|frame| Some(*frame) != site).map(|frame| frame_answer(snapshot, frame)),
        color: stack.map(|stack| palette.color(stack)),
        total: total(sum),
        is_chosen: false,
    }
}

fn call(snapshot: &Snapshot, node: &Node) -> HoldingCall {
    let (frame, is_own) = match node.step {
        Step::Frame(id) => {
            let frame = snapshot.stacks.all_frames()[id.0 as usize];
            (frame_answer(snapshot, frame), sites::is_own(snapshot, frame))
        }
        step => (FrameAnswer { name: without_frame(step, snapshot), ..FrameAnswer::default() }, false),
    };
    HoldingCall {
        frame,
        is_own,
        parent: node.parent.map(|parent| parent as u32),
        depth: node.depth,
        before: node.before,
        allocated: node.allocated,
        blocks: node.n_blocks,
        like: node.first as u32,
        is_chosen: false,
    }
}

fn without_frame(step: Step, snapshot: &Snapshot) -> String {
    let key = match step {
        Step::OlderThanTrace => Key::OlderThanTrace,
        Step::NoStack => Key::NoStack,
        Step::NoFrames | Step::Frame(_) => Key::NoFrames,
    };
    label(snapshot, &key)
}

fn frame_answer(snapshot: &Snapshot, frame: Frame) -> FrameAnswer {
    let place = sites::place(snapshot, frame);
    FrameAnswer { name: cut(place.function), filename: cut(place.file), line: place.line }
}

fn cut(text: String) -> String {
    match text.char_indices().nth(MAX_NAME) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use tidegauge_snapshot::read;
    use tidegauge_snapshot::replay::{Replay, replay};

    use super::*;

    const TRAINING: &[u8] = include_bytes!("../../snapshot/fixtures/fsdp1_w2_noclear_rank0_step10.pickle");

    fn opened() -> (Snapshot, Replay) {
        let snapshot = read::open(TRAINING).unwrap();
        let replayed = replay(&snapshot, &snapshot.devices[0]);
        (snapshot, replayed)
    }

    fn question(replay: &Replay) -> HoldersQuestion {
        HoldersQuestion {
            device: 0,
            state: replay.peak_state,
            only: String::new(),
            by: "stack".to_owned(),
            shape: IcicleShape::default(),
            chosen: None,
        }
    }

    #[test]
    fn groups_and_others_add_up_to_the_level_however_they_are_made() {
        let (snapshot, replay) = opened();
        let origins = Origins { snapshot: &snapshot, device: &snapshot.devices[0], replay: &replay };
        let palette = Palette::new(&snapshot);
        for (by, _) in By::NAMED {
            let question = HoldersQuestion { by: by.to_owned(), ..question(&replay) };
            let answer = holders(&origins, &palette, &question).unwrap();
            let groups = answer.groups.iter().map(|group| group.total).fold(answer.others, Total::and);
            assert_eq!(groups, answer.meant);
            assert_eq!(answer.meant.allocated, answer.level, "by {by}");
        }
    }

    #[test]
    fn a_holder_holds_what_its_group_or_its_node_says_at_every_state() {
        let (snapshot, replay) = opened();
        let origins = Origins { snapshot: &snapshot, device: &snapshot.devices[0], replay: &replay };
        let palette = Palette::new(&snapshot);
        let question = HoldersQuestion { only: "size>=1KiB".to_owned(), ..question(&replay) };
        let answer = holders(&origins, &palette, &question).unwrap();
        let closely = |chosen: Holder| {
            let question = HoldersQuestion { chosen: Some(chosen), ..question.clone() };
            holders(&origins, &palette, &question).unwrap()
        };
        for group in &answer.groups {
            let again = closely(Holder::Group { by: "stack".to_owned(), like: group.like });
            assert_eq!(again.chosen.unwrap().total, group.total);
            let chosen: Vec<u32> =
                again.groups.iter().filter(|group| group.is_chosen).map(|group| group.like).collect();
            assert_eq!(chosen, [group.like]);
        }
        for node in answer.nodes.iter().step_by(7) {
            let (like, depth) = (node.like, node.depth);
            let again = closely(Holder::Calls { shape: IcicleShape::default(), like, depth });
            assert_eq!(again.chosen.unwrap().total.allocated, node.allocated);
            let chosen: Vec<&HoldingCall> = again.nodes.iter().filter(|node| node.is_chosen).collect();
            assert_eq!(chosen.len(), 1);
            assert_eq!((chosen[0].allocated, chosen[0].depth), (node.allocated, depth));
        }
    }

    #[test]
    fn marks_are_the_allocations_of_filter_and_holder() {
        let (snapshot, replay) = opened();
        let origins = Origins { snapshot: &snapshot, device: &snapshot.devices[0], replay: &replay };
        let n = |only: &str, chosen| {
            let question = MarkedQuestion { device: 0, only: only.to_owned(), chosen };
            marked(&origins, &question).unwrap().iter().map(|byte| byte.count_ones()).sum::<u32>()
        };
        assert_eq!(n("", None), replay.allocations.len() as u32);
        assert_eq!(n("is:older", None), replay.n_preexisting as u32);
        let like = replay.allocations.len() as u32 - 1;
        let one = Some(Holder::Group { by: "stack".to_owned(), like });
        assert!((1..n("", None)).contains(&n("", one.clone())));
        assert_eq!(n("size>999TiB", one), 0);
    }

    #[test]
    fn what_cannot_be_answered_is_said_in_a_sentence() {
        let (snapshot, replay) = opened();
        let origins = Origins { snapshot: &snapshot, device: &snapshot.devices[0], replay: &replay };
        let error =
            |question: HoldersQuestion| holders(&origins, &Palette::default(), &question).unwrap_err();
        let good = question(&replay);
        assert!(
            error(HoldersQuestion { only: "size>much".to_owned(), ..good.clone() }).contains("such as 1MiB")
        );
        assert!(error(HoldersQuestion { by: "mood".to_owned(), ..good.clone() }).contains("mood"));
        let like = u32::MAX;
        let nobody = Some(Holder::Group { by: "file".to_owned(), like });
        assert!(error(HoldersQuestion { chosen: nobody, ..good }).contains("has no allocation"));
    }
}
