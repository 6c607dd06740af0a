//! Pool ids and names, asked once a minute for each cluster: `rados df` takes 40 ms where `ceph` takes ten times that.

pub(crate) mod capacity;
pub(crate) mod health;
pub(crate) mod index;
pub(crate) mod records;
pub(crate) mod stats;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::id::Pool;

use crate::backend::rbd::cli::Cli;

/// A pool may be renamed, or made anew under its old name and with another id.
const FRESH: Duration = Duration::from_secs(60);

/// Pool names by id.
type Names = BTreeMap<u64, String>;

#[derive(Default)]
pub(crate) struct Pools {
    /// By cluster id.
    known: Mutex<HashMap<String, (Instant, Names)>>,
}

impl Pools {
    pub(crate) async fn id(&self, cli: &Cli<'_>, name: &str) -> Result<u64> {
        let find = |pools: &Names| pools.iter().find(|(_, known)| *known == name).map(|(id, _)| *id);
        if let Some(id) = self.known(cli).as_ref().and_then(find) {
            return Ok(id);
        }
        let pools = self.refresh(cli).await?;
        find(&pools).ok_or_else(|| absent(&format!("{name:?}"), cli, &pools))
    }

    pub(crate) async fn name(&self, cli: &Cli<'_>, pool: &Pool) -> Result<String> {
        let id = match pool {
            Pool::Name(name) => return Ok(name.clone()),
            Pool::Id(id) => cli.access.pool_number(*id),
        };
        if let Some(name) = self.known(cli).and_then(|pools| pools.get(&id).cloned()) {
            return Ok(name);
        }
        let pools = self.refresh(cli).await?;
        pools.get(&id).cloned().ok_or_else(|| absent(&format!("number {id}"), cli, &pools))
    }

    pub(crate) async fn names(&self, cli: &Cli<'_>) -> Result<Vec<String>> {
        Ok(self.refresh(cli).await?.into_values().collect())
    }

    /// Whether the cluster says, now, that the pool still has this name, and the namespace: without that, "not there" proves nothing.
    pub(crate) async fn prove(&self, cli: &Cli<'_>, pool: &Pool, name: &str) -> Result<()> {
        let pools = self.refresh(cli).await?;
        let same = match pool {
            Pool::Name(name) => pools.values().any(|known| known == name),
            Pool::Id(id) => pools.get(&cli.access.pool_number(*id)).is_some_and(|known| known == name),
        };
        if !same {
            return Err(absent(&format!("{name:?} ({pool:?})"), cli, &pools));
        }
        let namespace = &cli.access.namespace;
        if namespace.is_empty() || cli.namespaces(name).await?.contains(namespace) {
            return Ok(());
        }
        Err(Error::Precondition(format!(
            "namespace {namespace:?} is not in pool {name:?}: mend radosNamespace of cluster {:?}, or create it (rbd namespace create)",
            cli.access.cluster
        )))
    }

    async fn refresh(&self, cli: &Cli<'_>) -> Result<Names> {
        let pools = cli.pools().await?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(cli.access.cluster.clone(), (Instant::now(), pools.clone()));
        Ok(pools)
    }

    fn known(&self, cli: &Cli<'_>) -> Option<Names> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, pools) = known.get(&cli.access.cluster)?;
        (since.elapsed() < FRESH).then(|| pools.clone())
    }
}

/// Not `Invalid`: the pool may be made at any time, and the sidecars slow down for what they take for infeasible.
fn absent(pool: &str, cli: &Cli<'_>, pools: &Names) -> Error {
    let names: Vec<&String> = pools.values().collect();
    Error::Precondition(format!(
        "pool {pool} is not in cluster {:?}, whose managers report {names:?} (a new pool within seconds): create it \
         (ceph osd pool create, rbd pool init) or mend the StorageClass",
        cli.access.cluster
    ))
}
