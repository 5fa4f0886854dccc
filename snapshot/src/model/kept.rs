//! What makes a snapshot whole: which fields its rows had, and the fields that no column holds.
//!
//! The tables hold what every part of Tidegauge works with. With these few more, a snapshot can be written out again
//! field by field as it was read.

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::{StrId, Value};

/// Number of a sequence of keys in [`Keys`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShapeId(pub u8);

impl ShapeId {
    /// The keys are not remembered: nobody wrote them, or there are too many different sequences.
    pub const NONE: Self = Self(u8::MAX);
}

impl Default for ShapeId {
    fn default() -> Self {
        Self::NONE
    }
}

/// The different sequences of keys that the dicts of a file have. A real file has fewer than ten; beyond 255 they are
/// not told apart.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Keys(pub Vec<Vec<StrId>>);

impl Keys {
    /// The number of this sequence, new or seen before.
    pub fn intern(&mut self, keys: Vec<StrId>) -> ShapeId {
        let at = self.0.iter().position(|known| *known == keys).unwrap_or_else(|| {
            if self.0.len() < usize::from(ShapeId::NONE.0) {
                self.0.push(keys);
                self.0.len() - 1
            } else {
                usize::from(ShapeId::NONE.0)
            }
        });
        // At most 255: the position fits a byte.
        ShapeId(at as u8)
    }

    /// The keys of a row, if they are remembered.
    pub fn of(&self, shape: ShapeId) -> Option<&[StrId]> {
        self.0.get(usize::from(shape.0)).map(Vec::as_slice)
    }
}

/// Lists of texts, each once.
#[derive(Debug, Default, Clone)]
pub struct Texts {
    lists: Vec<Vec<StrId>>,
    seen: HashMap<Vec<StrId>, u32, RandomState>,
}

impl Texts {
    /// The lists of a pack, in order. Nothing can be interned into them afterwards.
    pub(crate) fn from_lists(lists: Vec<Vec<StrId>>) -> Self {
        Self { lists, seen: HashMap::default() }
    }

    /// The number of this list, new or seen before.
    pub fn intern(&mut self, texts: &[StrId]) -> u32 {
        if let Some(known) = self.seen.get(texts) {
            return *known;
        }
        let id = self.lists.len() as u32;
        self.lists.push(texts.to_vec());
        self.seen.insert(texts.to_vec(), id);
        id
    }

    /// A list by its number; empty for one that is not ours.
    pub fn get(&self, id: u32) -> &[StrId] {
        self.lists.get(id as usize).map_or(&[], Vec::as_slice)
    }

    /// All lists, by number.
    pub fn all(&self) -> &[Vec<StrId>] {
        &self.lists
    }
}

impl PartialEq for Texts {
    fn eq(&self, other: &Self) -> bool {
        self.lists == other.lists
    }
}

/// What a frame has beyond name, file and line.
#[derive(Debug, Default, Clone, PartialEq, Eq, Hash)]
pub struct More {
    /// Its fields in the file.
    pub shape: ShapeId,
    /// The others, and those of the three whose value is odd.
    pub fields: Vec<(StrId, MoreValue)>,
}

/// A value of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MoreValue {
    /// A text.
    Text(StrId),
    /// A number.
    Number(i64),
}

/// Tables whose rows may have fields that no column holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeptOf {
    /// [`super::Trace`].
    Event,
    /// [`super::Segments`].
    Segment,
    /// [`super::Blocks`].
    Block,
    /// [`super::Snapshot::annotations`].
    Annotation,
}

/// A field that no column holds: an unknown one, or one whose value is odd.
#[derive(Debug, Clone, PartialEq)]
pub struct Kept {
    /// Its table.
    pub of: KeptOf,
    /// Its row there.
    pub row: u32,
    /// Its name.
    pub key: StrId,
    /// What stands there.
    pub value: Value,
}
