//! How a server is reached: its address, who we are, whom we trust, through whom, and how fast.

use std::{
    fmt, fs, io,
    num::NonZeroU64,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use tidegauge_api::sidecar;
use ureq::{
    http::Uri,
    tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, parse_pem},
};

use crate::proxies::{Proxies, ProxyError};

/// The server that is used when none is named.
pub const DEFAULT_SERVER: &str = "http://127.0.0.1:8642";

/// The most that is read of a token's file, bytes.
const MAX_TOKEN_BYTES: usize = 64 << 10;

/// Everything that is needed to reach a server.
#[derive(Debug, Clone)]
pub struct Connection {
    /// Where it is; may have a path.
    pub address: String,
    /// Who we are.
    pub token: Token,
    /// Whether snapshots and the token may travel unencrypted to another machine.
    pub insecure: bool,
    /// A file of certificates, PEM, that vouch for the server instead of the well-known ones.
    pub ca: Option<PathBuf>,
    /// Files of a certificate, with its chain, and of its key, PEM, that vouch for us.
    pub client: Option<(PathBuf, PathBuf)>,
    /// Through whom others are reached.
    pub proxies: Proxies,
    /// The most that is sent, bytes a second.
    pub rate: Option<NonZeroU64>,
    /// How long a silent server is waited for.
    pub timeouts: Timeouts,
}

/// How long a silent server is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Until a connection stands. A machine in the same cluster answers much sooner; one that does not is not there.
    pub connect: Duration,
    /// The longest silence, while sending and before the answer. The server answers once the bytes are on its disk.
    pub idle: Duration,
}

/// The server's token, or where it is. Never printed.
#[derive(Clone, PartialEq, Eq, Default)]
pub enum Token {
    /// There is none.
    #[default]
    None,
    /// The token itself.
    Given(String),
    /// A file that holds it and may hold another one later.
    File(PathBuf),
}

/// Why a server cannot be used as it was described.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// Not an address.
    #[error("the server's address must look like {DEFAULT_SERVER}, found {0:?}")]
    NotHttp(String),
    /// What is sent would travel where others can read it.
    #[error(
        "snapshots would travel unencrypted to {0}: use an https address, or allow it with insecure \
         (--insecure, TIDEGAUGE_INSECURE=1)"
    )]
    InTheClear(String),
    /// A certificate or key cannot be used.
    #[error("{what}: cannot use {}: {reason}", path.display())]
    Certificate {
        /// The setting.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A certificate without its key, or the other way round.
    #[error("client_cert and client_key go together: give both")]
    HalfACertificate,
    /// A proxy's address.
    #[error(transparent)]
    Proxy(#[from] ProxyError),
}

impl Connection {
    /// A server at `address`, without anything else.
    pub fn to(address: &str) -> Self {
        Self {
            address: address.to_owned(),
            token: Token::None,
            insecure: false,
            ca: None,
            client: None,
            proxies: Proxies::default(),
            rate: None,
            timeouts: Timeouts::default(),
        }
    }

    /// The address without a slash at its end, and what speaks to it.
    pub(crate) fn open(&self) -> Result<(String, ureq::Agent), AddressError> {
        let not_http = || AddressError::NotHttp(self.address.clone());
        let base = self.address.trim_end_matches('/');
        let uri: Uri = base.parse().ok().ok_or_else(not_http)?;
        let (Some(scheme @ ("http" | "https")), Some(host)) = (uri.scheme_str(), uri.host()) else {
            return Err(not_http());
        };
        if uri.query().is_some() {
            return Err(not_http());
        }
        if scheme == "http" && !is_loopback(host) && !self.insecure {
            return Err(AddressError::InTheClear(host.to_owned()));
        }
        let proxy = if is_loopback(host) { None } else { self.proxies.of(scheme, host)? };
        let Timeouts { connect, idle } = self.timeouts;
        let config = ureq::Agent::config_builder()
            .user_agent(concat!("tidegauge/", env!("CARGO_PKG_VERSION")))
            .http_status_as_error(false)
            // A redirected POST would lose its body; its sender should be given the right address instead.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .output_buffer_size(sidecar::MAX_HEADER_BYTES + 16 * 1024)
            .tls_config(self.tls()?)
            .proxy(proxy)
            .timeout_resolve(Some(idle))
            .timeout_connect(Some(connect))
            .timeout_send_request(Some(idle))
            .timeout_per_write(Some(idle))
            .timeout_recv_response(Some(idle))
            .timeout_recv_body(Some(idle));
        Ok((base.to_owned(), config.build().into()))
    }

    fn tls(&self) -> Result<TlsConfig, AddressError> {
        let mut tls = TlsConfig::builder();
        if let Some(path) = &self.ca {
            tls = tls.root_certs(RootCerts::new_with_certs(&certificates("ca", path)?));
        }
        if let Some((certificate, key)) = &self.client {
            let chain = certificates("client_cert", certificate)?;
            let wrong = |reason| AddressError::Certificate { what: "client_key", path: key.clone(), reason };
            let pem = fs::read(key).map_err(|error| wrong(error.to_string()))?;
            let key = PrivateKey::from_pem(&pem).map_err(|error| wrong(error.to_string()))?;
            tls = tls.client_cert(Some(ClientCert::new_with_certs(&chain, key)));
        }
        Ok(tls.build())
    }
}

fn certificates(what: &'static str, path: &Path) -> Result<Vec<Certificate<'static>>, AddressError> {
    let wrong = |reason| AddressError::Certificate { what, path: path.to_owned(), reason };
    let pem = fs::read(path).map_err(|error| wrong(error.to_string()))?;
    let items = parse_pem(&pem).collect::<Result<Vec<_>, _>>().map_err(|error| wrong(error.to_string()))?;
    let certificates: Vec<_> = items
        .into_iter()
        .filter_map(|item| match item {
            PemItem::Certificate(certificate) => Some(certificate),
            _ => None,
        })
        .collect();
    match certificates.is_empty() {
        true => Err(wrong("there is no certificate in it, as PEM".to_owned())),
        false => Ok(certificates),
    }
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { connect: Duration::from_secs(3), idle: Duration::from_secs(30) }
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => out.write_str("None"),
            Self::Given(_) => out.write_str("Given(…)"),
            Self::File(path) => out.debug_tuple("File").field(path).finish(),
        }
    }
}

