//! One function per address of the server.

use serde::de::DeserializeOwned;
use tidegauge_api::run::{Grid, Runs};
use tidegauge_api::samples::GridSamples;
use tidegauge_api::snapshot::SnapshotDetails;
use tidegauge_api::{Problem, paths};
use wasm_bindgen::prelude::Closure;
use wasm_bindgen::{JsCast as _, JsValue};
use wasm_bindgen_futures::JsFuture;
use web_sys::{AbortSignal, File, ProgressEvent, RequestInit, Response, XmlHttpRequest};

/// How long an answer may take, milliseconds; then the server counts as out of reach.
const TIMEOUT_MS: u32 = 20_000;

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Nobody answered in time.
    Unreachable,
    /// The server said no; its sentence.
    Refused { status: u16, sentence: String },
}

impl Failure {
    /// One sentence for the page.
    pub(crate) fn sentence(&self) -> String {
        match self {
            Self::Unreachable => "The server cannot be reached".to_owned(),
            Self::Refused { sentence, .. } => sentence.clone(),
        }
    }

    /// True when a token would help.
    pub(crate) fn asks_for_token(&self) -> bool {
        matches!(self, Self::Refused { status: 401, .. })
    }

    /// True when the address holds nothing, so that asking again is no use.
    pub(crate) fn is_missing(&self) -> bool {
        matches!(self, Self::Refused { status: 404, .. })
    }
}

/// The runs, latest first.
pub(crate) async fn runs() -> Result<Runs, Failure> {
    json(&get(paths::RUNS, None).await?).await
}

/// One snapshot's details.
pub(crate) async fn snapshot(id: &str) -> Result<SnapshotDetails, Failure> {
    json(&get(&paths::snapshot(id), None).await?).await
}

/// One run's grid and its tag; none when it is still the one with the tag `known`.
pub(crate) async fn grid(
    run_id: &str,
    known: Option<&str>,
) -> Result<Option<(Grid, Option<String>)>, Failure> {
    let response = get(&paths::grid(run_id), known).await?;
    if response.status() == 304 {
        return Ok(None);
    }
    let tag = response.headers().get("etag").ok().flatten();
    Ok(Some((json(&response).await?, tag)))
}

/// Some rows of a run's samples and their tag; none when they are still those with the tag `known`.
pub(crate) async fn samples(
    address: &str,
    known: Option<&str>,
) -> Result<Option<(GridSamples, Option<String>)>, Failure> {
    let response = get(address, known).await?;
    if response.status() == 304 {
        return Ok(None);
    }
    let tag = response.headers().get("etag").ok().flatten();
    Ok(Some((json(&response).await?, tag)))
}

async fn get(address: &str, known_tag: Option<&str>) -> Result<Response, Failure> {
    let unreachable = |_: JsValue| Failure::Unreachable;
    let headers = web_sys::Headers::new().map_err(unreachable)?;
    headers.set("accept", "application/json").map_err(unreachable)?;
    if let Some(tag) = known_tag {
        headers.set("if-none-match", tag).map_err(unreachable)?;
    }
    let request = RequestInit::new();
    request.set_headers(&headers);
    request.set_signal(Some(&AbortSignal::timeout_with_u32(TIMEOUT_MS)));
    let promise = leptos::prelude::window().fetch_with_str_and_init(address, &request);
    let response: Response = JsFuture::from(promise).await.map_err(unreachable)?.unchecked_into();
    match response.status() {
        200..=299 | 304 => Ok(response),
        status => Err(refused(status, &text(&response).await.unwrap_or_default())),
    }
}

async fn text(response: &Response) -> Result<String, Failure> {
    let unreachable = |_: JsValue| Failure::Unreachable;
    let text = JsFuture::from(response.text().map_err(unreachable)?).await.map_err(unreachable)?;
    Ok(text.as_string().unwrap_or_default())
}

async fn json<T: DeserializeOwned>(response: &Response) -> Result<T, Failure> {
    let body = text(response).await?;
    parse(response.status(), &body)
}

fn parse<T: DeserializeOwned>(status: u16, body: &str) -> Result<T, Failure> {
    serde_json::from_str(body).map_err(|error| {
        crate::browser::log(&format!("cannot read the server's answer: {error}"));
        let sentence = "The server's answer makes no sense to this page: reload it to get the page that belongs to the server";
        Failure::Refused { status, sentence: sentence.to_owned() }
    })
}

/// The sentence of a problem document; without one, what the status says.
fn refused(status: u16, body: &str) -> Failure {
    let sentence = match serde_json::from_str::<Problem>(body) {
        Ok(problem) => problem.detail,
        Err(_) if status == 401 => "The server asks for a token that this page does not have".to_owned(),
        Err(_) => format!("The server answered with status {status}"),
    };
    Failure::Refused { status, sentence }
}

/// Sends a file, telling how many of its bytes are on their way. Has no time limit: a large file on a thin
/// wire takes what it takes, and its progress is in sight.
pub(crate) async fn upload(
    address: &str,
    file: &File,
    on_progress: impl Fn(u64) + 'static,
) -> Result<SnapshotDetails, Failure> {
    let unreachable = |_: JsValue| Failure::Unreachable;
    let request = XmlHttpRequest::new().map_err(unreachable)?;
    let progress =
        Closure::<dyn Fn(ProgressEvent)>::new(move |event: ProgressEvent| on_progress(event.loaded() as u64));
    request.upload().map_err(unreachable)?.set_onprogress(Some(progress.as_ref().unchecked_ref()));
    request.open("POST", address).map_err(unreachable)?;
    request.set_request_header("content-type", "application/octet-stream").map_err(unreachable)?;
    let ended = js_sys::Promise::new(&mut |resolve, _reject| request.set_onloadend(Some(&resolve)));
    request.send_with_opt_blob(Some(file)).map_err(unreachable)?;
    JsFuture::from(ended).await.map_err(unreachable)?;
    let status = request.status().map_err(unreachable)?;
    let body = request.response_text().ok().flatten().unwrap_or_default();
    match status {
        0 => Err(Failure::Unreachable),
        200..=299 => parse(status, &body),
        _ => Err(refused(status, &body)),
    }
}
