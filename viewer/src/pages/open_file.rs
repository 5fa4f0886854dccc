//! A file opened in the browser, without a server.

use leptos::prelude::*;
use web_sys::{File, HtmlInputElement};

use crate::app::App;
use crate::browser::{self, Picked};
use crate::components::snapshot_view::{Remedy, SnapshotView, Source};
use crate::format::{bytes, exact_bytes};
use crate::link::Route;

/// The file that was dropped or picked; without one, a button that asks for it.
#[component]
pub(crate) fn OpenFile() -> impl IntoView {
    let app = App::here();
    move || match app.file.get() {
        Some(file) => opened(app, file).into_any(),
        None => nothing(app).into_any(),
    }
}

fn opened(app: App, file: File) -> impl IntoView {
    browser::set_title(&file.name());
    // A file's size is a whole number that a float holds exactly.
    let size = file.size() as u64;
    let upload = {
        let file = file.clone();
        move |_| app.upload(vec![Picked { path: file.name(), folder: None, file: file.clone() }])
    };
    let on_escape = UnsyncCallback::new(move |()| app.go(Route::Runs));
    let name = file.name();
    let when_failed = Remedy::new(move || view! { <span class="dim">{format!("The file is {name}")}</span> });
    view! {
        <div class="page-head">
            <h1>{file.name()} " " <span class="dim number" title=exact_bytes(size)>{bytes(size)}</span></h1>
            <p class="file dim">"Opened in this browser; nothing was sent"</p>
            <button type="button" on:click=upload data-testid="offer-upload">"Upload…"</button>
        </div>
        <SnapshotView source=Source::File(file) on_escape when_failed/>
    }
}

fn nothing(app: App) -> impl IntoView {
    browser::set_title("Open a file");
    let picker = NodeRef::<leptos::html::Input>::new();
    let open_picker = move |_| {
        if let Some(picker) = picker.get_untracked() {
            picker.click();
        }
    };
    let on_picked = move |event: leptos::ev::Event| {
        let input: HtmlInputElement = event_target(&event);
        if let Some(picked) = browser::from_input(&input).into_iter().next() {
            app.open_file(picked.file);
        }
    };
    view! {
        <div class="empty">
            <p>"The file that was open here is gone with the reload: a browser does not keep it. Open it again, or drop one anywhere on this page."</p>
            <p>
                <button type="button" on:click=open_picker>"Open file…"</button>
                <input node_ref=picker type="file" hidden on:change=on_picked/>
            </p>
        </div>
    }
}
