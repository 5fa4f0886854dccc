//! The one shape of an error over HTTP: `application/problem+json` (RFC 9457).

use serde::{Deserialize, Serialize};

/// The media type of a [`Problem`].
pub const MEDIA_TYPE: &str = "application/problem+json";

/// What went wrong, for a person and for a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// The kind, stable: "too-large", "not-a-snapshot", …
    #[serde(rename = "type")]
    pub kind: String,
    /// The kind in words.
    pub title: String,
    /// HTTP status.
    pub status: u16,
    /// One sentence: what, where, and what to do.
    pub detail: String,
}
