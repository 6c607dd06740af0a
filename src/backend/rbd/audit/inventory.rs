//! All that a pool holds and that the audit compares. What is read first is judged by what is read after it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use futures_util::stream::{StreamExt as _, iter};

use crate::error::Result;
use crate::id::Pool;

use crate::backend::rbd::Rbd;
use crate::backend::rbd::audit::look::Seen;
use crate::backend::rbd::cli::Cli;
use crate::backend::rbd::cli::json::Trashed;
use crate::backend::rbd::pool::index::index_object;
use crate::backend::rbd::pool::records::Records;
use crate::backend::rbd::trash::tombstone::is_tombstone;
use crate::backend::rbd::volume::list::DIRECTORY;

/// Images that are looked at side by side; the host bounds the processes.
const TOGETHER: usize = 8;
/// What the objects of an image are called before its id.
const BODIES: &[&str] = &["rbd_data.", "rbd_header.", "rbd_object_map."];

pub(super) struct Inventory {
    pub(super) pool: String,
    pub(super) objects: Objects,
    /// Of the index of this instance.
    pub(super) keys: Vec<String>,
    /// When that was last written.
    pub(super) written: Option<SystemTime>,
    /// The same of the other instances that have been at work here.
    pub(super) others: BTreeMap<String, Vec<String>>,
    pub(super) trash: Vec<Trashed>,
    /// Of images that have a name.
    pub(super) ids: BTreeSet<String>,
    pub(super) images: Vec<Seen>,
}

/// What is told by the names of objects alone.
#[derive(Default)]
pub(super) struct Objects {
    /// Names of images that have an id, listed or not.
    names: BTreeSet<String>,
    /// The driver's own and ceph-csi's.
    pub(super) csi: BTreeSet<String>,
    /// By image id, one object of the image.
    pub(super) bodies: BTreeMap<String, String>,
}

impl Objects {
    fn add(&mut self, object: &str) {
        if let Some(name) = object.strip_prefix("rbd_id.") {
            self.names.insert(name.to_owned());
        } else if object.starts_with("csi.") {
            self.csi.insert(object.to_owned());
        } else if let Some(id) = image_id(object) {
            self.bodies.entry(id.to_owned()).or_insert_with(|| object.to_owned());
        }
    }

    /// What follows this, in names of objects.
    pub(super) fn after<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a str> {
        self.csi.iter().filter_map(move |object| object.strip_prefix(prefix))
    }
}

/// None: no object of an image, or of one whose header is in another pool, whose number then comes before the id.
fn image_id(object: &str) -> Option<&str> {
    let prefix = BODIES.iter().find(|prefix| object.starts_with(**prefix))?;
    let (kind, rest) = (*prefix, &object[prefix.len()..]);
    match (kind, rest.split('.').collect::<Vec<_>>().as_slice()) {
        ("rbd_data.", [id, _]) | ("rbd_header.", [id]) | ("rbd_object_map.", [id] | [id, _]) => Some(id),
        _ => None,
    }
}

impl Inventory {
    pub(super) async fn take(rbd: &Rbd, cli: &Cli<'_>, pool: &str) -> Result<Self> {
        let id = rbd.pools.id(cli, pool).await?;
        rbd.pools.prove(cli, &Pool::Id(id), pool).await?;
        let mut objects = Objects::default();
        cli.each_object(pool, |object| objects.add(object)).await?;
        let index = index_object(&rbd.instance);
        let (keys, written) = tokio::try_join!(cli.omap_keys(pool, &index), cli.object_time(pool, &index))?;
        let others = others(cli, pool, &objects, &index).await?;
        let (trash, directory) = tokio::try_join!(cli.trashed(pool), cli.omap_keys(pool, DIRECTORY))?;
        let after = |prefix: &str| -> BTreeSet<String> {
            directory.iter().filter_map(|key| key.strip_prefix(prefix)).map(str::to_owned).collect()
        };
        let (listed, ids, records) = (after("name_"), after("id_"), Records::read(&keys));
        let loose = objects.names.difference(&listed).filter(|name| is_of_this_driver(name, &records));
        let names = listed.iter().map(|name| (name, true)).chain(loose.map(|name| (name, false)));
        let looks = names.map(|(name, listed)| Seen::look(cli, cli.image(pool, name), listed, &records));
        let images = iter(looks).buffered(TOGETHER).collect().await;
        Ok(Self { pool: pool.to_owned(), objects, keys, written, others, trash, ids, images })
    }

    /// Other instances of this driver share the place, and make names that look the same.
    pub(super) fn shared(&self) -> Option<String> {
        let others: Vec<&str> = self.others.keys().map(String::as_str).collect();
        (!others.is_empty()).then(|| {
            format!(
                "it may be of another instance of this driver, which shares this place: {}",
                others.join(", ")
            )
        })
    }
}

/// By its name, and the index: ceph-csi's uuids are of other versions.
pub(super) fn is_of_this_driver(name: &str, records: &Records) -> bool {
    is_tombstone(name) || records.volume_of(name).is_some_and(|uuid| uuid.get_version_num() == 5)
}

async fn others(
    cli: &Cli<'_>,
    pool: &str,
    objects: &Objects,
    own: &str,
) -> Result<BTreeMap<String, Vec<String>>> {
    let mut others = BTreeMap::new();
    for instance in objects.after(&index_object("")) {
        let object = index_object(instance);
        if object != own {
            others.insert(instance.to_owned(), cli.omap_keys(pool, &object).await?);
        }
    }
    Ok(others)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_image_of_an_object_is_told_where_its_header_is_in_the_same_pool() {
        for (object, id) in [
            ("rbd_data.12ab.0000000000000000", Some("12ab")),
            ("rbd_header.12ab", Some("12ab")),
            ("rbd_object_map.12ab.0000000000000004", Some("12ab")),
            ("rbd_data.3.12ab.0000000000000000", None),
            ("rbd_directory", None),
            ("rbd_data.", None),
            ("journal_data.3.12ab.0", None),
        ] {
            assert_eq!(image_id(object), id, "{object}");
        }
    }
}
