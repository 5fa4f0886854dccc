//! The frame around the pages, and the way from one to another.

use std::rc::Rc;

use leptos::ev;
use leptos::prelude::*;
use wasm_bindgen::{JsCast as _, JsValue};
use wasm_bindgen_futures::spawn_local;
use web_sys::{DragEvent, File, HtmlAnchorElement, HtmlInputElement, MouseEvent};

use crate::browser::{self, Picked, Theme};
use crate::link::{Route, View};
use crate::pages;
use crate::worker::{Engine, Trouble};

/// What every page can reach.
#[derive(Clone, Copy)]
pub(crate) struct App {
    /// Where we are.
    pub(crate) route: RwSignal<Route>,
    /// The file opened in the browser.
    pub(crate) file: RwSignal<Option<File>, LocalStorage>,
    /// Files on their way to the upload form, which takes them from here.
    pub(crate) to_upload: RwSignal<Vec<Picked>, LocalStorage>,
    /// Light or dark.
    pub(crate) theme: RwSignal<Theme>,
    engine: StoredValue<Option<Rc<Engine>>, LocalStorage>,
}

impl App {
    /// The app this component lives in.
    pub(crate) fn here() -> Self {
        expect_context()
    }

    /// The worker; another one when the last has ended.
    pub(crate) fn engine(self) -> Result<Rc<Engine>, Trouble> {
        if let Some(engine) = self.engine.get_value().filter(|engine| !engine.is_dead()) {
            return Ok(engine);
        }
        let engine = Rc::new(Engine::start()?);
        self.engine.set_value(Some(Rc::clone(&engine)));
        Ok(engine)
    }

    /// Goes to a page; "back" comes back here.
    pub(crate) fn go(self, route: Route) {
        if let Ok(history) = window().history() {
            history.push_state_with_url(&JsValue::NULL, "", Some(&route.address())).ok();
        }
        window().scroll_to_with_x_and_y(0.0, 0.0);
        self.route.set(route);
    }

    /// Writes what is shown of the snapshot into the address bar, without a step in the history.
    pub(crate) fn set_view(self, view: View) {
        let route = self.route.get_untracked().with_view(view);
        if route == self.route.get_untracked() {
            return;
        }
        if let Ok(history) = window().history() {
            history.replace_state_with_url(&JsValue::NULL, "", Some(&route.address())).ok();
        }
        self.route.set(route);
    }

    /// Opens a file in the browser; the server hears nothing of it.
    pub(crate) fn open_file(self, file: File) {
        self.file.set(Some(file));
        self.go(Route::File { view: View::default() });
    }

    /// Hands files to the upload form.
    pub(crate) fn upload(self, picked: Vec<Picked>) {
        self.to_upload.update(|waiting| waiting.extend(picked));
        if self.route.get_untracked() != Route::Upload {
            self.go(Route::Upload);
        }
    }
}

/// Puts the dashboard on the page.
pub fn mount() {
    std::panic::set_hook(Box::new(|info| {
        browser::log(&info.to_string());
        // Nothing of this page can be trusted to draw now; the document's own words stand in.
        if let Some(words) = document().get_element_by_id("stopped") {
            words.remove_attribute("hidden").ok();
        }
    }));
    if let Some(words) = document().get_element_by_id("loading") {
        words.remove();
    }
    leptos::mount::mount_to_body(Frame);
}

/// Where the address bar points.
fn route_from_location() -> Route {
    let location = window().location();
    Route::parse(&location.pathname().unwrap_or_default(), &location.search().unwrap_or_default())
}

/// Header, page, and what listens on the whole window.
#[component]
fn Frame() -> impl IntoView {
    let app = App {
        route: RwSignal::new(route_from_location()),
        file: RwSignal::new_local(None),
        to_upload: RwSignal::new_local(Vec::new()),
        theme: RwSignal::new(Theme::current()),
        engine: StoredValue::new_local(None),
    };
    provide_context(app);
    Theme::on_system_change(move |theme| app.theme.set(theme));

    window_event_listener(ev::popstate, move |_| app.route.set(route_from_location()));
    window_event_listener(ev::click, move |event| follow_link(app, &event));
    let veil = listen_for_drops(app);

    // A page is built anew only when it is another page, not when its view changes.
    let page = Memo::new(move |_| app.route.get().with_view(View::default()));
    let content = move || match page.get() {
        Route::Runs => view! { <pages::Runs/> }.into_any(),
        Route::Run { id, steps } => view! { <pages::Run id steps/> }.into_any(),
        Route::Snapshot { id, .. } => view! { <pages::Snapshot id/> }.into_any(),
        Route::Upload => view! { <pages::Upload/> }.into_any(),
        Route::File { .. } => view! { <pages::OpenFile/> }.into_any(),
        Route::Unknown { path } => view! { <pages::Missing path/> }.into_any(),
    };
    let veil_words = move || match app.route.get() {
        Route::Upload => "Drop files or folders to add them to the form.",
        _ => "Drop a snapshot to open it here. It is read in this browser and sent nowhere.",
    };
    view! {
        <Header/>
        <main id="main">{content}</main>
        <Show when=move || veil.get()>
            <div class="drop-veil" data-testid="drop-veil">
                <p>{veil_words}</p>
            </div>
        </Show>
    }
}

