//! The browser as the pages use it: time, storage, theme, files that were picked or dropped.

mod files;
mod theme;

pub(crate) use files::{Picked, from_drop, from_input, holds_files};
pub(crate) use theme::Theme;

use leptos::prelude::{document, window};
use wasm_bindgen::JsValue;
use wasm_bindgen_futures::JsFuture;

/// Unix epoch, milliseconds.
pub(crate) fn now_ms() -> f64 {
    js_sys::Date::now()
}

/// Milliseconds since the epoch of an RFC 3339 time; none when it is not one.
pub(crate) fn ms_from_rfc3339(text: &str) -> Option<f64> {
    let ms = js_sys::Date::parse(text);
    ms.is_finite().then_some(ms)
}

/// How long ago an RFC 3339 time was, in whole seconds.
pub(crate) fn seconds_since(text: &str) -> Option<u64> {
    ms_from_rfc3339(text).map(|ms| ((now_ms() - ms) / 1e3).max(0.0) as u64)
}

/// Waits.
pub(crate) async fn sleep(ms: i32) {
    let promise = js_sys::Promise::new(&mut |resolve, _reject| {
        // A window without timers would be no window; then there is nothing to wait for either.
        window().set_timeout_with_callback_and_timeout_and_arguments_0(&resolve, ms).ok();
    });
    JsFuture::from(promise).await.ok();
}

/// True while the tab is hidden behind another.
pub(crate) fn is_hidden() -> bool {
    document().visibility_state() == web_sys::VisibilityState::Hidden
}

/// Sets the tab's title.
pub(crate) fn set_title(title: &str) {
    document().set_title(&format!("{title} · Tidegauge"));
}

/// Writes to the console what only a developer can use.
pub(crate) fn log(message: &str) {
    web_sys::console::error_1(&JsValue::from_str(message));
}
