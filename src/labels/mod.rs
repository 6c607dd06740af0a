//! Labels of this node: given on the command line, or read once from its Node object. Until the Kubernetes API answers it
//! is asked again, and everything but what needs the labels works: pods are mounted and unmounted without it.

mod api;

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::watch;

use crate::config::{Kubernetes, Label};
use crate::error::{Error, Result};

/// Between two tries, doubled each time.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Values by key.
type Labels = BTreeMap<String, String>;

/// The labels that one flag asks for.
#[derive(Clone)]
pub(crate) struct NodeLabels {
    /// What the last try answered; None before the first one has come to its end.
    read: watch::Receiver<Option<Result<Labels>>>,
}

impl NodeLabels {
    /// The labels, and the work that reads them, which ends when it has.
    pub(crate) fn read(
        wanted: Vec<Label>,
        node: String,
        kubernetes: Kubernetes,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (told, read) = watch::channel(None);
        (Self { read }, reading(wanted, node, kubernetes, told))
    }

    /// All of them. Waits for the first try at most: whoever needs them asks again.
    pub(crate) async fn values(&self) -> Result<Labels> {
        let mut read = self.read.clone();
        let known = read.wait_for(Option::is_some).await.ok().and_then(|known| known.clone());
        known.unwrap_or_else(|| Err(Error::Precondition("the driver is shutting down".to_owned())))
    }
}

async fn reading(
    wanted: Vec<Label>,
    node: String,
    kubernetes: Kubernetes,
    told: watch::Sender<Option<Result<Labels>>>,
) {
    let mut wait = FIRST_WAIT;
    loop {
        let tried = complete(&wanted, &node, &kubernetes).await;
        let failed = tried.as_ref().err().map(ToString::to_string);
        told.send_replace(Some(tried));
        let Some(error) = failed else { return };
        let again = humantime::format_duration(wait);
        tracing::warn!("the labels of node {node:?} are not known yet: {error}; next try in {again}");
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(LONGEST_WAIT);
    }
}

/// Given values, and of the Node object what is missing.
async fn complete(wanted: &[Label], node: &str, kubernetes: &Kubernetes) -> Result<Labels> {
    if wanted.iter().all(|label| label.value.is_some()) {
        return choose(wanted, node, &Labels::new());
    }
    let asked = (node.to_owned(), kubernetes.clone());
    // A client that blocks, for one request in the life of the process; its deadline is its own.
    let there = tokio::task::spawn_blocking(move || api::labels(&asked.0, &asked.1)).await;
    let there = there.map_err(|error| Error::internal("reading the Node object", error))??;
    let labels = choose(wanted, node, &there)?;
    tracing::info!(?labels, "the labels of node {node:?} are read");
    Ok(labels)
}

fn choose(wanted: &[Label], node: &str, there: &Labels) -> Result<Labels> {
    let value = |label: &Label| label.value.clone().or_else(|| there.get(&label.key).cloned());
    let one = |label: &Label| {
        let keys: Vec<&String> = there.keys().collect();
        let value = value(label).filter(|value| !value.is_empty()).ok_or_else(|| {
            Error::Precondition(format!(
                "node {node:?} has no label {:?} (or an empty one), it has {keys:?}: label it (kubectl label node), or name another one",
                label.key
            ))
        })?;
        Ok((label.key.clone(), value))
    };
    wanted.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(key: &str, value: Option<&str>) -> Label {
        Label { key: key.to_owned(), value: value.map(str::to_owned) }
    }

    fn check(wanted: &[Label], there: &[(&str, &str)]) -> Result<Labels> {
        let there = there.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        choose(wanted, "n", &there)
    }

    #[test]
    fn a_given_value_counts_and_others_are_looked_up() {
        let labels = [wanted("rack", Some("r1")), wanted("k8s.io/zone", None)];
        let found = check(&labels, &[("rack", "r2"), ("k8s.io/zone", "a"), ("more", "m")]).expect("both");
        let expected = [("rack", "r1"), ("k8s.io/zone", "a")];
        assert_eq!(found, expected.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
    }

    #[test]
    fn a_label_that_the_node_lacks_is_named_with_those_that_it_has() {
        for there in [&[("k8s.io/hostname", "n")][..], &[("k8s.io/hostname", "n"), ("zone", "")]] {
            let error = check(&[wanted("zone", None)], there).expect_err("no zone").to_string();
            assert!(error.contains("no label \"zone\"") && error.contains("k8s.io/hostname"), "{error}");
        }
    }

    #[tokio::test]
    async fn labels_with_values_need_no_kubernetes() {
        let nowhere = Kubernetes { host: String::new(), port: 0, account: "/nowhere".into() };
        let (labels, reading) = NodeLabels::read(vec![wanted("zone", Some("a"))], "n".to_owned(), nowhere);
        reading.await;
        assert_eq!(labels.values().await.expect("given"), [("zone".to_owned(), "a".to_owned())].into());
    }
}
