//! Words of resumable uploads: the tus protocol 1.0, and what we say in it.
//!
//! <https://tus.io/protocols/resumable-upload>. `docs/http-api.md` says what our server does with them.

/// The version of the protocol.
pub const VERSION: &str = "1.0.0";

/// The extensions that the server knows.
pub const EXTENSIONS: &str = "creation,creation-with-upload,termination,expiration";

/// The header that names the version, on each request and answer.
pub const RESUMABLE: &str = "Tus-Resumable";
/// The header with the versions a server speaks.
pub const VERSIONS: &str = "Tus-Version";
/// The header with a server's extensions.
pub const EXTENSION: &str = "Tus-Extension";
/// The header with the largest upload a server takes, bytes.
pub const MAX_SIZE: &str = "Tus-Max-Size";
/// The header with an upload's length, bytes.
pub const LENGTH: &str = "Upload-Length";
/// The header with the number of bytes that are there.
pub const OFFSET: &str = "Upload-Offset";
/// The header with what an upload says of itself: the parameters of a one-shot upload, and the keys below.
pub const METADATA: &str = "Upload-Metadata";
/// The header that says when an unfinished upload is given up.
pub const EXPIRES: &str = "Upload-Expires";

/// The media type of a part of an upload.
pub const PART: &str = "application/offset+octet-stream";

/// Metadata: the sidecar's JSON.
pub const SIDECAR: &str = "sidecar";
/// Metadata: the same, compressed by zstd, since proxies do not let long headers through.
pub const SIDECAR_ZSTD: &str = "sidecar_zstd";
/// Metadata: BLAKE3 of the decompressed bytes, hex. What is there already need not be sent.
pub const CONTENT_DIGEST: &str = "content_digest";

/// Our own header on the answer that ends an upload: the snapshot's address.
pub const SNAPSHOT: &str = "Tidegauge-Snapshot";
