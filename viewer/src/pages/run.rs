//! One run: its grid of ranks and steps, samples between the snapshots, and beside it the cell under focus.

use std::sync::Arc;

use leptos::html;
use leptos::prelude::*;
use tidegauge_api::paths;
use tidegauge_api::run::{Grid as RunGrid, GridCell, GridColumn};
use tidegauge_api::samples::GridSamples;
use tidegauge_api::snapshot::State;
use wasm_bindgen::JsCast as _;
use wasm_bindgen_futures::spawn_local;

use crate::app::App;
use crate::browser;
use crate::client::{self, Failure};
use crate::components::polling::{poll, seconds};
use crate::components::size::{Size, size_or_dash};
use crate::components::unanswered::Unanswered;
use crate::format::{ago, bytes, count, counted, difference, exact_bytes, micros};
use crate::grid::{Board, Spot, column_phrase, row_label, rows_in_view, state_phrase};
use crate::heat::{self, Scale};
use crate::link::{Route, View};
use crate::samples::{Label, SAMPLE, Sampled, columns_that_fit, labels, times, within};

/// How often the grid is asked for, milliseconds; the server answers "the same" at no cost.
const REFRESH_MS: i32 = 2_000;

/// Height of a row in the style sheet, CSS pixels.
const ROW_HEIGHT_CSS: f64 = 30.0;

/// Width of a cell, CSS pixels: as wide as there is room, within bounds.
const CELL_WIDTH_CSS: (f64, f64) = (14.0, 96.0);

/// Rows whose samples are asked for at once: a tall screen's, and as many to scroll to.
const N_SAMPLED_ROWS: u32 = 64;

/// Rows between two questions: whoever scrolls on has some rows left until the answer.
const SAMPLED_ROWS_APART: u32 = 16;

/// Below this width a number does not fit in a cell, CSS pixels.
const NUMBER_WIDTH_CSS: f64 = 66.0;

/// Width of the rows' heads in the style sheet, CSS pixels.
const HEAD_WIDTH_CSS: f64 = 120.0;

/// Which samples the page shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Wanted {
    first_row: u32,
    n_columns: u32,
}

/// What the server sent last.
#[derive(Default)]
struct Heard {
    grid: Option<RunGrid>,
    grid_tag: Option<String>,
    samples: GridSamples,
    /// The address of the samples and their tag.
    samples_tag: Option<(String, String)>,
}

