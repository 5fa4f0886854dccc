//! Taking snapshots in.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use tidegauge_api::paths;
use tidegauge_api::snapshot::SnapshotDetails;

use crate::App;
use crate::accept::accept;
use crate::catalog::Claimed;
use crate::place;
use crate::refusal::Refusal;

/// Takes one snapshot, the request's body, for the place that the query, the sidecar header or the file's path
/// tells. 201 once it is safe; 200 with `already_here` when the same content was there for the same place.
pub(crate) async fn take(State(app): State<Arc<App>>, request: Request) -> Result<Response, Refusal> {
    let (parts, body) = request.into_parts();
    let said = place::said(&parts).map_err(Refusal::bad_request)?;
    match accept(&app, said, content_length(&parts.headers), body).await? {
        Claimed::New(details) => {
            say_that_it_came(&details);
            let location = paths::snapshot(&details.id);
            Ok((StatusCode::CREATED, [(header::LOCATION, location)], Json(details)).into_response())
        }
        Claimed::Here(details) => Ok(Json(SnapshotDetails { already_here: true, ..details }).into_response()),
    }
}

/// What an operator reads of a new snapshot.
pub(super) fn say_that_it_came(details: &SnapshotDetails) {
    tracing::info!(
        run.id = details.run_id,
        rank = details.place.rank,
        step = details.place.last_step,
        snapshot.id = details.id,
        size_bytes = details.bytes,
        "took a snapshot of {}",
        details.run_name
    );
}

fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}
