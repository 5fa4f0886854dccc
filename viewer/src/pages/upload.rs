//! The upload form: files, where each belongs, and how far its bytes are.

use leptos::ev;
use leptos::prelude::*;
use wasm_bindgen_futures::spawn_local;
use web_sys::{File, HtmlInputElement};

use crate::app::App;
use crate::browser::{self, Picked};
use crate::client;
use crate::format::{bytes, counted, exact_bytes};
use crate::link::{Route, View};
use crate::uploads::{Fields, MAX_ROWS, Progress};

/// Files that are sent at once: enough to hide the wait for answers, few enough that each moves visibly.
const N_AT_ONCE: usize = 2;

/// One file of the form.
#[derive(Clone, Copy)]
struct Row {
    key: u32,
    picked: StoredValue<Picked, LocalStorage>,
    fields: RwSignal<Fields>,
    progress: RwSignal<Progress>,
}

/// Pick or drop files, see and correct where they belong, send them.
#[component]
pub(crate) fn Upload() -> impl IntoView {
    browser::set_title("Upload");
    let app = App::here();
    let rows = RwSignal::new(Vec::<Row>::new());
    let n_keys = StoredValue::new(0_u32);
    let n_left_out = RwSignal::new(0_usize);
    // Rows belong to the page, not to the run of the effect that makes them.
    let page = Owner::current().expect("a component has an owner");
    // What arrives from a drop, from the opened file or from the inputs below is taken into rows of this page.
    Effect::new(move || {
        if app.to_upload.with(Vec::is_empty) {
            return;
        }
        let picked = app.to_upload.try_update(std::mem::take).unwrap_or_default();
        rows.update(|rows| {
            for picked in picked {
                if rows.len() >= MAX_ROWS {
                    n_left_out.update(|n| *n += 1);
                    continue;
                }
                let key =
                    n_keys.try_update_value(|n| std::mem::replace(n, n.wrapping_add(1))).unwrap_or_default();
                rows.push(page.with(|| Row {
                    key,
                    fields: RwSignal::new(Fields::from_path(&picked.path, picked.folder.as_deref())),
                    progress: RwSignal::new(Progress::Waiting),
                    picked: StoredValue::new_local(picked),
                }));
            }
        });
    });

    let on_picked = move |event: ev::Event| {
        let input: HtmlInputElement = event_target(&event);
        app.upload(browser::from_input(&input));
        input.set_value("");
    };
    let submit = move |event: ev::SubmitEvent| {
        event.prevent_default();
        send_all(rows);
    };
    let n_to_send = Memo::new(move |_| {
        rows.with(|rows| rows.iter().filter(|row| row.progress.get().can_be_sent()).count())
    });
    let button = move || match n_to_send.get() {
        0 => "Upload".to_owned(),
        n => format!("Upload {}", counted(n as u64, "file", "files")),
    };
    let left_out = move || {
        let n = n_left_out.get();
        (n > 0).then(|| view! {
            <p class="notice" role="status">
                {format!("{} left out: this form takes {MAX_ROWS} at once; use ", counted(n as u64, "file was", "files were"))}
                <code>"tidegauge push"</code>
            </p>
        })
    };
    view! {
        <div class="page-head"><h1>"Upload"</h1></div>
        <form class="upload" data-testid="upload-form" on:submit=submit>
            <p>"Pick files or a folder, or drop them on this page. Run, role, rank and step are read from their paths; correct what is wrong."</p>
            <p class="pickers">
                <label>"Files " <input type="file" multiple data-testid="upload-files" on:change=on_picked/></label>
                <label>"Folder " <input type="file" prop:webkitdirectory=true data-testid="upload-folder" on:change=on_picked/></label>
            </p>
            {left_out}
            <Show when=move || !rows.with(Vec::is_empty)>
                <RunForAll rows/>
                <div class="table-scroll">
                    <table class="upload-rows">
                        <thead>
                            <tr>
                                <th scope="col">"File"</th>
                                <th scope="col">"Run"</th>
                                <th scope="col">"Role"</th>
                                <th scope="col">"Rank"</th>
                                <th scope="col">"Step"</th>
                                <th scope="col">"State"</th>
                                <th scope="col"><span class="hidden-text">"Remove"</span></th>
                            </tr>
                        </thead>
                        <tbody>
                            <For each=move || rows.get() key=|row| row.key let:row>
                                <RowView row rows/>
                            </For>
                        </tbody>
                    </table>
                </div>
            </Show>
            <p>
                <button type="submit" class="primary" data-testid="upload-submit" disabled=move || n_to_send.get() == 0>{button}</button>
            </p>
        </form>
    }
}

/// One field that sets the run of all files: most often they are of one.
#[component]
fn RunForAll(rows: RwSignal<Vec<Row>>) -> impl IntoView {
    let set_all = move |event: ev::Event| {
        let run = event_target_value(&event);
        rows.with_untracked(|rows| {
            for row in rows.iter().filter(|row| row.progress.get_untracked().can_be_sent()) {
                row.fields.update(|fields| fields.run = run.clone());
            }
        });
    };
    let is_useful = move || rows.with(|rows| rows.len() > 1);
    view! {
        <Show when=is_useful>
            <p><label>"Run of all files " <input type="text" data-testid="upload-run" on:input=set_all/></label></p>
        </Show>
    }
}

