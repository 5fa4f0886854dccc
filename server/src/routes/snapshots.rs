//! One snapshot: its details, its pack, its original.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::Response;
use tidegauge_api::snapshot::{SnapshotDetails, State as SnapshotState};
use tidegauge_snapshot::pack;

use super::{Id, files};
use crate::App;
use crate::reader::make_pack;
use crate::refusal::Refusal;
use crate::store::Digest;

/// An address that names its version serves the same bytes forever.
const IMMUTABLE: &str = "private, max-age=31536000, immutable";
const REVALIDATE: &str = "private, no-cache";

/// Longest name offered for a download, characters; file systems take 255 bytes.
const MAX_NAME_CHARS: usize = 120;

/// One snapshot's details.
pub(crate) async fn details(
    State(app): State<Arc<App>>,
    Id(id): Id,
) -> Result<Json<SnapshotDetails>, Refusal> {
    find(&app, &id).await.map(Json)
}

/// One snapshot's pack; byte ranges are served. `v` asks for a version of the format.
pub(crate) async fn pack(
    State(app): State<Arc<App>>,
    Id(id): Id,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let asked = asked_version(&uri)?;
    if let Some(version) = &asked
        && *version != pack::VERSION.to_string()
    {
        return Err(Refusal::not_found(format!(
            "this server makes packs of version {}, not {version:?}; load the page again",
            pack::VERSION
        )));
    }
    let snapshot = find(&app, &id).await?;
    let not_ready =
        |title, detail: String| Refusal::new(StatusCode::CONFLICT, snapshot.state.as_str(), title, detail);
    match snapshot.state {
        SnapshotState::Ready => {}
        SnapshotState::Received | SnapshotState::Reading => {
            return Err(not_ready(
                "Not read yet",
                "the snapshot is not read yet; ask again in a moment".to_owned(),
            )
            .with_header(header::RETRY_AFTER, HeaderValue::from_static("1")));
        }
        SnapshotState::Failed => {
            return Err(not_ready("It cannot be read", snapshot.problem.unwrap_or_default()));
        }
    }
    let digest = Digest::from_catalog(snapshot.digest);
    make_pack(&app, &digest).await?;
    let etag = format!("\"{}-v{}\"", digest.as_str(), pack::VERSION);
    let cache_control = if asked.is_some() { IMMUTABLE } else { REVALIDATE };
    files::send(&app.store.pack_path(&digest), &etag, cache_control, method, &headers).await
}

/// One snapshot's bytes as they came; byte ranges are served.
pub(crate) async fn original(
    State(app): State<Arc<App>>,
    Id(id): Id,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let snapshot = find(&app, &id).await?;
    let name = snapshot.file_name.unwrap_or_else(|| format!("{id}.pickle"));
    let digest = Digest::from_catalog(snapshot.digest);
    let etag = format!("\"{}\"", digest.as_str());
    let mut response =
        files::send(&app.store.original_path(&digest), &etag, REVALIDATE, method, &headers).await?;
    response.headers_mut().insert(header::CONTENT_DISPOSITION, attachment(&name));
    Ok(response)
}

async fn find(app: &App, id: &str) -> Result<SnapshotDetails, Refusal> {
    app.catalog.snapshot(id).await?.ok_or_else(|| Refusal::not_found(format!("there is no snapshot {id}")))
}

fn asked_version(uri: &Uri) -> Result<Option<String>, Refusal> {
    let Query(pairs) = Query::<Vec<(String, String)>>::try_from_uri(uri)
        .map_err(|error| Refusal::bad_request(format!("the query cannot be read: {error}")))?;
    Ok(pairs.into_iter().find(|(name, _)| name == "v").map(|(_, version)| version))
}

/// Offers a download under the last part of `path`, first in the letters every client reads, then as it is.
fn attachment(path: &str) -> HeaderValue {
    let name = path.rsplit(['/', '\\']).next().unwrap_or_default();
    let name: String = name.chars().filter(|char| !char.is_control()).take(MAX_NAME_CHARS).collect();
    let is_plain = |char: char| char.is_ascii_alphanumeric() || "._-+ ".contains(char);
    let plain: String = name.chars().map(|char| if is_plain(char) { char } else { '_' }).collect();
    let mut exact = String::new();
    for byte in name.bytes() {
        match byte.is_ascii_alphanumeric() || b"._-".contains(&byte) {
            true => exact.push(char::from(byte)),
            false => exact.push_str(&format!("%{byte:02X}")),
        }
    }
    format!("attachment; filename=\"{plain}\"; filename*=UTF-8''{exact}")
        .parse()
        .expect("both names are printable ASCII without quotes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_download_has_the_files_own_name_and_nothing_that_could_break_out_of_it() {
        assert_eq!(
            attachment("runs/a\\b/rank 0 \"é\r\n\".pickle"),
            "attachment; filename=\"rank 0 ___.pickle\"; filename*=UTF-8''rank%200%20%22%C3%A9%22.pickle"
        );
    }
}
