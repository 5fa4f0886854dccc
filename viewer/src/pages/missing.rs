//! An address no page has.

use leptos::prelude::*;

use crate::browser;
use crate::components::problem::Problem;
use crate::link::Route;

/// Says so, and where to go.
#[component]
pub(crate) fn Missing(path: String) -> impl IntoView {
    browser::set_title("No such page");
    view! {
        <Problem sentence=format!("There is no page at {path}")>
            <a href=Route::Runs.address()>"See the runs"</a>
        </Problem>
    }
}
