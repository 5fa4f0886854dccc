//! File paths in a snapshot's texts, replaced by others: for snapshots that leave the machine they tell of.
//!
//! Paths stand in the frames of stacks, and as `File "…"` in the texts of `forward_frames` and `fx_original_trace`.
//! Fields that this version does not know are looked through as well.

use std::{borrow::Cow, collections::HashSet};

use crate::{
    Snapshot,
    model::{Strings, Value},
};

/// What a path in a text stands behind, as Python's tracebacks have it.
const QUOTED: &str = "File \"";

/// Replaces each path by what `replaced` makes of it. What stands in a frame's place of a path and is none
/// (`<string>`, `<frozen importlib._bootstrap>`, `??`) stays.
///
/// Afterwards the snapshot can be written and packed, but nothing can be added to it.
pub fn replace(snapshot: &mut Snapshot, replaced: &dyn Fn(&str) -> String) {
    let filenames: HashSet<u32> = snapshot.stacks.all_frames().iter().map(|frame| frame.filename.0).collect();
    let texts: Vec<Vec<u8>> = (0..snapshot.strings.len())
        .map(|id| {
            let id = crate::model::StrId(id as u32);
            let bytes = snapshot.strings.bytes(id);
            let text = String::from_utf8_lossy(bytes);
            match filenames.contains(&id.0) && is_path(&text) {
                true => replaced(&text).into_bytes(),
                false => match in_quotes(&text, replaced) {
                    Cow::Borrowed(_) => bytes.to_vec(),
                    Cow::Owned(text) => text.into_bytes(),
                },
            }
        })
        .collect();
    snapshot.strings = Strings::from_texts(texts.iter().map(Vec::as_slice));
    let kept = snapshot.kept.iter_mut().map(|kept| &mut kept.value);
    let named = snapshot.rest.iter_mut().chain(&mut snapshot.settings).map(|(_, value)| value);
    kept.chain(named).for_each(|value| in_value(value, replaced));
}

fn is_path(text: &str) -> bool {
    !text.is_empty() && !text.starts_with(['<', '?'])
}

/// The text with each `File "…"` replaced; borrowed where there is none.
fn in_quotes<'a>(text: &'a str, replaced: &dyn Fn(&str) -> String) -> Cow<'a, str> {
    if !text.contains(QUOTED) {
        return Cow::Borrowed(text);
    }
    let mut parts = text.split(QUOTED);
    let mut whole = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        whole.push_str(QUOTED);
        match part.split_once('"') {
            Some((path, rest)) if is_path(path) => {
                whole.push_str(&replaced(path));
                whole.push('"');
                whole.push_str(rest);
            }
            _ => whole.push_str(part),
        }
    }
    Cow::Owned(whole)
}

/// A text that is an absolute path, or has one in quotes, in any depth of lists and dicts.
fn in_value(value: &mut Value, replaced: &dyn Fn(&str) -> String) {
    match value {
        Value::Str(text) if text.starts_with('/') => *text = replaced(text),
        Value::Str(text) => {
            if let Cow::Owned(whole) = in_quotes(text, replaced) {
                *text = whole;
            }
        }
        Value::List(items) | Value::Tuple(items) => {
            items.iter_mut().for_each(|item| in_value(item, replaced));
        }
        Value::Dict(entries) => {
            for (key, value) in entries {
                in_value(key, replaced);
                in_value(value, replaced);
            }
        }
        Value::None | Value::Bool(_) | Value::Int(_) | Value::Float(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upper(path: &str) -> String {
        path.to_uppercase()
    }

    #[test]
    fn paths_in_quotes_are_replaced_and_nothing_else() {
        let text = "  File \"/a/b.py\", line 3, in f\n    x = y\n  File \"<eval>\", line 1\nFile \"/open";
        let expected = "  File \"/A/B.PY\", line 3, in f\n    x = y\n  File \"<eval>\", line 1\nFile \"/open";
        assert_eq!(in_quotes(text, &upper), expected);
        assert!(matches!(in_quotes("no path", &upper), Cow::Borrowed("no path")));
    }

    #[test]
    fn values_of_unknown_fields_are_looked_through() {
        let text = |text: &str| Value::Str(text.to_owned());
        let mut value = Value::Dict(vec![(
            text("at"),
            Value::List(vec![
                text("/a"),
                text("a/b"),
                Value::Tuple(vec![text("File \"/c\"")]),
                Value::Int(1),
            ]),
        )]);
        in_value(&mut value, &upper);
        let expected = Value::Dict(vec![(
            text("at"),
            Value::List(vec![
                text("/A"),
                text("a/b"),
                Value::Tuple(vec![text("File \"/C\"")]),
                Value::Int(1),
            ]),
        )]);
        assert_eq!(value, expected);
    }
}