/// One run's grid, of all steps or of some.
#[component]
pub(crate) fn Run(id: String, steps: Option<(u64, u64)>) -> impl IntoView {
    browser::set_title("Run");
    let board = RwSignal::new(None::<Arc<Board>>);
    let failure = RwSignal::new(None::<Failure>);
    let heard_ms = RwSignal::new(browser::now_ms());
    let heard = StoredValue::new(Heard::default());
    let wanted = RwSignal::new(Wanted { first_row: 0, n_columns: 100 });
    let show = move || {
        let shown =
            heard.try_with_value(|heard| Some((heard.grid.clone()?, heard.samples.clone()))).flatten();
        if let Some((grid, samples)) = shown {
            let grid = steps.map_or(grid.clone(), |steps| within(grid, steps));
            board.try_set(Some(Arc::new(Board::with_samples(grid, samples))));
        }
    };
    // Whether there was news. Samples are a help: where they cannot be had, the grid is shown without.
    let refresh_samples = {
        let id = id.clone();
        move || {
            let id = id.clone();
            async move {
                let Some(Wanted { first_row, n_columns }) = wanted.try_get_untracked() else { return false };
                let address = paths::run_samples(&id, first_row, N_SAMPLED_ROWS, n_columns);
                let address =
                    steps.map_or(address.clone(), |steps| paths::run_samples_within(&address, steps));
                let tag = heard.try_with_value(|heard| heard.samples_tag.clone()).flatten();
                let tag = tag.filter(|(of, _)| *of == address).map(|(_, tag)| tag);
                let Ok(Some((samples, tag))) = client::samples(&address, tag.as_deref()).await else {
                    return false;
                };
                let is_still_wanted = wanted.try_get_untracked() == Some(Wanted { first_row, n_columns });
                if is_still_wanted {
                    heard.try_update_value(|heard| {
                        heard.samples = samples;
                        heard.samples_tag = tag.map(|tag| (address, tag));
                    });
                }
                is_still_wanted
            }
        }
    };
    let refresh = {
        let refresh_samples = refresh_samples.clone();
        move || {
            let (id, refresh_samples) = (id.clone(), refresh_samples.clone());
            async move {
                let Some(known) = heard.try_with_value(|heard| heard.grid_tag.clone()) else { return false };
                match client::grid(&id, known.as_deref()).await {
                    Ok(news) => {
                        let mut has_news = false;
                        if let Some((grid, tag)) = news {
                            browser::set_title(&grid.run.name);
                            heard.try_update_value(|heard| {
                                (heard.grid, heard.grid_tag) = (Some(grid), tag);
                            });
                            has_news = true;
                        }
                        has_news |= refresh_samples().await;
                        if has_news {
                            show();
                        }
                        heard_ms.try_set(browser::now_ms());
                        failure.try_set(None);
                        true
                    }
                    Err(why) => {
                        let is_missing = why.is_missing();
                        failure.try_set(Some(why));
                        !is_missing
                    }
                }
            }
        }
    };
    poll(REFRESH_MS, refresh);
    // Whoever scrolls or widens the page need not wait for the next turn.
    Effect::new(move |before: Option<Wanted>| {
        let now = wanted.get();
        if before.is_some_and(|before| before != now) {
            let refresh_samples = refresh_samples.clone();
            spawn_local(async move {
                if refresh_samples().await {
                    show();
                }
            });
        }
        now
    });

    let problem = move || {
        failure.get().map(|failure| {
            let is_old = failure == Failure::Unreachable && board.with(Option::is_some);
            let sentence = is_old.then_some(
                "The server cannot be reached: this grid may be old; the server is asked again every two seconds",
            );
            let reload = |_| drop(window().location().reload());
            view! {
                <Unanswered failure sentence>
                    <button type="button" on:click=reload>"Reload"</button>
                    <a href=Route::Runs.address()>"See the runs"</a>
                </Unanswered>
            }
        })
    };
    let is_here = Memo::new(move |_| board.with(Option::is_some));
    let content = move || match is_here.get() {
        true => view! { <Grid board heard_ms failure wanted steps/> }.into_any(),
        false if failure.with(Option::is_some) => ().into_any(),
        false => view! { <div class="skeleton grid-skeleton"></div> }.into_any(),
    };
    view! { {problem} {content} }
}

#[component]
fn Grid(
    board: RwSignal<Option<Arc<Board>>>,
    heard_ms: RwSignal<f64>,
    failure: RwSignal<Option<Failure>>,
    wanted: RwSignal<Wanted>,
    steps: Option<(u64, u64)>,
) -> impl IntoView {
    // This component is built once there is a board, and a board is only replaced by another.
    let board = Signal::derive(move || board.get().expect("a grid is shown only once there is one"));
    let focus = RwSignal::new(Spot::default());
    let hover = RwSignal::new(None::<Spot>);
    // Columns come in between while the run goes on: the focus stays on its rank and step.
    Effect::new(move |before: Option<Arc<Board>>| {
        let now = board.get();
        if let Some(before) = before {
            focus.update(|focus| *focus = now.same_place(&before, *focus));
            hover.update(|hover| *hover = hover.map(|hover| now.same_place(&before, hover)));
        }
        now
    });
    let shown = Memo::new(move |_| hover.get().unwrap_or(focus.get()));
    let is_empty = Memo::new(move |_| board.with(|board| board.grid.columns.is_empty()));
    let empty = move || {
        is_empty.get().then(|| {
            view! {
                <p class="dim" data-testid="no-columns">
                    "Nothing has arrived yet: what was sampled at a step's end shows up a few seconds after it"
                </p>
            }
        })
    };
    view! {
        <RunHeader board heard_ms failure/>
        {empty}
        {steps.map(|steps| some_steps(&board.get_untracked(), steps))}
        <div class="panes">
            <section class="pane-main" aria-label="Ranks and steps">
                <Cells board focus hover wanted/>
                {move || legend(&board.get())}
            </section>
            <aside class="pane-side" aria-live="polite" data-testid="cell-panel">
                {move || cell_panel(&board.get(), shown.get())}
            </aside>
        </div>
    }
}

