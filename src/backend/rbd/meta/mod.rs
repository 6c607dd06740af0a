//! The metadata that the driver keeps on an image: keys, values, and how a value names the image it speaks of. A clone
//! inherits metadata of its source (all of it, or, by `rbd` 16.2, what does not begin with `.rbd`), so a value that names
//! another uuid counts for nothing. Pure.

mod encryption;

use std::collections::BTreeMap;

use uuid::Uuid;

use crate::backend::{FormatMark, Segments, Source};

use crate::backend::rbd::cli::json::{Info, Watcher};

pub(crate) use encryption::{
    DEK, ENCRYPTED, HEADER, Key, LUKS2_HEADER, MADE, PREPARED, header, is_encrypted, is_made, key_store,
    keys, next_older, of_key_store, says_size, undotted,
};

pub(crate) type Meta = BTreeMap<String, String>;

pub(crate) const CLUSTER_NAME: &str = "csi.ceph.com/cluster/name";
/// ceph-csi's key of how nodes map the image, since its 3.17.
pub(crate) const MOUNTER: &str = "csi.ceph.com/mounter";
const NBD: &str = "rbd-nbd";
const CREATED: &str = ".rbd.csi.ceph.com/created";
pub(crate) const FORMAT: &str = ".rbd.csi.ceph.com/format";
pub(crate) const PUBLISHED: &str = ".rbd.csi.ceph.com/published/";
/// The journal of the filesystem was replayed, and nobody has written since: the uuid of the volume.
pub(crate) const REPLAYED: &str = ".rbd.csi.ceph.com/replayed";
/// From where the image is reached.
pub(crate) const TOPOLOGY: &str = ".rbd.csi.ceph.com/topology";
/// ceph-csi's key; the volume id in it names the image.
const CLIENT: &str = ".rbd.csi.ceph.com/clientaddress/";

/// Says how nodes map the image: librbd, which rbd-nbd runs, has limits, and krbd has none.
pub(crate) fn mounter(nbd: bool) -> (String, String) {
    (MOUNTER.to_owned(), if nbd { NBD } else { "rbd" }.to_owned())
}

pub(crate) fn is_nbd(meta: &Meta) -> bool {
    meta.get(MOUNTER).is_some_and(|mounter| mounter == NBD)
}

/// The marker that comes last in the import stream: with it, and with its size reached, an image is whole.
pub(crate) fn created(uuid: Uuid, size: u64) -> (String, String) {
    (CREATED.to_owned(), format!("{uuid} {size}"))
}

/// The marker of a clone, written when it is proved whole. As it is written apart from the image, it names the image by
/// its id too: written late, to one that was made anew meanwhile, it counts for nothing.
pub(crate) fn cloned(uuid: Uuid, size: u64, image_id: &str, source: &str) -> (String, String) {
    (CREATED.to_owned(), format!("{uuid} {size} {image_id} {source}"))
}

/// What a marker says of its image.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Created<'a> {
    /// Bytes, at least.
    pub(crate) size: u64,
    /// Of a clone.
    image_id: Option<&'a str>,
    /// Of a clone: what it was made from, as `source_text` has it.
    pub(crate) source: Option<&'a str>,
}

impl Created<'_> {
    pub(crate) fn is_of(&self, image_id: &str) -> bool {
        self.image_id.is_none_or(|named| named == image_id)
    }
}

/// The marker of the image of this uuid.
pub(crate) fn created_by(meta: &Meta, uuid: Uuid) -> Option<Created<'_>> {
    let mut words = meta.get(CREATED)?.split(' ');
    let named = words.next()? == uuid.to_string();
    let size = words.next()?.parse().ok()?;
    named.then(|| Created { size, image_id: words.next(), source: words.next() })
}

/// Whether the marker says that this image, of this uuid, is whole. One that names no source is of an image without parents:
/// a clone has inherited it.
pub(crate) fn proves(meta: &Meta, uuid: Uuid, info: &Info) -> bool {
    created_by(meta, uuid).is_some_and(|made| {
        info.size >= made.size && made.is_of(&info.id) && (made.source.is_some() || info.parent.is_none())
    })
}

/// Whether a key tells if an image is whole, or who has it.
pub(crate) fn is_of_its_making(key: &str) -> bool {
    key == CREATED || key.starts_with(PUBLISHED)
}

/// The uuid that the marker names, whichever it is.
pub(crate) fn created_for(meta: &Meta) -> Option<Uuid> {
    Uuid::try_parse(meta.get(CREATED)?.split(' ').next()?).ok()
}

pub(crate) fn source_text(source: &Source) -> String {
    match source {
        Source::Snapshot(id) => format!("snapshot:{}", id.own.uuid),
        Source::Volume(id) => format!("volume:{}", id.uuid),
    }
}

pub(crate) fn format_value(mark: &FormatMark, uuid: Uuid) -> Option<String> {
    match mark {
        FormatMark::Never => None,
        FormatMark::Begun(fs_type) => Some(format!("begun {fs_type} {uuid}")),
        FormatMark::Done(fs_type) => Some(format!("done {fs_type} {uuid}")),
        FormatMark::Growing(fs_type) => Some(format!("growing {fs_type} {uuid}")),
    }
}

pub(crate) fn format_mark(meta: &Meta, uuid: Uuid) -> FormatMark {
    let mut words = meta.get(FORMAT).map(String::as_str).unwrap_or_default().split(' ');
    let (state, fs_type, named) = (words.next(), words.next().unwrap_or_default().to_owned(), words.next());
    match state.filter(|_| named == Some(uuid.to_string().as_str())) {
        Some("begun") => FormatMark::Begun(fs_type),
        Some("done") => FormatMark::Done(fs_type),
        Some("growing") => FormatMark::Growing(fs_type),
        _ => FormatMark::Never,
    }
}

