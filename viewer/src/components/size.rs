//! Bytes on the page: three digits to read, all of them in the title.

use leptos::prelude::*;

use crate::format::{bytes, exact_bytes};

/// A number of bytes.
#[component]
pub(crate) fn Size(bytes: u64) -> impl IntoView {
    view! { <span class="number" title=exact_bytes(bytes)>{self::bytes(bytes)}</span> }
}

/// A number of bytes, or a dash where there is none.
pub(crate) fn size_or_dash(bytes: Option<u64>) -> AnyView {
    match bytes {
        Some(bytes) => view! { <Size bytes/> }.into_any(),
        None => view! { <span class="dim">"–"</span> }.into_any(),
    }
}
