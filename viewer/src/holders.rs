//! Who holds the memory, as the page tells it: words for groups, where the bars of an icicle lie, where keys lead.

use tidegauge_api::holders::{HeldAllocation, HoldersAnswer, HoldingCall, HoldingGroup};
use tidegauge_api::picture::FrameAnswer;
use tidegauge_snapshot::filter::Filter;

use crate::format::{bytes, count, counted, percent};
use crate::story::frame_location;

/// A bar narrower than this part of the icicle is not drawn, percent: about two pixels.
const MIN_WIDTH: f64 = 0.2;

/// Why a text is no filter; none when it is one.
pub fn filter_problem(text: &str) -> Option<String> {
    text.parse::<Filter>().err().map(|error| error.to_string())
}

/// What a filter means of the level at the cursor, and of the whole trace once that is known.
pub fn filter_result(answer: &HoldersAnswer, n_in_trace: Option<u64>) -> String {
    let here = format!(
        "{} of {} at the cursor, in {}",
        bytes(answer.meant.allocated),
        bytes(answer.level),
        counted(answer.meant.blocks, "block", "blocks")
    );
    match n_in_trace {
        Some(n) => format!("{here}; {} in all", counted(n, "allocation", "allocations")),
        None => here,
    }
}

/// What stands first in a group's row: the function, or what its blocks have in common.
pub fn group_name(group: &HoldingGroup) -> String {
    group.site.as_ref().map_or_else(|| group.label.clone(), |site| site.name.clone())
}

/// What stands below it: "attention.py:88 › adam.py:177 _init_group"; empty without frames.
pub fn group_place(group: &HoldingGroup) -> String {
    let place = group.site.as_ref().map(file_and_line).unwrap_or_default();
    match &group.inside {
        Some(inside) => format!("{place} › {} {}", file_and_line(inside), inside.name),
        None => place,
    }
}

/// Where a frame is, without the folders: "attention.py:88".
fn file_and_line(frame: &FrameAnswer) -> String {
    let location = frame_location(frame);
    location.rsplit(['/', '\\']).next().unwrap_or_default().to_owned()
}

/// A group in one sentence, for those who hear it.
pub fn group_sentence(group: &HoldingGroup, level: u64) -> String {
    let total = group.total;
    let blocks = counted(total.blocks, "block", "blocks");
    format!("{}: {}, {}, {blocks}", group.label, bytes(total.allocated), percent(total.allocated, level))
}

/// "34 more groups".
pub fn others_sentence(answer: &HoldersAnswer) -> Option<String> {
    (answer.n_others > 0).then(|| counted(answer.n_others, "more group", "more groups"))
}

/// An allocation's life in a few words.
pub fn held_sentence(held: &HeldAllocation) -> String {
    let from = match held.from {
        Some(from) => format!("since event {}", count(from.into())),
        None => "older than the trace".to_owned(),
    };
    match held.to {
        Some(to) => format!("{from}, until {}", count(to.into())),
        None => format!("{from}, never freed"),
    }
}

/// A call in one sentence, for those who hear it and for its title.
pub fn call_sentence(call: &HoldingCall, level: u64) -> String {
    let place = frame_location(&call.frame);
    let place = if place.is_empty() { place } else { format!(" {place}") };
    let blocks = counted(call.blocks, "block", "blocks");
    format!(
        "{}{place}: {}, {}, {blocks}",
        call.frame.name,
        bytes(call.allocated),
        percent(call.allocated, level)
    )
}

/// Where a node of the icicle is drawn, in percent of its width.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bar {
    /// The node's place in the list.
    pub node: usize,
    /// Left edge.
    pub left: f64,
    /// Width.
    pub width: f64,
    /// Row, from the top.
    pub depth: u32,
}

/// The bars of an icicle: as wide as the chosen node where there is one, as everything else.
pub fn bars(nodes: &[HoldingCall]) -> Vec<Bar> {
    let end_of = |node: &HoldingCall| node.before.saturating_add(node.allocated);
    let chosen = nodes.iter().find(|node| node.is_chosen);
    let (from, to) = match chosen {
        Some(node) => (node.before, end_of(node)),
        None => (0, nodes.iter().filter(|node| node.depth == 0).map(end_of).max().unwrap_or(0)),
    };
    let percent = |bytes: u64| bytes as f64 / to.saturating_sub(from).max(1) as f64 * 100.0;
    let bar = |(i, node): (usize, &HoldingCall)| {
        let (left, right) = (node.before.clamp(from, to), end_of(node).clamp(from, to));
        let (left, width) = (percent(left - from), percent(right - left));
        (width >= MIN_WIDTH).then_some(Bar { node: i, left, width, depth: node.depth })
    };
    nodes.iter().enumerate().filter_map(bar).collect()
}

/// A direction in the icicle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// To the node it hangs from.
    Up,
    /// To the largest that hangs from it.
    Down,
    /// To the next larger beside it.
    Left,
    /// To the next smaller beside it.
    Right,
}

/// Where a way leads among what is drawn; to where it began where it leads nowhere.
pub fn moved(nodes: &[HoldingCall], bars: &[Bar], at: usize, way: Way) -> usize {
    let Some(here) = nodes.get(at) else { return bars.first().map_or(0, |bar| bar.node) };
    let drawn = || bars.iter().map(|bar| bar.node);
    let is_beside = |i: &usize| nodes[*i].parent == here.parent && nodes[*i].depth == here.depth;
    let found = match way {
        Way::Up => here.parent.map(|parent| parent as usize),
        Way::Down => drawn().find(|i| nodes[*i].parent == Some(at as u32)),
        Way::Left => drawn().filter(is_beside).take_while(|i| *i < at).last(),
        Way::Right => drawn().filter(is_beside).find(|i| *i > at),
    };
    found.unwrap_or(at)
}

