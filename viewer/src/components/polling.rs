//! Asking the server again and again while a page is open.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leptos::prelude::*;
use wasm_bindgen_futures::spawn_local;

use crate::browser;

/// How often the page asks whether a hidden tab is shown again, milliseconds.
const HIDDEN_PAUSE_MS: i32 = 250;

/// Says whether the component that asked for it is still on the page.
#[derive(Clone)]
pub(crate) struct Alive(Arc<AtomicBool>);

impl Alive {
    /// For the component that is being built.
    pub(crate) fn here() -> Self {
        let alive = Arc::new(AtomicBool::new(true));
        on_cleanup({
            let alive = Arc::clone(&alive);
            move || alive.store(false, Ordering::Relaxed)
        });
        Self(alive)
    }

    /// True until it is gone.
    pub(crate) fn is_alive(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Does something now and every `every_ms` after it is done, until the component is gone or it answers false.
/// Waits while the tab is hidden.
pub(crate) fn poll<F: Future<Output = bool>>(every_ms: i32, mut ask: impl FnMut() -> F + 'static) {
    let alive = Alive::here();
    spawn_local(async move {
        while alive.is_alive() && ask().await {
            browser::sleep(every_ms).await;
            while alive.is_alive() && browser::is_hidden() {
                browser::sleep(HIDDEN_PAUSE_MS).await;
            }
        }
    });
}

/// A signal that changes every second, for "2 s ago".
pub(crate) fn seconds() -> ReadSignal<f64> {
    let (now, set_now) = signal(browser::now_ms());
    let tick = set_interval_with_handle(move || set_now.set(browser::now_ms()), Duration::from_secs(1));
    if let Ok(tick) = tick {
        on_cleanup(move || tick.clear());
    }
    now
}
