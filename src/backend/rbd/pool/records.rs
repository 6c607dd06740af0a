//! What the index of a pool says of its volumes, so that a list of them needs no process for each: images whose name no
//! id tells, and the nodes that volumes are published on. The truth is on the image; the index is written after it and
//! cleared after it.

use std::collections::{HashMap, HashSet};

use uuid::Uuid;

use crate::error::Result;
use crate::id::{VolumeId, hyphenated, trailing_uuid};

use crate::backend::rbd::Rbd;
use crate::backend::rbd::cli::Cli;
use crate::backend::rbd::pool::index::index_object;

/// `name.<uuid>`: the image has a prefix of its own (`volumeNamePrefix`). The value is its name.
const NAME: &str = "name.";
/// `pub.<uuid>.<node>`: ControllerPublishVolume gave the volume to the node.
const PUBLISHED: &str = "pub.";

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Records {
    named: HashSet<Uuid>,
    nodes: HashMap<Uuid, Vec<String>>,
}

impl Records {
    /// Of the keys of an index, which holds other things too.
    pub(crate) fn read(keys: &[String]) -> Self {
        let mut records = Self::default();
        for key in keys {
            if let Some(uuid) = named_uuid(key) {
                records.named.insert(uuid);
            } else if let Some((uuid, node)) = read_published(key) {
                records.nodes.entry(uuid).or_default().push(node);
            }
        }
        records
    }

    /// The volume whose image this is, if it is one.
    pub(crate) fn volume_of(&self, image: &str) -> Option<Uuid> {
        if let Some(uuid) = image.strip_prefix("csi-vol-").and_then(hyphenated) {
            return Some(uuid);
        }
        let uuid = trailing_uuid(image)?;
        self.named.contains(&uuid).then_some(uuid)
    }

    pub(crate) fn nodes(&self, uuid: Uuid) -> Vec<String> {
        self.nodes.get(&uuid).cloned().unwrap_or_default()
    }
}

impl Rbd {
    /// Before the image is made.
    pub(crate) async fn note_name(&self, cli: &Cli<'_>, pool: &str, uuid: Uuid, name: &str) -> Result<()> {
        cli.omap_set(pool, &index_object(&self.instance), &name_key(uuid), name).await
    }

    /// After the image is gone.
    pub(crate) async fn forget_noted_name(&self, cli: &Cli<'_>, pool: &str, uuid: Uuid) -> Result<()> {
        cli.omap_remove(pool, &index_object(&self.instance), &name_key(uuid)).await
    }

    /// Only where volumes are listed: elsewhere nobody reads it.
    pub(crate) async fn note_published(
        &self,
        cli: &Cli<'_>,
        pool: &str,
        id: &VolumeId,
        node: &str,
    ) -> Result<()> {
        if !self.clusters.is_listed(&id.cluster) {
            return Ok(());
        }
        cli.omap_set(pool, &index_object(&self.instance), &published_key(id.uuid, node), "").await
    }

    pub(crate) async fn forget_published(
        &self,
        cli: &Cli<'_>,
        pool: &str,
        id: &VolumeId,
        node: Option<&str>,
    ) -> Result<()> {
        let keys = match node {
            Some(node) if self.clusters.is_listed(&id.cluster) => vec![published_key(id.uuid, node)],
            Some(_) => Vec::new(),
            None => self.published_keys(cli, pool, id).await?,
        };
        self.forget_keys(cli, pool, &keys).await
    }

    /// What the index says of the nodes of this volume.
    pub(crate) async fn published_keys(
        &self,
        cli: &Cli<'_>,
        pool: &str,
        id: &VolumeId,
    ) -> Result<Vec<String>> {
        if !self.clusters.is_listed(&id.cluster) {
            return Ok(Vec::new());
        }
        let (keys, prefix) =
            (cli.omap_keys(pool, &index_object(&self.instance)).await?, published_key(id.uuid, ""));
        Ok(keys.into_iter().filter(|key| key.starts_with(&prefix)).collect())
    }

    pub(crate) async fn forget_keys(&self, cli: &Cli<'_>, pool: &str, keys: &[String]) -> Result<()> {
        for key in keys {
            cli.omap_remove(pool, &index_object(&self.instance), key).await?;
        }
        Ok(())
    }
}

/// The volume that a key with the name of its image is of.
pub(crate) fn named_uuid(key: &str) -> Option<Uuid> {
    key.strip_prefix(NAME).and_then(hyphenated)
}

fn name_key(uuid: Uuid) -> String {
    format!("{NAME}{uuid}")
}

/// A node id is any text: whatever is no letter, digit, `.`, `-` or `_` is written as `%` and two digits for each byte,
/// because `rados` prints keys as they are, one on each line.
fn published_key(uuid: Uuid, node: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    let escaped = node
        .bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02x}") });
    format!("{PUBLISHED}{uuid}.{}", escaped.collect::<String>())
}

pub(crate) fn read_published(key: &str) -> Option<(Uuid, String)> {
    let (uuid, mut rest) = key.strip_prefix(PUBLISHED)?.split_once('.')?;
    let mut node = Vec::new();
    while let Some((plain, escaped)) = rest.split_once('%') {
        node.extend(plain.bytes());
        node.push(u8::from_str_radix(escaped.get(..2)?, 16).ok()?);
        rest = escaped.get(2..)?;
    }
    node.extend(rest.bytes());
    Some((hyphenated(uuid)?, String::from_utf8(node).ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ONE: Uuid = Uuid::from_u128(1);
    const TWO: Uuid = Uuid::from_u128(2);

    #[test]
    fn an_index_tells_prefixed_images_and_nodes_among_other_things() {
        let keys = [
            name_key(ONE),
            published_key(TWO, "node a"),
            published_key(TWO, "b"),
            "del.12ab.1795269600".to_owned(),
            "name.x".to_owned(),
            format!("pub.{TWO}"),
            "pub.x.y".to_owned(),
            format!("pub.{TWO}.%zz"),
        ];
        let records = Records::read(&keys);
        assert_eq!(
            (records.nodes(ONE), records.nodes(TWO)),
            (vec![], vec!["node a".to_owned(), "b".to_owned()])
        );
        for (image, volume) in [
            (format!("csi-vol-{TWO}"), Some(TWO)),
            (format!("mine-{ONE}"), Some(ONE)),
            (format!("mine-{TWO}"), None),
            (format!("csi-vol-{TWO}-temp"), None),
            (format!("csi-del-{TWO}-12ab"), None),
            (format!("csi-snap-{TWO}"), None),
            ("ä".repeat(30), None),
            ("x".to_owned(), None),
        ] {
            assert_eq!(records.volume_of(&image), volume, "{image}");
        }
    }

    proptest! {
        #[test]
        fn a_node_of_any_name_is_one_line_and_read_back(node in "(?s).{0,40}") {
            let key = published_key(ONE, &node);
            prop_assert!(key.bytes().all(|byte| byte.is_ascii_graphic()), "{}", key);
            prop_assert_eq!(read_published(&key), Some((ONE, node)));
        }
    }
}
