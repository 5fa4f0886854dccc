//! One device of an opened snapshot: facts, timeline, and beside it what is under the cursor, what is pinned
//! and what was found.

use std::rc::Rc;
use std::time::Duration;

use leptos::prelude::*;
use tidegauge_api::Inspection;
use tidegauge_api::inspection::{DeviceInspection, Levels};
use tidegauge_api::picture::{AllocationAnswer, LevelsAnswer, OpenedDevice};
use wasm_bindgen::JsCast as _;
use wasm_bindgen_futures::spawn_local;

use super::holders::{FilterBox, Holders, Holding};
use super::icicle::CallsIcicle;
use super::memory_map::MemoryMap;
use super::size::Size;
use super::stack::{whole_stack, why_no_stack};
use crate::app::App;
use crate::format::{bytes, count, counted, exact_bytes, micros, percent};
use crate::link::View;
use crate::story;
use crate::timeline::spaces::top_bytes;
use crate::timeline::{Canvas, Curve, Stage};
use crate::worker::{Open, Trouble};

/// How long the address bar waits for a pan to rest: browsers refuse too many changes of it.
const ADDRESS_DELAY: Duration = Duration::from_millis(200);

/// One device: its timeline, where it has events, and who holds its memory. `on_death` is told when the worker has ended, `on_escape` when Esc has
/// nothing left to close here.
#[component]
pub(crate) fn DevicePane(
    open: StoredValue<Rc<Open>, LocalStorage>,
    device: OpenedDevice,
    inspection: Inspection,
    on_death: UnsyncCallback<()>,
    on_escape: UnsyncCallback<()>,
) -> impl IntoView {
    let facts =
        inspection.devices.iter().find(|facts| facts.device == device.device).cloned().unwrap_or_default();
    let (time_us, has_events) = (device.time_us, device.n_events > 0);
    let top = top_bytes(device.peak_active, facts.reserved.peak);
    let stage = Stage::new(open.get_value(), device.clone(), top);
    follow_address(stage);
    listen_for_keys(stage, on_escape);
    let holding = Holding::new(stage);
    Effect::new(move || {
        if stage.trouble.get() == Some(Trouble::Died) {
            on_death.run(());
        }
    });
    let refusal = move || match stage.trouble.get() {
        Some(Trouble::Refused(sentence)) => {
            Some(view! { <p class="notice" role="alert" data-testid="problem">{sentence}</p> })
        }
        _ => None,
    };
    let without_events = (!has_events)
        .then(|| view! { <p class="empty" data-testid="no-events">{story::without_events(&facts)}</p> });
    view! {
        {has_events.then(|| facts_line(&facts, &device))}
        {refusal}
        <FilterBox holding/>
        <div class="panes">
            <section class="pane-main" aria-label=if has_events { "Timeline" } else { "Memory" }>
                {has_events.then(|| view! { <Canvas stage/> <Legend stage/> <MemoryMap stage/> })}
                {without_events}
                <CallsIcicle holding/>
            </section>
            <aside class="pane-side">
                {has_events.then(|| view! { <Cursor stage time_us/> })}
                <Holders holding/>
                <Pinned stage/>
                {levels_table(&facts)}
                <Findings inspection/>
            </aside>
        </div>
    }
}

/// The one line to read first.
fn facts_line(facts: &DeviceInspection, device: &OpenedDevice) -> impl IntoView + use<> {
    let older = (facts.preexisting_blocks > 0)
        .then(|| view! { <span>{counted(facts.preexisting_blocks, "block", "blocks")} " older than the trace"</span> });
    let beyond = facts.reserved.peak.saturating_sub(facts.allocated.peak);
    view! {
        <p class="facts" data-testid="facts">
            <span>"peak allocated " <strong><Size bytes=facts.allocated.peak/></strong> " " {story::peak_phrase(device.peak_state, device.n_events)}</span>
            <span>
                "reserved " <Size bytes=facts.reserved.peak/> ", "
                {percent(beyond, facts.reserved.peak)} " of it beyond the allocated peak"
            </span>
            <span>{counted(device.n_allocations.into(), "allocation", "allocations")}</span>
            {older}
        </p>
    }
}

