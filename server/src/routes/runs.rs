//! The runs, and one run's grid.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse as _, Response};
use tidegauge_api::run::Runs;

use super::{Id, not_modified, set_cache_headers};
use crate::App;
use crate::grid;
use crate::refusal::Refusal;

/// Kept by the browser, asked for again each time: a 304 is cheap.
const REVALIDATE: &str = "private, no-cache";

/// The runs, latest first.
pub(crate) async fn list(State(app): State<Arc<App>>) -> Result<Json<Runs>, Refusal> {
    Ok(Json(Runs { runs: app.catalog.runs().await? }))
}

/// Everything the page of one run draws. Its `ETag` changes with every change of the grid.
pub(crate) async fn grid(
    State(app): State<Arc<App>>,
    Id(run_id): Id,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let nobody = || Refusal::not_found(format!("there is no run {run_id}"));
    let change = app.catalog.change(&run_id).await?.ok_or_else(nobody)?;
    if let Some(response) = not_modified(&headers, &etag(&run_id, change), REVALIDATE) {
        return Ok(response);
    }
    let (change, run, contents) = app.catalog.run(&run_id).await?.ok_or_else(nobody)?;
    let mut response = Json(grid::grid(run, &contents)).into_response();
    set_cache_headers(response.headers_mut(), &etag(&run_id, change), REVALIDATE);
    Ok(response)
}

/// Another release may write the same grid in other words.
fn etag(run_id: &str, change: i64) -> String {
    format!("\"{run_id}-{change}-{}\"", env!("CARGO_PKG_VERSION"))
}
