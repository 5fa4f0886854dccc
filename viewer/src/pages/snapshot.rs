//! One snapshot of the server: where it belongs, what is next to it, and its timeline.

use leptos::prelude::*;
use tidegauge_api::paths;
use tidegauge_api::snapshot::{SnapshotDetails, State};
use wasm_bindgen_futures::spawn_local;

use crate::app::App;
use crate::browser;
use crate::client::{self, Failure};
use crate::components::polling::poll;
use crate::components::problem::Problem;
use crate::components::snapshot_view::{Remedy, SnapshotView, Source};
use crate::components::unanswered::Unanswered;
use crate::format::{bytes, exact_bytes};
use crate::grid::{Board, Neighbor, Neighbors, column_phrase, row_label, state_phrase};
use crate::link::{Route, View};

/// How often a snapshot that is not read yet is asked for, milliseconds.
const REFRESH_MS: i32 = 1_000;

/// One snapshot.
#[component]
pub(crate) fn Snapshot(id: String) -> impl IntoView {
    browser::set_title("Snapshot");
    let details = RwSignal::new(None::<SnapshotDetails>);
    let failure = RwSignal::new(None::<Failure>);
    let follow = {
        let id = id.clone();
        move || {
            let id = id.clone();
            async move {
                match client::snapshot(&id).await {
                    Ok(news) => {
                        browser::set_title(&format!("{} · {}", news.run_name, place_phrase(&news)));
                        failure.try_set(None);
                        let is_settled = matches!(news.state, State::Ready | State::Failed);
                        details.try_set(Some(news));
                        !is_settled
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
    poll(REFRESH_MS, follow);

    let problem = move || {
        failure.get().map(|failure| {
            let reload = |_| drop(window().location().reload());
            view! {
                <Unanswered failure>
                    <button type="button" on:click=reload>"Try again"</button>
                    <a href=Route::Runs.address()>"See the runs"</a>
                </Unanswered>
            }
        })
    };
    let run =
        Memo::new(move |_| details.with(|details| details.as_ref().map(|details| details.run_id.clone())));
    let state = Memo::new(move |_| details.with(|details| details.as_ref().map(|details| details.state)));
    // Built again only by news: it asks for the run's grid.
    let news = Memo::new(move |_| details.get());
    let head = move || news.get().map(|details| view! { <Head details/> });
    let content = move || {
        let state = state.get();
        let details = details.get_untracked();
        match (state, details) {
            (Some(State::Ready), Some(details)) => ready(&details).into_any(),
            (Some(State::Failed), Some(details)) => failed(&details).into_any(),
            (Some(state), Some(_)) => pending(state).into_any(),
            _ if failure.with_untracked(Option::is_some) => ().into_any(),
            _ => view! { <div class="skeleton timeline-skeleton"></div> }.into_any(),
        }
    };
    let app = App::here();
    let back = window_event_listener(leptos::ev::keydown, move |event| {
        // The timeline has its own Esc; without one there is still a way back.
        if event.key() == "Escape"
            && !event.default_prevented()
            && state.get_untracked() != Some(State::Ready)
            && let Some(Some(id)) = run.try_get_untracked()
        {
            app.go(Route::run(id));
        }
    });
    on_cleanup(move || back.remove());
    view! { {head} {problem} {content} }
}

/// The way here, what lies next to it, and the file.
#[component]
fn Head(details: SnapshotDetails) -> impl IntoView {
    let neighbors = RwSignal::new(Neighbors::default());
    let (run_id, id) = (details.run_id.clone(), details.id.clone());
    spawn_local(async move {
        // Without a grid there are no neighbors; the page itself says if the server is away.
        if let Ok(Some((grid, _))) = client::grid(&run_id, None).await {
            neighbors.try_set(Board::new(grid).neighbors(&id));
        }
    });
    let file_name = details.file_name.clone().unwrap_or_else(|| "the original".to_owned());
    let others = (details.seq > 0).then(|| format!("file {} of this place", details.seq + 1));
    view! {
        <div class="page-head">
            <h1>
                <a href=Route::Runs.address()>"Runs"</a> " ▸ "
                <a href=Route::run(&details.run_id).address() data-testid="to-run">{details.run_name.clone()}</a> " ▸ "
                {place_phrase(&details)}
            </h1>
            <nav class="neighbors" aria-label="Next to this snapshot">
                {move || neighbor_link("‹ ", "", "the same step", neighbors.get().rank_before)}
                {move || neighbor_link("", " ›", "the same step", neighbors.get().rank_after)}
                {move || neighbor_link("‹ ", "", "the same rank", neighbors.get().step_before)}
                {move || neighbor_link("", " ›", "the same rank", neighbors.get().step_after)}
            </nav>
            <p class="file dim">
                {others}
                <a href=paths::original(&details.id) download="" title=exact_bytes(details.bytes)>
                    {format!("⤓ {file_name}, {}", bytes(details.bytes))}
                </a>
            </p>
        </div>
    }
}

fn neighbor_link(
    before: &'static str,
    after: &'static str,
    title: &'static str,
    neighbor: Option<Neighbor>,
) -> Option<impl IntoView> {
    neighbor.map(|neighbor| {
        let address = Route::Snapshot { id: neighbor.snapshot_id, view: View::default() }.address();
        view! { <a href=address title=title>{before} {neighbor.label} {after}</a> }
    })
}

/// "actor · rank 5 · steps 2–3".
fn place_phrase(details: &SnapshotDetails) -> String {
    let place = &details.place;
    let row = tidegauge_api::run::GridRow { role: place.role.clone().unwrap_or_default(), rank: place.rank };
    format!("{} · {}", row_label(&row), column_phrase(&place.step_label()))
}

fn ready(details: &SnapshotDetails) -> impl IntoView + use<> {
    let app = App::here();
    let source = Source::Server {
        pack: paths::pack(&details.id, tidegauge_snapshot::pack::VERSION),
        file: details.file_name.clone().unwrap_or_else(|| details.id.clone()),
        bytes: details.bytes,
    };
    let run_id = details.run_id.clone();
    let on_escape = UnsyncCallback::new(move |()| app.go(Route::run(&run_id)));
    let when_failed = original_link(&details.id);
    view! { <SnapshotView source on_escape when_failed/> }
}

fn original_link(id: &str) -> Remedy {
    let address = paths::original(id);
    Remedy::new(move || view! { <a href=address.clone() download="">"Download the original"</a> })
}

fn failed(details: &SnapshotDetails) -> impl IntoView + use<> {
    let sentence = details.problem.clone().unwrap_or_else(|| "This snapshot could not be read".to_owned());
    let run = Route::run(&details.run_id).address();
    let original = paths::original(&details.id);
    view! {
        <Problem sentence>
            <a href=original download="">"Download the original"</a>
            <a href=run>"Back to the run"</a>
        </Problem>
    }
}

fn pending(state: State) -> impl IntoView {
    view! {
        <div class="opening" data-testid="pending">
            <p role="status">{format!("This snapshot is {}; its timeline appears here by itself", state_phrase(state))}</p>
            <div class="skeleton timeline-skeleton"></div>
        </div>
    }
}
