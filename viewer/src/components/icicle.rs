//! The calls that hold the memory at the cursor, as an icicle: each call as wide as its bytes, below the one that made
//! it. Arrows walk, Enter looks at one closely, and beside the picture stands what hangs from the one walked to.

use std::sync::Arc;

use leptos::attr::custom::custom_attribute;
use leptos::ev;
use leptos::prelude::*;
use tidegauge_api::holders::{Holder, HoldersAnswer, HoldingCall, IcicleShape};
use wasm_bindgen::JsCast as _;

use super::holders::Holding;
use crate::format::{bytes, counted, exact_bytes, percent};
use crate::holders::{Bar, Way, bars, below, call_sentence, moved};
use crate::story::short_frame_location;

/// Height of a row, CSS pixels, as in the style sheet.
const ROW_CSS: u32 = 20;

/// Rows of the table beside the picture; the rest is summed up.
const MAX_ROWS: usize = 8;

/// The icicle with its switches and its table.
#[component]
pub(crate) fn CallsIcicle(holding: Holding) -> impl IntoView {
    // The call walked to, by one of its allocations and its depth: so it stays the same when the cursor moves.
    let walked = RwSignal::new(None::<(u32, u32)>);
    let switch = move |change: fn(&mut IcicleShape),
                       is_on: fn(IcicleShape) -> bool,
                       name: &'static str,
                       id: &'static str| {
        view! {
            <button type="button" aria-pressed=move || is_on(holding.shape.get()).to_string() data-testid=id on:click=move |_| holding.shape.update(change)>{name}</button>
        }
    };
    let picture = move || {
        let answer = holding.answer.get()?;
        Some(if answer.nodes.is_empty() { None } else { Some(icicle(holding, answer, walked)) })
    };
    view! {
        <section class="icicle-section" aria-label="Calls that hold it" data-testid="icicle">
            <div class="icicle-head">
                <h2>"Calls that hold it"</h2>
                {switch(|shape| shape.is_inside_out = !shape.is_inside_out, |shape| shape.is_inside_out, "Innermost first", "icicle-inside-out")}
                {switch(|shape| shape.folds_native = !shape.folds_native, |shape| shape.folds_native, "Python only", "icicle-python-only")}
                <p class="keys dim"><kbd>"←"</kbd> <kbd>"→"</kbd> <kbd>"↑"</kbd> <kbd>"↓"</kbd> " walk · " <kbd>"Enter"</kbd> " zoom in and mark"</p>
            </div>
            {picture}
        </section>
    }
}

fn icicle(
    holding: Holding,
    answer: Arc<HoldersAnswer>,
    walked: RwSignal<Option<(u32, u32)>>,
) -> impl IntoView + use<> {
    let drawn = bars(&answer.nodes);
    let n_rows = drawn.iter().map(|bar| bar.depth + 1).max().unwrap_or(0);
    let at = {
        let answer = Arc::clone(&answer);
        Memo::new(move |_| place_of(&answer.nodes, walked.get()))
    };
    let shape = answer.shape;
    let choose = move |call: &HoldingCall| {
        walked.set(Some((call.like, call.depth)));
        holding.choose(Holder::Calls { shape, like: call.like, depth: call.depth }, call.is_chosen);
    };
    let on_key = {
        let (answer, drawn) = (Arc::clone(&answer), drawn.clone());
        move |event: ev::KeyboardEvent| {
            let way = match event.key().as_str() {
                "ArrowUp" => Some(Way::Up),
                "ArrowDown" => Some(Way::Down),
                "ArrowLeft" => Some(Way::Left),
                "ArrowRight" => Some(Way::Right),
                "Enter" | " " => None,
                _ => return,
            };
            event.prevent_default();
            event.stop_propagation();
            let here = at.get_untracked();
            match way {
                Some(way) => {
                    let next = moved(&answer.nodes, &drawn, here, way);
                    walked.set(answer.nodes.get(next).map(|call| (call.like, call.depth)));
                    if let Some(depth) = answer.nodes.get(next).map(|call| call.depth) {
                        show_row(&event, depth);
                    }
                }
                None => drop(answer.nodes.get(here).map(choose)),
            }
        }
    };
    let items: Vec<_> = drawn.iter().map(|bar| bar_view(&answer, *bar, at, choose)).collect();
    let left_out = (answer.n_nodes_left_out > 0).then(|| {
        view! { <p class="dim">{format!("{} too small to be told here", counted(answer.n_nodes_left_out, "call", "calls"))}</p> }
    });
    let table = {
        let answer = Arc::clone(&answer);
        move || table(&answer, at.get(), walked)
    };
    view! {
        <div
            class="icicle"
            role="tree"
            tabindex="0"
            aria-label="Calls, each as wide as its bytes"
            aria-activedescendant=move || bar_id(at.get())
            data-testid="icicle-tree"
            on:keydown=on_key
        >
            <div class="icicle-rows" role="presentation" style=format!("height:{}px", n_rows * ROW_CSS)>{items}</div>
        </div>
        {left_out}
        {table}
    }
}

