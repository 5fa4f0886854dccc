//! Just enough HTTP to hand a file to a server on this machine.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};

/// The longest answer that is read; the answers to uploads are a tenth of it.
const MAX_ANSWER_BYTES: u64 = 1024 * 1024;

/// How long a server may stay silent.
const SILENCE: Duration = Duration::from_secs(60);

/// `POST`s a body to `http://host:port` + path and returns the answer's body; an answer that is no success is
/// an error with its text.
pub(crate) fn post(server: &str, path: &str, body: &[u8]) -> Result<String> {
    let host = server.strip_prefix("http://").context("the server's address does not begin with http://")?;
    let mut stream = TcpStream::connect(host).with_context(|| format!("cannot reach {server}"))?;
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))?;
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/octet-stream\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    )?;
    // A refusal may come, and the connection close, before the whole body is sent: the answer tells.
    let sent = stream.write_all(body);
    let mut answer = Vec::new();
    let received = stream.take(MAX_ANSWER_BYTES).read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let Some((head, body)) = answer.split_once("\r\n\r\n") else {
        sent.context("the server hung up while the file was sent")?;
        received.context("the server hung up before it answered")?;
        anyhow::bail!("{server} does not answer as a web server does");
    };
    let status = head.split(' ').nth(1).unwrap_or_default();
    ensure!(status.starts_with('2'), "{server} answered {status}: {}", body.trim());
    Ok(body.to_owned())
}
