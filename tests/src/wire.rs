//! A wire to a server that remembers what went over it.

use std::sync::{Arc, Mutex};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, tcp},
};

/// The most that is remembered, bytes; a test's page and uploads take a tenth. More is an error of the test's.
const MAX_REMEMBERED_BYTES: usize = 64 * 1024 * 1024;

/// Listens on a port of its own and passes everything on, in both directions.
#[derive(Debug)]
pub struct Wire {
    address: String,
    sent: Arc<Mutex<Vec<u8>>>,
}

impl Wire {
    /// Lays a wire to `http://host:port`.
    pub async fn to(server: &str) -> Self {
        let server = server.strip_prefix("http://").expect("servers in tests speak plain HTTP").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("there is a free port");
        let address = format!("http://{}", listener.local_addr().expect("a listener has an address"));
        let sent = Arc::new(Mutex::new(Vec::new()));
        let memory = Arc::clone(&sent);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(&server).await else { continue };
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                tokio::spawn(pass_on(from_client, to_server, Some(Arc::clone(&memory))));
                tokio::spawn(pass_on(from_server, to_client, None));
            }
        });
        Self { address, sent }
    }

    /// `http://127.0.0.1:PORT`
    pub fn address(&self) -> &str {
        &self.address
    }

    /// How many bytes the server was sent so far.
    pub fn n_bytes_sent(&self) -> usize {
        self.sent.lock().expect("no test panics while it holds this").len()
    }

    /// The first line of each request so far: `GET /page.js`.
    pub fn requests(&self) -> Vec<String> {
        let sent = self.sent.lock().expect("no test panics while it holds this");
        let text = String::from_utf8_lossy(&sent);
        let lines = text.split('\n').filter_map(|line| line.trim_end().strip_suffix(" HTTP/1.1"));
        lines.map(str::to_owned).collect()
    }
}

async fn pass_on(
    mut from: tcp::OwnedReadHalf,
    mut to: tcp::OwnedWriteHalf,
    memory: Option<Arc<Mutex<Vec<u8>>>>,
) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(n_bytes @ 1..) = from.read(&mut buffer).await {
        if let Some(memory) = &memory {
            let mut memory = memory.lock().expect("no test panics while it holds this");
            assert!(memory.len() + n_bytes <= MAX_REMEMBERED_BYTES, "a test sent more than a wire remembers");
            memory.extend_from_slice(&buffer[..n_bytes]);
        }
        if to.write_all(&buffer[..n_bytes]).await.is_err() {
            return;
        }
    }
    // The other side sees the end too, or a failed shutdown because it is gone already.
    to.shutdown().await.ok();
}
