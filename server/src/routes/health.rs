//! Whether the server lives, and whether it can work.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;

use crate::App;
use crate::refusal::Refusal;

/// 200 while the process lives.
pub(crate) async fn healthz() -> &'static str {
    "ok\n"
}

/// 200 when snapshots can be taken and served: the catalog answers and there is room.
pub(crate) async fn readyz(State(app): State<Arc<App>>) -> Result<&'static str, Refusal> {
    app.catalog.check().await?;
    match app.space.promise(1) {
        Ok(_) => Ok("ready\n"),
        Err(full) => {
            Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "full", "The server is full", full.to_string()))
        }
    }
}
