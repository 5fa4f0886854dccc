//! Keywords of Python as the texts that settings are made of.

use std::collections::BTreeMap;

use pyo3::{
    prelude::*,
    types::{PyBool, PyDict, PyRange, PyString},
};
use tidegauge_capture_agent::{choice::MAX_PARTS, notices::Notices, settings::NAMES};

/// What was given, by name. A keyword that is not known is said and left out: it must not end a training run.
pub(crate) fn texts(
    run: Option<Bound<'_, PyAny>>,
    settings: Option<Bound<'_, PyDict>>,
    notices: &Notices,
) -> BTreeMap<&'static str, String> {
    let mut texts = BTreeMap::new();
    if let Some(run) = run {
        texts.insert("run", run.to_string());
    }
    for (name, value) in settings.into_iter().flatten() {
        let name = name.to_string();
        match NAMES.iter().find(|known| **known == name) {
            None => notices.say(format_args!("start(): there is no setting {name:?}; it is ignored")),
            Some(_) if value.is_none() => {}
            Some(known) => {
                texts.insert(*known, text(&value));
            }
        }
    }
    texts
}

/// `[1, 5, 10]` is "1,5,10", `range(0, 1000, 100)` is "0-900/100", `True` is "1"; the rest is what `str()` makes
/// of it.
fn text(value: &Bound<'_, PyAny>) -> String {
    if let Ok(flag) = value.cast::<PyBool>() {
        return if flag.is_true() { "1" } else { "0" }.to_owned();
    }
    if let Ok(range) = value.cast::<PyRange>() {
        return text_from_range(range).unwrap_or_else(|error| error.to_string());
    }
    match value.try_iter() {
        Ok(items) if !value.is_instance_of::<PyString>() => {
            // An item that cannot be had is shown where its number should be, and refused there.
            let text = |item: PyResult<Bound<'_, PyAny>>| {
                item.map_or_else(|error| error.to_string(), |item| text_of_item(&item))
            };
            // One more than a choice may have: some iterators never end.
            items.take(MAX_PARTS + 1).map(text).collect::<Vec<_>>().join(",")
        }
        _ => value.to_string(),
    }
}

fn text_of_item(item: &Bound<'_, PyAny>) -> String {
    match item.cast::<PyRange>() {
        Ok(range) => text_from_range(range).unwrap_or_else(|error| error.to_string()),
        Err(_) => item.to_string(),
    }
}

/// A range's numbers as a stretch, however many they are.
fn text_from_range(range: &Bound<'_, PyRange>) -> PyResult<String> {
    if range.is_empty()? {
        return Ok(String::new());
    }
    let stride = range.getattr("step")?.extract::<i64>()?;
    let (first, last) = (range.get_item(0)?, range.get_item(-1)?);
    let (first, last) = if stride > 0 { (first, last) } else { (last, first) };
    Ok(match stride.unsigned_abs() {
        1 => format!("{first}-{last}"),
        stride => format!("{first}-{last}/{stride}"),
    })
}
