//! The list of runs, kept fresh while open.

use leptos::prelude::*;
use tidegauge_api::run::{RunRow, Runs as RunList};
use wasm_bindgen_futures::spawn_local;

use crate::browser;
use crate::client::{self, Failure};
use crate::components::polling::{poll, seconds};
use crate::components::size::size_or_dash;
use crate::components::unanswered::Unanswered;
use crate::format::{ago, count};
use crate::link::Route;

/// How often the list is asked for, milliseconds.
const REFRESH_MS: i32 = 3_000;

/// The runs, latest first.
#[component]
pub(crate) fn Runs() -> impl IntoView {
    browser::set_title("Runs");
    let runs = RwSignal::new(None::<RunList>);
    let failure = RwSignal::new(None::<Failure>);
    let refresh = move || async move {
        match client::runs().await {
            Ok(list) => {
                failure.try_set(None);
                if runs.try_with_untracked(|old| old.as_ref() != Some(&list)) == Some(true) {
                    runs.try_set(Some(list));
                }
            }
            Err(why) => drop(failure.try_set(Some(why))),
        }
        true
    };
    poll(REFRESH_MS, refresh);
    let now = seconds();

    let problem = move || {
        failure.get().map(|failure| {
            let is_old = failure == Failure::Unreachable && runs.with(Option::is_some);
            let sentence = is_old.then_some("The server cannot be reached: this list may be old");
            let again = move |_| {
                spawn_local(async move {
                    refresh().await;
                });
            };
            view! {
                <Unanswered failure sentence>
                    <button type="button" on:click=again>"Try again"</button>
                </Unanswered>
            }
        })
    };
    let content = move || match runs.get() {
        None if failure.with(Option::is_some) => ().into_any(),
        None => view! { <div class="skeleton table-skeleton"></div> }.into_any(),
        Some(list) if list.runs.is_empty() => empty().into_any(),
        Some(list) => table(list, now).into_any(),
    };
    view! {
        <h1>"Runs"</h1>
        {problem}
        {content}
    }
}

fn table(list: RunList, now: ReadSignal<f64>) -> impl IntoView {
    let rows: Vec<_> = list.runs.into_iter().map(|run| row(run, now)).collect();
    view! {
        <div class="table-scroll">
            <table class="runs" data-testid="runs-table">
                <thead>
                    <tr>
                        <th scope="col">"Run"</th>
                        <th scope="col" class="number">"Ranks"</th>
                        <th scope="col" class="number">"Step"</th>
                        <th scope="col" class="number">"Snapshots"</th>
                        <th scope="col" class="number">"Failed"</th>
                        <th scope="col" class="number">"Highest peak"</th>
                        <th scope="col">"Producer"</th>
                        <th scope="col" class="number">"Updated"</th>
                    </tr>
                </thead>
                <tbody>{rows}</tbody>
            </table>
        </div>
    }
}

fn row(run: RunRow, now: ReadSignal<f64>) -> impl IntoView {
    let updated = {
        let at = run.updated_at.clone();
        move || {
            now.track();
            browser::seconds_since(&at).map(ago)
        }
    };
    let failed = if run.n_failed == 0 {
        view! { <span class="dim">"0"</span> }.into_any()
    } else {
        view! { <span class="failed">"✕ " {count(run.n_failed)}</span> }.into_any()
    };
    let pending = (run.n_pending > 0).then(|| format!(" ({} to be read)", count(run.n_pending)));
    view! {
        <tr>
            <td><a href=Route::run(run.id).address() data-testid="run-link">{run.name}</a></td>
            <td class="number">{count(run.n_ranks)}</td>
            <td class="number" data-testid="latest-step">{run.latest_step.map_or("–".to_owned(), count)}</td>
            <td class="number">{count(run.n_snapshots)}<span class="dim">{pending}</span></td>
            <td class="number">{failed}</td>
            <td class="number">{size_or_dash(run.peak_allocated)}</td>
            <td>{run.producer}</td>
            <td class="number" title=run.updated_at>{updated}</td>
        </tr>
    }
}

/// The ways to fill the list.
fn empty() -> impl IntoView {
    let origin = window().location().origin().unwrap_or_default();
    let push = format!("tidegauge push snapshots/ --server {origin} --run my-run");
    let train = format!(
        "import tidegauge\ntidegauge.start(run=\"my-run\", server=\"{origin}\", steps=[1, 5, 10])\ntidegauge.step()  # at the end of each training step"
    );
    view! {
        <div class="empty" data-testid="empty">
            <p>"There are no runs yet: send a snapshot, and its run appears here"</p>
            <h2>"By hand"</h2>
            <p>"Upload files or a whole folder, or drop one anywhere on this page to look at it without sending it"</p>
            <p><a class="button" href=Route::Upload.address()>"Upload…"</a></p>
            <h2>"From a shell"</h2>
            <pre><code>{push}</code></pre>
            <h2>"From a training script"</h2>
            <pre><code>{train}</code></pre>
        </div>
    }
}