#[component]
fn Header() -> impl IntoView {
    let app = App::here();
    let picker = NodeRef::<leptos::html::Input>::new();
    let on_picked = move |event: ev::Event| {
        let input: HtmlInputElement = event_target(&event);
        if let Some(picked) = browser::from_input(&input).into_iter().next() {
            app.open_file(picked.file);
        }
        // So that the same file can be picked again.
        input.set_value("");
    };
    let open_picker = move |_| {
        if let Some(picker) = picker.get_untracked() {
            picker.click();
        }
    };
    let toggle_theme = move |_| {
        let theme = app.theme.get_untracked().other();
        theme.choose();
        app.theme.set(theme);
    };
    let other_theme = move || format!("Show the page {}", app.theme.get().other().name());
    view! {
        <a class="skip-link" href="#main">"Skip to content"</a>
        <header class="frame-header">
            <a class="brand" href=Route::Runs.address()>
                <img src="/icons/tidegauge.svg" alt="" width="20" height="20"/>
                "Tidegauge"
            </a>
            <nav aria-label="Main">
                <a href=Route::Runs.address()>"Runs"</a>
                <a href=Route::Upload.address()>"Upload…"</a>
                <button type="button" class="link" on:click=open_picker>"Open file…"</button>
                <input node_ref=picker type="file" hidden data-testid="open-file" on:change=on_picked/>
            </nav>
            <button type="button" class="icon" title=other_theme aria-label=other_theme on:click=toggle_theme>
                {move || match app.theme.get() { Theme::Light => "☾", Theme::Dark => "☀" }}
            </button>
        </header>
    }
}

/// Follows a link of ours without loading the document again. What a browser does with a key held down, with
/// downloads and with other origins stays the browser's.
fn follow_link(app: App, event: &MouseEvent) {
    let has_key = event.ctrl_key() || event.meta_key() || event.shift_key() || event.alt_key();
    if event.default_prevented() || event.button() != 0 || has_key {
        return;
    }
    let Some(target) = event.target().and_then(|target| target.dyn_into::<web_sys::Element>().ok()) else {
        return;
    };
    let Some(link) = target.closest("a[href]").ok().flatten() else { return };
    let Ok(link) = link.dyn_into::<HtmlAnchorElement>() else { return };
    let is_here = window().location().origin().is_ok_and(|origin| origin == link.origin());
    let is_page = !link.pathname().starts_with(tidegauge_api::paths::API) && link.hash().is_empty();
    if is_here && is_page && !link.has_attribute("download") && link.target().is_empty() {
        event.prevent_default();
        app.go(Route::parse(&link.pathname(), &link.search()));
    }
}

/// Opens what is dropped anywhere; the signal says whether files hang over the page.
fn listen_for_drops(app: App) -> RwSignal<bool> {
    let veil = RwSignal::new(false);
    let carries_files =
        |event: &DragEvent| event.data_transfer().is_some_and(|transfer| browser::holds_files(&transfer));
    let over = move |event: DragEvent| {
        if carries_files(&event) {
            event.prevent_default();
            veil.set(true);
        }
    };
    window_event_listener(ev::dragenter, over);
    window_event_listener(ev::dragover, over);
    window_event_listener(ev::dragleave, move |event| {
        // Left the window, not merely one element for another.
        if event.related_target().is_none() {
            veil.set(false);
        }
    });
    window_event_listener(ev::drop, move |event| {
        veil.set(false);
        let Some(transfer) = event.data_transfer().filter(browser::holds_files) else { return };
        event.prevent_default();
        let dropped = browser::from_drop(&transfer);
        spawn_local(async move { take_in(app, dropped.await) });
    });
    veil
}

/// One file is opened; several, or a folder, go to the upload form, as does everything dropped there.
fn take_in(app: App, mut dropped: Vec<Picked>) {
    let is_for_upload =
        app.route.get_untracked() == Route::Upload || dropped.len() != 1 || dropped[0].folder.is_some();
    if is_for_upload {
        app.upload(dropped);
    } else if let Some(picked) = dropped.pop() {
        app.open_file(picked.file);
    }
}