/// That only some steps are shown, and the way back to all.
fn some_steps(board: &Board, (first, last): (u64, u64)) -> impl IntoView + use<> {
    let all = Route::run(&board.grid.run.id).address();
    let words =
        if first == last { format!("Step {first} only") } else { format!("Steps {first}–{last} only") };
    view! { <p class="facts" data-testid="some-steps"><span>{words}</span> <a href=all>"Show all steps"</a></p> }
}

/// The run in a line, and how fresh the page is.
#[component]
fn RunHeader(
    board: Signal<Arc<Board>>,
    heard_ms: RwSignal<f64>,
    failure: RwSignal<Option<Failure>>,
) -> impl IntoView {
    let now = seconds();
    let live = move || {
        let seconds = ((now.get().max(heard_ms.get()) - heard_ms.get()) / 1e3) as u64;
        match failure.with(Option::is_some) {
            true => format!("○ not live, heard {}", ago(seconds)),
            false => format!("● live, {}", ago(seconds)),
        }
    };
    let facts = move || {
        let board = board.get();
        let run = &board.grid.run;
        let highest = board.highest().and_then(|cell| {
            let id = cell.snapshots.first()?;
            let row = board.grid.rows.get(cell.row as usize)?;
            let address = Route::Snapshot { id: id.clone(), view: View::default() }.address();
            let place = format!("{} {}", row_label(row), column_phrase(&cell.label));
            Some(view! { <span>"highest " <strong>{size_or_dash(cell.peak_allocated)}</strong> " " <a href=address>{place}</a></span> })
        });
        let failed = (run.n_failed > 0)
            .then(|| view! { <span class="failed">"✕ " {count(run.n_failed)} " failed"</span> });
        let samples = board.beside.samples();
        let n_samples = run.n_samples.max(samples.n_samples);
        let sampled = (n_samples > 0).then(|| {
            let title = (samples.n_dropped > 0).then(|| {
                format!("{} more were taken and dropped before they could be sent", count(samples.n_dropped))
            });
            view! { <span title=title>{counted(n_samples, "sample", "samples")}</span> }
        });
        let latest = run
            .latest_step
            .max(samples.last_step)
            .map(|step| view! { <span data-testid="latest-step">"step " {count(step)}</span> });
        let lost = (run.n_lost > 0).then(|| {
            view! { <span class="failed" data-testid="lost">"∅ " {counted(run.n_lost, "snapshot lost", "snapshots lost")}</span> }
        });
        let pending =
            (run.n_pending > 0).then(|| view! { <span>{count(run.n_pending)} " to be read"</span> });
        view! {
            <p class="facts">
                <span>{counted(run.n_ranks, "rank", "ranks")}</span>
                <span>{counted(run.n_snapshots, "snapshot", "snapshots")}</span>
                {sampled}
                {latest}
                {run.producer.clone().map(|producer| view! { <span>{producer}</span> })}
                {highest}
                {failed}
                {lost}
                {pending}
            </p>
        }
    };
    view! {
        <div class="page-head">
            <h1><a href=Route::Runs.address()>"Runs"</a> " ▸ " {move || board.get().grid.run.name.clone()}</h1>
            <p class="live" role="status" data-testid="live">{live}</p>
        </div>
        {facts}
    }
}