/// Keeps the window, the pinned allocation and the address bar the same.
fn follow_address(stage: Stage) {
    let app = App::here();
    let device = stage.device.with_value(|device| device.device);
    let shown = move || {
        let viewport = stage.viewport.get();
        let window = (!viewport.is_whole()).then(|| viewport.states());
        View { device: None, window, allocation: stage.pinned.get(), only: stage.typed.get() }
    };

    // From the address: at first, and whenever "back" or a link changes it.
    Effect::new(move || {
        let view = app.route.get().view();
        if view.device.is_some_and(|other| other != device)
            || (View { device: None, ..view.clone() }) == untrack(shown)
        {
            return;
        }
        stage.viewport.update(|viewport| {
            let (from, to) = view.window.unwrap_or((0, viewport.n_states()));
            *viewport = viewport.window(f64::from(from), f64::from(to));
        });
        stage.pinned.set(view.allocation);
        stage.typed.set(view.only);
    });

    // To the address, once things rest.
    let delay = StoredValue::new(None::<TimeoutHandle>);
    let cancel = move || {
        if let Some(Some(handle)) = delay.try_update_value(Option::take) {
            handle.clear();
        }
    };
    Effect::new(move |before: Option<View>| {
        let view = shown();
        if before.is_some_and(|before| before != view) {
            cancel();
            let view = view.clone();
            let write = move || {
                let device = app.route.get_untracked().view().device;
                app.set_view(View { device, ..view.clone() });
            };
            delay.set_value(set_timeout_with_handle(write, ADDRESS_DELAY).ok());
        }
        view
    });
    on_cleanup(cancel);
}

/// Keys work wherever the focus is, except where they write text or choose.
fn listen_for_keys(stage: Stage, on_escape: UnsyncCallback<()>) {
    let listener = window_event_listener(leptos::ev::keydown, move |event| {
        if event.ctrl_key()
            || event.meta_key()
            || event.alt_key()
            || event.default_prevented()
            || takes_keys(&event)
        {
            return;
        }
        let key = event.key();
        if key == "Escape" {
            if !stage.close_one() {
                on_escape.run(());
            }
        } else if stage.press(&key, event.shift_key()) {
            event.prevent_default();
        }
    });
    on_cleanup(move || listener.remove());
}

pub(crate) fn takes_keys(event: &web_sys::KeyboardEvent) -> bool {
    let target = event.target().and_then(|target| target.dyn_into::<web_sys::Element>().ok());
    target.is_some_and(|target| matches!(target.tag_name().as_str(), "INPUT" | "SELECT" | "TEXTAREA"))
}

/// The four curves: how each is drawn, its level at the cursor, and a button that hides it.
#[component]
fn Legend(stage: Stage) -> impl IntoView {
    let entry = move |i: usize, curve: Curve| {
        let is_shown = move || stage.curves.get()[i];
        let level = move || stage.levels.get().map(|levels| bytes(level_of(curve, &levels)));
        let dashes = curve.dashes().iter().map(f64::to_string).collect::<Vec<_>>().join(" ");
        view! {
            <li>
                <button
                    type="button"
                    aria-pressed=move || is_shown().to_string()
                    title=move || if is_shown() { "Hide this curve" } else { "Show this curve" }
                    data-curve=curve.name()
                    on:click=move |_| stage.curves.update(|shown| shown[i] = !shown[i])
                >
                    <svg width="32" height="8" aria-hidden="true"><line x1="0" y1="4" x2="32" y2="4" stroke-dasharray=dashes/></svg>
                    {curve.name()}
                    " "
                    <span class="number">{level}</span>
                </button>
            </li>
        }
    };
    let entries: Vec<_> = Curve::ALL.into_iter().enumerate().map(|(i, curve)| entry(i, curve)).collect();
    view! {
        <div class="legend">
            <ul data-testid="curves" aria-label="Curves, with their levels at the cursor">{entries}</ul>
            <p class="keys dim">
                <kbd>"W"</kbd> <kbd>"S"</kbd> " zoom · " <kbd>"A"</kbd> <kbd>"D"</kbd> " pan · "
                <kbd>"←"</kbd> <kbd>"→"</kbd> " one event · " <kbd>"P"</kbd> " peak · " <kbd>"/"</kbd> " filter · " <kbd>"0"</kbd> " all · " <kbd>"Esc"</kbd> " back"
            </p>
        </div>
    }
}

fn level_of(curve: Curve, levels: &LevelsAnswer) -> u64 {
    match curve {
        Curve::Reserved => levels.reserved,
        Curve::Active => levels.active,
        Curve::Allocated => levels.allocated,
        Curve::Requested => levels.requested,
    }
}

/// Levels at the cursor, and what led to them.
#[component]
fn Cursor(stage: Stage, time_us: Option<[i64; 2]>) -> impl IntoView {
    let head = move || match stage.cursor.get() {
        0 => "Before the first event".to_owned(),
        state => format!("At event {}", count(state.into())),
    };
    let event = move || {
        let levels = stage.levels.get()?;
        let action = levels.action?;
        let since = levels
            .time_us
            .zip(time_us)
            .map(|(at, [first, _])| format!(", {} after the first", micros(at - first)));
        Some(format!("{action}{}", since.unwrap_or_default()))
    };
    let row = move |curve: Curve| {
        let level = move || stage.levels.get().map(|levels| level_of(curve, &levels));
        view! {
            <tr>
                <th scope="row">{curve.name()}</th>
                <td class="number" title=move || level().map(exact_bytes)>{move || level().map(bytes)}</td>
            </tr>
        }
    };
    view! {
        <section id="levels" aria-live="polite" data-testid="levels">
            <h2>{head}</h2>
            <p class="dim">{event}</p>
            <table class="numbers"><tbody>{Curve::ALL.map(row).into_iter().collect::<Vec<_>>()}</tbody></table>
        </section>
    }
}