#[component]
fn RowView(row: Row, rows: RwSignal<Vec<Row>>) -> impl IntoView {
    let (path, size) = row.picked.with_value(|picked| (picked.path.clone(), picked.file.size() as u64));
    let is_fixed = Memo::new(move |_| !row.progress.get().can_be_sent());
    let field = move |name: &'static str,
                      width: &'static str,
                      read: fn(&Fields) -> &String,
                      write: fn(&mut Fields) -> &mut String| {
        view! {
            <td>
                <input
                    type="text"
                    aria-label=name
                    name=name
                    style=format!("width:{width}")
                    prop:value=move || row.fields.with(|fields| read(fields).clone())
                    prop:disabled=move || is_fixed.get()
                    on:input=move |event| row.fields.update(|fields| *write(fields) = event_target_value(&event))
                />
            </td>
        }
    };
    let has_begun = move || (row.progress.get() != Progress::Waiting).then_some("upload-progress");
    let remove = move |_| rows.update(|rows| rows.retain(|other| other.key != row.key));
    view! {
        <tr data-testid="upload-row">
            <td class="path"><span title=path.clone()>{path.clone()}</span> " " <span class="dim number" title=exact_bytes(size)>{bytes(size)}</span></td>
            {field("run", "14em", |fields| &fields.run, |fields| &mut fields.run)}
            {field("role", "7em", |fields| &fields.role, |fields| &mut fields.role)}
            {field("rank", "4em", |fields| &fields.rank, |fields| &mut fields.rank)}
            {field("step", "6em", |fields| &fields.step, |fields| &mut fields.step)}
            <td class="state" role="status" data-testid=has_begun>{move || progress_view(row, size)}</td>
            <td>
                <Show when=move || !is_fixed.get()>
                    <button type="button" class="icon" aria-label="Leave this file out" on:click=remove>"✕"</button>
                </Show>
            </td>
        </tr>
    }
}

fn progress_view(row: Row, size: u64) -> AnyView {
    match row.progress.get() {
        Progress::Waiting => match row.fields.with(Fields::place) {
            Ok(_) => view! { <span class="dim">"not sent yet"</span> }.into_any(),
            Err(sentence) => view! { <span class="failed">{sentence}</span> }.into_any(),
        },
        Progress::Queued => view! { <span class="dim">"waits for its turn"</span> }.into_any(),
        Progress::Sending { done } => {
            let text = if done >= size {
                "sent, waits for the answer".to_owned()
            } else {
                format!("{} of {}", bytes(done), bytes(size))
            };
            view! {
                <progress value=done.to_string() max=size.max(1).to_string()></progress>
                " " <span class="number">{text}</span>
            }
            .into_any()
        }
        Progress::Done { snapshot_id, run_id, already_here } => {
            let said = if already_here { "was there already: " } else { "uploaded: " };
            view! {
                <span data-testid="upload-done">
                    "✓ " {said}
                    <a href=Route::Snapshot { id: snapshot_id, view: View::default() }.address()>"snapshot"</a>
                    ", "
                    <a href=Route::run(run_id).address()>"run"</a>
                </span>
            }
            .into_any()
        }
        Progress::Failed(sentence) => view! {
            <span class="failed" role="alert" data-testid="problem">"✕ " {sentence}</span>
            " "
            <button type="button" on:click=move |_| spawn_local(send(row))>"Try again"</button>
        }
        .into_any(),
    }
}

/// Sends what is not sent yet, a few at once, in order.
fn send_all(rows: RwSignal<Vec<Row>>) {
    let waiting: Vec<Row> = rows.with_untracked(|rows| {
        rows.iter().filter(|row| row.progress.get_untracked().can_be_sent()).copied().collect()
    });
    for row in &waiting {
        row.progress.set(Progress::Queued);
    }
    let queue = StoredValue::new_local(waiting.into_iter());
    for _ in 0..N_AT_ONCE {
        spawn_local(async move {
            while let Some(Some(row)) = queue.try_update_value(Iterator::next) {
                send(row).await;
            }
        });
    }
}

/// Sends one file. If the page is left, the bytes go on; nobody is told.
async fn send(row: Row) {
    let Some((path, file)) = row.picked.try_with_value(|picked| (picked.path.clone(), picked.file.clone()))
    else {
        return;
    };
    let Some(address) = row.fields.try_with_untracked(|fields| fields.upload_address(&path)) else { return };
    let result = match address {
        Ok(address) => send_to(&address, &file, row.progress).await,
        Err(sentence) => Progress::Failed(sentence),
    };
    row.progress.try_set(result);
}

async fn send_to(address: &str, file: &File, progress: RwSignal<Progress>) -> Progress {
    progress.try_set(Progress::Sending { done: 0 });
    let told = move |done| drop(progress.try_set(Progress::Sending { done }));
    match client::upload(address, file, told).await {
        Ok(details) => Progress::Done {
            snapshot_id: details.id,
            run_id: details.run_id,
            already_here: details.already_here,
        },
        Err(failure) => Progress::Failed(failure.sentence()),
    }
}
