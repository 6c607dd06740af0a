//! ListVolumes, from the names of images alone: two processes for each pool, whatever is in it.

use uuid::Uuid;

use crate::backend::{Ailment, Image, Listing, Page, Parameters, Volume, VolumeState};
use crate::cluster::Access;
use crate::error::Result;
use crate::id::{Pool, VolumeId};

use crate::backend::rbd::Rbd;
use crate::backend::rbd::pool::index::index_object;
use crate::backend::rbd::pool::records::Records;

/// Whatever is asked for: clients written in Go take answers of 4 MiB at most, and a volume has some 500 bytes in one.
const LONGEST_PAGE: usize = 2000;
/// librbd's object with the names of a pool's images, as keys. It is read by itself, because `rbd ls` hangs in a namespace
/// of a pool that is full (seen), and takes longer.
pub(crate) const DIRECTORY: &str = "rbd_directory";

/// What one pool holds.
struct Held {
    cluster: String,
    namespace: String,
    pool: String,
    pool_id: u64,
    /// By uuid.
    images: Vec<(Uuid, String)>,
    records: Records,
    /// What is wrong with the pool.
    health: Vec<Ailment>,
}

impl Rbd {
    /// One pool that does not answer fails it all: an attacher that misses volumes attaches them anew.
    pub(crate) async fn list_volumes(&self, page: &Page) -> Result<Listing<VolumeState>> {
        let listed = self.clusters.listed()?;
        let pools = listed
            .iter()
            .flat_map(|cluster| cluster.pools.iter().map(|pool| self.held(&cluster.access, pool)));
        let pools = futures_util::future::try_join_all(pools).await?;
        Ok(page_of(&pools, page))
    }

    async fn held(&self, access: &Access, pool: &str) -> Result<Held> {
        let cli = self.cli(access);
        let pool_id = self.pools.id(&cli, pool).await?;
        let index = index_object(&self.instance);
        let (names, keys, health) = tokio::join!(
            cli.omap_keys(pool, DIRECTORY),
            cli.omap_keys(pool, &index),
            self.pool_health(&cli, pool)
        );
        let (names, records) = (names?, Records::read(&keys?));
        if names.is_empty() {
            // A pool or namespace that is not there is not an empty one.
            self.pools.prove(&cli, &Pool::Id(pool_id), pool).await?;
        }
        let names = names.iter().filter_map(|key| key.strip_prefix("name_"));
        let volumes = names.filter_map(|name| Some((records.volume_of(name)?, name.to_owned())));
        Ok(Held {
            cluster: access.cluster.clone(),
            namespace: access.namespace.clone(),
            pool: pool.to_owned(),
            pool_id,
            images: volumes.collect(),
            records,
            health,
        })
    }
}

impl Held {
    fn state(&self, uuid: Uuid, name: &str) -> VolumeState {
        let id = VolumeId { cluster: self.cluster.clone(), pool: Pool::Id(self.pool_id), uuid };
        let image =
            Image { pool: self.pool.clone(), namespace: self.namespace.clone(), name: name.to_owned() };
        let volume = told(id, 0, context(&self.cluster, &image));
        VolumeState { volume, nodes: self.records.nodes(uuid), health: self.health.clone() }
    }
}

fn page_of(pools: &[Held], page: &Page) -> Listing<VolumeState> {
    let images = pools.iter().flat_map(|held| held.images.iter().map(move |image| (image, held)));
    let mut images: Vec<_> =
        images.filter(|((uuid, _), _)| page.after.is_none_or(|after| *uuid > after)).collect();
    images.sort_unstable_by_key(|((uuid, _), _)| *uuid);
    let most = page.most.unwrap_or(LONGEST_PAGE).min(LONGEST_PAGE);
    let next = if images.len() > most { images.get(most - 1).map(|((uuid, _), _)| *uuid) } else { None };
    let entries = images.into_iter().take(most).map(|((uuid, name), held)| held.state(*uuid, name));
    Listing { entries: entries.collect(), next }
}

pub(crate) fn told(id: VolumeId, size: u64, context: Parameters) -> Volume {
    Volume { id, size, context, source: None, reached_from: Vec::new() }
}

/// As much of what CreateVolume answered as the image's place tells.
pub(crate) fn context(cluster: &str, image: &Image) -> Parameters {
    let pairs = [
        ("clusterID", cluster),
        ("pool", &image.pool),
        ("journalPool", &image.pool),
        ("imageName", &image.name),
        ("radosNamespace", &image.namespace),
    ];
    let pairs = pairs.into_iter().filter(|(_, value)| !value.is_empty());
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(pool_id: u64, uuids: &[u128]) -> Held {
        let images = uuids.iter().map(|uuid| Uuid::from_u128(*uuid));
        Held {
            cluster: "c".to_owned(),
            namespace: String::new(),
            pool: format!("pool-{pool_id}"),
            pool_id,
            images: images.map(|uuid| (uuid, format!("csi-vol-{uuid}"))).collect(),
            records: Records::default(),
            health: Vec::new(),
        }
    }

    fn page(pools: &[Held], after: u128, most: Option<usize>) -> (Vec<u128>, Option<u128>) {
        let listing = page_of(pools, &Page { after: Some(Uuid::from_u128(after)), most });
        let uuids = listing.entries.iter().map(|state| state.volume.id.uuid.as_u128());
        (uuids.collect(), listing.next.map(|uuid| uuid.as_u128()))
    }

    #[test]
    fn pages_go_by_uuid_through_all_pools() {
        let pools = [held(1, &[7, 1, 5]), held(2, &[6, 2]), held(3, &[])];
        assert_eq!(page(&pools, 0, None), (vec![1, 2, 5, 6, 7], None));
        assert_eq!(page(&pools, 0, Some(2)), (vec![1, 2], Some(2)));
        assert_eq!(page(&pools, 2, Some(2)), (vec![5, 6], Some(6)));
        assert_eq!(page(&pools, 6, Some(2)), (vec![7], None));
        assert_eq!(page(&pools, 0, Some(5)), (vec![1, 2, 5, 6, 7], None));
        assert_eq!(page(&pools, 3, Some(1)), (vec![5], Some(5)));
    }

    #[test]
    fn no_page_is_longer_than_a_client_takes() {
        let all: Vec<u128> = (1..=5000).collect();
        let pools = [held(1, &all)];
        for most in [None, Some(4000)] {
            let (uuids, next) = page(&pools, 0, most);
            assert_eq!((uuids.len(), next), (LONGEST_PAGE, Some(2000)));
        }
    }
}
