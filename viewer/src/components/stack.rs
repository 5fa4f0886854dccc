//! Call stacks.

use leptos::prelude::*;
use tidegauge_api::picture::{AllocationAnswer, FrameAnswer};

use crate::format::counted;
use crate::story::{frame_location, short_frame_location};

/// Frames beside the pointer; the rest is seen once the allocation is pinned.
const N_SHORT: usize = 12;

/// The first frames, innermost first, and how many more there are.
pub(crate) fn short_stack(stack: &[FrameAnswer]) -> impl IntoView + use<> {
    let frames: Vec<_> =
        stack.iter().take(N_SHORT).map(|frame| frame_line(frame, short_frame_location(frame))).collect();
    let n_more = stack.len().saturating_sub(N_SHORT) as u64;
    let more = (n_more > 0).then(
        || view! { <p class="dim">{format!("and {}", counted(n_more, "more frame", "more frames"))}</p> },
    );
    view! { <ol class="stack">{frames}</ol>{more} }
}

/// Every frame, innermost first.
pub(crate) fn whole_stack(stack: &[FrameAnswer]) -> impl IntoView + use<> {
    let frames: Vec<_> = stack.iter().map(|frame| frame_line(frame, frame_location(frame))).collect();
    view! { <ol class="stack">{frames}</ol> }
}

/// Why an allocation has no stack, where it has none.
pub(crate) fn why_no_stack(told: &AllocationAnswer) -> Option<impl IntoView + use<>> {
    let why = told.stack_missing.clone().filter(|_| told.stack.is_empty());
    why.map(|why| view! { <p>{why}</p> })
}

fn frame_line(frame: &FrameAnswer, location: String) -> impl IntoView + use<> {
    view! {
        <li title=frame_location(frame)>
            <span class="frame-name">{frame.name.clone()}</span>
            " "
            <span class="frame-location">{location}</span>
        </li>
    }
}
