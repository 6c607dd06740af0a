//! One question to the Kubernetes API: one object. A client library of Kubernetes would be larger than the rest of the
//! driver.

use std::fs;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use ureq::http::Response;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body};

use crate::config::Kubernetes;
use crate::error::{Error, Result, chain};

const DEADLINE: Duration = Duration::from_secs(10);
/// A Node object with all its images, from an API that does not answer in part.
const LARGEST: u64 = 8 << 20;

/// Which object is asked for, and what to say where it is not to be had.
pub(crate) struct Object {
    /// `Node "a"`
    pub(crate) what: String,
    /// Below `/api/v1/`.
    pub(crate) path: String,
    /// The media type.
    pub(crate) accept: &'static str,
    /// What the service account needs to read it.
    pub(crate) needs: String,
    /// What it means that there is none.
    pub(crate) absent: String,
}

/// What the API answers when it refuses.
#[derive(Default, Deserialize)]
struct Refusal {
    #[serde(default)]
    message: String,
}

/// Blocks, no longer than the deadline. Each failure may pass by itself or be mended.
pub(crate) fn get<T: DeserializeOwned>(kubernetes: &Kubernetes, object: &Object) -> Result<T> {
    let host = &kubernetes.host;
    let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
    let url = format!("https://{host}:{}/api/v1/{}", kubernetes.port, object.path);
    let token = file(kubernetes, "token")?;
    let answer = agent(kubernetes)?
        .get(&url)
        .header("Authorization", format!("Bearer {}", token.trim()))
        .header("Accept", object.accept)
        .call();
    let mut answer = answer.map_err(|error| unreachable(&url, kubernetes, &error))?;
    if answer.status().as_u16() != 200 {
        return Err(refused(&mut answer, object, kubernetes));
    }
    body(&mut answer).map_err(|what| {
        Error::Precondition(format!("{url}: the answer is not what this driver knows: {what}"))
    })
}

/// Whether it is the name of an object, which may stand in a path.
pub(crate) fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    !name.is_empty() && name.bytes().all(plain)
}

/// It trusts the cluster's own authority and no other, and goes there itself, whatever proxy the environment names.
fn agent(kubernetes: &Kubernetes) -> Result<Agent> {
    let authorities = authorities(kubernetes)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = TlsConfig::builder()
        .root_certs(RootCerts::Specific(Arc::new(authorities)))
        .unversioned_rustls_crypto_provider(provider)
        .build();
    let config = Agent::config_builder()
        .https_only(true)
        .proxy(None)
        .max_redirects(0)
        .http_status_as_error(false)
        .timeout_global(Some(DEADLINE))
        .user_agent(concat!("ceph-rbd-csi/", env!("CARGO_PKG_VERSION")))
        .tls_config(tls)
        .build();
    Ok(config.new_agent())
}

/// Read anew each time: tokens are replaced every hour.
fn file(kubernetes: &Kubernetes, name: &str) -> Result<String> {
    let path = kubernetes.account.join(name);
    fs::read_to_string(&path).map_err(|error| {
        Error::Precondition(format!(
            "{}: {error}: mount a service account into the pod, or name its folder by --service-account",
            path.display()
        ))
    })
}

fn authorities(kubernetes: &Kubernetes) -> Result<Vec<Certificate<'static>>> {
    let pem = file(kubernetes, "ca.crt")?;
    let certificate = |item: Result<PemItem<'static>, ureq::Error>| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    };
    Ok(parse_pem(pem.as_bytes()).filter_map(certificate).collect())
}

fn unreachable(url: &str, kubernetes: &Kubernetes, error: &ureq::Error) -> Error {
    let of_tls =
        |error: &io::Error| error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>()).is_some();
    let what = match error {
        ureq::Error::Io(error) if of_tls(error) => format!(
            "the server is not the one that {} vouches for",
            kubernetes.account.join("ca.crt").display()
        ),
        _ => "the Kubernetes API cannot be reached".to_owned(),
    };
    Error::Precondition(format!("{url}: {what}: {}", chain(error)))
}

fn refused(answer: &mut Response<Body>, object: &Object, kubernetes: &Kubernetes) -> Error {
    let status = answer.status();
    let said = body::<Refusal>(answer).unwrap_or_default().message;
    let what = match status.as_u16() {
        401 => format!(
            "the API does not know the token in {}: it is not of this cluster, or has expired",
            kubernetes.account.join("token").display()
        ),
        403 => format!("the service account may not read it: {}", object.needs),
        404 => object.absent.clone(),
        _ => "the API has no answer now".to_owned(),
    };
    Error::Precondition(format!("{}: {what} ({status}: {said})", object.what))
}

/// What is wrong with it is told without what is in it.
fn body<T: DeserializeOwned>(answer: &mut Response<Body>) -> Result<T, String> {
    let text = answer.body_mut().with_config().limit(LARGEST).read_to_vec();
    let text = text.map_err(|error| error.to_string())?;
    serde_json::from_slice(&text).map_err(|error| {
        format!("{:?} at line {}, column {}", error.classify(), error.line(), error.column())
    })
}