pub(crate) fn is_replayed(meta: &Meta, uuid: Uuid) -> bool {
    meta.get(REPLAYED).is_some_and(|named| *named == uuid.to_string())
}

/// What is noted of an image that is not reached from everywhere. A clone may be in another pool than its source.
pub(crate) fn topology(reached_from: &[Segments], uuid: Uuid) -> Option<(String, String)> {
    let places = serde_json::to_string(reached_from).ok().filter(|_| !reached_from.is_empty())?;
    Some((TOPOLOGY.to_owned(), format!("{uuid} {places}")))
}

/// Empty: from everywhere.
pub(crate) fn reached_from(meta: &Meta, uuid: Uuid) -> Vec<Segments> {
    let noted = meta.get(TOPOLOGY).and_then(|value| value.split_once(' '));
    let ours = noted.filter(|(named, _)| *named == uuid.to_string());
    ours.and_then(|(_, places)| serde_json::from_str(places).ok()).unwrap_or_default()
}

/// A node that ControllerPublishVolume gave the volume to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Published {
    pub(crate) node: String,
    pub(crate) read_only: bool,
    pub(crate) multi_node: bool,
}

impl Published {
    pub(crate) fn key(&self) -> String {
        published_key(&self.node)
    }

    pub(crate) fn value(&self, uuid: Uuid) -> String {
        let access = if self.read_only { "ro" } else { "rw" };
        format!("{access} {} {uuid}", if self.multi_node { "multi" } else { "single" })
    }
}

pub(crate) fn published_key(node: &str) -> String {
    format!("{PUBLISHED}{node}")
}

/// The node in a key of such a record.
pub(crate) fn published_node(key: &str) -> Option<&str> {
    key.strip_prefix(PUBLISHED)
}

pub(crate) fn published(meta: &Meta, uuid: Uuid) -> Vec<Published> {
    let uuid = uuid.to_string();
    let records = meta.iter().filter_map(|(key, value)| Some((published_node(key)?, value)));
    let records = records.filter(|(_, value)| value.ends_with(&uuid));
    records
        .map(|(node, value)| Published {
            node: node.to_owned(),
            read_only: value.starts_with("ro "),
            multi_node: value.contains(" multi "),
        })
        .collect()
}

pub(crate) fn client_key(volume: &str, node: &str) -> String {
    format!("{CLIENT}{volume}/{node}")
}

/// The client addresses recorded at stage, by node.
pub(crate) fn clients<'a>(meta: &'a Meta, volume: &str) -> Vec<(&'a str, &'a str)> {
    let prefix = format!("{CLIENT}{volume}/");
    let records =
        meta.iter().filter_map(|(key, address)| Some((key.strip_prefix(&prefix)?, address.as_str())));
    records.collect()
}

/// Whether these watchers are rbd-mirror's at most; a client that some node recorded is never one.
pub(crate) fn only_mirrors(clients: &[(&str, &str)], watchers: &[Watcher], mirrors: usize) -> bool {
    let recorded = |watcher: &Watcher| clients.iter().any(|(_, address)| *address == watcher.address);
    watchers.len() <= mirrors && !watchers.iter().any(recorded)
}

/// Watchers in words, with the nodes that recorded them.
pub(crate) fn named(clients: &[(&str, &str)], watchers: &[Watcher]) -> String {
    let name = |watcher: &Watcher| {
        let node = clients.iter().find(|(_, address)| *address == watcher.address);
        node.map_or_else(|| watcher.address.clone(), |(node, address)| format!("{address} (node {node:?})"))
    };
    watchers.iter().map(name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: Uuid = Uuid::from_u128(1);
    const OTHER: Uuid = Uuid::from_u128(2);

    #[test]
    fn a_marker_speaks_of_its_own_image_only() {
        let done = FormatMark::Done("ext4".to_owned());
        let published = Published { node: "n1".to_owned(), read_only: true, multi_node: false };
        let places = vec![Segments::from([("topology.d/zone".to_owned(), "a".to_owned())])];
        let meta = Meta::from([
            topology(&places, OURS).expect("a value"),
            created(OURS, 4096),
            (FORMAT.to_owned(), format_value(&done, OURS).expect("a value")),
            (published.key(), published.value(OURS)),
        ]);
        assert_eq!((reached_from(&meta, OURS), reached_from(&meta, OTHER)), (places, vec![]));
        assert_eq!(created_by(&meta, OURS).map(|made| (made.size, made.is_of("x"))), Some((4096, true)));
        assert_eq!(created_by(&meta, OTHER), None);
        assert_eq!((format_mark(&meta, OURS), format_mark(&meta, OTHER)), (done, FormatMark::Never));
        assert_eq!(
            (super::published(&meta, OURS), super::published(&meta, OTHER)),
            (vec![published], vec![])
        );
    }

    #[test]
    fn the_marker_of_a_clone_names_its_image_and_its_source() {
        let meta = Meta::from([cloned(OURS, 4096, "12ab", "snapshot:s")]);
        let made = created_by(&meta, OURS).expect("a marker");
        assert_eq!((made.size, made.source), (4096, Some("snapshot:s")));
        assert!(made.is_of("12ab") && !made.is_of("12ac"));
        assert_eq!(created_for(&meta), Some(OURS));
    }
}
