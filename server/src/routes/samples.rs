//! Samples between snapshots: taking them in, and the rows of a run's grid that they fill.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use futures_util::StreamExt as _;
use serde::Deserialize;
use tidegauge_api::samples::{MAX_BATCH_BYTES, MAX_GRID_COLUMNS, MAX_GRID_ROWS, SampleBatch, SamplesTaken};
use tidegauge_snapshot::words::size;

use super::{Id, not_modified, set_cache_headers};
use crate::App;
use crate::catalog::{MAX_PROCESSES_PER_RUN, Sampled, SamplesRefused};
use crate::refusal::Refusal;
use crate::samples::{Asked, Batch, MAX_BATCHES, lay_out};

/// Longest time a batch may take to arrive. It is small: who takes longer is gone.
const MAX_ARRIVAL: Duration = Duration::from_secs(30);

/// Kept by the browser, asked for again each time: a 304 is cheap.
const REVALIDATE: &str = "private, no-cache";

/// Takes a batch of samples, the request's body as JSON. What it holds and was not here yet is kept when this
/// answers, all of it or nothing; a batch that was sent before changes nothing.
pub(crate) async fn take(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<SamplesTaken>, Refusal> {
    let Ok(_slot) = app.sampling.try_acquire() else {
        return Err(Refusal::busy(format!(
            "{MAX_BATCHES} batches of samples are being kept; try again in a few seconds"
        )));
    };
    let (parts, body) = request.into_parts();
    let bytes = receive(&parts.headers, body).await?;
    let batch: SampleBatch = serde_json::from_slice(&bytes)
        .map_err(|error| Refusal::bad_request(format!("the batch of samples is not its JSON: {error}")))?;
    let batch = Batch::new(batch).map_err(Refusal::bad_request)?;
    // Rows take about as much room as their JSON.
    let _room = app.space.promise(bytes.len() as u64)?;
    match app.catalog.keep_samples(&batch, (app.clock)()).await? {
        Ok(Sampled { run_id, n_new }) => Ok(Json(SamplesTaken { run_id, n_new })),
        Err(SamplesRefused::TooManyProcesses) => Err(Refusal::new(
            StatusCode::CONFLICT,
            "too-many-processes",
            "The run has too many processes",
            format!(
                "the run has samples of {MAX_PROCESSES_PER_RUN} processes, and no more are taken; give another run \
                 another name"
            ),
        )),
    }
}

async fn receive(headers: &HeaderMap, body: Body) -> Result<Bytes, Refusal> {
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    check_size(announced.unwrap_or(0))?;
    let receiving = async {
        let mut bytes = Vec::new();
        let mut chunks = body.into_data_stream();
        while let Some(chunk) = chunks.next().await {
            let chunk =
                chunk.map_err(|error| Refusal::bad_request(format!("the body broke off: {error}")))?;
            check_size(bytes.len() + chunk.len())?;
            bytes.extend_from_slice(&chunk);
        }
        Ok(Bytes::from(bytes))
    };
    tokio::time::timeout(MAX_ARRIVAL, receiving).await.unwrap_or_else(|_elapsed| {
        Err(Refusal::new(
            StatusCode::REQUEST_TIMEOUT,
            "silence",
            "Nothing arrived",
            format!("the batch of samples took longer than {} seconds; send it again", MAX_ARRIVAL.as_secs()),
        ))
    })
}

fn check_size(bytes: usize) -> Result<(), Refusal> {
    if bytes <= MAX_BATCH_BYTES {
        return Ok(());
    }
    Err(Refusal::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        "too-large",
        "The batch is too large",
        format!(
            "a batch of samples may be at most {} ({MAX_BATCH_BYTES} bytes); send it in parts",
            size(MAX_BATCH_BYTES as u64)
        ),
    ))
}

/// Which rows, in how many columns, and of which steps.
#[derive(Debug, Deserialize)]
pub(crate) struct Part {
    #[serde(default)]
    first_row: u32,
    #[serde(default = "most_rows")]
    n_rows: u32,
    #[serde(default = "usual_columns")]
    n_columns: u32,
    first_step: Option<u64>,
    last_step: Option<u64>,
}

fn most_rows() -> u32 {
    MAX_GRID_ROWS
}

/// As many as a wide screen shows at their least width.
fn usual_columns() -> u32 {
    MAX_GRID_COLUMNS / 4
}

/// Some rows of a run's samples. Its `ETag` changes with every change of them or of the grid.
pub(crate) async fn of_run(
    State(app): State<Arc<App>>,
    Id(run_id): Id,
    part: Result<Query<Part>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let Query(Part { first_row, n_rows, n_columns, first_step, last_step }) = part.map_err(|rejection| {
        Refusal::bad_request(format!(
            "first_row, n_rows, n_columns, first_step and last_step are whole numbers: {rejection}"
        ))
    })?;
    let nobody = || Refusal::not_found(format!("there is no run {run_id}"));
    let changes = app.catalog.sample_change(&run_id).await?.ok_or_else(nobody)?;
    if let Some(response) = not_modified(&headers, &etag(&run_id, changes), REVALIDATE) {
        return Ok(response);
    }
    let asked = Asked::new(first_row, n_rows, n_columns).within(first_step, last_step);
    let (changes, found) = app.catalog.samples(&run_id, &asked).await?.ok_or_else(nobody)?;
    let mut response = Json(lay_out(found)).into_response();
    set_cache_headers(response.headers_mut(), &etag(&run_id, changes), REVALIDATE);
    Ok(response)
}

/// Another release may write the same samples in other words.
fn etag(run_id: &str, (samples, grid): (i64, i64)) -> String {
    format!("\"{run_id}-{samples}-{grid}-{}\"", env!("CARGO_PKG_VERSION"))
}
