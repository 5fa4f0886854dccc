//! Who may push and look, and from which pages.
//!
//! Three questions, in this order: is the request meant for us (the `Host` header; else any page on the web could
//! reach a server on this machine through a name of its own), does it come from our own page where it changes
//! something (the `Origin` header), and does it know the token, if one is set. Page files, `/healthz` and
//! `/readyz` hold no secrets and need no token.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;

use crate::App;
use crate::config::Config;
use crate::refusal::Refusal;

/// The cookie in which the page may send the token.
const COOKIE: &str = "tidegauge_token";

/// What a request must show.
#[derive(Debug)]
pub(crate) struct Guard {
    /// Digest of the token. Digests are compared in constant time, so that an answer's delay tells nothing.
    token: Option<blake3::Hash>,
    is_local: bool,
}

impl Guard {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            token: config.token().map(|token| blake3::hash(token.as_bytes())),
            is_local: config.listen.ip().is_loopback(),
        }
    }

    fn check(&self, request: &Request) -> Result<(), Refusal> {
        let host = host(request);
        if self.is_local && !host.is_some_and(is_this_machine) {
            return Err(Refusal::new(
                StatusCode::MISDIRECTED_REQUEST,
                "wrong-host",
                "Not meant for this server",
                "this server answers to localhost and 127.0.0.1 only; give it another --listen address and a token \
                 to reach it by other names",
            ));
        }
        let changes = !matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
        if changes && !is_own_page(request.headers(), host) {
            return Err(Refusal::new(
                StatusCode::FORBIDDEN,
                "foreign-page",
                "Sent by another page",
                "the Origin header names another page than this server's own; only that may change things",
            ));
        }
        if is_api(request.uri().path()) && !self.knows_token(request.headers()) {
            return Err(Refusal::new(
                StatusCode::UNAUTHORIZED,
                "no-token",
                "A token is needed",
                "this server asks for its token: send it as \"Authorization: Bearer TOKEN\" (tidegauge reads \
                 TIDEGAUGE_TOKEN)",
            )
            .with_header(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")));
        }
        Ok(())
    }

    fn knows_token(&self, headers: &HeaderMap) -> bool {
        let Some(expected) = &self.token else { return true };
        bearer(headers).or_else(|| cookie(headers)).is_some_and(|token| blake3::hash(token) == *expected)
    }
}

/// Lets a request through, or says why not.
pub(crate) async fn guard(
    State(app): State<Arc<App>>,
    request: Request,
    next: Next,
) -> Result<Response, Refusal> {
    app.guard.check(&request)?;
    Ok(next.run(request).await)
}

/// Whether a path belongs to the interface for programs.
pub(crate) fn is_api(path: &str) -> bool {
    path == "/api" || path.starts_with("/api/")
}

fn host(request: &Request) -> Option<&str> {
    match request.headers().get(header::HOST) {
        Some(host) => host.to_str().ok(),
        None => request.uri().authority().map(|authority| authority.as_str()),
    }
}

/// Whether a host with or without a port can only be this machine.
fn is_this_machine(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or(rest, |(address, _)| address),
        None => host.split_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

/// Whether a request comes from no page, or from a page that we served.
fn is_own_page(headers: &HeaderMap, host: Option<&str>) -> bool {
    let Some(origin) = headers.get(header::ORIGIN) else { return true };
    let page = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    match (page, host) {
        (Some((_, page)), Some(host)) => page.eq_ignore_ascii_case(host),
        _ => false,
    }
}

fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| token.trim_ascii())
}

fn cookie(headers: &HeaderMap) -> Option<&[u8]> {
    headers
        .get_all(header::COOKIE)
        .iter()
        .flat_map(|cookies| cookies.as_bytes().split(|byte| *byte == b';'))
        .find_map(|cookie| cookie.trim_ascii().strip_prefix(COOKIE.as_bytes())?.strip_prefix(b"="))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_this_machine() {
        for host in ["localhost", "LocalHost:8642", "127.0.0.1:1", "127.0.0.1", "[::1]:8642", "[::1]"] {
            assert!(is_this_machine(host), "{host}");
        }
        for host in
            ["evil.example", "127.0.0.1.evil.example:8642", "localhost.evil.example", "", "[::2]", "10.0.0.1"]
        {
            assert!(!is_this_machine(host), "{host}");
        }
    }

    #[test]
    fn a_token_is_read_from_the_header_or_the_cookie() {
        let headers = |name: &str, value: &str| {
            let name: header::HeaderName = name.parse().unwrap();
            HeaderMap::from_iter([(name, value.parse().unwrap())])
        };
        assert_eq!(bearer(&headers("authorization", "bearer  abc ")), Some(&b"abc"[..]));
        assert_eq!(bearer(&headers("authorization", "Basic abc")), None);
        assert_eq!(cookie(&headers("cookie", "a=b; tidegauge_token=abc; c=d")), Some(&b"abc"[..]));
        assert_eq!(cookie(&headers("cookie", "xtidegauge_token=abc")), None);
    }
}
