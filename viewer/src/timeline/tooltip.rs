//! What stands beside the pointer: the allocation under it, by size, life and stack.

use leptos::prelude::*;
use tidegauge_api::picture::AllocationAnswer;

use super::paint::Owner;
use super::stage::{Hover, Stage};
use crate::components::stack::{short_stack, why_no_stack};
use crate::format::{bytes, count};
use crate::story;

/// The tooltip's width in the style sheet and a gap, CSS pixels: where there is less room to the pointer's
/// right, it stands to its left.
const WIDTH_CSS: f64 = 440.0;

/// Names what is under the pointer.
#[component]
pub(crate) fn Tooltip(stage: Stage, size_css: RwSignal<(f64, f64)>) -> impl IntoView {
    let content = move || {
        let hover = stage.hover.get()?;
        let inside = match hover.owner {
            Owner::Other => other(stage).into_any(),
            Owner::Allocation(id) => {
                let told = stage.hovered.get().filter(|told| told.id == id)?;
                let n_events = stage.device.with_value(|device| device.n_events);
                allocation(&told, n_events).into_any()
            }
        };
        Some(view! {
            <div class="tooltip" role="tooltip" data-testid="tooltip" style=place(&hover, size_css.get())>{inside}</div>
        })
    };
    view! { {content} }
}

/// Beside the pointer, on the side with room.
fn place(hover: &Hover, (width, height): (f64, f64)) -> String {
    let across = if hover.x_css + WIDTH_CSS > width && hover.x_css > width / 2.0 {
        format!("right:{:.0}px", width - hover.x_css + 14.0)
    } else {
        format!("left:{:.0}px", hover.x_css + 14.0)
    };
    if hover.y_css > height / 2.0 {
        format!("{across};bottom:{:.0}px", height - hover.y_css + 14.0)
    } else {
        format!("{across};top:{:.0}px", hover.y_css + 14.0)
    }
}

fn other(stage: Stage) -> impl IntoView {
    let most = stage.top_picture().map(|picture| picture.other_max()).unwrap_or_default();
    view! {
        <p class="tooltip-title">"Other"</p>
        <p>{format!("Allocations too small to draw at this zoom, {} at most together. Zoom in to tell them apart.", bytes(most))}</p>
    }
}

fn allocation(told: &AllocationAnswer, n_events: u32) -> impl IntoView {
    view! {
        <p class="tooltip-title">{story::allocation_size(told)}</p>
        <p>{story::allocation_lifetime(told, n_events)}</p>
        <p class="dim">{story::allocation_span(told)}</p>
        {short_stack(&told.stack)}
        {why_no_stack(told)}
        <p class="dim">{format!("allocation {} · click to pin", count(told.id.into()))}</p>
    }
}
