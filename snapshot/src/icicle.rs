//! Who called for the memory: the stacks of blocks in use, put together where they begin alike.
//!
//! A node's bytes are those of its children and of the stacks that end in it, so every depth adds up to the whole:
//! ```text
//! │ train                              │ (older than the trace) │   depth 0
//! │ forward            │ step          │                        │   depth 1
//! │ linear    │ gelu   │                                             depth 2
//! ```

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use crate::Snapshot;
use crate::model::{FrameId, StackId};
use crate::origins::Origins;
use crate::sites;
use crate::sums::{Key, Sum};

/// How stacks are put together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Shape {
    /// The innermost frame stands at the top, and below it who called it.
    pub is_inside_out: bool,
    /// Frames that are not Python's are left out.
    pub folds_native: bool,
}

/// What a node stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Step {
    /// A frame; of frames alike in function, file and line the first one.
    Frame(FrameId),
    /// Blocks whose stack nobody knows because they are older than the trace.
    OlderThanTrace,
    /// Blocks that were recorded without a stack.
    NoStack,
    /// Blocks with a stack in which no frame is left.
    NoFrames,
}

/// Stacks that begin alike.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// What they have in common at this depth.
    pub step: Step,
    /// The node this one hangs from; none at depth 0.
    pub parent: Option<usize>,
    /// How many nodes stand above it.
    pub depth: u32,
    /// Bytes of everything to its left at this depth, and above where nothing is.
    pub before: u64,
    /// Bytes of its blocks.
    pub allocated: u64,
    /// How many blocks there are.
    pub n_blocks: u64,
    /// The oldest of their allocations.
    pub first: usize,
}

/// A node stands before its children, and those with more bytes before those with fewer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Icicle {
    /// At most as many as the stacks in use have frames.
    pub nodes: Vec<Node>,
}

impl Icicle {
    /// Puts sums by stack together.
    pub fn new(paths: &mut Paths<'_>, sums: &[Sum]) -> Self {
        let mut tree = Tree::default();
        for sum in sums {
            let path = match sum.key {
                Key::Stack(stack) => paths.of_stack(stack),
                Key::OlderThanTrace => vec![Step::OlderThanTrace],
                Key::NoStack => vec![Step::NoStack],
                _ => vec![Step::NoFrames],
            };
            tree.add(&path, sum);
        }
        Self { nodes: tree.in_order() }
    }

    /// One node with what it hangs from and what hangs from it. It stands then as far down the list as in the picture.
    pub fn around(self, at: usize) -> Self {
        let Some(node) = self.nodes.get(at) else { return self };
        let end = self.end_below(at, node.depth);
        let kept: Vec<usize> = self.above(at).into_iter().chain(at..end).collect();
        self.only(&kept)
    }

    /// The `n` nodes with most bytes, in the same order. What a node hangs from is never left out before it.
    pub fn largest(self, n: usize) -> Self {
        let mut kept: Vec<usize> = (0..self.nodes.len()).collect();
        // Of equal bytes, a node stands before what hangs from it.
        kept.sort_by_key(|at| (std::cmp::Reverse(self.nodes[*at].allocated), *at));
        kept.truncate(n);
        kept.sort_unstable();
        self.only(&kept)
    }

    /// The nodes at these places, which are in order.
    fn only(&self, kept: &[usize]) -> Self {
        let stands_at = |at: usize| kept.binary_search(&at).ok();
        let nodes = kept.iter().map(|at| {
            let node = self.nodes[*at].clone();
            Node { parent: node.parent.and_then(stands_at), ..node }
        });
        Self { nodes: nodes.collect() }
    }

    /// What a node hangs from, outermost first.
    fn above(&self, at: usize) -> Vec<usize> {
        let mut above: Vec<usize> =
            std::iter::successors(self.nodes[at].parent, |at| self.nodes[*at].parent).collect();
        above.reverse();
        above
    }

