//! Going back to ceph-csi: of each volume, what its journal lacks, and what else keeps ceph-csi from it. Written where that
//! is asked for; what is there already is never changed.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{StreamExt as _, TryStreamExt as _, iter};
use uuid::Uuid;

use crate::backend::Image;
use crate::cluster::Listed;
use crate::error::Result;
use crate::host::Host;
use crate::id::{Pool, volume_uuid};
use crate::keys;

use crate::backend::rbd::ceph_csi::journal::{ENCRYPTION, Entry, IMAGE, IMAGE_ID, KEY_STORE, OWNER, lossy};
use crate::backend::rbd::ceph_csi::report::{Found, Report, State};
use crate::backend::rbd::cli::Cli;
use crate::backend::rbd::cli::json::{Info, Snapshot};
use crate::backend::rbd::meta::{self, Meta};
use crate::backend::rbd::pool::Pools;
use crate::backend::rbd::pool::index::index_object;
use crate::backend::rbd::pool::records::Records;
use crate::backend::rbd::trash::intended;
use crate::backend::rbd::trash::tombstone::{TEMPORARY, is_csi, is_tombstone};
use crate::backend::rbd::volume::clone::verify::is_whole;

/// Images that are looked at side by side; the host bounds the processes.
const TOGETHER: usize = 8;
const PV_NAME: &str = "csi.storage.k8s.io/pv/name";
const PVC_NAMESPACE: &str = "csi.storage.k8s.io/pvc/namespace";

/// What `ceph-rbd-csi journal` was asked for.
pub(crate) struct WayBack {
    pub(crate) host: Arc<dyn Host>,
    /// Of one command.
    pub(crate) deadline: Duration,
    /// Of the driver that made the volumes.
    pub(crate) instance: String,
    /// The cluster, and the pools that are looked at.
    pub(crate) place: Listed,
    /// That volumes may have been made under, besides what their images say.
    pub(crate) names: Vec<String>,
    pub(crate) write: bool,
}

/// What is known of all images of a pool.
struct Stock<'a> {
    cli: &'a Cli<'a>,
    pool: &'a str,
    /// The object with the names of requests, and the keys in it.
    directory: String,
    taken: Vec<String>,
    /// By the uuid that a volume of this name has.
    names: HashMap<Uuid, &'a str>,
}

/// A volume of this driver, proved whole.
struct Volume<'a> {
    image: &'a Image,
    uuid: Uuid,
    info: &'a Info,
    meta: &'a Meta,
}

impl<'a> Volume<'a> {
    fn label(&self, key: &str) -> Option<&'a str> {
        self.meta.get(key).map(String::as_str)
    }
}

/// A key of the journal, and what it has to say.
struct Wanted {
    object: String,
    key: String,
    value: String,
}

impl WayBack {
    pub(crate) async fn go(&self) -> Result<Report> {
        let cli = Cli { host: self.host.as_ref(), access: &self.place.access, deadline: self.deadline };
        let pools = Pools::default();
        let mut report = Report { written: self.write, ..Report::default() };
        for pool in &self.place.pools {
            let id = pools.id(&cli, pool).await?;
            pools.prove(&cli, &Pool::Id(id), pool).await?;
            report.found.extend(self.journal_of_pool(&cli, pool).await?);
        }
        Ok(report)
    }

    async fn journal_of_pool(&self, cli: &Cli<'_>, pool: &str) -> Result<Vec<Found>> {
        let (index, directory) = (index_object(&self.instance), Entry::Volume.directory(&self.instance));
        let (images, index, taken, trash) = tokio::try_join!(
            cli.images(pool),
            cli.omap_keys(pool, &index),
            cli.omap_keys(pool, &directory),
            cli.trashed(pool)
        )?;
        let names = self.names.iter().map(|name| (self.uuid_of(name), name.as_str())).collect();
        let stock = Stock { cli, pool, directory, taken, names };
        let records = Records::read(&index);
        let looks = images.into_iter().map(|name| {
            let (volume, image) = (records.volume_of(&name), cli.image(pool, &name));
            self.look_back(&stock, image, volume)
        });
        let looked: Vec<Option<Found>> = iter(looks).buffered(TOGETHER).try_collect().await?;
        let waiting = intended(index);
        let waiting = trash.into_iter().filter(|image| waiting.contains(&image.id));
        let waiting = waiting.map(|image| Found::deleted(cli.image(pool, &image.name), image.id));
        Ok(looked.into_iter().flatten().chain(waiting).collect())
    }

    /// None: it is no volume. `uuid`: of the volume that an image of this name is.
    async fn look_back(&self, stock: &Stock<'_>, image: Image, uuid: Option<Uuid>) -> Result<Option<Found>> {
        let cli = stock.cli;
        if is_tombstone(&image.name) {
            let snapshots = cli.snapshots(&image).await?.unwrap_or_default();
            return Ok(Some(Found::tombstone(image, &ours(&snapshots))));
        }
        let Some(uuid) = uuid else { return Ok(None) };
        let (info, meta, snapshots) =
            tokio::try_join!(cli.info(&image), cli.meta(&image), cli.snapshots(&image))?;
        let snapshots = ours(&snapshots.unwrap_or_default());
        let whole = match (info, meta) {
            (Some(info), Some(meta)) if is_whole(cli, uuid, &info, &meta).await? => Some((info, meta)),
            _ => None,
        };
        let Some((info, meta)) = whole else {
            let half_made = uuid.get_version_num() == 5;
            return Ok(Some(Found::of_ceph_csi(image, half_made, &snapshots)));
        };
        let volume = Volume { image: &image, uuid, info: &info, meta: &meta };
        self.complete(stock, &volume, &snapshots).await.map(Some)
    }

