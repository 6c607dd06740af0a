//! A Kubernetes API: a TLS server with an authority of its own that answers what a test wants.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, Stream};

use crate::common::tools::try_run;
use crate::harness::{Scene, Start};

pub(crate) const TOKEN: &str = "eyJhbGciOiJSUzI1NiJ9.of-a-test";

/// What is answered, and the heads of the requests that came.
#[derive(Default)]
struct Talk {
    answer: String,
    heads: Vec<String>,
}

pub(crate) struct Api {
    talk: Arc<Mutex<Talk>>,
    pub(crate) port: u16,
}

impl Api {
    /// With the certificate in this folder.
    pub(crate) fn start(folder: &Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let (talk, config) = (Arc::new(Mutex::new(Talk::default())), Arc::new(tls(folder)));
        let shared = talk.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A client that does not trust us goes away in the midst.
                let _ = serve(stream, &config, &shared);
            }
        });
        Self { talk, port }
    }

    pub(crate) fn answers(&self, status: &str, body: &str) {
        let length = body.len();
        let answer = format!(
            "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        );
        self.talk.lock().expect("the talk").answer = answer;
    }

    pub(crate) fn heads(&self) -> Vec<String> {
        self.talk.lock().expect("the talk").heads.clone()
    }
}

fn tls(folder: &Path) -> ServerConfig {
    let certificate = CertificateDer::from_pem_file(folder.join("server.crt")).expect("a certificate");
    let key = PrivateKeyDer::from_pem_file(folder.join("server.key")).expect("a key");
    ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .expect("a certificate with its key")
}

fn serve(mut stream: TcpStream, config: &Arc<ServerConfig>, talk: &Mutex<Talk>) -> std::io::Result<()> {
    let mut connection = ServerConnection::new(config.clone()).map_err(std::io::Error::other)?;
    let mut stream = Stream::new(&mut connection, &mut stream);
    let (mut head, mut buffer) = (Vec::new(), [0; 4096]);
    while !head.ends_with(b"\r\n\r\n") {
        let length = stream.read(&mut buffer)?;
        if length == 0 {
            return Ok(());
        }
        head.extend_from_slice(&buffer[..length]);
    }
    let answer = {
        let mut talk = talk.lock().expect("the talk");
        talk.heads.push(String::from_utf8_lossy(&head).into_owned());
        talk.answer.clone()
    };
    stream.write_all(answer.as_bytes())?;
    stream.conn.send_close_notify();
    stream.flush()
}

/// An authority and a server's certificate of it.
pub(crate) fn authority(folder: &Path) {
    fs::create_dir_all(folder).expect("a folder");
    let openssl = |args: &str| {
        let run = try_run(Command::new("openssl").args(args.split(' ')).current_dir(folder));
        run.unwrap_or_else(|error| panic!("{error}"));
    };
    fs::write(folder.join("san"), "subjectAltName=IP:127.0.0.1\n").expect("an extension");
    openssl(
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -out ca.crt -days 2 -subj /CN=ca",
    );
    openssl(
        "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout server.key -out server.csr -subj /CN=api",
    );
    openssl(
        "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile san -out server.crt",
    );
}

/// A service account's folder with this authority's certificate.
pub(crate) fn account(scene: &Scene, authority: &Path) -> PathBuf {
    let folder = scene.path("account");
    fs::create_dir_all(&folder).expect("a folder");
    fs::copy(authority.join("ca.crt"), folder.join("ca.crt")).expect("its certificate");
    fs::write(folder.join("token"), format!("{TOKEN}\n")).expect("a token");
    folder
}

impl Start {
    /// That asks the API on this port, as this account.
    pub(crate) fn asking(self, account: &Path, port: u16) -> Self {
        self.flag(&format!("--service-account={}", account.display()))
            .flag("--kubernetes-service-host=127.0.0.1")
            .flag(&format!("--kubernetes-service-port={port}"))
    }
}
