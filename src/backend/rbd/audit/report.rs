//! What the audit tells: to people, as JSON, and as metrics for a file of node_exporter. Pure.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::backend::rbd::audit::finding::{Finding, Kind};

#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) cluster: String,
    pub(crate) namespace: String,
    /// Whether `--repair` was given, be it with `--dry-run`.
    pub(crate) repair: bool,
    pub(crate) pools: Vec<Audited>,
    /// None: this node was not looked at.
    pub(crate) node: Option<Vec<(Finding, Outcome)>>,
}

/// One pool.
#[derive(Debug)]
pub(crate) struct Audited {
    pub(crate) pool: String,
    pub(crate) found: Vec<(Finding, Outcome)>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Nothing was changed.
    Seen,
    Repaired,
    Failed(String),
}

impl Report {
    /// Whether nothing is left to be done.
    pub(crate) fn is_clean(&self) -> bool {
        self.all().all(|(_, outcome)| *outcome == Outcome::Repaired)
    }

    pub(crate) fn json(&self) -> String {
        let pool = |audited: &Audited| json!({ "pool": audited.pool, "found": told(&audited.found) });
        let report = json!({
            "cluster": self.cluster,
            "namespace": self.namespace,
            "clean": self.is_clean(),
            "pools": self.pools.iter().map(pool).collect::<Vec<_>>(),
            "node": self.node.as_deref().map(told),
        });
        format!("{report:#}\n")
    }

    /// In the text format of Prometheus. What was repaired is found no more.
    pub(crate) fn metrics(&self) -> String {
        let name = "ceph_rbd_csi_audit_found";
        let head = format!(
            "# HELP {name} Things without a counterpart that the last audit left\n# TYPE {name} gauge\n"
        );
        let node = self.node.as_ref().map(|found| ("", found));
        let parts = self.pools.iter().map(|one| (one.pool.as_str(), &one.found)).chain(node);
        let counts =
            parts.flat_map(|(pool, found)| Kind::ALL.map(|kind| self.metric(name, pool, kind, found)));
        let (name, now) = ("ceph_rbd_csi_audit_time_seconds", SystemTime::now().duration_since(UNIX_EPOCH));
        let now = now.unwrap_or_default().as_secs();
        let tail = format!("# HELP {name} When that was\n# TYPE {name} gauge\n{name} {now}\n");
        [head].into_iter().chain(counts).chain([tail]).collect()
    }

    fn metric(&self, name: &str, pool: &str, kind: Kind, found: &[(Finding, Outcome)]) -> String {
        let left = found.iter().filter(|(one, outcome)| one.kind == kind && *outcome != Outcome::Repaired);
        let labels = [
            ("cluster", self.cluster.as_str()),
            ("pool", pool),
            ("namespace", &self.namespace),
            ("kind", kind.name()),
        ];
        let labels = labels.map(|(label, value)| format!("{label}={value:?}")).join(",");
        format!("{name}{{{labels}}} {}\n", left.count())
    }

    fn all(&self) -> impl Iterator<Item = &(Finding, Outcome)> {
        self.pools.iter().map(|pool| &pool.found).chain(&self.node).flatten()
    }
}

fn told(found: &[(Finding, Outcome)]) -> Value {
    let told = |(finding, outcome): &(Finding, Outcome)| {
        let mut value = json!({
            "kind": finding.kind.name(),
            "what": finding.what,
            "since": finding.since.map(time),
            "why": finding.why,
            "repairable": !finding.remedy.is_never(),
            "repair": finding.remedy.to_string(),
            "repaired": *outcome == Outcome::Repaired,
        });
        if let Outcome::Failed(why) = outcome {
            value["failed"] = json!(why);
        }
        value
    };
    found.iter().map(told).collect()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (finding, outcome) in self.all() {
            let Finding { kind, what, since, why, remedy } = finding;
            let since = since.map(|since| format!(", since {}", time(since))).unwrap_or_default();
            writeln!(f, "{} {what}{since}: {why}", kind.name())?;
            match outcome {
                Outcome::Seen => writeln!(f, "    repair: {remedy}")?,
                Outcome::Repaired => writeln!(f, "    repaired: {remedy}")?,
                Outcome::Failed(error) => writeln!(f, "    failed: {remedy}: {error}")?,
            }
        }
        let count = |is: &dyn Fn(&Finding, &Outcome) -> bool| {
            self.all().filter(|(finding, outcome)| is(finding, outcome)).count()
        };
        let repaired = count(&|_, outcome| *outcome == Outcome::Repaired);
        let left = count(&|finding, outcome| *outcome == Outcome::Seen && !finding.remedy.is_never());
        let never = count(&|finding, _| finding.remedy.is_never());
        let failed = count(&|_, outcome| matches!(outcome, Outcome::Failed(_)));
        let hint = if left > 0 && !self.repair { " (--repair)" } else { "" };
        writeln!(
            f,
            "{}: {} found: {repaired} repaired, {left} to be repaired{hint}, {failed} failed, {never} left to you",
            self.cluster,
            self.all().count()
        )
    }
}

fn time(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time).to_string()
}