/// Scrolls the icicle, and nothing else, as little as it takes to show a row.
fn show_row(event: &ev::KeyboardEvent, depth: u32) {
    let tree = event.current_target().and_then(|tree| tree.dyn_into::<web_sys::Element>().ok());
    let Some(tree) = tree else { return };
    let top = i32::try_from(depth.saturating_mul(ROW_CSS)).unwrap_or(i32::MAX);
    let lowest = top.saturating_add(ROW_CSS as i32).saturating_sub(tree.client_height());
    tree.set_scroll_top(tree.scroll_top().clamp(lowest.min(top), top));
}

/// The node walked to; where it is gone, the chosen one, else the first.
fn place_of(nodes: &[HoldingCall], walked: Option<(u32, u32)>) -> usize {
    let found = nodes.iter().position(|node| walked == Some((node.like, node.depth)));
    found.or_else(|| nodes.iter().position(|node| node.is_chosen)).unwrap_or(0)
}

fn bar_id(node: usize) -> String {
    format!("call-{node}")
}

fn bar_view<F: Fn(&HoldingCall) + Copy + 'static>(
    answer: &Arc<HoldersAnswer>,
    bar: Bar,
    at: Memo<usize>,
    choose: F,
) -> impl IntoView + use<F> {
    let call = &answer.nodes[bar.node];
    let style = format!("left:{:.3}%;width:{:.3}%;top:{}px", bar.left, bar.width, bar.depth * ROW_CSS);
    let sentence = call_sentence(call, answer.level);
    let label = sentence.clone();
    let on_click = {
        let answer = Arc::clone(answer);
        move |_| choose(&answer.nodes[bar.node])
    };
    view! {
        <div
            id=bar_id(bar.node)
            role="treeitem"
            class="call"
            class:own=call.is_own
            class:walked=move || at.get() == bar.node
            {..custom_attribute("aria-level", (bar.depth + 1).to_string())}
            aria-selected=call.is_chosen.to_string()
            aria-label=label
            title=sentence
            style=style
            on:click=on_click
        >
            {call.frame.name.clone()}
            " "
            <span class="call-place">{short_frame_location(&call.frame)}</span>
        </div>
    }
}

/// What hangs from the call walked to.
fn table(
    answer: &HoldersAnswer,
    at: usize,
    walked: RwSignal<Option<(u32, u32)>>,
) -> Option<impl IntoView + use<>> {
    let call = answer.nodes.get(at)?;
    let (all, rest) = below(&answer.nodes, at);
    let (shown, others) = all.split_at(MAX_ROWS.min(all.len()));
    let rest = others.iter().fold(rest, |rest, i| rest.saturating_add(answer.nodes[*i].allocated));
    let numbers = |allocated: u64| {
        view! {
            <td class="number" title=exact_bytes(allocated)>{bytes(allocated)}</td>
            <td class="number dim">{percent(allocated, answer.level)}</td>
        }
    };
    let rows: Vec<_> = shown
        .iter()
        .map(|i| {
            let below = &answer.nodes[*i];
            let key = (below.like, below.depth);
            view! {
                <tr>
                    <td class="call-cell"><button type="button" class="link" title=call_sentence(below, answer.level) on:click=move |_| walked.set(Some(key))>{below.frame.name.clone()}</button> " " <span class="dim">{short_frame_location(&below.frame)}</span></td>
                    {numbers(below.allocated)}
                </tr>
            }
        })
        .collect();
    let rest = (rest > 0).then(|| {
        let told = if all.is_empty() { "ends here" } else { "ends here, or in smaller calls" };
        view! { <tr><td class="dim">{told}</td>{numbers(rest)}</tr> }
    });
    Some(view! {
        <table class="calls" data-testid="icicle-table">
            <caption><code>{call.frame.name.clone()}</code> " " <span class="dim">{short_frame_location(&call.frame)}</span> " holds " <strong>{bytes(call.allocated)}</strong> ", " {percent(call.allocated, answer.level)} ", of which:"</caption>
            <tbody>{rows}{rest}</tbody>
        </table>
    })
}
