//! The one shape of an answer that is not what was asked for.

use axum::Json;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use tidegauge_api::{Problem, problem};

/// Why a request is not granted: a [`Problem`] for the caller, and what only the log may know.
#[derive(Debug)]
pub(crate) struct Refusal(Box<Inner>);

#[derive(Debug)]
struct Inner {
    status: StatusCode,
    kind: &'static str,
    title: &'static str,
    detail: String,
    header: Option<(HeaderName, HeaderValue)>,
    cause: Option<anyhow::Error>,
}

impl Refusal {
    pub(crate) fn new(
        status: StatusCode,
        kind: &'static str,
        title: &'static str,
        detail: impl Into<String>,
    ) -> Self {
        Self(Box::new(Inner { status, kind, title, detail: detail.into(), header: None, cause: None }))
    }

    /// The request contradicts itself or says something we cannot read.
    pub(crate) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad-request", "The request cannot be read", detail)
    }

    /// Nothing goes by that name.
    pub(crate) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not-found", "Not found", detail)
    }

    /// More at once than the server takes on; the caller may come again.
    pub(crate) fn busy(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "busy", "The server is busy", detail)
            .with_header(header::RETRY_AFTER, HeaderValue::from_static("5"))
    }

    /// There is no room for more bytes.
    pub(crate) fn full(detail: impl Into<String>) -> Self {
        // Somebody has to make room first.
        Self::new(StatusCode::INSUFFICIENT_STORAGE, "full", "The server is full", detail)
            .with_header(header::RETRY_AFTER, HeaderValue::from_static("60"))
    }

    /// The sentence for the caller.
    pub(crate) fn detail(&self) -> &str {
        &self.0.detail
    }

    pub(crate) fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.0.header = Some((name, value));
        self
    }
}

/// What went wrong inside is for the log; the caller learns that it was not them.
impl From<anyhow::Error> for Refusal {
    fn from(cause: anyhow::Error) -> Self {
        let mut refusal = Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "The server failed",
            "the server could not do this; its log says why",
        );
        refusal.0.cause = Some(cause);
        refusal
    }
}

impl From<crate::space::Full> for Refusal {
    fn from(full: crate::space::Full) -> Self {
        Self::full(full.to_string())
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Inner { status, kind, title, detail, header, cause } = *self.0;
        if let Some(cause) = cause {
            tracing::error!(status = status.as_u16(), "a request failed: {cause:#}");
        }
        let problem =
            Problem { kind: kind.to_owned(), title: title.to_owned(), status: status.as_u16(), detail };
        let mut response = (status, Json(problem)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(problem::MEDIA_TYPE));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.extend(header);
        response
    }
}
