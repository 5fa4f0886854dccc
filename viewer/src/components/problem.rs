//! What went wrong, in a sentence, and the one thing to do about it.

use leptos::prelude::*;

/// A sentence and, as children, an action.
#[component]
pub(crate) fn Problem(
    /// What, where, and what to do.
    #[prop(into)]
    sentence: String,
    /// A button or a link.
    children: Children,
) -> impl IntoView {
    view! {
        <div class="problem" role="alert" data-testid="problem">
            <p>{sentence}</p>
            <p class="actions">{children()}</p>
        </div>
    }
}
