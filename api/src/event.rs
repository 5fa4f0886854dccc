//! One event of a trace, in words.

use serde::{Deserialize, Serialize};
use tidegauge_snapshot::model::Action;
use tidegauge_snapshot::origins::Origins;
use tidegauge_snapshot::words;

use crate::breakdown::{frames, levels_at};
use crate::picture::{FrameAnswer, LevelsAnswer};

/// One event, and the levels after it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EventAnswer {
    /// Its position in the trace, from 0.
    pub event: u32,
    /// What happened, as the file says.
    pub action: String,
    /// Unix epoch microseconds, if the trace has times.
    pub time_us: Option<i64>,
    /// Hexadecimal with "0x": addresses do not fit a JavaScript number. Absent for running out of memory.
    pub address: Option<String>,
    /// Bytes: requested ones of blocks, real ones of segments.
    pub size: u64,
    /// When running out of memory: bytes the device reported free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_free: Option<u64>,
    /// Raw handle of the stream, hexadecimal with "0x".
    pub stream: Option<String>,
    /// The pool, where the event says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// The levels after it.
    pub levels: LevelsAnswer,
    /// Torch's `compile_context`, `user_metadata` and `category`, if set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The stack recorded with it, innermost first.
    pub stack: Vec<FrameAnswer>,
}

/// An event of a device by its position, if there is one.
pub fn event(origins: &Origins<'_>, event: u32) -> Option<EventAnswer> {
    let state = event.checked_add(1)?;
    let row = origins.event_before(state)?;
    let snapshot = origins.snapshot;
    let trace = &snapshot.trace;
    let is_oom = trace.action[row] == Action::OOM;
    let extra = trace.extra(row);
    let notes = [extra.compile_context, extra.user_metadata, extra.category];
    let notes = notes.into_iter().filter_map(|note| snapshot.said(note));
    Some(EventAnswer {
        event,
        action: snapshot.action_name(trace.action[row]).to_owned(),
        time_us: trace.time_us(row),
        address: (!is_oom).then(|| format!("{:#x}", trace.address[row])),
        size: trace.size[row],
        device_free: is_oom.then(|| trace.address[row]),
        stream: snapshot.streams.get(trace.stream[row] as usize).map(|handle| format!("{handle:#x}")),
        pool: extra.pool.map(words::pool),
        levels: levels_at(origins, state),
        notes: notes.map(|note| snapshot.strings.text(note).into_owned()).collect(),
        stack: frames(snapshot, trace.stack[row]),
    })
}
