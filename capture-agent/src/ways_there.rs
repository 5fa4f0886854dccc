//! Ways to a server that are not a plain socket: TLS with certificates of one's own, and proxies. Only for tests.

use std::{
    fs,
    io::{self, Read, Write},
    net::{TcpListener, TcpStream},
    path::PathBuf,
    sync::{Arc, Mutex},
    thread,
};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::{
    RootCertStore, ServerConfig, ServerConnection, StreamOwned,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::WebPkiClientVerifier,
};
use tempfile::TempDir;
use tidegauge_api::Sidecar;

use crate::{
    connection::Connection,
    fake_server::{FakeServer, Received},
    proxies::Proxies,
    push::{PushError, Server},
};

/// Certificates of a cluster's own, in files.
struct Certificates {
    folder: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Certificates {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let certificates = Self { folder: tempfile::tempdir().unwrap(), issuer };
        fs::write(certificates.path("ca.pem"), certificates.issuer.pem()).unwrap();
        certificates.issue("server");
        certificates.issue("client");
        certificates
    }

    fn issue(&self, name: &str) {
        let key = KeyPair::generate().unwrap();
        let names = vec!["127.0.0.1".to_owned(), "gauge.example".to_owned()];
        let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &self.issuer).unwrap();
        fs::write(self.path(&format!("{name}.pem")), certificate.pem()).unwrap();
        fs::write(self.path(&format!("{name}.key")), key.serialize_pem()).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn client(&self) -> Option<(PathBuf, PathBuf)> {
        Some((self.path("client.pem"), self.path("client.key")))
    }

    /// What a server needs that shows its certificate and, perhaps, wants to see one.
    fn server(&self, wants_client: bool) -> ServerConfig {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.path("ca.pem")).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config =
            ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions();
        let config = match wants_client {
            true => {
                let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider).build();
                config.unwrap().with_client_cert_verifier(verifier.unwrap())
            }
            false => config.unwrap().with_no_client_auth(),
        };
        let chain = vec![CertificateDer::from_pem_file(self.path("server.pem")).unwrap()];
        config
            .with_single_cert(chain, PrivateKeyDer::from_pem_file(self.path("server.key")).unwrap())
            .unwrap()
    }
}

/// Speaks TLS in front of a server that does not, as a proxy in a cluster does. Its address.
fn tls_in_front_of(server: &FakeServer, config: ServerConfig) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("https://{}", listener.local_addr().unwrap());
    let (behind, config) = (server.address.trim_start_matches("http://").to_owned(), Arc::new(config));
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut tls =
                StreamOwned::new(ServerConnection::new(Arc::clone(&config)).unwrap(), stream.unwrap());
            // Who is not let in is gone.
            pass_on(&mut tls, &behind).ok();
        }
    });
    address
}

/// One request and its answer.
fn pass_on(tls: &mut StreamOwned<ServerConnection, TcpStream>, behind: &str) -> io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        tls.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let text = String::from_utf8_lossy(&head).to_lowercase();
    let length = text.lines().find_map(|line| line.strip_prefix("content-length: "));
    tls.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    tls.read_exact(&mut body)?;
    let mut server = TcpStream::connect(behind)?;
    server.write_all(&head)?;
    let mut word = [0; 25];
    server.read_exact(&mut word)?;
    server.write_all(&body)?;
    let mut answer = Vec::new();
    server.read_to_end(&mut answer)?;
    tls.write_all(&answer)?;
    tls.conn.send_close_notify();
    tls.flush()
}

/// A proxy that connects whoever asks to one server, whatever name they ask for, and remembers what they asked.
fn proxy_to(address: &str) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (proxy, asked) =
        (format!("http://{}", listener.local_addr().unwrap()), Arc::<Mutex<Vec<_>>>::default());
    let (behind, log) = (address.split_once("://").unwrap().1.to_owned(), Arc::clone(&asked));
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let Some(Received { line, .. }) = crate::fake_server::receive_head(&mut stream) else { continue };
            log.lock().unwrap().push(line);
            stream.write_all(b"HTTP/1.1 200 Connected\r\n\r\n").unwrap();
            let server = TcpStream::connect(&behind).unwrap();
            for (from, to) in [(&stream, &server), (&server, &stream)] {
                let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                thread::spawn(move || {
                    // Either end may go.
                    io::copy(&mut from, &mut to).ok();
                    to.shutdown(std::net::Shutdown::Write).ok();
                });
            }
        }
    });
    (proxy, asked)
}

fn send(connection: &Connection) -> Result<(), PushError> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.pickle");
    fs::write(&file, b"a pickle").unwrap();
    Server::connect(connection).unwrap().send(&file, &Sidecar::default(), &mut |_| {}).map(drop)
}

fn reason(error: PushError) -> String {
    assert!(matches!(error, PushError::Later { .. }), "{error:?}");
    error.to_string()
}

#[test]
fn a_server_is_known_by_the_certificate_authority_that_was_named_and_by_no_other() {
    let (certificates, server) = (Certificates::new(), FakeServer::that_takes_all());
    let address = tls_in_front_of(&server, certificates.server(false));
    let trusting = Connection { ca: Some(certificates.path("ca.pem")), ..Connection::to(&address) };
    send(&trusting).unwrap();
    assert_eq!(server.received()[0].body, b"a pickle");
    let well_known = reason(send(&Connection::to(&address)).unwrap_err());
    assert!(well_known.contains("UnknownIssuer"), "{well_known}");
    let another = Certificates::new();
    let another = Connection { ca: Some(another.path("ca.pem")), ..Connection::to(&address) };
    reason(send(&another).unwrap_err());
    assert_eq!(server.received().len(), 1);
}

#[test]
fn a_server_that_wants_to_see_a_certificate_is_shown_ours() {
    let (certificates, server) = (Certificates::new(), FakeServer::that_takes_all());
    let address = tls_in_front_of(&server, certificates.server(true));
    let nobody = Connection { ca: Some(certificates.path("ca.pem")), ..Connection::to(&address) };
    reason(send(&nobody).unwrap_err());
    send(&Connection { client: certificates.client(), ..nobody }).unwrap();
    assert_eq!(server.received().len(), 1);
}

#[test]
fn a_proxy_is_asked_for_other_machines_over_tls_and_without_and_not_for_this_one() {
    let (certificates, server) = (Certificates::new(), FakeServer::that_takes_all());
    let tls = tls_in_front_of(&server, certificates.server(false));
    for (there, address) in [("http://gauge.example:8642", &server.address), ("https://gauge.example", &tls)]
    {
        let (proxy, asked) = proxy_to(address);
        let env = |name: &str| ["HTTP_PROXY", "https_proxy"].contains(&name).then(|| proxy.clone());
        let connection = Connection {
            ca: Some(certificates.path("ca.pem")),
            insecure: true,
            proxies: Proxies::from_env(&env),
            ..Connection::to(there)
        };
        send(&connection).unwrap();
        let port = if there.ends_with("8642") { 8642 } else { 443 };
        assert_eq!(*asked.lock().unwrap(), [format!("CONNECT gauge.example:{port} HTTP/1.1")]);
        send(&Connection { address: server.address.clone(), ..connection }).unwrap();
        assert_eq!(asked.lock().unwrap().len(), 1);
    }
}
