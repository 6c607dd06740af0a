//! Where the service listens, as ceph-csi spells it. Pure.

use std::path::PathBuf;

/// Where the service listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Unix(PathBuf),
    Tcp(String),
}

impl Endpoint {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if let Some(address) = text.strip_prefix("tcp://") {
            return Ok(Self::Tcp(address.to_owned()));
        }
        let path = text.strip_prefix("unix://").or_else(|| text.strip_prefix("unix:")).unwrap_or(text);
        if !path.starts_with('/') {
            return Err(format!("--endpoint={text}: use unix:///path, unix:/path, /path or tcp://host:port"));
        }
        Ok(Self::Unix(path.into()))
    }

    /// As a client dials it.
    pub(crate) fn uri(&self) -> String {
        match self {
            Self::Unix(path) => format!("unix://{}", path.display()),
            Self::Tcp(address) => format!("http://{address}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_has_four_spellings() {
        let unix = Ok(Endpoint::Unix("/a/b".into()));
        assert_eq!(
            [Endpoint::parse("unix:///a/b"), Endpoint::parse("unix:/a/b"), Endpoint::parse("/a/b")],
            [unix.clone(), unix.clone(), unix]
        );
        assert_eq!(Endpoint::parse("tcp://[::1]:1"), Ok(Endpoint::Tcp("[::1]:1".to_owned())));
        assert!(Endpoint::parse("a/b").is_err());
    }
}