/// The allocation that was clicked, with all of its stack.
#[component]
fn Pinned(stage: Stage) -> impl IntoView {
    let told = RwSignal::new(None::<Result<AllocationAnswer, String>>);
    Effect::new(move || {
        told.set(None);
        let Some(id) = stage.pinned.get() else { return };
        spawn_local(async move {
            let answer = match stage.allocation(id).await {
                Ok(answer) => Ok(answer),
                Err(Trouble::Refused(sentence)) => Err(sentence),
                Err(Trouble::Died | Trouble::Superseded) => return,
            };
            if stage.pinned.try_get_untracked() == Some(Some(id)) {
                told.try_set(Some(answer));
            }
        });
    });
    let content = move || match told.get() {
        None => view! { <div class="skeleton"></div> }.into_any(),
        Some(Err(sentence)) => view! { <p>{sentence}</p> }.into_any(),
        Some(Ok(told)) => allocation(stage, &told).into_any(),
    };
    let has_events = stage.device.with_value(|device| device.n_events > 0);
    let hint = move || {
        has_events.then(|| view! { <section><h2>"Selected allocation"</h2><p class="dim">"Click a band to keep it here, with its whole stack"</p></section> })
    };
    view! {
        <Show when=move || stage.pinned.get().is_some() fallback=hint>
            <section data-testid="pinned">
                <h2>
                    "Selected allocation"
                    <button type="button" class="icon" aria-label="Let go of this allocation" on:click=move |_| stage.pinned.set(None)>"✕"</button>
                </h2>
                {content}
            </section>
        </Show>
    }
}

fn allocation(stage: Stage, told: &AllocationAnswer) -> impl IntoView + use<> {
    let n_events = stage.device.with_value(|device| device.n_events);
    let show_life = {
        let (from, to) = (told.from, told.to.unwrap_or(n_events));
        move |_| {
            let (from, to) = (f64::from(from), f64::from(to));
            let margin = (to - from) * 0.1 + 2.0;
            stage.viewport.update(|viewport| *viewport = viewport.window(from - margin, to + margin));
        }
    };
    let stream = told.stream.map(|stream| match stream {
        0 => "default stream".to_owned(),
        stream => format!("stream {stream}"),
    });
    let notes: Vec<_> = told.notes.iter().map(|note| view! { <p>{note.clone()}</p> }).collect();
    view! {
        <p class="pinned-size" title=exact_bytes(told.requested)>{story::allocation_size(told)}</p>
        <p>{story::allocation_lifetime(told, n_events)}</p>
        <p class="dim">{story::allocation_span(told)}</p>
        <p class="dim"><code>{told.address.clone()}</code> {stream.map(|stream| format!(" · {stream}"))}</p>
        {notes}
        {(n_events > 0).then(|| view! { <p><button type="button" on:click=show_life>"Show its life"</button></p> })}
        {whole_stack(&told.stack)}
        {why_no_stack(told)}
    }
}

/// Before, peak and end of the four curves.
fn levels_table(facts: &DeviceInspection) -> impl IntoView + use<> {
    let row = |name: &'static str, levels: Levels| {
        view! {
            <tr>
                <th scope="row">{name}</th>
                <td><Size bytes=levels.head/></td>
                <td><Size bytes=levels.peak/></td>
                <td><Size bytes=levels.end/></td>
            </tr>
        }
    };
    view! {
        <section>
            <h2>"Over the trace"</h2>
            <table class="numbers">
                <thead><tr><td></td><th scope="col">"before"</th><th scope="col">"peak"</th><th scope="col">"end"</th></tr></thead>
                <tbody>
                    {row("reserved", facts.reserved)}
                    {row("active", facts.active)}
                    {row("allocated", facts.allocated)}
                    {row("requested", facts.requested)}
                </tbody>
            </table>
        </section>
    }
}

/// What was odd about the file.
#[component]
fn Findings(inspection: Inspection) -> impl IntoView {
    let n = inspection.findings.len() as u64;
    let wrapping = inspection.wrapped();
    let items: Vec<_> = inspection
        .findings
        .into_iter()
        .map(|finding| view! { <li data-code=finding.code>{finding.message}</li> })
        .collect();
    view! {
        <section data-testid="findings">
            <h2>{if n == 0 { "Findings".to_owned() } else { format!("Findings ({n})") }}</h2>
            {if n == 0 { view! { <p class="dim">"Nothing odd in this file"</p> }.into_any() } else { view! { <ul class="findings">{items}</ul> }.into_any() }}
            <p class="dim">{format!("{} · {} · {}", inspection.producer, wrapping, bytes(inspection.bytes))}</p>
        </section>
    }
}