/// The grid proper. The focus stays on its frame and names the cell it is on, so that fresh cells do not lose it;
/// of many rows only those in view are built.
#[component]
fn Cells(
    board: Signal<Arc<Board>>,
    focus: RwSignal<Spot>,
    hover: RwSignal<Option<Spot>>,
    wanted: RwSignal<Wanted>,
) -> impl IntoView {
    let app = App::here();
    let frame = NodeRef::<html::Div>::new();
    let scroll = RwSignal::new((0.0, 0.0));
    let width_css = RwSignal::new(0.0);
    let measure = move || {
        if let Some(Some(frame)) = frame.try_get_untracked() {
            scroll.try_set((f64::from(frame.scroll_top()), f64::from(frame.client_height())));
            width_css.try_set(f64::from(frame.client_width()));
        }
    };
    Effect::new(move || {
        if frame.get().is_some() {
            measure();
        }
    });
    let resized = window_event_listener(leptos::ev::resize, move |_| measure());
    on_cleanup(move || resized.remove());

    let cell_width_css = Memo::new(move |_| {
        let n_columns = board.with(|board| board.grid.columns.len()).max(1) as f64;
        ((width_css.get() - HEAD_WIDTH_CSS) / n_columns).floor().clamp(CELL_WIDTH_CSS.0, CELL_WIDTH_CSS.1)
    });
    let rows = Memo::new(move |_| {
        let (top, height) = scroll.get();
        let n_rows = board.with(|board| board.grid.rows.len());
        // Before it is measured, as many as a tall screen shows.
        let range = rows_in_view(top, if height > 0.0 { height } else { 1_500.0 }, ROW_HEIGHT_CSS, n_rows);
        (range.start, range.end, n_rows)
    });
    // Which samples to ask for follows what is in view.
    Effect::new(move || {
        let (first, _, _) = rows.get();
        let n_snapshot_columns =
            board.with(|board| board.grid.columns.iter().filter(|column| column.reason != SAMPLE).count());
        if width_css.get() > 0.0 {
            let first_row =
                u32::try_from(first).unwrap_or(u32::MAX) / SAMPLED_ROWS_APART * SAMPLED_ROWS_APART;
            let n_columns =
                columns_that_fit(width_css.get(), HEAD_WIDTH_CSS, CELL_WIDTH_CSS.0, n_snapshot_columns);
            let now = Wanted { first_row, n_columns };
            if wanted.get_untracked() != now {
                wanted.set(now);
            }
        }
    });
    let open = move |spot: Spot| {
        let id =
            board.with_untracked(|board| board.cell(spot).and_then(|cell| cell.snapshots.first().cloned()));
        let stretch = board.with_untracked(|board| Some((board.grid.run.id.clone(), board.stretch(spot)?)));
        match (id, stretch) {
            (Some(id), _) => app.go(Route::Snapshot { id, view: View::default() }),
            (None, Some((id, steps))) => app.go(Route::Run { id, steps: Some(steps) }),
            (None, None) => {}
        }
    };
    let on_key = move |event: web_sys::KeyboardEvent| {
        if event.ctrl_key() || event.meta_key() || event.alt_key() {
            return;
        }
        let key = event.key();
        if key == "Enter" {
            event.prevent_default();
            open(focus.get_untracked());
        } else if let Some(spot) = board.with_untracked(|board| board.walk(focus.get_untracked(), &key)) {
            event.prevent_default();
            hover.set(None);
            focus.set(spot);
            if let Some(frame) = frame.get_untracked() {
                bring_into_view(&frame, spot, cell_width_css.get_untracked());
            }
        }
    };
    // The cell an event happened on: one listener for all of them.
    let spot_of = |event: &web_sys::Event| {
        let target = event.target()?.dyn_into::<web_sys::Element>().ok()?;
        let cell = target.closest("[data-row]").ok().flatten()?;
        let number = |name: &str| cell.get_attribute(name)?.parse().ok();
        Some(Spot { row: number("data-row")?, column: number("data-column")? })
    };
    let has_numbers = Memo::new(move |_| cell_width_css.get() >= NUMBER_WIDTH_CSS);
    // A row is built again only when what it shows has changed.
    let keyed_rows = move || {
        let (first, last, n_rows) = rows.get();
        let has_numbers = has_numbers.get();
        let board = board.get();
        (first..last.min(n_rows))
            .map(|row| (row as u32, board.row_fingerprint(row as u32), has_numbers))
            .collect::<Vec<_>>()
    };
    let build_row = move |(row, _, has_numbers): (u32, u64, bool)| {
        board.with_untracked(|board| row_view(board, row, has_numbers))
    };
    let above = move || format!("height:{:.0}px", rows.get().0 as f64 * ROW_HEIGHT_CSS);
    let below = move || {
        let (_, last, n_rows) = rows.get();
        format!("height:{:.0}px", n_rows.saturating_sub(last) as f64 * ROW_HEIGHT_CSS)
    };
    let ring = move || {
        let Spot { row, column } = focus.get();
        let left = HEAD_WIDTH_CSS + f64::from(column) * cell_width_css.get();
        format!("left:{left:.0}px;top:{:.0}px", f64::from(row + 1) * ROW_HEIGHT_CSS)
    };
    let heads = move || {
        let board = board.get();
        let columns = &board.grid.columns;
        let lengths: Vec<_> =
            columns.iter().map(|column| (column.label.chars().count(), column.reason != SAMPLE)).collect();
        let shown = labels(&lengths, cell_width_css.get());
        let head = |(i, column): (usize, &GridColumn)| {
            let label = (shown[i] != Label::Hidden).then(|| column.label.clone());
            let index = (i + 2).to_string();
            let (kind_class, kind) = match column.reason.as_str() {
                SAMPLE => ("", ", sampled"),
                _ => ("snapshot-head", ""),
            };
            let class = if shown[i] == Label::AtStart {
                format!("{kind_class} at-start")
            } else {
                kind_class.to_owned()
            };
            let title = format!("{}{kind}", column_phrase(&column.label));
            view! { <span role="columnheader" aria-colindex=index class=class title=title>{label}</span> }
        };
        let heads: Vec<_> = columns.iter().enumerate().map(head).collect();
        view! { <span role="columnheader" aria-colindex="1" class="corner">"step"</span> {heads} }
    };
    let template = move || {
        let n_columns = board.with(|board| board.grid.columns.len());
        format!("--columns:{n_columns};--cell-width:{:.0}px", cell_width_css.get())
    };
    view! {
        <div
            node_ref=frame
            class="grid"
            role="grid"
            tabindex="0"
            aria-label="Peak of allocated memory by rank and step"
            aria-rowcount=move || (board.with(|board| board.grid.rows.len()) + 1).to_string()
            aria-colcount=move || (board.with(|board| board.grid.columns.len()) + 1).to_string()
            aria-activedescendant=move || cell_id(focus.get())
            data-testid="grid"
            style=template
            on:keydown=on_key
            on:scroll=move |_| measure()
            on:pointerover=move |event| hover.set(spot_of(&event))
            on:pointerleave=move |_| hover.set(None)
            on:click=move |event| {
                if let Some(spot) = spot_of(&event) {
                    focus.set(spot);
                }
            }
        >
            <div class="grid-row grid-heads" role="row" aria-rowindex="1">{heads}</div>
            <div style=above></div>
            <For each=keyed_rows key=|row| *row children=build_row/>
            <div style=below></div>
            <div class="focus-ring" style=ring></div>
        </div>
    }
}