    /// The keys of the object come first, the name last: whoever finds the name finds all that it leads to.
    async fn complete(&self, stock: &Stock<'_>, volume: &Volume<'_>, snapshots: &[String]) -> Result<Found> {
        let Stock { cli, pool, .. } = *stock;
        let object = Entry::Volume.object(volume.uuid);
        let there = values(cli, pool, &object).await?;
        let name = self.request_name(stock, volume, &there);
        let wanted = self.wanted(stock, volume, name.as_deref(), &there);
        let mut found = Found::of_a_volume(volume.image.clone(), name, volume.info);
        if !snapshots.is_empty() {
            return Ok(found.with(State::snapshots(snapshots)));
        }
        let mut missing = Vec::new();
        for one in wanted {
            let said = match there.get(&one.key) {
                Some(value) if one.object == object => Some(value.clone()),
                _ if one.object == object || !stock.taken.contains(&one.key) => None,
                _ => cli.omap_get(pool, &one.object, &one.key).await?.map(|value| lossy(&value)),
            };
            match said {
                None => missing.push(one),
                Some(said) if said == one.value => {}
                Some(said) => {
                    return Ok(found.with(State::differs(&one.object, &one.key, &said, &one.value)));
                }
            }
        }
        found.missing = missing.len();
        if self.write {
            for Wanted { object, key, value } in missing {
                cli.omap_set(pool, &object, &key, &value).await?;
            }
        }
        Ok(found)
    }

    fn wanted(
        &self,
        stock: &Stock<'_>,
        volume: &Volume<'_>,
        name: Option<&str>,
        there: &BTreeMap<String, String>,
    ) -> Vec<Wanted> {
        let Volume { image, uuid, info, meta } = *volume;
        let store = meta::is_encrypted(meta).then(|| {
            let known = meta::key_store(meta, uuid).or_else(|| there.get(KEY_STORE).map(String::as_str));
            known.unwrap_or(keys::DEFAULT)
        });
        let pairs = [
            (Entry::Volume.name(), name),
            (OWNER, self.owner(volume)),
            (KEY_STORE, store),
            (ENCRYPTION, store.map(|_| "block")),
            (IMAGE, Some(image.name.as_str())),
            (IMAGE_ID, Some(info.id.as_str())),
        ];
        let wanted = |object: String, key: &str, value: &str| Wanted {
            object,
            key: key.to_owned(),
            value: value.to_owned(),
        };
        let of_the_object = pairs.into_iter().filter_map(|(key, value)| {
            Some(wanted(Entry::Volume.object(uuid), key, value.filter(|value| !value.is_empty())?))
        });
        let of_the_name = name.map(|name| {
            wanted(stock.directory.clone(), &Entry::Volume.directory_key(name), &uuid.to_string())
        });
        of_the_object.chain(of_the_name).collect()
    }

    /// What CreateVolume was asked for with. A name that is not the volume's own, as one that a clone has inherited, would
    /// have led to another uuid.
    fn request_name(
        &self,
        stock: &Stock<'_>,
        volume: &Volume<'_>,
        there: &BTreeMap<String, String>,
    ) -> Option<String> {
        let recorded = there.get(Entry::Volume.name()).map(String::as_str);
        let mut told = [volume.label(PV_NAME), recorded].into_iter().flatten();
        let fitting = told.find(|name| self.uuid_of(name) == volume.uuid);
        fitting.or_else(|| stock.names.get(&volume.uuid).copied()).map(str::to_owned)
    }

    /// Of its claim, where its labels are its own.
    fn owner<'a>(&self, volume: &Volume<'a>) -> Option<&'a str> {
        let own = volume.label(PV_NAME).is_some_and(|name| self.uuid_of(name) == volume.uuid);
        volume.label(PVC_NAMESPACE).filter(|_| own)
    }

    fn uuid_of(&self, name: &str) -> Uuid {
        volume_uuid(&self.instance, &self.place.access.cluster, name)
    }
}

/// All that an object of the journal says.
async fn values(cli: &Cli<'_>, pool: &str, object: &str) -> Result<BTreeMap<String, String>> {
    let mut values = BTreeMap::new();
    for key in cli.omap_keys(pool, object).await? {
        if let Some(value) = cli.omap_get(pool, object, &key).await? {
            values.insert(key, lossy(&value));
        }
    }
    Ok(values)
}

/// The names of those that this driver took.
fn ours(snapshots: &[Snapshot]) -> Vec<String> {
    let ours = |one: &&Snapshot| one.is_of_a_user() && (is_csi(one) || one.name.starts_with(TEMPORARY));
    snapshots.iter().filter(ours).map(|one| one.name.clone()).collect()
}
