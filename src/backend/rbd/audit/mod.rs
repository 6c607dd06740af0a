//! `ceph-rbd-csi audit`: what has no counterpart in the pools of a cluster, and its repair. A look first, always.

mod finding;
mod images;
mod index;
mod inventory;
mod judge;
mod look;
mod names;
mod node;
mod repair;
mod report;

use crate::backend::Staging;
use crate::cluster::Listed;
use crate::error::{Result, chain};
use crate::id::{Pool, VolumeId};

use crate::backend::rbd::Rbd;
use crate::backend::rbd::cli::Cli;
use crate::backend::rbd::pool::index::index_object;

use finding::{Finding, Kind, Remedy};
use inventory::Inventory;
use judge::Judge;
use report::{Audited, Outcome};

pub(crate) use report::Report;

/// What was asked for.
pub(crate) struct Audit {
    pub(crate) rbd: Rbd,
    pub(crate) place: Listed,
    /// The handles of all volumes that somebody has. None: nobody says.
    pub(crate) handles: Option<Vec<String>>,
    pub(crate) repair: bool,
    /// With `repair`: nothing is changed.
    pub(crate) dry: bool,
    /// Reads the staging folders of this node. None: the node is not looked at.
    pub(crate) stagings: Option<Box<dyn Fn() -> Vec<Staging>>>,
}

impl Audit {
    pub(crate) async fn go(&self) -> Result<Report> {
        let access = &self.place.access;
        let cli = self.rbd.cli(access);
        let mut pools = Vec::new();
        for pool in &self.place.pools {
            let found = self.look(&cli, pool).await?;
            pools.push(Audited { pool: pool.clone(), found: self.act(&cli, pool, found).await });
        }
        let node = match &self.stagings {
            Some(stagings) => Some(self.rbd.audit_of_node(stagings).await?),
            None => None,
        };
        let node = node.map(|found| found.into_iter().map(|one| (one, Outcome::Seen)).collect());
        let (cluster, namespace) = (access.cluster.clone(), access.namespace.clone());
        Ok(Report { cluster, namespace, repair: self.repair, pools, node })
    }

    async fn look(&self, cli: &Cli<'_>, pool: &str) -> Result<Vec<Finding>> {
        let held = Inventory::take(&self.rbd, cli, pool).await?;
        let mut found = Judge { rbd: &self.rbd, cli, held: &held }.all().await?;
        found.extend(self.unnamed(cli, &held).await?);
        // What a request has taken away meanwhile was none.
        let keys = cli.omap_keys(pool, &index_object(&self.rbd.instance)).await?;
        found.retain(|finding| match &finding.remedy {
            Remedy::ForgetKey(key) => keys.contains(key),
            Remedy::WriteKey(key) => !keys.contains(key),
            _ => true,
        });
        Ok(found)
    }

    async fn act(&self, cli: &Cli<'_>, pool: &str, found: Vec<Finding>) -> Vec<(Finding, Outcome)> {
        let mut acted = Vec::new();
        for finding in found {
            let outcome = if self.repair && !self.dry {
                match self.rbd.mend(cli, pool, &finding).await {
                    Ok(true) => Outcome::Repaired,
                    Ok(false) => Outcome::Seen,
                    Err(error) => Outcome::Failed(chain(&error)),
                }
            } else {
                Outcome::Seen
            };
            acted.push((finding, outcome));
        }
        acted
    }

    /// Volumes that no handle names. Whose they are only the one who has made them knows.
    async fn unnamed(&self, cli: &Cli<'_>, held: &Inventory) -> Result<Vec<Finding>> {
        let Some(handles) = &self.handles else { return Ok(Vec::new()) };
        let number = self.rbd.pools.id(cli, &held.pool).await?;
        let here = |pool: &Pool| match pool {
            Pool::Id(id) => cli.access.pool_number(*id) == number,
            Pool::Name(name) => *name == held.pool,
        };
        let ids: Vec<VolumeId> = handles.iter().filter_map(|handle| VolumeId::parse(handle).ok()).collect();
        let uuids: Vec<_> = ids.iter().filter(|id| here(&id.pool)).map(|id| id.uuid).collect();
        let unnamed = held.images.iter().filter(|seen| {
            let named =
                seen.uuid.is_some_and(|uuid| uuids.contains(&uuid)) || handles.contains(&seen.image.name);
            seen.is_volume && seen.state == look::State::Fine && !named
        });
        Ok(unnamed
            .map(|seen| Finding {
                kind: Kind::UnnamedVolume,
                what: seen.image.to_string(),
                since: None,
                why: "none of the volume handles names it".to_owned(),
                remedy: Remedy::Never(
                    "it may be of another cluster of containers: look who has made it".to_owned(),
                ),
            })
            .collect())
    }
}
