//! Who holds the memory: the blocks in use at a state, summed up by stack, file, module, pool, stream or size.

use std::collections::BTreeMap;

use crate::filter::{Filter, Matcher};
use crate::model::StackId;
use crate::origins::Origins;
use crate::sites;

/// What blocks are summed up by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// The whole stack of the allocation.
    Stack,
    /// The file of the innermost frame outside PyTorch.
    File,
    /// The Python module of the innermost frame, PyTorch's own included.
    Module,
    /// The allocator's pool.
    Pool,
    /// The stream.
    Stream,
    /// The block's size.
    Size,
}

impl By {
    /// Every kind, by its name.
    pub const NAMED: [(&'static str, Self); 6] = [
        ("stack", Self::Stack),
        ("file", Self::File),
        ("module", Self::Module),
        ("pool", Self::Pool),
        ("stream", Self::Stream),
        ("size", Self::Size),
    ];
}

/// What the blocks of a sum have in common.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// Their stack.
    Stack(StackId),
    /// Their file.
    File(String),
    /// Their module.
    Module(String),
    /// Their pool; absent when the file does not tell.
    Pool(Option<(u64, u64)>),
    /// The raw handle of their stream; absent when the file does not tell.
    Stream(Option<u64>),
    /// Their size in bytes.
    Size(u64),
    /// No stack is known because they are older than the trace.
    OlderThanTrace,
    /// No stack was recorded with them.
    NoStack,
    /// A stack without frames was recorded, or none of them in a file that is known.
    NoFrames,
}

/// Blocks in use that have something in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sum {
    /// What they have in common.
    pub key: Key,
    /// Bytes they occupy.
    pub allocated: u64,
    /// Bytes the program asked for.
    pub requested: u64,
    /// How many there are.
    pub n_blocks: u64,
    /// The oldest of their allocations: what has its key belongs to them, at whatever state.
    pub first: usize,
}

/// The allocations whose blocks are in use at a state: handed out, and not yet given back by the program. Their
/// sizes add up to the allocated level there.
pub fn in_use<'a>(origins: &'a Origins<'_>, state: u32) -> impl Iterator<Item = usize> + 'a {
    let allocations = &origins.replay.allocations;
    // Rows stand in order of their beginning.
    let n_begun = allocations.from.partition_point(|from| *from <= state);
    (0..n_begun).filter(move |row| state < allocations.free_requested[*row] && state < allocations.to[*row])
}

/// The blocks in use at a state that a filter means, most bytes first.
pub fn sums(origins: &Origins<'_>, state: u32, by: By, only: &Filter) -> Vec<Sum> {
    let allocations = &origins.replay.allocations;
    let mut keys = Keys::new(origins, by);
    let mut sums: BTreeMap<Key, Sum> = BTreeMap::new();
    let matcher = Matcher::new(only, origins);
    for row in in_use(origins, state).filter(|row| matcher.matches(*row)) {
        let key = keys.of(row);
        let sum = sums.entry(key).or_insert_with_key(|key| Sum {
            key: key.clone(),
            allocated: 0,
            requested: 0,
            n_blocks: 0,
            first: row,
        });
        sum.allocated = sum.allocated.saturating_add(allocations.size[row]);
        sum.requested = sum.requested.saturating_add(allocations.requested[row]);
        sum.n_blocks += 1;
    }
    let mut sums: Vec<Sum> = sums.into_values().collect();
    // Stable: what is equal stays in order of its key.
    sums.sort_by_key(|sum| std::cmp::Reverse((sum.allocated, sum.n_blocks)));
    sums
}

/// The blocks in use at a state that are wanted, largest first, and of equal ones the oldest first; at most `n`.
pub fn largest(
    origins: &Origins<'_>,
    state: u32,
    n: usize,
    mut is_wanted: impl FnMut(usize) -> bool,
) -> Vec<usize> {
    let mut rows: Vec<usize> = in_use(origins, state).filter(|row| is_wanted(*row)).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(origins.replay.allocations.size[*row]));
    rows.truncate(n);
    rows
}

/// Finds the keys of allocations; looks at each stack once.
#[derive(Debug)]
pub struct Keys<'a> {
    origins: &'a Origins<'a>,
    by: By,
    of_stacks: BTreeMap<StackId, Key>,
}

impl<'a> Keys<'a> {
    /// Keys by `by`.
    pub fn new(origins: &'a Origins<'a>, by: By) -> Self {
        Self { origins, by, of_stacks: BTreeMap::new() }
    }

    /// The key of an allocation.
    pub fn of(&mut self, row: usize) -> Key {
        match self.by {
            By::Pool => Key::Pool(self.origins.pool(row)),
            By::Stream => Key::Stream(self.origins.stream(row)),
            By::Size => Key::Size(self.origins.replay.allocations.size[row]),
            By::Stack | By::File | By::Module => self.of_stack(row),
        }
    }

    fn of_stack(&mut self, row: usize) -> Key {
        let stack = self.origins.replay.allocations.stack[row];
        match stack {
            StackId::NONE if self.origins.is_older(row) => Key::OlderThanTrace,
            StackId::NONE => Key::NoStack,
            StackId::EMPTY => Key::NoFrames,
            stack => {
                let (snapshot, by) = (self.origins.snapshot, self.by);
                let key = || match by {
                    By::File => {
                        match sites::site(snapshot, stack).map(|site| sites::place(snapshot, site).file) {
                            Some(file) if !file.is_empty() => Key::File(file),
                            _ => Key::NoFrames,
                        }
                    }
                    By::Module => sites::innermost_python(snapshot, stack).map_or(Key::NoFrames, |frame| {
                        Key::Module(sites::module(&sites::place(snapshot, frame).file))
                    }),
                    _ => Key::Stack(stack),
                };
                self.of_stacks.entry(stack).or_insert_with(key).clone()
            }
        }
    }
}
