//! Why nothing could be shown: what was found, where in the file, and what to do.

use std::borrow::Cow;

/// Why a file did not open: a stable code, one sentence, and the offset in the decompressed bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadError {
    code: &'static str,
    message: Cow<'static, str>,
    offset: Option<u64>,
}

impl ReadError {
    /// The file is empty.
    pub const EMPTY: &'static str = "empty";
    /// The file ends before the snapshot does.
    pub const CUT: &'static str = "cut";
    /// The file is something else.
    pub const NOT_A_SNAPSHOT: &'static str = "not-a-snapshot";
    /// The pickle would run code, or uses a kind of value no snapshot has.
    pub const REFUSED: &'static str = "refused";
    /// The bytes contradict themselves.
    pub const DAMAGED: &'static str = "damaged";
    /// The file decompresses to more than it may.
    pub const TOO_LARGE: &'static str = "too-large";
    /// The file is an archive of several snapshots: choose one.
    pub const ARCHIVE: &'static str = "archive";
    /// Reading the file itself failed.
    pub const IO: &'static str = "io";

    pub(crate) fn new(
        code: &'static str,
        offset: impl Into<Option<u64>>,
        message: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self { code, message: message.into(), offset: offset.into() }
    }

    /// The same error, of a file inside another.
    pub(crate) fn within(self, path: &str) -> Self {
        Self { message: format!("{path}: {}", self.message).into(), ..self }
    }

    /// A stable word for programs.
    pub fn code(&self) -> &'static str {
        self.code
    }

    /// Where in the decompressed bytes, when there is a place.
    pub fn offset(&self) -> Option<u64> {
        self.offset
    }
}

impl std::fmt::Display for ReadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ReadError {}
