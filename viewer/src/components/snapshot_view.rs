//! A snapshot from the server or from a file: opened by the worker, then drawn.

use std::rc::Rc;

use leptos::prelude::*;
use tidegauge_api::picture::ArchiveListing;
use wasm_bindgen_futures::spawn_local;
use web_sys::File;

use super::device_pane::DevicePane;
use super::problem::Problem;
use crate::app::App;
use crate::format::{bytes, counted};
use crate::link::View;
use crate::worker::{Doing, Open, Trouble};

/// Where a snapshot comes from.
#[derive(Clone)]
pub(crate) enum Source {
    /// The server, by the address of its pack.
    Server { pack: String, file: String, bytes: u64 },
    /// A file of this computer; nothing is sent anywhere.
    File(File),
}

/// How far the opening is.
#[derive(Clone)]
enum Opening {
    Busy(Option<Doing>),
    Open(Rc<Open>),
    /// An archive of several snapshots, of which one is to be chosen.
    Several(ArchiveListing),
    Failed(String),
}

/// Snapshots of an archive that are listed; a page with thousands of rows helps nobody.
const MAX_LISTED: usize = 500;

/// How often a worker that died is started again by itself; afterwards a person decides.
const N_RESTARTS: u32 = 1;

/// Opens a snapshot and shows it. `on_escape` is told when Esc has nothing left to close here; children are
/// shown when it cannot be opened, beside "Try again".
#[component]
pub(crate) fn SnapshotView(
    source: Source,
    on_escape: UnsyncCallback<()>,
    #[prop(optional, into)] when_failed: Option<Remedy>,
) -> impl IntoView {
    let app = App::here();
    let source = StoredValue::new_local(source);
    let opening = RwSignal::new_local(Opening::Busy(None));
    let n_deaths = RwSignal::new(0_u32);
    let member = RwSignal::new(None::<String>);
    let open = move || {
        opening.set(Opening::Busy(None));
        spawn_local(async move {
            let Some(source) = source.try_get_value() else { return };
            match open(app, source, member.get_untracked(), opening).await {
                Ok(opened) => drop(opening.try_set(opened)),
                Err(Trouble::Refused(sentence)) => drop(opening.try_set(Opening::Failed(sentence))),
                Err(Trouble::Superseded) => {}
                Err(Trouble::Died) => drop(n_deaths.try_update(|n| *n += 1)),
            }
        });
    };
    open();
    Effect::new(move |before: Option<u32>| {
        let n = n_deaths.get();
        if before.is_some_and(|before| before != n) {
            if n <= N_RESTARTS {
                open();
            } else {
                opening.set(Opening::Failed(
                    "The reader in this page stopped twice; this snapshot may be too large for this browser"
                        .to_owned(),
                ));
            }
        }
        n
    });
    let on_death = UnsyncCallback::new(move |()| n_deaths.update(|n| *n += 1));
    let notice = move || {
        (n_deaths.get() == 1).then(|| view! { <p class="notice" role="status">"The reader in this page stopped and was started again"</p> })
    };
    let when_failed = StoredValue::new_local(when_failed);
    let content = move || match opening.get() {
        Opening::Busy(doing) => busy(doing).into_any(),
        Opening::Open(open) => {
            view! { <Devices open=StoredValue::new_local(open) on_death on_escape/> }.into_any()
        }
        Opening::Several(listing) => {
            let choose = UnsyncCallback::new(move |path| {
                member.set(Some(path));
                open();
            });
            choice(listing, choose).into_any()
        }
        Opening::Failed(sentence) => view! {
            <Problem sentence>
                <button type="button" on:click=move |_| open()>"Try again"</button>
                {when_failed.with_value(|more| more.as_ref().map(|more| more.run()))}
            </Problem>
        }
        .into_any(),
    };
    let chosen = move || {
        let path = member.get()?;
        let choose_again = move |_| {
            member.set(None);
            open();
        };
        Some(view! {
            <p class="chosen">{path} " " <button type="button" class="link" on:click=choose_again>"Choose another"</button></p>
        })
    };
    view! { {notice} {chosen} {content} }
}

