//! Uploads that may be cut and go on, in the words of tus 1.0.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use jiff::Timestamp;
use tidegauge_api::{paths, tus};

use super::Id;
use super::uploads::say_that_it_came;
use crate::App;
use crate::accept::check_size;
use crate::catalog::Claimed;
use crate::place;
use crate::refusal::Refusal;
use crate::unfinished::{self, Progress, Unfinished};

/// What a client may ask of us.
pub(crate) async fn options(State(app): State<Arc<App>>) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let headers = response.headers_mut();
    set(headers, tus::VERSIONS, tus::VERSION);
    set(headers, tus::EXTENSION, tus::EXTENSIONS);
    set(headers, tus::MAX_SIZE, &app.config.max_upload_bytes.to_string());
    response
}

/// Begins an upload: 201 with its address, and 303 to the snapshot where the same content is there for the same
/// place. Bytes may come along.
pub(crate) async fn create(State(app): State<Arc<App>>, request: Request) -> Result<Response, Refusal> {
    let (parts, body) = request.into_parts();
    let length = number(&parts.headers, tus::LENGTH)?;
    let said = place::said_of_upload(&parts).map_err(Refusal::bad_request)?;
    check_size(&app, length)?;
    let digest = said.sidecar.as_ref().and_then(|sidecar| sidecar.content_digest.as_deref());
    if let Some(digest) = digest
        && let Some(here) = app.catalog.find(&said, &digest.to_ascii_lowercase()).await?
    {
        return Ok((StatusCode::SEE_OTHER, [(header::LOCATION, paths::snapshot(&here.id))]).into_response());
    }
    let upload = unfinished::begin(&app, said, length).await?;
    let mut response = StatusCode::CREATED.into_response();
    set(response.headers_mut(), header::LOCATION.as_str(), &paths::upload(upload.id()));
    // An empty one ends as it begins.
    if is_part(&parts.headers) || length == 0 {
        let grown = grow(&app, Arc::clone(&upload), 0, body, response).await;
        if grown.is_err() {
            // Its sender has not learned its address and begins anew. One that ended already is gone.
            unfinished::give_up(&app, &upload).await.ok();
        }
        return grown;
    }
    set_state(response.headers_mut(), &upload, 0);
    Ok(response)
}

/// How much is here.
pub(crate) async fn state(State(app): State<Arc<App>>, Id(id): Id) -> Result<Response, Refusal> {
    let upload = app.unfinished.find(&id).ok_or_else(|| unfinished::is_gone(&id))?;
    let offset = unfinished::offset(&app, &upload)?;
    let mut response = StatusCode::OK.into_response();
    set_state(response.headers_mut(), &upload, offset);
    set(response.headers_mut(), header::CACHE_CONTROL.as_str(), "no-store");
    Ok(response)
}

/// Adds bytes at an offset. The answer to the last of them names the snapshot.
pub(crate) async fn add(
    State(app): State<Arc<App>>,
    Id(id): Id,
    request: Request,
) -> Result<Response, Refusal> {
    let (parts, body) = request.into_parts();
    if !is_part(&parts.headers) {
        return Err(Refusal::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "media-type",
            "Not a part of an upload",
            format!("a part of an upload has the content type {}", tus::PART),
        ));
    }
    let offset = number(&parts.headers, tus::OFFSET)?;
    let upload = app.unfinished.find(&id).ok_or_else(|| unfinished::is_gone(&id))?;
    grow(&app, upload, offset, body, StatusCode::NO_CONTENT.into_response()).await
}

/// Gives an upload up.
pub(crate) async fn give_up(State(app): State<Arc<App>>, Id(id): Id) -> Result<StatusCode, Refusal> {
    let upload = app.unfinished.find(&id).ok_or_else(|| unfinished::is_gone(&id))?;
    unfinished::give_up(&app, &upload).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Speaks version 1.0 of the protocol, and says so on each answer.
pub(crate) async fn speak_tus(request: Request, next: Next) -> Response {
    let version = request.headers().get(tus::RESUMABLE).map(HeaderValue::as_bytes);
    let is_ours = *request.method() == Method::OPTIONS || version == Some(tus::VERSION.as_bytes());
    let mut response = if is_ours {
        next.run(request).await
    } else {
        let refusal = Refusal::new(
            StatusCode::PRECONDITION_FAILED,
            "tus-version",
            "Another version of the protocol",
            format!("this is tus {}, and the request has to say so: {}: {0}", tus::VERSION, tus::RESUMABLE),
        );
        let mut response = refusal.into_response();
        set(response.headers_mut(), tus::VERSIONS, tus::VERSION);
        response
    };
    set(response.headers_mut(), tus::RESUMABLE, tus::VERSION);
    response
}

async fn grow(
    app: &Arc<App>,
    upload: Arc<Unfinished>,
    offset: u64,
    body: Body,
    mut response: Response,
) -> Result<Response, Refusal> {
    let progress = unfinished::add(app, Arc::clone(&upload), offset, body).await?;
    let headers = response.headers_mut();
    match progress {
        Progress::Here(n_bytes) => {
            unfinished::recognize_early(app, &upload).await?;
            set_state(headers, &upload, n_bytes);
        }
        Progress::Taken(claimed) => {
            set(headers, tus::OFFSET, &upload.length().to_string());
            let details = match *claimed {
                Claimed::New(details) => {
                    say_that_it_came(&details);
                    details
                }
                Claimed::Here(details) => details,
            };
            set(headers, tus::SNAPSHOT, &paths::snapshot(&details.id));
        }
    }
    Ok(response)
}

fn is_part(headers: &HeaderMap) -> bool {
    headers
        .get(header::CONTENT_TYPE)
        .is_some_and(|found| found.as_bytes().eq_ignore_ascii_case(tus::PART.as_bytes()))
}

fn number(headers: &HeaderMap, name: &'static str) -> Result<u64, Refusal> {
    let found = headers.get(name).and_then(|value| value.to_str().ok()).and_then(|text| text.parse().ok());
    found.ok_or_else(|| {
        Refusal::bad_request(format!("the request needs the header {name} with a whole number"))
    })
}

fn set_state(headers: &mut HeaderMap, upload: &Unfinished, offset: u64) {
    set(headers, tus::OFFSET, &offset.to_string());
    set(headers, tus::LENGTH, &upload.length().to_string());
    set(headers, tus::EXPIRES, &http_date(upload.expires()));
}

fn set(headers: &mut HeaderMap, name: &str, value: &str) {
    let name = HeaderName::from_bytes(name.as_bytes()).expect("our headers have proper names");
    headers.insert(name, value.parse().expect("numbers, dates and our own addresses are proper values"));
}

/// "Sun, 06 Nov 1994 08:49:37 GMT"
fn http_date(time: Timestamp) -> String {
    time.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()
}
