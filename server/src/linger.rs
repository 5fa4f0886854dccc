//! Lets a caller read our answer although they are still sending.
//!
//! A server that answers early and closes makes the kernel reset the connection, and the caller, busy sending,
//! often never sees the sentence that says why. So what is left of a body that nobody wants is read and thrown
//! away for a while, after the answer is out.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes, HttpBody as _};
use axum::extract::Request;
use axum::http::header;
use axum::middleware::Next;
use axum::response::Response;
use futures_util::{Stream, StreamExt as _};

/// Most that is thrown away, bytes. Past it the connection is closed, answer seen or not.
const MAX_BYTES: usize = 64 << 20;
/// Longest that we go on throwing away.
const MAX_TIME: Duration = Duration::from_secs(20);

/// Wraps each request's body so that what is left of it is drained.
pub(crate) async fn linger(request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    if body.is_end_stream() {
        return next.run(Request::from_parts(parts, body)).await;
    }
    // A caller that waits for "100 Continue" has sent nothing yet, and reading now would ask them to.
    let waits = parts.headers.contains_key(header::EXPECT);
    let body = Lingering { chunks: Some(body.into_data_stream()), is_sent: !waits };
    next.run(Request::from_parts(parts, Body::from_stream(body))).await
}

struct Lingering {
    /// Absent once it has ended.
    chunks: Option<BodyDataStream>,
    /// The caller is sending, of their own accord or because we asked.
    is_sent: bool,
}

impl Stream for Lingering {
    type Item = Result<Bytes, axum::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.is_sent = true;
        let Some(chunks) = &mut self.chunks else { return Poll::Ready(None) };
        let chunk = ready!(chunks.poll_next_unpin(context));
        if !matches!(chunk, Some(Ok(_))) {
            self.chunks = None;
        }
        Poll::Ready(chunk)
    }
}

impl Drop for Lingering {
    fn drop(&mut self) {
        let Some(chunks) = self.chunks.take().filter(|chunks| self.is_sent && !chunks.is_end_stream()) else {
            return;
        };
        // Outside a runtime the connection is gone already.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(tokio::time::timeout(MAX_TIME, drain(chunks)));
        }
    }
}

async fn drain(mut chunks: BodyDataStream) {
    let mut left = MAX_BYTES;
    while let Some(Ok(chunk)) = chunks.next().await {
        left = left.saturating_sub(chunk.len());
        if left == 0 {
            break;
        }
    }
}
