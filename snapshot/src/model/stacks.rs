//! Call stacks, frames and strings, each stored once.
//!
//! A million events hold some fifty million frame references and about six thousand different stacks, so rows
//! name a stack by number. Interning is by content: equal stacks of different events are separate lists in
//! the file.

use foldhash::fast::RandomState;
use hashbrown::{HashMap, HashTable};

use super::{More, ShapeId};
use std::hash::BuildHasher as _;

/// Number of a string in [`Strings`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StrId(pub u32);

/// Number of a frame in [`Stacks`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrameId(pub u32);

/// Number of a stack in [`Stacks`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StackId(pub u32);

impl StackId {
    /// A stack was recorded and holds no frames.
    pub const EMPTY: Self = Self(0);
    /// No stack was recorded.
    pub const NONE: Self = Self(u32::MAX);
}

/// Every text of a snapshot, once. Bytes are what the file holds; they are shown as UTF-8, lossily.
#[derive(Clone, Default)]
pub struct Strings {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    seen: HashTable<u32>,
    hasher: RandomState,
}

impl Strings {
    /// The number of this text, new or seen before.
    pub fn intern(&mut self, text: &[u8]) -> StrId {
        let hash = self.hasher.hash_one(text);
        let Self { bytes, ends, seen, hasher } = self;
        if let Some(id) = seen.find(hash, |id| slice(bytes, ends, *id) == text) {
            return StrId(*id);
        }
        let id = ends.len() as u32;
        bytes.extend_from_slice(text);
        ends.push(bytes.len());
        seen.insert_unique(hash, id, |id| hasher.hash_one(slice(bytes, ends, *id)));
        StrId(id)
    }

    /// The texts of a pack, in order. Nothing can be interned into them afterwards.
    pub(crate) fn from_texts<'a>(texts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut strings = Self::default();
        for text in texts {
            strings.bytes.extend_from_slice(text);
            strings.ends.push(strings.bytes.len());
        }
        strings
    }

    /// The bytes of a text; empty for a number that is not one of ours.
    pub fn bytes(&self, id: StrId) -> &[u8] {
        slice(&self.bytes, &self.ends, id.0)
    }

    /// A text, with what is not UTF-8 replaced.
    pub fn text(&self, id: StrId) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(self.bytes(id))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}

fn slice<'a>(bytes: &'a [u8], ends: &[usize], id: u32) -> &'a [u8] {
    let at = id as usize;
    let Some(end) = ends.get(at) else { return &[] };
    let start = if at == 0 { 0 } else { ends[at - 1] };
    &bytes[start..*end]
}

impl std::fmt::Debug for Strings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries((0..self.len()).map(|id| self.text(StrId(id as u32)))).finish()
    }
}

impl PartialEq for Strings {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes && self.ends == other.ends
    }
}

/// One frame of a call stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Function.
    pub name: StrId,
    /// File.
    pub filename: StrId,
    /// Line; 0 or [`Frame::UNKNOWN_LINE`] when unknown. [`Frame::known_line`] tells.
    pub line: u32,
    /// What it has beyond these three: row of [`Stacks::more`].
    pub more: u32,
}

impl Frame {
    /// The line of a frame whose line torch wrote as -1, which arrives as 2^64-1.
    pub const UNKNOWN_LINE: u32 = u32::MAX;

    /// The line, if it is known.
    pub fn known_line(self) -> Option<u32> {
        Some(self.line).filter(|line| ![0, Self::UNKNOWN_LINE].contains(line))
    }
}

/// Every frame and every stack, once. Frames of a stack stand innermost first.
#[derive(Clone)]
pub struct Stacks {
    frames: Vec<Frame>,
    seen_frames: HashTable<u32>,
    flat: Vec<u32>,
    ends: Vec<usize>,
    seen: HashTable<u32>,
    more: Vec<More>,
    seen_more: HashMap<More, u32, RandomState>,
    hasher: RandomState,
}

impl Default for Stacks {
    /// No frames, and the empty stack.
    fn default() -> Self {
        let mut stacks = Self {
            frames: Vec::new(),
            seen_frames: HashTable::new(),
            flat: Vec::new(),
            ends: Vec::new(),
            seen: HashTable::new(),
            more: vec![More::default()],
            seen_more: HashMap::default(),
            hasher: RandomState::default(),
        };
        stacks.intern(&[]);
        stacks
    }
}

