//! GetCapacity: the room that a pool has left, by its disks and by its quota.

use std::time::Duration;

use crate::backend::{Capacity, CapacityQuery};
use crate::cluster::{Access, Secrets};
use crate::error::{Error, Result};

use crate::backend::rbd::params::Plan;
use crate::backend::rbd::pool::stats::{Pool, absent};
use crate::backend::rbd::{DEFAULT_OBJECT_SIZE, GRANULE, MAX_OBJECTS, Rbd};

/// The provisioner asks for each StorageClass in turn, once a minute.
const FRESH: Duration = Duration::from_secs(10);

impl Rbd {
    /// Images are made thin, so larger ones than there is room for can be made. `maximum` is no larger than the room all
    /// the same: the Kubernetes scheduler compares a claim with it alone, and would find room for anything.
    pub(crate) async fn free_capacity(&self, query: &CapacityQuery) -> Result<Capacity> {
        let (available, object_size, header) = if query.parameters.is_empty() {
            (self.room_of_any().await?, DEFAULT_OBJECT_SIZE, 0)
        } else {
            let plan = Plan::of(&query.parameters, "")?;
            let size = plan.object_size.unwrap_or(DEFAULT_OBJECT_SIZE);
            match self.pool_for(&query.parameters, query.place.as_ref())? {
                Some((pool, data_pool)) => {
                    let room = self.room_of(&plan, data_pool.as_ref().unwrap_or(&pool), size).await?;
                    (room, size, plan.header())
                }
                // No pool is reached from there.
                None => (0, size, 0),
            }
        };
        let most = available.min(object_size.saturating_mul(MAX_OBJECTS)).saturating_sub(header);
        Ok(Capacity { available, maximum: most / GRANULE * GRANULE, minimum: GRANULE })
    }

    /// Data goes to the data pool, where there is one.
    async fn room_of(&self, plan: &Plan, pool: &str, object_size: u64) -> Result<u64> {
        let access = self.clusters.access_if_any(&plan.cluster, &Secrets::default())?.ok_or_else(|| {
            Error::Precondition(format!(
                "cluster {:?} has no rbd.credential in the cluster configuration, and GetCapacity brings no secrets: add it",
                plan.cluster
            ))
        })?;
        self.room(&access, pool, object_size).await
    }

    /// Of no StorageClass: the most that any listed pool has. A volume lies in one pool, and pools share their disks, so
    /// that a sum would promise the same room more than once.
    async fn room_of_any(&self) -> Result<u64> {
        let mut most = 0;
        for cluster in self.clusters.listed()? {
            for pool in &cluster.pools {
                most = most.max(self.room(&cluster.access, pool, DEFAULT_OBJECT_SIZE).await?);
            }
        }
        Ok(most)
    }

    async fn room(&self, access: &Access, pool: &str, object_size: u64) -> Result<u64> {
        let report = self.reports.get(&self.cli(access), FRESH).await?;
        let (_, pool) = report.pool(pool).ok_or_else(|| absent(pool, &access.cluster, &report))?;
        Ok(left(pool, object_size))
    }
}

/// `max_avail` knows nothing of quotas (seen).
fn left(pool: &Pool, object_size: u64) -> u64 {
    let under = |quota: u64, used: u64| (quota > 0).then(|| quota.saturating_sub(used));
    let by_bytes = under(pool.quota_bytes, pool.stored);
    let by_objects =
        under(pool.quota_objects, pool.objects).map(|objects| objects.saturating_mul(object_size));
    [by_bytes, by_objects].into_iter().flatten().fold(pool.max_avail, u64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_leaves_what_is_not_stored_yet() {
        let pool = |quota_bytes, quota_objects| Pool {
            max_avail: 1000,
            stored: 300,
            objects: 4,
            quota_bytes,
            quota_objects,
            ..Pool::default()
        };
        for (bytes, objects, expected) in [
            (0, 0, 1000),
            (700, 0, 400),
            (5000, 0, 1000),
            (200, 0, 0),
            (0, 6, 20),
            (700, 100, 400),
            (0, 3, 0),
        ] {
            assert_eq!(left(&pool(bytes, objects), 10), expected, "{bytes} {objects}");
        }
    }
}
