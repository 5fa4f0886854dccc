//! Light and dark.

use leptos::prelude::{document, window};
use wasm_bindgen::JsCast as _;
use wasm_bindgen::prelude::Closure;

/// How the page looks. `/boot.js` sets the same attribute before the first paint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Theme {
    Light,
    Dark,
}

/// Where the choice is kept in `localStorage`; absent while the system decides.
const KEY: &str = "tidegauge-theme";

impl Theme {
    /// The theme in force: the one chosen, else the system's.
    pub(crate) fn current() -> Self {
        let chosen = storage().and_then(|storage| storage.get_item(KEY).ok().flatten());
        match chosen.as_deref() {
            Some("light") => Self::Light,
            Some("dark") => Self::Dark,
            _ if system_is_dark() => Self::Dark,
            _ => Self::Light,
        }
    }

    /// Tells when the system changes its mind, for as long as the page lives.
    pub(crate) fn on_system_change(tell: impl Fn(Self) + 'static) {
        let Some(query) = system_query() else { return };
        let changed = Closure::<dyn Fn()>::new(move || tell(Self::current()));
        query.add_event_listener_with_callback("change", changed.as_ref().unchecked_ref()).ok();
        changed.forget();
    }

    /// The other one.
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Light => Self::Dark,
            Self::Dark => Self::Light,
        }
    }

    /// Shows the page in this theme, and on the next visit too.
    pub(crate) fn choose(self) {
        if let Some(root) = document().document_element() {
            root.set_attribute("data-theme", self.name()).ok();
        }
        // A browser that keeps nothing asks again next time.
        if let Some(storage) = storage() {
            storage.set_item(KEY, self.name()).ok();
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Light => "light",
            Self::Dark => "dark",
        }
    }
}

fn storage() -> Option<web_sys::Storage> {
    window().local_storage().ok().flatten()
}

fn system_is_dark() -> bool {
    system_query().is_some_and(|query| query.matches())
}

fn system_query() -> Option<web_sys::MediaQueryList> {
    window().match_media("(prefers-color-scheme: dark)").ok().flatten()
}
