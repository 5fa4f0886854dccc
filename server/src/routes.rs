//! Every address of the server, on one page.

mod uploads;
mod resumable;
mod samples;
mod runs;
mod snapshots;
mod files;
mod health;
mod site;

use std::sync::Arc;

use axum::Router;
use axum::extract::{FromRequestParts, Path, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{get, head, post};
use tidegauge_api::paths;
use ulid::Ulid;

use crate::App;
use crate::guard::guard;
use crate::linger::linger;
use crate::refusal::Refusal;

/// The server as a service.
pub(crate) fn router(app: &Arc<App>) -> Router {
    let resumable = Router::new()
        .route(paths::UPLOADS, post(resumable::create).options(resumable::options))
        .route(
            paths::UPLOAD_ROUTE,
            head(resumable::state)
                .patch(resumable::add)
                .delete(resumable::give_up)
                .options(resumable::options),
        )
        .layer(middleware::from_fn(resumable::speak_tus));
    Router::new()
        .merge(resumable)
        .route(paths::SNAPSHOTS, post(uploads::take))
        .route(paths::SAMPLES, post(samples::take))
        .route(paths::RUNS, get(runs::list))
        .route(paths::GRID_ROUTE, get(runs::grid))
        .route(paths::RUN_SAMPLES_ROUTE, get(samples::of_run))
        .route(paths::SNAPSHOT_ROUTE, get(snapshots::details))
        .route(paths::PACK_ROUTE, get(snapshots::pack))
        .route(paths::ORIGINAL_ROUTE, get(snapshots::original))
        .route(paths::HEALTHZ, get(health::healthz))
        .route(paths::READYZ, get(health::readyz))
        .fallback(site::page)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(middleware::from_fn_with_state(Arc::clone(app), guard))
        .layer(middleware::from_fn(safe_headers))
        .layer(middleware::from_fn(linger))
        .with_state(Arc::clone(app))
}

async fn method_not_allowed(request: Request) -> Refusal {
    Refusal::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "method-not-allowed",
        "Not done this way",
        format!("{} is not answered at {}", request.method(), request.uri().path()),
    )
}

/// What a browser may do with what we send: load from here only, run no script but the page's own, be framed by
/// nobody. WebAssembly needs its word; styles set from the page need theirs.
const CONTENT_SECURITY_POLICY: &str = "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; \
    style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; connect-src 'self'; object-src 'none'; \
    base-uri 'self'; form-action 'self'; frame-ancestors 'none'";

async fn safe_headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// A run's or a snapshot's id from the address.
pub(crate) struct Id(String);

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        match Path::<String>::from_request_parts(parts, state).await {
            Ok(Path(id)) => match Ulid::from_string(&id) {
                Ok(id) => Ok(Self(id.to_string())),
                Err(_) => Err(Refusal::not_found(format!("{id:?} is no id; ids are 26 letters and digits"))),
            },
            Err(error) => Err(Refusal::not_found(format!("the address cannot be read: {error}"))),
        }
    }
}

/// The answer to a caller who holds `etag` already.
fn not_modified(headers: &HeaderMap, etag: &str, cache_control: &'static str) -> Option<Response> {
    crate::etag::is_held(headers, etag).then(|| {
        let mut response = Response::default();
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        set_cache_headers(response.headers_mut(), etag, cache_control);
        response
    })
}

fn set_cache_headers(headers: &mut HeaderMap, etag: &str, cache_control: &'static str) {
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(cache_control));
    headers.insert(header::ETAG, etag.parse().expect("our tags are quoted letters, digits and dashes"));
}
