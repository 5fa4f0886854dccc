//! Files of the store over HTTP: entity tags, byte ranges.

use std::path::Path;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use tower::ServiceExt as _;
use tower_http::services::ServeFile;

use super::{not_modified, set_cache_headers};
use crate::etag;
use crate::refusal::Refusal;

/// Sends a file whose bytes `etag` stands for, whole or the range that `headers` ask for.
pub(crate) async fn send(
    path: &Path,
    etag: &str,
    cache_control: &'static str,
    method: Method,
    headers: &HeaderMap,
) -> Result<Response, Refusal> {
    if let Some(response) = not_modified(headers, etag, cache_control) {
        return Ok(response);
    }
    // Only the range is left to the file's service: its own tags are made from times, ours from the content.
    let mut plain = Request::new(Body::empty());
    *plain.method_mut() = method;
    if let Some(range) = headers.get(header::RANGE)
        && etag::allows_range(headers, etag)
    {
        plain.headers_mut().insert(header::RANGE, range.clone());
    }
    let Ok(response) = ServeFile::new(path).oneshot(plain).await;
    let mut response = response.into_response();
    match response.status() {
        StatusCode::OK | StatusCode::PARTIAL_CONTENT => {}
        StatusCode::RANGE_NOT_SATISFIABLE => {
            let size = response.headers_mut().remove(header::CONTENT_RANGE);
            let refusal = Refusal::new(
                StatusCode::RANGE_NOT_SATISFIABLE,
                "range",
                "No such range",
                "the range asked for is not one range inside the file",
            );
            return Err(match size {
                Some(size) => refusal.with_header(header::CONTENT_RANGE, size),
                None => refusal,
            });
        }
        status => {
            return Err(anyhow::anyhow!("{} was to be served and gave {status}", path.display()).into());
        }
    }
    let headers = response.headers_mut();
    headers.remove(header::LAST_MODIFIED);
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    set_cache_headers(headers, etag, cache_control);
    Ok(response)
}
