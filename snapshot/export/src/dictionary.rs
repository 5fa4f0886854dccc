//! Texts that many cells share, each stored once.

use std::{collections::HashMap, sync::Arc};

use arrow_array::StringArray;

use crate::ExportError;

/// Bytes of all texts of a column. A file can name one long text in very many stacks; beyond this bound
/// nothing is written.
pub(crate) const MAX_TEXT_BYTES: usize = 1 << 30;

/// Texts by position, and which key stands for which. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Dictionary {
    texts: Arc<StringArray>,
    positions: Arc<Vec<i32>>,
}

/// The position of a key that has no text.
const NO_TEXT: i32 = -1;

impl Dictionary {
    /// The texts of the keys `0..n_keys`; equal ones are stored once. Keys that `text` knows nothing for are null.
    pub(crate) fn new(
        column: &'static str,
        n_keys: usize,
        mut text: impl FnMut(usize) -> Option<String>,
    ) -> Result<Self, ExportError> {
        let mut seen: HashMap<String, i32> = HashMap::new();
        let mut n_bytes = 0;
        let mut positions = Vec::with_capacity(n_keys);
        for key in 0..n_keys {
            let Some(text) = text(key) else {
                positions.push(NO_TEXT);
                continue;
            };
            let next = seen.len() as i32;
            let length = text.len();
            let position = *seen.entry(text).or_insert(next);
            if position == next {
                n_bytes += length;
                // An empty text takes room too.
                if n_bytes + seen.len() > MAX_TEXT_BYTES {
                    return Err(ExportError::TooMuchText { column });
                }
            }
            positions.push(position);
        }
        let mut in_order: Vec<(String, i32)> = seen.into_iter().collect();
        in_order.sort_unstable_by_key(|(_, position)| *position);
        let texts = StringArray::from_iter_values(in_order.into_iter().map(|(text, _)| text));
        Ok(Self { texts: Arc::new(texts), positions: Arc::new(positions) })
    }

    /// The texts by position.
    pub(crate) fn texts(&self) -> Arc<StringArray> {
        self.texts.clone()
    }

    /// Where the text of a key stands.
    pub(crate) fn position(&self, key: usize) -> Option<i32> {
        self.positions.get(key).copied().filter(|position| *position != NO_TEXT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_are_stored_once_and_missing_ones_are_null() {
        let texts = ["a", "b", "", "a"];
        let dictionary =
            Dictionary::new("x", 5, |key| texts.get(key).map(|text| (*text).to_owned())).unwrap();
        let positions: Vec<_> = (0..6).map(|key| dictionary.position(key)).collect();
        assert_eq!(positions, [Some(0), Some(1), Some(2), Some(0), None, None]);
        assert_eq!(dictionary.texts().iter().flatten().collect::<Vec<_>>(), ["a", "b", ""]);
    }
}
