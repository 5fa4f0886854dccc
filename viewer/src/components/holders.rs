//! Who holds the memory at the cursor: a filter, groups, and what one of them holds.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use leptos::ev;
use leptos::html;
use leptos::prelude::*;
use tidegauge_api::holders::{
    Closely, Holder, HoldersAnswer, HoldersQuestion, HoldingGroup, IcicleShape, MarkedQuestion,
};
use tidegauge_snapshot::sums::By;
use wasm_bindgen::JsCast as _;
use web_sys::HtmlElement;

use crate::format::{bytes, counted, exact_bytes, percent};
use crate::holders::{
    filter_problem, filter_result, group_name, group_place, group_sentence, held_sentence, others_sentence,
};
use crate::timeline::{Latest, Marked, Stage};
use crate::worker::Trouble;

/// How long the cursor rests before it is asked who holds the memory there: keys that repeat come every 30 ms or so, and
/// hundreds of bars are no use to who is passing by.
const REST: Duration = Duration::from_millis(60);

/// What is asked of the holders besides what the stage says, and the answer.
#[derive(Clone, Copy)]
pub(crate) struct Holding {
    pub(crate) stage: Stage,
    /// What groups have in common.
    by: RwSignal<&'static str>,
    /// How the icicle is put together.
    pub(crate) shape: RwSignal<IcicleShape>,
    /// The latest answer; the one before stays until the next is there.
    pub(crate) answer: RwSignal<Option<Arc<HoldersAnswer>>>,
}

impl Holding {
    /// Asks whenever the cursor, the filter or the choice has changed and rests.
    pub(crate) fn new(stage: Stage) -> Self {
        let shape = IcicleShape { folds_native: true, ..IcicleShape::default() };
        let holding = Self {
            stage,
            by: RwSignal::new("stack"),
            shape: RwSignal::new(shape),
            answer: RwSignal::new(None),
        };
        holding.ask();
        holding.mark();
        holding
    }

    fn ask(self) {
        let latest = StoredValue::new_local(Latest::new());
        let delay = StoredValue::new(None::<TimeoutHandle>);
        let cancel = move || {
            if let Some(Some(handle)) = delay.try_update_value(Option::take) {
                handle.clear();
            }
        };
        let stage = self.stage;
        Effect::new(move |before: Option<()>| {
            let question = HoldersQuestion {
                device: stage.device.with_value(|device| device.device),
                state: stage.cursor.get(),
                only: stage.only.get(),
                by: self.by.get().to_owned(),
                shape: self.shape.get(),
                chosen: stage.chosen.get(),
            };
            let ask = move || {
                let (Some(latest), Some(open)) = (latest.try_get_value(), stage.try_open()) else { return };
                latest.want(question.clone(), move |question| {
                    let open = Rc::clone(&open);
                    async move {
                        match open.holders(question).await {
                            Ok(answer) => drop(self.answer.try_set(Some(Arc::new(answer)))),
                            Err(trouble) => stage.tell(trouble),
                        }
                    }
                });
            };
            cancel();
            match before {
                None => ask(),
                Some(()) => delay.set_value(set_timeout_with_handle(ask, REST).ok()),
            }
        });
        on_cleanup(cancel);
    }

    /// Keeps the marks on the picture those of the filter and the choice.
    fn mark(self) {
        let latest = StoredValue::new_local(Latest::new());
        let stage = self.stage;
        Effect::new(move || {
            let (only, chosen) = (stage.only.get(), stage.chosen.get());
            if only.is_empty() && chosen.is_none() {
                stage.marked.set(None);
                return;
            }
            let question =
                MarkedQuestion { device: stage.device.with_value(|device| device.device), only, chosen };
            let open = stage.open();
            latest.get_value().want(question, move |question| {
                let open = Rc::clone(&open);
                async move {
                    let wanted = (question.only.clone(), question.chosen.clone());
                    let bits = open.marked(question).await;
                    let now = stage.only.try_get_untracked().zip(stage.chosen.try_get_untracked());
                    match bits {
                        Ok(bits) if now.as_ref() == Some(&wanted) => {
                            drop(stage.marked.try_set(Some(Arc::new(Marked::new(bits)))));
                        }
                        Ok(_) | Err(Trouble::Superseded) => {}
                        Err(trouble) => stage.tell(trouble),
                    }
                }
            });
        });
    }

    /// Looks at a holder closely, or no longer when it is the one already.
    pub(crate) fn choose(self, holder: Holder, is_chosen: bool) {
        self.stage.chosen.set((!is_chosen).then_some(holder));
    }
}