/// The token as it is now. A file is read when it is first needed, and again when the server does not know what was
/// in it.
pub(crate) struct Credentials {
    token: Token,
    read: Mutex<Option<String>>,
}

impl Credentials {
    pub(crate) fn new(token: Token) -> Self {
        Self { token, read: Mutex::default() }
    }

    pub(crate) fn is_file(&self) -> bool {
        matches!(self.token, Token::File(_))
    }

    pub(crate) fn has_token(&self) -> bool {
        self.token != Token::None
    }

    /// The header's value.
    ///
    /// # Errors
    /// A sentence, when a file cannot be read.
    pub(crate) fn authorization(&self) -> Result<Option<String>, String> {
        let token = match &self.token {
            Token::None => return Ok(None),
            Token::Given(token) => token.clone(),
            Token::File(path) => {
                let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
                match &*read {
                    Some(token) => token.clone(),
                    None => read.insert(token_in(path)?).clone(),
                }
            }
        };
        Ok(Some(format!("Bearer {token}")))
    }

    /// The server does not know the token: reads the file again. Whether there is another one now.
    pub(crate) fn is_renewed(&self) -> bool {
        let Token::File(path) = &self.token else { return false };
        let Ok(token) = token_in(path) else { return false };
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        read.replace(token) != *read
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.token.fmt(out)
    }
}

fn token_in(path: &Path) -> Result<String, String> {
    let read = || -> io::Result<String> {
        let bytes = fs::read(path)?;
        let text = std::str::from_utf8(&bytes).map_err(|_bytes| io::Error::other("it is no text"))?.trim();
        // A header takes no others.
        let is_token =
            !text.is_empty() && text.len() <= MAX_TOKEN_BYTES && text.chars().all(|c| c.is_ascii_graphic());
        if is_token { Ok(text.to_owned()) } else { Err(io::Error::other("it holds no token")) }
    };
    read().map_err(|error| format!("cannot read the token from {}: {error}", path.display()))
}

/// Keeps what is sent below a rate.
#[derive(Debug)]
pub(crate) struct Throttle {
    rate: NonZeroU64,
    /// When all that was sent so far has been paid for.
    paid_at: Mutex<Instant>,
}

impl Throttle {
    pub(crate) fn new(rate: NonZeroU64) -> Self {
        Self { rate, paid_at: Mutex::new(Instant::now()) }
    }

