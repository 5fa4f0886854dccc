//! A question the server did not answer, and what to do: try again, or show the token it asks for.

use leptos::prelude::*;
use wasm_bindgen::JsCast as _;
use web_sys::HtmlDocument;

use super::problem::Problem;
use crate::client::Failure;

/// The cookie in which the server looks for the token of a page.
const COOKIE: &str = "tidegauge_token";

/// The failure's sentence, or `sentence` where the page knows better what it means here; children are actions.
#[component]
pub(crate) fn Unanswered(
    failure: Failure,
    #[prop(optional_no_strip)] sentence: Option<&'static str>,
    children: Children,
) -> impl IntoView {
    let sentence = sentence.or_else(|| {
        // The server's own sentence is for programs.
        let words =
            "This server asks for its token: give it here, and this browser keeps it until it is closed";
        failure.asks_for_token().then_some(words)
    });
    let sentence = sentence.map_or_else(|| failure.sentence(), str::to_owned);
    let token = failure.asks_for_token().then(|| view! { <TokenForm/> });
    view! { <Problem sentence>{token} {children()}</Problem> }
}

/// Takes the token and keeps it until the browser is closed.
#[component]
fn TokenForm() -> impl IntoView {
    let token = RwSignal::new(String::new());
    let problem = RwSignal::new(None::<&'static str>);
    let keep = move |event: leptos::ev::SubmitEvent| {
        event.prevent_default();
        let token = token.get_untracked().trim().to_owned();
        if token.is_empty() || token.contains([';', ',', ' ', '"', '\\']) || !token.is_ascii() {
            problem.set(Some("a browser can only keep a token of letters, digits and signs without spaces"));
            return;
        }
        let secure = window().location().protocol().is_ok_and(|protocol| protocol == "https:");
        let secure = if secure { "; Secure" } else { "" };
        let document: HtmlDocument = document().unchecked_into();
        document.set_cookie(&format!("{COOKIE}={token}; Path=/; SameSite=Strict{secure}")).ok();
        window().location().reload().ok();
    };
    view! {
        <form on:submit=keep data-testid="token-form">
            <label>
                "Token "
                <input type="password" autocomplete="current-password" on:input=move |event| token.set(event_target_value(&event))/>
            </label>
            " "
            <button type="submit">"Use this token"</button>
            " "
            <span class="failed">{problem}</span>
        </form>
    }
}