/// The snapshots of an archive, to choose from.
fn choice(listing: ArchiveListing, choose: UnsyncCallback<String>) -> impl IntoView {
    let n_more = listing.snapshots.len().saturating_sub(MAX_LISTED);
    let rows: Vec<_> = listing
        .snapshots
        .iter()
        .take(MAX_LISTED)
        .map(|member| {
            let (path, size) = (member.path.clone(), member.bytes);
            let shown = path.clone();
            view! {
                <li>
                    <button type="button" class="link" data-testid="archive-member" on:click=move |_| choose.run(path.clone())>{shown}</button>
                    " "
                    <span class="dim number">{bytes(size)}</span>
                </li>
            }
        })
        .collect();
    let more = (n_more > 0).then(|| {
        view! { <p class="dim">{format!("and {} more; unpack the archive to open one of them", counted(n_more as u64, "snapshot", "snapshots"))}</p> }
    });
    view! {
        <p>{format!("This archive holds {}. Choose one:", counted(listing.snapshots.len() as u64, "snapshot", "snapshots"))}</p>
        <ul class="archive" data-testid="archive">{rows}</ul>
        {more}
    }
}

/// What else can be done about a snapshot that cannot be opened; made as often as it is shown.
#[derive(Clone)]
pub(crate) struct Remedy(Rc<dyn Fn() -> AnyView>);

impl Remedy {
    pub(crate) fn new<V: IntoAny + 'static>(make: impl Fn() -> V + 'static) -> Self {
        Self(Rc::new(move || make().into_any()))
    }

    fn run(&self) -> AnyView {
        (self.0)()
    }
}

async fn open(
    app: App,
    source: Source,
    member: Option<String>,
    opening: RwSignal<Opening, LocalStorage>,
) -> Result<Opening, Trouble> {
    let on_doing = move |doing| drop(opening.try_set(Opening::Busy(Some(doing))));
    let engine = app.engine()?;
    let opened = match source {
        Source::Server { pack, file, bytes } => engine.open_snapshot(&pack, &file, bytes, on_doing).await,
        Source::File(file) => {
            let opened = Rc::clone(&engine).open_file(&file, member.as_deref(), on_doing).await;
            if let (Err(Trouble::Refused(_)), None) = (&opened, member)
                && let Ok(Some(listing)) = engine.list_archive(&file).await
                && listing.snapshots.len() > 1
            {
                return Ok(Opening::Several(listing));
            }
            opened
        }
    };
    opened.map(|open| Opening::Open(Rc::new(open)))
}

/// Skeletons, and once it is known what takes long, what it is and how far.
fn busy(doing: Option<Doing>) -> impl IntoView {
    let told = doing.map(|doing| {
        let done = bytes(doing.done as u64);
        let text = match doing.total {
            Some(total) => format!("{}: {done} of {}", doing.doing, bytes(total as u64)),
            None => format!("{}: {done}", doing.doing),
        };
        view! {
            <p role="status">{text}</p>
            <progress value=doing.total.map(|_| doing.done.to_string()) max=doing.total.map(|total| total.to_string())></progress>
        }
    });
    view! {
        <div class="opening" data-testid="opening">
            {told}
            <div class="skeleton timeline-skeleton"></div>
        </div>
    }
}

/// The device in the address, or the busiest one, and a choice where there are several.
#[component]
fn Devices(
    open: StoredValue<Rc<Open>, LocalStorage>,
    on_death: UnsyncCallback<()>,
    on_escape: UnsyncCallback<()>,
) -> impl IntoView {
    let app = App::here();
    let ordinals: Vec<u32> =
        open.with_value(|open| open.opened.devices.iter().map(|device| device.device).collect());
    let Some(busiest) = ordinals.first().copied() else {
        return view! { <p class="empty">"This snapshot holds no segments and no events of any device"</p> }
            .into_any();
    };
    let shown = {
        let ordinals = ordinals.clone();
        Memo::new(move |_| {
            app.route.get().view().device.filter(|device| ordinals.contains(device)).unwrap_or(busiest)
        })
    };
    let choose = move |event: leptos::ev::Event| {
        if let Ok(device) = event_target_value(&event).parse() {
            let only = app.route.get_untracked().view().only;
            let view = View { device: Some(device), only, ..View::default() };
            app.go(app.route.get_untracked().with_view(view));
        }
    };
    let choice = (ordinals.len() > 1).then(|| {
        let options: Vec<_> = ordinals
            .iter()
            .map(|device| {
                let device = *device;
                view! { <option value=device.to_string() selected=move || shown.get() == device>{format!("device {device}")}</option> }
            })
            .collect();
        view! { <label class="device-choice">"Device " <select on:change=choose data-testid="device">{options}</select></label> }
    });
    let pane = move || {
        let open = open.get_value();
        let ordinal = shown.get();
        let device = open.opened.devices.iter().find(|device| device.device == ordinal).cloned()?;
        let inspection = open.opened.inspection.clone();
        let open = StoredValue::new_local(open);
        Some(view! { <DevicePane open device inspection on_death on_escape/> })
    };
    view! { {choice} {pane} }.into_any()
}