    /// One past the last node that hangs from a node.
    fn end_below(&self, at: usize, depth: u32) -> usize {
        let after = self.nodes[at + 1..].iter().position(|node| node.depth <= depth);
        after.map_or(self.nodes.len(), |n| at + 1 + n)
    }
}

/// Nodes as they are found; children are looked up by what hangs where.
#[derive(Default)]
struct Tree {
    nodes: Vec<Node>,
    found: HashMap<(Option<usize>, Step), usize, RandomState>,
}

impl Tree {
    fn add(&mut self, path: &[Step], sum: &Sum) {
        let mut parent = None;
        for (depth, step) in path.iter().enumerate() {
            let next = self.nodes.len();
            let at = *self.found.entry((parent, *step)).or_insert(next);
            if at == next {
                self.nodes.push(Node {
                    step: *step,
                    parent,
                    depth: depth as u32,
                    before: 0,
                    allocated: 0,
                    n_blocks: 0,
                    first: sum.first,
                });
            }
            let node = &mut self.nodes[at];
            node.allocated = node.allocated.saturating_add(sum.allocated);
            node.n_blocks += sum.n_blocks;
            node.first = node.first.min(sum.first);
            parent = Some(at);
        }
    }

    fn in_order(mut self) -> Vec<Node> {
        let mut children: Vec<Vec<usize>> = vec![Vec::new(); self.nodes.len()];
        let mut waiting = Vec::new();
        for (at, node) in self.nodes.iter().enumerate() {
            node.parent.map_or(&mut waiting, |parent| &mut children[parent]).push(at);
        }
        // The next one to stand lies last.
        let smallest_first = |rows: &mut Vec<usize>, nodes: &[Node]| {
            rows.sort_by_key(|at| (nodes[*at].allocated, std::cmp::Reverse(nodes[*at].step)));
        };
        smallest_first(&mut waiting, &self.nodes);
        let mut ordered: Vec<Node> = Vec::with_capacity(self.nodes.len());
        let mut stands_at = vec![0; self.nodes.len()];
        // Where the next child of each node begins, and last where the next root does.
        let mut next_before = vec![0_u64; self.nodes.len() + 1];
        let root = self.nodes.len();
        while let Some(at) = waiting.pop() {
            let mut node = self.nodes[at].clone();
            let beside = &mut next_before[node.parent.unwrap_or(root)];
            node.before = *beside;
            *beside = beside.saturating_add(node.allocated);
            next_before[at] = node.before;
            node.parent = node.parent.map(|parent| stands_at[parent]);
            stands_at[at] = ordered.len();
            ordered.push(node);
            let below = &mut children[at];
            smallest_first(below, &self.nodes);
            waiting.append(below);
        }
        self.nodes.clear();
        ordered
    }
}

/// The steps of stacks, from the top of an icicle down; each frame is looked at once.
#[derive(Debug)]
pub struct Paths<'a> {
    snapshot: &'a Snapshot,
    shape: Shape,
    /// The first frame alike, by frame.
    first_alike: Vec<u32>,
    is_of_python: HashMap<u32, bool, RandomState>,
}

impl<'a> Paths<'a> {
    /// The paths of a shape.
    pub fn new(snapshot: &'a Snapshot, shape: Shape) -> Self {
        let mut seen = HashMap::<_, u32, RandomState>::default();
        let frames = snapshot.stacks.all_frames().iter().enumerate();
        let first_alike = frames
            .map(|(id, frame)| *seen.entry((frame.name, frame.filename, frame.line)).or_insert(id as u32))
            .collect();
        Self { snapshot, shape, first_alike, is_of_python: HashMap::default() }
    }

    /// The path of an allocation; never empty.
    pub fn of(&mut self, origins: &Origins<'_>, allocation: usize) -> Vec<Step> {
        match origins.replay.allocations.stack[allocation] {
            StackId::NONE if origins.is_older(allocation) => vec![Step::OlderThanTrace],
            StackId::NONE => vec![Step::NoStack],
            stack => self.of_stack(stack),
        }
    }