/// What hangs from a node, largest first, and the bytes that end in it or in calls too small to be told.
pub fn below(nodes: &[HoldingCall], at: usize) -> (Vec<usize>, u64) {
    let below: Vec<usize> =
        (0..nodes.len()).filter(|i| nodes[*i].parent.is_some_and(|parent| parent as usize == at)).collect();
    let told: u64 = below.iter().map(|i| nodes[*i].allocated).sum();
    (below, nodes.get(at).map_or(0, |node| node.allocated.saturating_sub(told)))
}

#[cfg(test)]
mod tests {
    use tidegauge_api::breakdown::Total;

    use super::*;

    fn node(name: &str, parent: Option<u32>, depth: u32, before: u64, allocated: u64) -> HoldingCall {
        let frame = FrameAnswer { name: name.to_owned(), filename: "a/b.py".to_owned(), line: Some(3) };
        HoldingCall { frame, parent, depth, before, allocated, blocks: 1, ..HoldingCall::default() }
    }

    /// ```text
    /// │ train 900            │ older 100 │
    /// │ forward 600 │ back 299│ tiny 1
    /// │ gelu 600    │
    /// ```
    fn nodes() -> Vec<HoldingCall> {
        vec![
            node("train", None, 0, 0, 900),
            node("forward", Some(0), 1, 0, 600),
            node("gelu", Some(1), 2, 0, 600),
            node("back", Some(0), 1, 600, 299),
            node("tiny", Some(0), 1, 899, 1),
            node("older", None, 0, 900, 100),
        ]
    }

    #[test]
    fn bars_are_as_wide_as_their_bytes_and_what_is_too_narrow_is_not_drawn() {
        let bars = bars(&nodes());
        let drawn: Vec<(usize, f64, f64)> =
            bars.iter().map(|bar| (bar.node, bar.left.round(), bar.width.round())).collect();
        let expected = [(0, 0.0, 90.0), (1, 0.0, 60.0), (2, 0.0, 60.0), (3, 60.0, 30.0), (5, 90.0, 10.0)];
        assert_eq!(drawn, expected);
        assert_eq!(super::bars(&[]), []);
    }

    #[test]
    fn a_chosen_node_is_as_wide_as_everything_and_so_is_what_it_hangs_from() {
        let mut nodes = nodes();
        nodes[3].is_chosen = true;
        let drawn: Vec<(usize, f64, f64)> =
            bars(&nodes).iter().map(|bar| (bar.node, bar.left, bar.width)).collect();
        assert_eq!(drawn, [(0, 0.0, 100.0), (3, 0.0, 100.0)]);
    }

    #[test]
    fn keys_lead_to_parents_children_and_neighbors() {
        let nodes = nodes();
        let bars = bars(&nodes);
        let walk = |at, way| moved(&nodes, &bars, at, way);
        assert_eq!(walk(0, Way::Down), 1);
        assert_eq!(walk(1, Way::Right), 3);
        assert_eq!(walk(3, Way::Right), 3, "what is not drawn is not reached");
        assert_eq!(walk(3, Way::Left), 1);
        assert_eq!(walk(3, Way::Up), 0);
        assert_eq!(walk(0, Way::Right), 5);
        assert_eq!(walk(5, Way::Up), 5);
        assert_eq!(walk(99, Way::Up), 0);
        assert_eq!(moved(&[], &[], 0, Way::Down), 0);
    }

    #[test]
    fn what_hangs_from_a_node_and_what_ends_there_add_up_to_it() {
        let nodes = nodes();
        assert_eq!(below(&nodes, 0), (vec![1, 3, 4], 0));
        assert_eq!(below(&nodes, 3), (vec![], 299));
        assert_eq!(below(&[], 0), (vec![], 0));
    }

    #[test]
    fn a_group_is_told_by_the_line_that_can_be_changed() {
        let frame = |name: &str, filename: &str| FrameAnswer {
            name: name.to_owned(),
            filename: filename.to_owned(),
            line: Some(88),
        };
        let group = HoldingGroup {
            label: "model.py:88 forward › torch.nn.functional:9 gelu".to_owned(),
            site: Some(frame("forward", "/home/me/src/model.py")),
            inside: Some(frame("gelu", "torch/nn/functional.py")),
            total: Total { allocated: 1 << 30, requested: 1 << 30, blocks: 2 },
            ..HoldingGroup::default()
        };
        assert_eq!(group_name(&group), "forward");
        assert_eq!(group_place(&group), "model.py:88 › functional.py:88 gelu");
        let told = group_sentence(&group, 4 << 30);
        assert_eq!(told, "model.py:88 forward › torch.nn.functional:9 gelu: 1.00 GiB, 25 %, 2 blocks");
        let plain = HoldingGroup { label: "default stream".to_owned(), ..HoldingGroup::default() };
        assert_eq!((group_name(&plain), group_place(&plain)), ("default stream".to_owned(), String::new()));
    }

    #[test]
    fn what_is_no_filter_says_why() {
        assert_eq!(filter_problem("size>1MiB attention"), None);
        assert!(filter_problem("size>much").unwrap().contains("such as 1MiB"));
    }

    #[test]
    fn a_filter_tells_what_it_means() {
        let answer = HoldersAnswer {
            level: 4 << 30,
            meant: Total { allocated: 1 << 30, requested: 0, blocks: 1 },
            ..HoldersAnswer::default()
        };
        let told = filter_result(&answer, Some(1_204));
        assert_eq!(told, "1.00 GiB of 4.00 GiB at the cursor, in 1 block; 1,204 allocations in all");
    }
}
