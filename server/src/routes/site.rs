//! The dashboard's files, and what is said where there are none.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{Html, IntoResponse as _, Response};
use tower::ServiceExt as _;
use tower_http::services::{ServeDir, ServeFile};

use crate::App;
use crate::guard::is_api;
use crate::refusal::Refusal;

const NO_PAGE: &str = "<!doctype html>
<html lang=\"en\">
<meta charset=\"utf-8\">
<title>Tidegauge</title>
<p>The server runs; the dashboard is not built.
<p>Run <code>cargo xtask serve</code>, or start the server with <code>--site</code> and the folder of a built one.
</html>
";

/// A file of the dashboard; its first page for every address without an extension, because the page has its own
/// addresses.
pub(crate) async fn page(State(app): State<Arc<App>>, request: Request) -> Result<Response, Refusal> {
    let path = request.uri().path();
    if is_api(path) {
        return Err(Refusal::not_found(format!("there is nothing at {path}")));
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return Err(super::method_not_allowed(request).await);
    }
    let is_file = path.rsplit('/').next().is_some_and(|name| name.contains('.'));
    let Some(site) = &app.site else {
        return Ok((StatusCode::NOT_FOUND, Html(NO_PAGE)).into_response());
    };
    let Ok(served) = match is_file {
        true => ServeDir::new(site).precompressed_br().precompressed_gzip().oneshot(request).await,
        false => {
            let index = site.join("index.html");
            ServeFile::new(index).precompressed_br().precompressed_gzip().oneshot(request).await
        }
    };
    if served.status() == StatusCode::NOT_FOUND {
        return Ok(
            (StatusCode::NOT_FOUND, Html(if is_file { "Not found\n" } else { NO_PAGE })).into_response()
        );
    }
    let mut response = served.into_response();
    // Asked for again each time, for a 304: after an update no file of the old page may meet one of the new.
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(response)
}