fn cell_id(spot: Spot) -> String {
    format!("cell-{}-{}", spot.row, spot.column)
}

/// Scrolls the frame as little as it takes to show a cell beside the heads, which stay in place.
fn bring_into_view(frame: &web_sys::HtmlElement, spot: Spot, cell_width_css: f64) {
    let scrolled = |now: i32, length: i32, head: f64, from: f64, size: f64| {
        let (now, room) = (f64::from(now), f64::from(length) - head);
        let to = if from < now { from } else { now.max(from + size - room) };
        to.round() as i32
    };
    let row = f64::from(spot.row) * ROW_HEIGHT_CSS;
    frame.set_scroll_top(scrolled(
        frame.scroll_top(),
        frame.client_height(),
        ROW_HEIGHT_CSS,
        row,
        ROW_HEIGHT_CSS,
    ));
    let column = f64::from(spot.column) * cell_width_css;
    frame.set_scroll_left(scrolled(
        frame.scroll_left(),
        frame.client_width(),
        HEAD_WIDTH_CSS,
        column,
        cell_width_css,
    ));
}

fn row_view(board: &Board, row: u32, has_numbers: bool) -> impl IntoView + use<> {
    let head = board.grid.rows.get(row as usize).map(row_label).unwrap_or_default();
    let cells: Vec<_> = (0..board.grid.columns.len())
        .map(|column| {
            // Columns are counted by u32 in what the server sends.
            let spot = Spot { row, column: column as u32 };
            match (board.cell(spot), board.lost(spot).next(), board.sampled(spot)) {
                (Some(cell), ..) => cell_view(board, cell, spot, has_numbers).into_any(),
                (None, Some(lost), _) => lost_view(board, &lost.label, spot).into_any(),
                (None, None, Some(sampled)) => sampled_view(board, sampled, spot).into_any(),
                (None, None, None) => nothing_view(spot).into_any(),
            }
        })
        .collect();
    view! {
        <div class="grid-row" role="row" aria-rowindex=(row + 2).to_string()>
            <span role="rowheader" aria-colindex="1" title=head.clone()>{head.clone()}</span>
            {cells}
        </div>
    }
}