    /// The most that goes out at once: a quarter of a second's worth.
    pub(crate) fn piece(&self) -> usize {
        usize::try_from(self.rate.get() / 4).unwrap_or(usize::MAX).max(256)
    }

    /// Waits until `n_bytes` more may go out.
    pub(crate) fn pay(&self, n_bytes: usize) {
        let now = Instant::now();
        let wait = {
            let mut paid_at = self.paid_at.lock().unwrap_or_else(PoisonError::into_inner);
            let begins = (*paid_at).max(now);
            *paid_at = begins + cost(n_bytes, self.rate);
            begins - now
        };
        thread::sleep(wait);
    }
}

fn cost(n_bytes: usize, rate: NonZeroU64) -> Duration {
    Duration::from_secs_f64(n_bytes as f64 / rate.get() as f64)
}

pub(crate) fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(connection: Connection) -> String {
        connection.open().unwrap_err().to_string()
    }

    #[test]
    fn only_http_addresses_are_servers() {
        for address in ["", "gauge:8642", "ftp://gauge", "/tmp", "http://", "http://gauge/?a=b"] {
            assert!(wrong(Connection::to(address)).contains("must look like"), "{address}");
        }
        assert_eq!(Connection::to("https://gauge/tide/").open().unwrap().0, "https://gauge/tide");
        for here in ["http://[::1]:8642", "http://localhost:8642", "http://127.0.0.2"] {
            assert!(Connection::to(here).open().is_ok(), "{here}");
        }
    }

    #[test]
    fn nothing_travels_unencrypted_to_another_machine_unless_that_is_allowed() {
        let plain = Connection::to("http://gauge.example:8642");
        assert!(wrong(plain.clone()).starts_with("snapshots would travel unencrypted to gauge.example: use"));
        assert!(Connection { insecure: true, ..plain }.open().is_ok());
    }

    #[test]
    fn a_token_is_never_printed() {
        let connection =
            Connection { token: Token::Given("hunter2".to_owned()), ..Connection::to("https://a") };
        let credentials = Credentials::new(connection.token.clone());
        assert_eq!(credentials.authorization().unwrap().unwrap(), "Bearer hunter2");
        assert!(!format!("{connection:?} {credentials:?}").contains("hunter2"));
    }

    #[test]
    fn a_tokens_file_is_read_when_it_is_needed_and_again_when_it_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let credentials = Credentials::new(Token::File(path.clone()));
        assert!(credentials.authorization().unwrap_err().starts_with("cannot read the token from "));
        fs::write(&path, "first\n").unwrap();
        assert_eq!(credentials.authorization().unwrap().unwrap(), "Bearer first");
        assert!(!credentials.is_renewed());
        fs::write(&path, "second\n").unwrap();
        assert_eq!(credentials.authorization().unwrap().unwrap(), "Bearer first");
        assert!(credentials.is_renewed());
        assert_eq!(credentials.authorization().unwrap().unwrap(), "Bearer second");
        for wrong in ["", "two words", "\u{e9}"] {
            fs::write(&path, wrong).unwrap();
            assert!(token_in(&path).unwrap_err().ends_with("it holds no token"), "{wrong}");
        }
    }

    #[test]
    fn certificates_that_cannot_be_used_are_named_with_their_setting() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        fs::write(&path, "no certificate").unwrap();
        let connection = Connection { ca: Some(path.clone()), ..Connection::to("https://gauge") };
        let expected = format!("ca: cannot use {}: there is no certificate in it, as PEM", path.display());
        assert_eq!(wrong(connection), expected);
        let missing = folder.path().join("missing.pem");
        let connection =
            Connection { client: Some((missing.clone(), missing)), ..Connection::to("https://gauge") };
        assert!(wrong(connection).starts_with("client_cert: cannot use "));
    }

    #[test]
    fn what_is_sent_is_paid_for_at_the_rate() {
        let rate = NonZeroU64::new(1000).unwrap();
        assert_eq!(cost(250, rate), Duration::from_millis(250));
        assert_eq!((Throttle::new(rate).piece(), Throttle::new(NonZeroU64::MIN).piece()), (256, 256));
        let throttle = Throttle::new(NonZeroU64::new(1 << 20).unwrap());
        let begun = Instant::now();
        throttle.pay(1 << 18);
        throttle.pay(1);
        // The first quarter of a second's worth goes at once, what follows waits for it.
        assert!(begun.elapsed() >= Duration::from_millis(250));
    }
}