impl Stacks {
    /// The frames and stacks of a pack. Nothing can be interned into them afterwards.
    pub(crate) fn from_parts(more: Vec<More>, frames: Vec<Frame>, flat: Vec<u32>, ends: Vec<usize>) -> Self {
        Self {
            frames,
            flat,
            ends,
            more,
            seen_more: HashMap::default(),
            seen_frames: HashTable::new(),
            seen: HashTable::new(),
            hasher: RandomState::default(),
        }
    }

    /// Says which fields a frame has that has no more than the usual ones.
    pub(crate) fn set_plain(&mut self, shape: ShapeId) {
        self.more[0].shape = shape;
    }

    /// The number of what a frame has beyond name, file and line, new or seen before.
    pub(crate) fn intern_more(&mut self, more: More) -> u32 {
        let next = self.more.len() as u32;
        *self.seen_more.entry(more).or_insert_with_key(|more| {
            self.more.push(more.clone());
            next
        })
    }

    /// What a frame has beyond name, file and line: `fx_node_op` and others of `augment_with_fx_traces`, and what is
    /// unknown.
    pub fn more(&self, frame: Frame) -> Option<&More> {
        self.more.get(frame.more as usize)
    }

    /// All that frames have beyond name, file and line, by number.
    pub fn all_more(&self) -> &[More] {
        &self.more
    }

    /// The number of this frame, new or seen before.
    pub fn intern_frame(&mut self, frame: Frame) -> FrameId {
        let hash = self.hasher.hash_one(frame);
        let Self { frames, seen_frames, hasher, .. } = self;
        if let Some(id) = seen_frames.find(hash, |id| frames[*id as usize] == frame) {
            return FrameId(*id);
        }
        let id = frames.len() as u32;
        frames.push(frame);
        seen_frames.insert_unique(hash, id, |id| hasher.hash_one(frames[*id as usize]));
        FrameId(id)
    }

    /// The number of the stack of these frame numbers, new or seen before.
    pub fn intern(&mut self, frames: &[u32]) -> StackId {
        let hash = self.hasher.hash_one(frames);
        let Self { flat, ends, seen, hasher, .. } = self;
        if let Some(id) = seen.find(hash, |id| range(flat, ends, *id) == frames) {
            return StackId(*id);
        }
        let id = ends.len() as u32;
        flat.extend_from_slice(frames);
        ends.push(flat.len());
        seen.insert_unique(hash, id, |id| hasher.hash_one(range(flat, ends, *id)));
        StackId(id)
    }

    /// The frame numbers of a stack, innermost first; empty for [`StackId::NONE`].
    pub fn frame_ids(&self, stack: StackId) -> &[u32] {
        range(&self.flat, &self.ends, stack.0)
    }

    /// The frames of a stack, innermost first.
    pub fn frames(&self, stack: StackId) -> impl Iterator<Item = Frame> + '_ {
        self.frame_ids(stack).iter().map(|id| self.frames[*id as usize])
    }

    /// Every frame, by number.
    pub fn all_frames(&self) -> &[Frame] {
        &self.frames
    }

    /// How many stacks there are, the empty one included.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Never: the empty stack is always there.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}

fn range<'a>(flat: &'a [u32], ends: &[usize], id: u32) -> &'a [u32] {
    let at = id as usize;
    let Some(end) = ends.get(at) else { return &[] };
    let start = if at == 0 { 0 } else { ends[at - 1] };
    &flat[start..*end]
}

impl std::fmt::Debug for Stacks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Stacks({} frames, {} stacks)", self.frames.len(), self.len())
    }
}

impl PartialEq for Stacks {
    fn eq(&self, other: &Self) -> bool {
        self.more == other.more
            && self.frames == other.frames
            && self.flat == other.flat
            && self.ends == other.ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_stacks_are_one_and_the_empty_stack_is_number_zero() {
        let mut strings = Strings::default();
        let (name, filename) = (strings.intern(b"forward"), strings.intern(b"a.py"));
        assert_eq!(strings.intern(b"forward"), name);
        let mut stacks = Stacks::default();
        let first = stacks.intern_frame(Frame { name, filename, line: 1, more: 0 });
        let second = stacks.intern_frame(Frame { name, filename, line: 2, more: 0 });
        let stack = stacks.intern(&[first.0, second.0]);
        assert_eq!(stacks.intern(&[first.0, second.0]), stack);
        assert_ne!(stacks.intern(&[second.0, first.0]), stack);
        assert_eq!(stacks.intern(&[]), StackId::EMPTY);
        assert_eq!(stacks.frames(StackId::NONE).count(), 0);
        assert_eq!(stacks.frames(stack).map(|frame| frame.line).collect::<Vec<_>>(), [1, 2]);
    }
}