    fn of_stack(&mut self, stack: StackId) -> Vec<Step> {
        let snapshot = self.snapshot;
        let ids = snapshot.stacks.frame_ids(stack).iter().map(|id| self.first_alike[*id as usize]);
        let mut path: Vec<u32> = ids.collect();
        if self.shape.folds_native {
            path.retain(|id| {
                let frame = snapshot.stacks.all_frames()[*id as usize];
                *self.is_of_python.entry(*id).or_insert_with(|| sites::is_of_python(snapshot, frame))
            });
        }
        if !self.shape.is_inside_out {
            path.reverse();
        }
        if path.is_empty() {
            return vec![Step::NoFrames];
        }
        path.into_iter().map(|id| Step::Frame(FrameId(id))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::{Filter, Matcher};
    use crate::read;
    use crate::replay::{Replay, replay};
    use crate::sums::{By, in_use, sums};

    const TRAINING: &[u8] = include_bytes!("../fixtures/fsdp1_w2_noclear_rank0_step10.pickle");
    const POOLS: &[u8] = include_bytes!("../fixtures/pools_graphs_mempool.pickle");

    fn opened(pickle: &[u8]) -> (Snapshot, Replay) {
        let snapshot = read::open(pickle).unwrap();
        let replayed = replay(&snapshot, &snapshot.devices[0]);
        (snapshot, replayed)
    }

    fn shapes() -> impl Iterator<Item = Shape> {
        [(false, false), (false, true), (true, false), (true, true)]
            .into_iter()
            .map(|(is_inside_out, folds_native)| Shape { is_inside_out, folds_native })
    }

    /// Checks every law of the icicle of what a filter means at a state.
    fn check(pickle: &[u8], state: impl Fn(&Replay) -> u32, filter: &str) {
        let (snapshot, replay) = opened(pickle);
        let origins = Origins { snapshot: &snapshot, device: &snapshot.devices[0], replay: &replay };
        let only: Filter = filter.parse().unwrap();
        let state = state(&replay);
        let sums = sums(&origins, state, By::Stack, &only);
        let total: u64 = sums.iter().map(|sum| sum.allocated).sum();
        if filter.is_empty() {
            assert_eq!(total, replay.curves.allocated[state as usize]);
        }
        for shape in shapes() {
            let mut paths = Paths::new(&snapshot, shape);
            let Icicle { nodes } = Icicle::new(&mut paths, &sums);
            let matcher = Matcher::new(&only, &origins);
            let rows = || in_use(&origins, state).filter(|row| matcher.matches(*row));
            let ends: Vec<(usize, u64)> =
                rows().map(|row| (paths.of(&origins, row).len(), replay.allocations.size[row])).collect();
            let deepest = nodes.iter().map(|node| node.depth as usize + 1).max().unwrap_or(0);
            for depth in 0..deepest {
                let here = nodes.iter().filter(|node| node.depth as usize == depth);
                let ended: u64 = ends.iter().filter(|(n, _)| *n <= depth).map(|(_, size)| size).sum();
                assert_eq!(here.map(|node| node.allocated).sum::<u64>() + ended, total, "depth {depth}");
            }
            for (at, node) in nodes.iter().enumerate() {
                let n = node.depth as usize + 1;
                let beginning = paths.of(&origins, node.first)[..n].to_vec();
                assert_eq!(beginning[n - 1], node.step);
                let bytes: u64 = rows()
                    .filter(|row| paths.of(&origins, *row).starts_with(&beginning))
                    .map(|row| replay.allocations.size[row])
                    .sum();
                assert_eq!(bytes, node.allocated, "node {at} is not what begins like its first allocation");
                let Some(parent) = node.parent else { continue };
                let parent = &nodes[parent];
                assert_eq!(parent.depth + 1, node.depth);
                assert!(parent.before <= node.before);
                assert!(node.before + node.allocated <= parent.before + parent.allocated);
            }
        }
    }

    #[test]
    fn every_depth_adds_up_to_the_level() {
        check(TRAINING, |replay| replay.peak_state, "");
        check(TRAINING, |_| 0, "");
        check(POOLS, |replay| replay.curves.n_states() as u32 - 1, "");
    }

    #[test]
    fn every_depth_adds_up_to_what_a_filter_means() {
        check(TRAINING, |replay| replay.peak_state, "size>64KiB -is:older");
        check(TRAINING, |replay| replay.peak_state, "nothing-has-this-name");
    }

    #[test]
    fn what_is_older_than_the_trace_and_what_has_no_stack_are_nodes_of_their_own() {
        let (snapshot, _) = opened(TRAINING);
        let sum = |key, allocated| Sum { key, allocated, requested: allocated, n_blocks: 1, first: 0 };
        let sums = [
            sum(Key::OlderThanTrace, 4),
            sum(Key::NoStack, 3),
            sum(Key::NoFrames, 2),
            sum(Key::Stack(StackId(1)), 1),
        ];
        let Icicle { nodes } = Icicle::new(&mut Paths::new(&snapshot, Shape::default()), &sums);
        let tops: Vec<(Step, u64)> =
            nodes.iter().filter(|node| node.depth == 0).map(|node| (node.step, node.before)).collect();
        assert_eq!(tops[..3], [(Step::OlderThanTrace, 0), (Step::NoStack, 4), (Step::NoFrames, 7)]);
        assert!(matches!(tops[3..], [(Step::Frame(_), 9)]));
    }

    #[test]
    fn the_largest_nodes_stay_connected() {
        let (snapshot, replay) = opened(TRAINING);
        let origins = Origins { snapshot: &snapshot, device: &snapshot.devices[0], replay: &replay };
        let sums = sums(&origins, replay.peak_state, By::Stack, &Filter::default());
        let whole = Icicle::new(&mut Paths::new(&snapshot, Shape::default()), &sums);
        for n in [0, 1, 7, 50, whole.nodes.len(), usize::MAX] {
            let kept = whole.clone().largest(n);
            assert_eq!(kept.nodes.len(), n.min(whole.nodes.len()));
            for (at, node) in kept.nodes.iter().enumerate() {
                assert_eq!(node.parent.is_none(), node.depth == 0, "node {at} of {n}");
                assert!(node.parent.is_none_or(|parent| kept.nodes[parent].depth + 1 == node.depth));
            }
        }
    }

    #[test]
    fn around_a_node_stands_what_it_hangs_from_and_what_hangs_from_it() {
        let (snapshot, replay) = opened(TRAINING);
        let origins = Origins { snapshot: &snapshot, device: &snapshot.devices[0], replay: &replay };
        let sums = sums(&origins, replay.peak_state, By::Stack, &Filter::default());
        let whole = Icicle::new(&mut Paths::new(&snapshot, Shape::default()), &sums);
        for at in (0..whole.nodes.len()).step_by(5) {
            let node = &whole.nodes[at];
            let around = whole.clone().around(at);
            let found = node.depth as usize;
            assert_eq!(around.nodes[found].before, node.before);
            assert_eq!(around.nodes[found].allocated, node.allocated);
            let end = node.before + node.allocated;
            let overlaps = |other: &Node| other.before < end && node.before < other.before + other.allocated;
            let is_around = |other: &&Node| overlaps(other);
            assert_eq!(around.nodes.len(), whole.nodes.iter().filter(is_around).count());
        }
    }

    #[test]
    fn inside_out_the_innermost_frame_stands_on_top() {
        let (snapshot, _) = opened(TRAINING);
        let stack = StackId(1);
        let path = |is_inside_out| {
            Paths::new(&snapshot, Shape { is_inside_out, folds_native: false }).of_stack(stack)
        };
        let reversed: Vec<Step> = path(true).into_iter().rev().collect();
        assert_eq!(path(false), reversed);
        assert!(path(true).len() > 1);
    }
}
