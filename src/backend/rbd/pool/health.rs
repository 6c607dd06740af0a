//! What is wrong with an image or its pool, as the cluster tells the controller. What a node sees is in `kernel`.

use std::time::Duration;

use crate::backend::{Ailment, Image, Severity};
use crate::error::chain;

use crate::backend::rbd::Rbd;
use crate::backend::rbd::cli::Cli;
use crate::backend::rbd::pool::stats::Pool;

/// How old the cluster's word may be.
const FRESH: Duration = Duration::from_secs(60);

/// Health checks of Ceph that name placement groups.
const CHECKS: &[(&str, Severity, &str)] = &[
    ("PG_AVAILABILITY", Severity::Inaccessible, "PlacementGroupsInactive"),
    ("OBJECT_UNFOUND", Severity::Inaccessible, "ObjectsUnfound"),
    ("PG_DAMAGED", Severity::Degraded, "PlacementGroupsDamaged"),
];

impl Rbd {
    /// A cluster that does not tell is no ailment of a volume: what looks for the volume itself fails by then.
    pub(crate) async fn pool_health(&self, cli: &Cli<'_>, name: &str) -> Vec<Ailment> {
        match self.reports.get(cli, FRESH).await {
            Ok(report) => report.pool(name).map(|(_, pool)| ailments(pool)).unwrap_or_default(),
            Err(error) => {
                tracing::warn!(pool = name, "its health is not known: {}", chain(&error));
                Vec::new()
            }
        }
    }
}

/// An image that has a name and no more.
pub(crate) fn unreadable(image: &Image) -> Ailment {
    let message = format!(
        "image {image} is in the directory of its pool and cannot be opened: a command that made or deleted it was \
         killed half-way (repeat CreateVolume or DeleteVolume), or its header is lost"
    );
    Ailment { severity: Severity::Inaccessible, reason: "ImageUnreadable", message }
}

/// Whether requests to a pool that is so ill may never be answered.
pub(crate) fn may_hang(ailments: &[Ailment]) -> bool {
    ailments.iter().any(|ailment| ailment.severity == Severity::Inaccessible)
}

/// Why a pool takes no writes, or soon will not: Ceph's flags of a pool.
pub(crate) fn full(pool: &str, full: bool, quota: bool, nearly: bool) -> Option<Ailment> {
    let (severity, reason, what) = match (quota, full, nearly) {
        (true, _, _) => (
            Severity::Inaccessible,
            "PoolQuotaReached",
            "has reached its quota, and writes to it wait: raise the quota (ceph osd pool set-quota) or delete volumes",
        ),
        (_, true, _) => (
            Severity::Inaccessible,
            "PoolFull",
            "is full, and writes to it wait: add disks or delete volumes",
        ),
        (_, _, true) => (
            Severity::Degraded,
            "PoolNearlyFull",
            "is nearly full: add disks or delete volumes before writes to it wait",
        ),
        _ => return None,
    };
    Some(Ailment { severity, reason, message: format!("pool {pool:?} {what}") })
}

fn ailments(pool: &Pool) -> Vec<Ailment> {
    let flag = |name: &str| pool.flags.iter().any(|flag| flag == name);
    let mut found: Vec<_> =
        full(&pool.name, flag("full"), flag("full_quota"), flag("nearfull")).into_iter().collect();
    for (check, severity, reason) in CHECKS {
        let mut lines = pool.sick.iter().filter(|(name, _)| name == check).map(|(_, line)| line);
        let Some(first) = lines.next() else { continue };
        let more = lines.count();
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        let message = format!("pool {:?}: {first}{more}: look at `ceph health detail`", pool.name);
        found.push(Ailment { severity: *severity, reason, message });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reasons(flags: &[&str], sick: &[(&str, &str)]) -> Vec<(&'static str, String)> {
        let sick = sick.iter().map(|(check, line)| ((*check).to_owned(), (*line).to_owned())).collect();
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let found = ailments(&Pool { name: "p".to_owned(), flags, sick, ..Pool::default() });
        found.into_iter().map(|ailment| (ailment.reason, ailment.message)).collect()
    }

    #[test]
    fn the_flags_of_a_pool_are_read() {
        let first = |flags: &[&str]| reasons(flags, &[]).first().map(|(reason, _)| *reason);
        assert_eq!(first(&["hashpspool"]), None);
        assert_eq!(first(&["full", "full_quota"]), Some("PoolQuotaReached"));
        assert_eq!(first(&["full"]), Some("PoolFull"));
        assert_eq!(first(&["nearfull"]), Some("PoolNearlyFull"));
    }

    #[test]
    fn sick_placement_groups_are_counted() {
        let told = reasons(
            &[],
            &[
                ("PG_AVAILABILITY", "pg 1.7 is stuck inactive"),
                ("PG_AVAILABILITY", "pg 1.8 is down"),
                ("PG_DEGRADED", "pg 1.2 is undersized"),
            ],
        );
        assert_eq!(told.len(), 1, "{told:?}");
        assert_eq!(told[0].0, "PlacementGroupsInactive");
        assert!(told[0].1.contains("pg 1.7 is stuck inactive and 1 more"), "{told:?}");
    }
}