fn nothing_view(spot: Spot) -> impl IntoView {
    view! {
        <span
            class="cell nothing"
            role="gridcell"
            id=cell_id(spot)
            aria-label="nothing"
            aria-colindex=(spot.column + 2).to_string()
            data-row=spot.row.to_string()
            data-column=spot.column.to_string()
        ></span>
    }
}

/// Steps between snapshots: a bar as high as what was allocated, in the color of the peak.
fn sampled_view(board: &Board, sampled: Sampled, spot: Spot) -> impl IntoView + use<> {
    let color = board.scale.zip(sampled.allocated_peak).map(|(scale, peak)| heat::css(scale.color(peak)));
    let percent = sampled.allocated.map_or(0.0, |allocated| board.part_of_highest(allocated) * 100.0);
    let bar = format!("height:{percent:.1}%;background:{}", color.unwrap_or("var(--line-strong)".to_owned()));
    let mark = sampled.mark().map(|mark| {
        let class = if mark == "!" { "mark failed" } else { "mark" };
        view! { <span class=class>{mark}</span> }
    });
    let (label, rank, step_label) = spoken(board, spot, &sampled.summary());
    view! {
        <span
            class="cell sampled"
            role="gridcell"
            id=cell_id(spot)
            aria-label=label
            aria-colindex=(spot.column + 2).to_string()
            data-testid="sampled"
            data-row=spot.row.to_string()
            data-column=spot.column.to_string()
            data-rank=rank
            data-step-label=step_label
        >
            <i style=bar></i>
            {mark}
        </span>
    }
}

/// A snapshot that nobody will see.
fn lost_view(board: &Board, window: &str, spot: Spot) -> impl IntoView + use<> {
    let why = board.lost(spot).next().map(|lost| lost.why.clone()).unwrap_or_default();
    let (label, rank, _) = spoken(board, spot, &format!("the snapshot is lost, {why}"));
    view! {
        <span
            class="cell lost"
            role="gridcell"
            id=cell_id(spot)
            aria-label=label
            aria-colindex=(spot.column + 2).to_string()
            data-testid="lost-cell"
            data-row=spot.row.to_string()
            data-column=spot.column.to_string()
            data-rank=rank
            data-step-label=window.to_owned()
        >
            "∅"
        </span>
    }
}

/// A cell as it is read out, and its rank and column.
fn spoken(board: &Board, spot: Spot, what: &str) -> (String, Option<String>, Option<String>) {
    let row = board.grid.rows.get(spot.row as usize);
    let column = board.grid.columns.get(spot.column as usize);
    let label = format!(
        "{}, {}: {what}",
        row.map(row_label).unwrap_or_default(),
        column.map(|column| column_phrase(&column.label)).unwrap_or_default(),
    );
    let rank = row.and_then(|row| row.rank).map(|rank| rank.to_string());
    (label, rank, column.map(|column| column.label.clone()))
}

