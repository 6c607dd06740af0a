//! `--domainlabels` and flags like it: names of labels of the Node object, each with its value where it is given. Pure.

use std::path::PathBuf;

use super::{Flags, Type};

/// A name and a value are at most so long (Kubernetes, "Labels and Selectors").
const LONGEST: usize = 63;
const LONGEST_PREFIX: usize = 253;

/// `topology.<driver>` in front of each label is at most 63 characters (CSI specification, Topology).
const LONGEST_DOMAIN_DRIVER: usize = 54;

/// A label of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Label {
    /// `[prefix/]name`
    pub(crate) key: String,
    /// None: as the Node object has it.
    pub(crate) value: Option<String>,
}

impl Label {
    /// The last part of the key: ceph-csi's name of a domain.
    pub(crate) fn name(&self) -> &str {
        self.key.rsplit('/').next().unwrap_or_default()
    }
}

/// How a pod reaches the Kubernetes API.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Kubernetes {
    /// Empty outside of a pod.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// The folder with `token` and `ca.crt`.
    pub(crate) account: PathBuf,
}

impl Flags {
    /// Checked here, so that a mistake is told at once and not when the first volume comes.
    pub(super) fn domain_labels(&self, driver: &str, node: bool) -> Result<Vec<Label>, String> {
        let labels = parse("--domainlabels", &self.domainlabels)?;
        let read = labels.iter().find(|label| label.value.is_none());
        match read {
            _ if labels.is_empty() => {}
            _ if self.kind == Type::Local => {
                return Err(
                    "--domainlabels: with --type=local a volume is reached from its node alone".to_owned()
                );
            }
            _ if driver.len() > LONGEST_DOMAIN_DRIVER => {
                return Err(format!(
                    "--drivername={driver}: with --domainlabels at most {LONGEST_DOMAIN_DRIVER} characters"
                ));
            }
            Some(label) if node && self.kubernetes_service_host.is_empty() => {
                return Err(without_kubernetes("--domainlabels", &self.domainlabels, label));
            }
            _ => {}
        }
        Ok(labels)
    }

    pub(super) fn crush_labels(&self, node: bool) -> Result<Vec<Label>, String> {
        let (flag, text) = ("--crush-location-labels", &self.crush_location_labels);
        let labels = parse(flag, text)?;
        let read = labels.iter().find(|label| label.value.is_none());
        match read {
            Some(label) if node && self.enable_read_affinity && self.kubernetes_service_host.is_empty() => {
                Err(without_kubernetes(flag, text, label))
            }
            _ => Ok(labels),
        }
    }

    pub(super) fn kubernetes(&self) -> Kubernetes {
        Kubernetes {
            host: self.kubernetes_service_host.clone(),
            port: self.kubernetes_service_port,
            account: self.service_account.clone(),
        }
    }
}

fn without_kubernetes(flag: &str, text: &str, label: &Label) -> String {
    format!(
        "{flag}={text}: outside of Kubernetes (KUBERNETES_SERVICE_HOST is not set) give each label its value: {}=…",
        label.key
    )
}

/// `zone,topology.kubernetes.io/region=r1`: empty is none, as charts render it.
fn parse(flag: &str, text: &str) -> Result<Vec<Label>, String> {
    let mut labels: Vec<Label> = Vec::new();
    for part in text.split(',').map(str::trim).filter(|_| !text.trim().is_empty()) {
        let label = one(part).map_err(|what| format!("{flag}={text}: {what}"))?;
        if let Some(other) = labels.iter().find(|other| other.name() == label.name()) {
            let (key, other) = (&label.key, &other.key);
            return Err(format!("{flag}={text}: {other:?} and {key:?} end alike: give one of them"));
        }
        labels.push(label);
    }
    Ok(labels)
}

fn one(text: &str) -> Result<Label, String> {
    let (key, value) = text.split_once('=').map_or((text, None), |(key, value)| (key, Some(value)));
    let (prefix, name) = key.rsplit_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    if !is_plain(name, LONGEST) || prefix.is_some_and(|prefix| !is_plain(prefix, LONGEST_PREFIX)) {
        return Err(format!(
            "{key:?} is not the name of a label: [prefix/]name of letters, digits, '-', '_' and '.', at most {LONGEST} in the name"
        ));
    }
    if value.is_some_and(|value| !is_plain(value, LONGEST)) {
        return Err(format!(
            "{text:?}: the value of a label is 1 to {LONGEST} letters, digits, '-', '_' and '.'"
        ));
    }
    Ok(Label { key: key.to_owned(), value: value.map(str::to_owned) })
}

fn is_plain(text: &str, longest: usize) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let ends = |end: Option<&u8>| end.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= longest && ends(bytes.first()) && ends(bytes.last()) && text.bytes().all(inner)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(text: &str) -> Result<Vec<(String, String, Option<String>)>, String> {
        let told = |label: Label| (label.name().to_owned(), label.key.clone(), label.value);
        Ok(parse("--domainlabels", text)?.into_iter().map(told).collect())
    }

    #[test]
    fn labels_are_named_and_may_bring_their_value() {
        let label = |name: &str, key: &str, value: Option<&str>| {
            (name.to_owned(), key.to_owned(), value.map(str::to_owned))
        };
        let expected = vec![
            label("region", "failure-domain/region", None),
            label("zone", "topology.kubernetes.io/zone", Some("a")),
            label("rack", "rack", Some("r_1")),
        ];
        assert_eq!(
            check("failure-domain/region, topology.kubernetes.io/zone=a,rack=r_1").as_ref(),
            Ok(&expected)
        );
        assert_eq!(check(""), Ok(vec![]));
        assert_eq!(check(" "), Ok(vec![]));
    }

    #[test]
    fn what_is_no_label_is_refused_with_its_name() {
        for (text, said) in [
            ("zone,", "\"\""),
            ("a//zone", "\"a//zone\""),
            ("zone=", "\"zone=\""),
            ("-zone", "\"-zone\""),
            ("zo ne", "\"zo ne\""),
            ("zone=a b", "a b"),
            ("old/zone,new/zone", "\"old/zone\" and \"new/zone\""),
            ("zone,zone", "\"zone\""),
        ] {
            let error = check(text).expect_err(text);
            assert!(error.contains(said) && error.contains("--domainlabels"), "{error}");
        }
        assert!(check(&"z".repeat(LONGEST + 1)).is_err());
    }

    proptest! {
        #[test]
        fn any_labels_are_read_or_refused(text in "[a-z0-9/=,._ -]{0,60}|\\PC{0,60}") {
            for label in parse("--domainlabels", &text).unwrap_or_default() {
                prop_assert!(!label.key.starts_with('-') && !label.name().contains('/'), "{}", label.key);
            }
        }
    }
}
