//! A CreateVolume whose name ceph-csi has made a volume for: its answer was lost when this driver took its place, or the
//! CO asks again by name, as it may at any time. The volume it made is the answer, not a second, empty one.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use uuid::Uuid;

use crate::backend::{CreateVolume, Image, Source};
use crate::error::{Error, Result};
use crate::id::{Pool, VolumeId};

use crate::backend::rbd::Rbd;
use crate::backend::rbd::ceph_csi::journal::{Entry, IMAGE_ID, lossy, recorded};
use crate::backend::rbd::cli::Cli;
use crate::backend::rbd::cli::json::Info;
use crate::backend::rbd::meta;
use crate::backend::rbd::params::Plan;

/// While ceph-csi ends beside this driver, it may still write a name.
const FRESH: Duration = Duration::from_secs(60);

/// The names that ceph-csi has volumes for, by pool: asked once a minute, where it was ever at work, and else once. So
/// that CreateVolume stays one process.
#[derive(Default)]
pub(crate) struct Names {
    known: Mutex<HashMap<String, (Instant, BTreeSet<String>)>>,
}

impl Names {
    async fn has(&self, cli: &Cli<'_>, pool: &str, directory: &str, key: &str) -> Result<bool> {
        let place = format!("{}/{pool}/{}", cli.access.cluster, cli.access.namespace);
        if let Some((since, keys)) = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(&place)
            && (keys.is_empty() || since.elapsed() < FRESH)
        {
            return Ok(keys.contains(key));
        }
        let keys: BTreeSet<String> = cli.omap_keys(pool, directory).await?.into_iter().collect();
        let has = keys.contains(key);
        self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(place, (Instant::now(), keys));
        Ok(has)
    }
}

/// A volume that ceph-csi made.
pub(crate) struct Earlier {
    pub(crate) id: VolumeId,
    pub(crate) image: Image,
    /// Bytes.
    pub(crate) size: u64,
}

impl Rbd {
    /// `own`: the image that this driver would make.
    pub(crate) async fn made_by_ceph_csi(
        &self,
        cli: &Cli<'_>,
        plan: &Plan,
        request: &CreateVolume,
        own: &Image,
    ) -> Result<Option<Earlier>> {
        let (directory, key) =
            (Entry::Volume.directory(&self.instance), Entry::Volume.directory_key(&request.name));
        if !self.names.has(cli, &plan.pool, &directory, &key).await? {
            return Ok(None);
        }
        let (value, ours) = tokio::try_join!(cli.omap_get(&plan.pool, &directory, &key), cli.info(own))?;
        // What was once answered stays the answer.
        let (Some(value), None) = (value, ours) else { return Ok(None) };
        let Some((pool, uuid)) = self.named(cli, plan, &lossy(&value)).await? else { return Ok(None) };
        let Some((image, info)) = whole(cli, plan, &pool, uuid).await? else {
            tracing::warn!(name = request.name, %uuid, "ceph-csi was ended before it made this volume: it is made anew");
            return Ok(None);
        };
        let size = matches(cli, plan, request, &image, &info).await?;
        let pool = Pool::Id(self.pools.id(cli, &pool).await?);
        let id = VolumeId { cluster: cli.access.cluster.clone(), pool, uuid };
        Ok(Some(Earlier { id, image, size }))
    }

    /// What a name means: `<uuid>` in the same pool, or `<pool id, 16 hex>/<uuid>`.
    async fn named(&self, cli: &Cli<'_>, plan: &Plan, value: &str) -> Result<Option<(String, Uuid)>> {
        let (pool, uuid) = value.split_once('/').map_or((None, value), |(pool, uuid)| (Some(pool), uuid));
        let Ok(uuid) = Uuid::try_parse(uuid) else { return Ok(None) };
        let Some(pool) = pool else { return Ok(Some((plan.pool.clone(), uuid))) };
        let Ok(id) = u64::from_str_radix(pool, 16) else { return Ok(None) };
        Ok(Some((self.pools.name(cli, &Pool::Id(id)).await?, uuid)))
    }
}

/// ceph-csi writes the image's id down when it has made it, cloned or not: that proves it whole.
async fn whole(cli: &Cli<'_>, plan: &Plan, pool: &str, uuid: Uuid) -> Result<Option<(Image, Info)>> {
    let object = Entry::Volume.object(uuid);
    // The keys are in the pool of the name, whichever pool the image is in.
    let (name, image_id) = tokio::try_join!(
        recorded(cli, &plan.pool, Entry::Volume, uuid),
        cli.omap_get(&plan.pool, &object, IMAGE_ID)
    )?;
    let (Some(name), Some(image_id)) = (name, image_id) else { return Ok(None) };
    let image = cli.image(pool, &name);
    let info = cli.info(&image).await?.filter(|info| info.id == lossy(&image_id));
    Ok(info.map(|info| (image, info)))
}

/// Refuses where it differs from what is asked; answers what a pod sees of it.
async fn matches(
    cli: &Cli<'_>,
    plan: &Plan,
    request: &CreateVolume,
    image: &Image,
    info: &Info,
) -> Result<u64> {
    let meta = cli.meta(image).await?.unwrap_or_default();
    let size = info.size.saturating_sub(meta::header(&meta));
    let differs = |what: String| {
        let name = &request.name;
        Err(Error::Conflict(format!("volume {name:?} was made by ceph-csi as image {image}, {what}")))
    };
    let encrypted = meta::is_encrypted(&meta);
    if encrypted != plan.key_store.is_some() {
        return differs(format!("encrypted: {encrypted}, where {} is asked for", !encrypted));
    }
    // Its releases before 3.15 took the header from what was asked for.
    let as_before = encrypted && !meta.contains_key(meta::HEADER) && request.size.admits(info.size);
    if !request.size.admits(size) && !as_before {
        return differs(format!("with {size} bytes, where {} are asked for", request.size));
    }
    let parent = info.parent.as_ref().map(|parent| parent.image.clone());
    let expected = match &request.source {
        None => None,
        Some(Source::Volume(_)) => Some(format!("{}-temp", image.name)),
        Some(Source::Snapshot(id)) => {
            let name = recorded(cli, &image.pool, Entry::Snapshot, id.own.uuid).await?;
            Some(name.unwrap_or_else(|| format!("csi-snap-{}", id.own.uuid)))
        }
    };
    // Without a parent it may be flattened by now: ceph-csi has the manager do that.
    if parent.is_some() && parent != expected {
        return differs(format!("from {parent:?}, where {expected:?} is asked for"));
    }
    Ok(if as_before { info.size } else { size })
}