/// The box for a filter, and what it means. `/` leads here, Esc empties it.
#[component]
pub(crate) fn FilterBox(holding: Holding) -> impl IntoView {
    let stage = holding.stage;
    let input = NodeRef::<html::Input>::new();
    let problem = Memo::new(move |_| filter_problem(&stage.typed.get()));
    Effect::new(move || {
        if problem.get().is_none() {
            let only = stage.typed.get().trim().to_owned();
            if stage.only.get_untracked() != only {
                stage.only.set(only);
            }
        }
    });
    let slash = window_event_listener(ev::keydown, move |event| {
        let has_key = event.ctrl_key() || event.meta_key() || event.alt_key();
        if event.key() == "/"
            && !has_key
            && !event.default_prevented()
            && !super::device_pane::takes_keys(&event)
            && let Some(input) = input.get_untracked()
        {
            event.prevent_default();
            input.focus().ok();
            input.select();
        }
    });
    on_cleanup(move || slash.remove());
    let on_key = move |event: ev::KeyboardEvent| {
        if event.key() == "Escape" {
            event.prevent_default();
            event.stop_propagation();
            if stage.typed.get_untracked().is_empty() {
                if let Some(input) = input.get_untracked() {
                    input.blur().ok();
                }
            } else {
                stage.typed.set(String::new());
            }
        }
    };
    let told = move || {
        if let Some(problem) = problem.get() {
            return problem;
        }
        if stage.only.get().is_empty() {
            return String::new();
        }
        // With a choice the marks are fewer than the filter means.
        let n_in_trace = stage.marked.get().filter(|_| stage.chosen.get().is_none()).map(|marked| marked.n);
        holding.answer.get().map(|answer| filter_result(&answer, n_in_trace)).unwrap_or_default()
    };
    view! {
        <div class="filter" role="search">
            <label for="filter">"Filter"</label>
            <input
                node_ref=input
                id="filter"
                type="text"
                placeholder="size>1MiB attention -is:older"
                spellcheck="false"
                autocomplete="off"
                aria-describedby="filter-result"
                aria-invalid=move || problem.get().is_some().to_string()
                aria-keyshortcuts="/"
                data-testid="filter"
                prop:value=move || stage.typed.get()
                on:input=move |event| stage.typed.set(event_target_value(&event))
                on:keydown=on_key
            />
            <p id="filter-result" role="status" class="dim" class:failed=move || problem.get().is_some() data-testid="filter-result">{told}</p>
        </div>
    }
}

/// The groups at the cursor, and what the chosen one holds.
#[component]
pub(crate) fn Holders(holding: Holding) -> impl IntoView {
    let options: Vec<_> = By::NAMED
        .iter()
        .map(|(name, _)| {
            let name = *name;
            view! { <option value=name selected=move || holding.by.get() == name>{format!("by {name}")}</option> }
        })
        .collect();
    let choose_by = move |event: ev::Event| {
        let value = event_target_value(&event);
        if let Some((name, _)) = By::NAMED.iter().find(|(name, _)| *name == value) {
            holding.by.set(name);
        }
    };
    let groups = move || holding.answer.get().map(|answer| groups(holding, &answer));
    let waiting = move || holding.answer.get().is_none().then(|| view! { <div class="skeleton"></div> });
    view! {
        <section aria-label="Who holds it" data-testid="holders">
            <h2>
                "Who holds it"
                <select aria-label="Grouped by" data-testid="holders-by" on:change=choose_by>{options}</select>
            </h2>
            {waiting}
            {groups}
        </section>
        {move || holding.answer.get().and_then(|answer| answer.chosen.clone()).filter(|_| holding.stage.chosen.get().is_some()).map(|told| closely(holding, &told))}
    }
}

fn groups(holding: Holding, answer: &HoldersAnswer) -> impl IntoView + use<> {
    let most = answer.groups.first().map_or(0, |group| group.total.allocated);
    let n = answer.groups.len();
    // The row that Tab leads to; arrows lead to the others.
    let at = RwSignal::new(answer.groups.iter().position(|group| group.is_chosen).unwrap_or(0));
    let rows: Vec<_> = answer
        .groups
        .iter()
        .enumerate()
        .map(|(i, group)| group_row(holding, group, (i, at), answer, most))
        .collect();
    let on_key = move |event: ev::KeyboardEvent| {
        let here = at.get_untracked();
        let next = match event.key().as_str() {
            "ArrowDown" => (here + 1).min(n.saturating_sub(1)),
            "ArrowUp" => here.saturating_sub(1),
            "Home" => 0,
            "End" => n.saturating_sub(1),
            _ => return,
        };
        event.prevent_default();
        event.stop_propagation();
        at.set(next);
        focus_on(&row_id(next));
    };
    let others = others_sentence(answer).map(|told| {
        view! { <p class="holder-rest"><span>{told}</span><span class="number" title=exact_bytes(answer.others.allocated)>{bytes(answer.others.allocated)}</span></p> }
    });
    let nothing = (n == 0).then(|| {
        let told = if answer.level == 0 {
            "Nothing is allocated at this moment"
        } else {
            "The filter means nothing of what is allocated at this moment"
        };
        view! { <p class="dim">{told}</p> }
    });
    let all = (n > 0).then(|| {
        let blocks = counted(answer.meant.blocks, "block", "blocks");
        let whole = if answer.meant.allocated == answer.level {
            "All that is allocated".to_owned()
        } else {
            format!("{} of all that is allocated", percent(answer.meant.allocated, answer.level))
        };
        view! {
            <p class="holder-rest">
                <span>{format!("{whole}, {blocks}")}</span>
                <span class="number" title=exact_bytes(answer.meant.allocated) data-testid="holders-total">{bytes(answer.meant.allocated)}</span>
            </p>
        }
    });
    view! {
        {nothing}
        <ul class="holders plain" aria-label="Groups, most bytes first" on:keydown=on_key>{rows}</ul>
        {others}
        {all}
    }
}