fn cell_view(board: &Board, cell: &GridCell, spot: Spot, has_numbers: bool) -> impl IntoView + use<> {
    let row = board.grid.rows.get(spot.row as usize);
    let rank = row.and_then(|row| row.rank).map(|rank| rank.to_string());
    let role = row.map(|row| row.role.clone()).filter(|role| !role.is_empty());
    let color = board.scale.zip(cell.peak_allocated).map(|(scale, peak)| scale.color(peak));
    let style = color.map(|color| format!("background:{};color:{}", heat::css(color), heat::text_on(color)));
    let text = match cell.state {
        State::Failed => "✕".to_owned(),
        State::Received | State::Reading => "…".to_owned(),
        State::Ready if !has_numbers => String::new(),
        State::Ready => cell.peak_allocated.map(bytes).unwrap_or_default(),
    };
    let n = cell.snapshots.len();
    let badge = (n > 1).then(|| view! { <span class="badge" title=format!("{n} snapshots")>{n}</span> });
    let address =
        cell.snapshots.first().map(|id| Route::Snapshot { id: id.clone(), view: View::default() }.address());
    let label = format!(
        "{}, {}: {}",
        row.map(row_label).unwrap_or_default(),
        column_phrase(&cell.label),
        cell_summary(cell)
    );
    view! {
        <span
            class=format!("cell {}", cell.state.as_str())
            role="gridcell"
            id=cell_id(spot)
            aria-label=label
            aria-colindex=(spot.column + 2).to_string()
            style=style
            data-testid="cell"
            data-row=spot.row.to_string()
            data-column=spot.column.to_string()
            data-rank=rank
            data-role=role
            data-step-label=cell.label.clone()
            data-state=cell.state.as_str()
        >
            <a href=address tabindex="-1">{text}</a>
            {badge}
        </span>
    }
}

fn cell_summary(cell: &GridCell) -> String {
    match (cell.state, cell.peak_allocated) {
        (State::Ready, Some(peak)) => format!("peak allocated {}", bytes(peak)),
        (state, _) => state_phrase(state).to_owned(),
    }
}

/// Everything known of one cell.
fn cell_panel(board: &Board, spot: Spot) -> impl IntoView + use<> {
    let row = board.grid.rows.get(spot.row as usize).map(row_label).unwrap_or_default();
    let column = board.grid.columns.get(spot.column as usize);
    let sampled = board.sampled(spot).map(|sampled| sampled_facts(sampled, column));
    let lost: Vec<_> = board
        .lost(spot)
        .map(|lost| view! { <p class="failed">"∅ The snapshot of " {column_phrase(&lost.label)} " is lost: " {lost.why.clone()}</p> })
        .collect();
    let Some(cell) = board.cell(spot) else {
        let phrase = column.map(|column| column_phrase(&column.label)).unwrap_or_default();
        let one_by_one = board.stretch(spot).map(|steps| {
            let address = Route::Run { id: board.grid.run.id.clone(), steps: Some(steps) }.address();
            view! { <ul class="plain"><li><a href=address data-testid="one-by-one">"Show each of these steps"</a></li></ul> }
        });
        let nothing = (sampled.is_none() && lost.is_empty()).then(|| {
            let words = match board.beside.is_here(spot.row) {
                true => "Nothing has arrived for this place",
                false => "Scroll to this row to see its samples",
            };
            view! { <p class="dim">{words}</p> }
        });
        return view! {
            <h2>{format!("{row} · {phrase}")}</h2>
            {lost}
            {sampled}
            {one_by_one}
            {nothing}
        }
        .into_any();
    };
    let against_median = cell.peak_allocated.zip(board.median(spot.column)).map(|(peak, median)| {
        let title = format!("The median of this column is {}", exact_bytes(median));
        fact(
            "against the median",
            view! { <span class="number" title=title>{difference(peak, median)}</span> },
        )
    });
    let numbers = (cell.state == State::Ready).then(|| {
        view! {
            <table class="numbers"><tbody>
                {fact("peak allocated", size_or_dash(cell.peak_allocated))}
                {against_median}
                {fact("peak reserved", size_or_dash(cell.peak_reserved))}
                {fact("events", cell.n_events.map(count))}
                {fact("findings", cell.n_findings.map(count))}
            </tbody></table>
        }
    });
    let state = matches!(cell.state, State::Received | State::Reading)
        .then(|| view! { <p>"This snapshot is " {state_phrase(cell.state)}</p> });
    let problem = cell.problem.clone().map(|problem| view! { <p class="failed">"✕ " {problem}</p> });
    let n = cell.snapshots.len();
    let links: Vec<_> = cell
        .snapshots
        .iter()
        .enumerate()
        .map(|(i, id)| {
            let address = Route::Snapshot { id: id.clone(), view: View::default() }.address();
            let text = match (n, i) {
                (1, _) => "Open".to_owned(),
                (_, 0) => format!("Open the latest of {n}"),
                (_, i) => format!(
                    "Open the one before{}",
                    if i > 1 { format!(" ({i} back)") } else { String::new() }
                ),
            };
            view! { <li><a href=address>{text}</a></li> }
        })
        .collect();
    view! {
        <h2>{format!("{row} · {}", column_phrase(&cell.label))}</h2>
        {state}
        {problem}
        {lost}
        {numbers}
        <ul class="plain">{links}</ul>
        {sampled}
    }
    .into_any()
}