fn row_id(i: usize) -> String {
    format!("holder-{i}")
}

/// Puts the focus on the element with an id.
pub(crate) fn focus_on(id: &str) {
    let element = document().get_element_by_id(id).and_then(|found| found.dyn_into::<HtmlElement>().ok());
    if let Some(element) = element {
        element.focus().ok();
    }
}

fn group_row(
    holding: Holding,
    group: &HoldingGroup,
    (i, at): (usize, RwSignal<usize>),
    answer: &HoldersAnswer,
    most: u64,
) -> impl IntoView + use<> {
    let (like, is_chosen) = (group.like, group.is_chosen);
    let (by, level) = (answer.by.clone(), answer.level);
    let on_click = move |_| {
        at.set(i);
        holding.choose(Holder::Group { by: by.clone(), like }, is_chosen);
    };
    let share = group.total.allocated as f64 / most.max(1) as f64 * 100.0;
    let color = group.color.map(|[r, g, b]| format!(";background:rgb({r},{g},{b})")).unwrap_or_default();
    let place = Some(group_place(group)).filter(|place| !place.is_empty());
    view! {
        <li>
            <button
                id=row_id(i)
                type="button"
                class="holder"
                tabindex=move || if at.get() == i { "0" } else { "-1" }
                aria-pressed=is_chosen.to_string()
                aria-label=group_sentence(group, level)
                title=group.label.clone()
                data-testid="holder"
                data-bytes=group.total.allocated.to_string()
                on:click=on_click
            >
                <span class="holder-name">{group_name(group)}</span>
                <span class="number">{bytes(group.total.allocated)}</span>
                <span class="holder-place dim">{place}</span>
                <span class="number dim">{percent(group.total.allocated, level)} " · " {counted(group.total.blocks, "block", "blocks")}</span>
                <span class="holder-bar"><i style=format!("width:{share:.2}%{color}")></i></span>
            </button>
        </li>
    }
}

/// The chosen group or call: its bytes here, and its largest allocations.
fn closely(holding: Holding, told: &Closely) -> impl IntoView + use<> {
    let stage = holding.stage;
    let rows: Vec<_> = told
        .largest
        .iter()
        .map(|held| {
            let id = held.id;
            let is_pinned = move || stage.pinned.get() == Some(id);
            view! {
                <li>
                    <button type="button" class="held" aria-pressed=move || is_pinned().to_string() data-testid="held" on:click=move |_| stage.pinned.set(Some(id))>
                        <span class="number" title=exact_bytes(held.size)>{bytes(held.size)}</span>
                        <span class="dim">{held_sentence(held)}</span>
                    </button>
                </li>
            }
        })
        .collect();
    let n_more = told.total.blocks.saturating_sub(told.largest.len() as u64);
    let more = (n_more > 0).then(
        || view! { <p class="dim">{format!("and {}", counted(n_more, "smaller one", "smaller ones"))}</p> },
    );
    let in_trace = move || {
        stage
            .marked
            .get()
            .map(|marked| format!("; {} in all", counted(marked.n, "allocation", "allocations")))
    };
    view! {
        <section data-testid="closely">
            <h2>
                "Selected holder"
                <button type="button" class="icon" aria-label="Let go of this holder" on:click=move |_| stage.chosen.set(None)>"✕"</button>
            </h2>
            <p class="closely-label"><code>{told.label.clone()}</code></p>
            <p>{format!("{} in {} here", bytes(told.total.allocated), counted(told.total.blocks, "block", "blocks"))} {in_trace}</p>
            <ol class="plain held-list" aria-label="Its largest allocations; Enter pins one">{rows}</ol>
            {more}
        </section>
    }
}