/// What was sampled at a step's end, or at the ends of several.
fn sampled_facts(sampled: Sampled, column: Option<&GridColumn>) -> impl IntoView + use<> {
    let is_several = column.is_some_and(|column| column.reason == SAMPLE && column.label.contains('–'));
    let head = if is_several { "Sampled, the highest of these steps" } else { "Sampled at the step's end" };
    let trouble =
        |name, n: u64| (n > 0).then(|| fact(name, view! { <span class="failed">{times(n)}</span> }));
    let outside = sampled.outside.map(|outside| fact("outside of PyTorch", size_or_dash(Some(outside))));
    let took = sampled.step_us.map(|us| {
        let name = if is_several { "longest step" } else { "step took" };
        fact(name, view! { <span class="number">{micros(i64::try_from(us).unwrap_or(i64::MAX))}</span> })
    });
    view! {
        <h3>{head}</h3>
        <table class="numbers" data-testid="sampled-facts"><tbody>
            {fact("allocated", size_or_dash(sampled.allocated))}
            {fact("peak allocated so far", size_or_dash(sampled.allocated_peak))}
            {fact("reserved", size_or_dash(sampled.reserved))}
            {outside}
            {took}
            {trouble("ran out of memory", sampled.n_ooms)}
            {trouble("gave back and tried again", sampled.n_alloc_retries)}
        </tbody></table>
    }
}

fn fact(name: &'static str, value: impl IntoView) -> impl IntoView {
    view! { <tr><th scope="row">{name}</th><td>{value}</td></tr> }
}

/// What colors and marks mean, as far as they are there.
fn legend(board: &Board) -> impl IntoView + use<> {
    let samples = board.beside.samples();
    let has_trouble = |of: fn(&tidegauge_api::samples::Trouble) -> bool| {
        samples.rows.iter().any(|row| row.troubles.iter().any(of))
    };
    let sampled = (samples.n_samples > 0).then(|| {
        view! {
            <span class="key"><span class="cell sampled"><i></i></span>"sampled between snapshots: as high as what was allocated at the step's end, in the color of the peak so far"</span>
        }
    });
    let ooms = has_trouble(|trouble| trouble.n_ooms > 0)
        .then(|| view! { <span class="key"><span class="mark failed">"!"</span>"ran out of memory"</span> });
    let retries = has_trouble(|trouble| trouble.n_alloc_retries > 0).then(
        || view! { <span class="key"><span class="mark">"↻"</span>"gave cached memory back and tried again"</span> },
    );
    let lost = (!board.grid.lost.is_empty()).then(
        || view! { <span class="key"><span class="mark failed">"∅"</span>"a snapshot was lost"</span> },
    );
    let thinned =
        (samples.stride > 1).then(|| format!("Of older steps only every {}th is still here", samples.stride));
    view! {
        {board.scale.map(scale_bar)}
        <p class="scale grid-legend" data-testid="legend">{sampled}{ooms}{retries}{lost}{thinned}</p>
    }
}

/// The scale with its ends labeled.
fn scale_bar(scale: Scale) -> impl IntoView {
    /// Steps of the bar: enough to look smooth.
    const N: u64 = 24;
    let span = scale.high - scale.low;
    let stops: Vec<_> =
        (0..=N).map(|i| heat::css(scale.color(scale.low + span / N * i + span % N * i / N))).collect();
    let style = format!("background:linear-gradient(to right,{})", stops.join(","));
    view! {
        <p class="scale">
            <span>"peak allocated"</span>
            <Size bytes=scale.low/>
            <span class="scale-bar" style=style></span>
            <Size bytes=scale.high/>
        </p>
    }
}
