//! What an image says of its encryption, under ceph-csi's keys, and what this driver adds: older keys, and the store that
//! its keys are of. None of it begins with a dot: a clone inherits that by any release of `rbd`. Pure.

use uuid::Uuid;

use super::Meta;

/// ceph-csi's states.
pub(crate) const PREPARED: &str = "encryptionPrepared";
pub(crate) const MADE: &str = "encrypted";
pub(crate) const ENCRYPTED: &str = "rbd.csi.ceph.com/encrypted";
/// The key in force, sealed.
pub(crate) const DEK: &str = "rbd.csi.ceph.com/dek";
/// ceph-csi's keys, and as its releases before 3.7 wrote them.
const DOTTED: [(&str, &str); 2] =
    [(ENCRYPTED, ".rbd.csi.ceph.com/encrypted"), (DEK, ".rbd.csi.ceph.com/dek")];
/// Keys that were in force before, which open the headers of older snapshots: the higher the number the newer.
const OLDER: &str = "rbd.csi.ceph.com/dek/";
/// Bytes in front of what a pod sees, in decimal.
pub(crate) const HEADER: &str = "rbd.csi.ceph.com/luks2HeaderSize";
/// What it is in a volume of this driver. ceph-csi's before 3.15 have it too, and do not say so.
pub(crate) const LUKS2_HEADER: u64 = 16 << 20;
/// `<uuid> <id>`: the keys of this volume are in the store of this id, and sealed for it.
const STORE: &str = "rbd.csi.ceph.com/keystore";

/// A sealed key, and where the image has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) name: String,
    pub(crate) sealed: String,
}

/// Whether there is, or will be, a header before what a pod sees of the image.
pub(crate) fn is_encrypted(meta: &Meta) -> bool {
    state(meta).is_some()
}

/// Whether a header was made to its end.
pub(crate) fn is_made(meta: &Meta) -> bool {
    state(meta) == Some(MADE)
}

fn state(meta: &Meta) -> Option<&str> {
    get(meta, ENCRYPTED).map(str::trim).filter(|state| !state.is_empty())
}

/// Under the key, or the older one with a dot in front.
fn get<'a>(meta: &'a Meta, key: &str) -> Option<&'a str> {
    let dotted = DOTTED.iter().find(|(new, _)| *new == key).map(|(_, old)| *old);
    meta.get(key).or_else(|| meta.get(dotted?)).map(String::as_str)
}

/// What the image has under older keys alone, under those of today.
pub(crate) fn undotted(meta: &Meta) -> Vec<(&'static str, String)> {
    let old = DOTTED.iter().filter(|(new, _)| !meta.contains_key(*new));
    old.filter_map(|(new, old)| Some((*new, meta.get(*old)?.clone()))).collect()
}

/// Bytes of the image that no pod sees.
pub(crate) fn header(meta: &Meta) -> u64 {
    let said = || meta.get(HEADER).and_then(|text| text.trim().parse().ok());
    if is_encrypted(meta) { said().unwrap_or(LUKS2_HEADER) } else { 0 }
}

/// Whether `header` looks at what is under this key.
pub(crate) fn says_size(key: &str) -> bool {
    key == HEADER || DOTTED.iter().any(|(new, old)| *new == ENCRYPTED && (key == *new || key == *old))
}

pub(crate) fn of_key_store(uuid: Uuid, id: &str) -> (String, String) {
    (STORE.to_owned(), format!("{uuid} {id}"))
}

/// The store that the keys of this volume are in, and sealed for it.
pub(crate) fn key_store(meta: &Meta, uuid: Uuid) -> Option<&str> {
    let (named, id) = meta.get(STORE)?.split_once(' ')?;
    (named == uuid.to_string()).then_some(id)
}

/// All sealed keys, newest first.
pub(crate) fn keys(meta: &Meta) -> Vec<Key> {
    let key = |name: &str, sealed: &str| Key { name: name.to_owned(), sealed: sealed.to_owned() };
    let current = get(meta, DEK).map(|sealed| key(DEK, sealed));
    let mut older: Vec<(u32, &str)> =
        meta.keys().filter_map(|name| Some((number(name)?, name.as_str()))).collect();
    older.sort_unstable_by(|a, b| b.cmp(a));
    let older = older.into_iter().filter_map(|(_, name)| Some(key(name, meta.get(name)?)));
    current.into_iter().chain(older).collect()
}

/// Where the key that is in force goes when another one takes its place.
pub(crate) fn next_older(meta: &Meta) -> String {
    let last = meta.keys().filter_map(|name| number(name)).max().unwrap_or_default();
    format!("{OLDER}{}", last.saturating_add(1))
}

fn number(name: &str) -> Option<u32> {
    name.strip_prefix(OLDER)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(pairs: &[(&str, &str)]) -> Meta {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn older_releases_had_a_dot_in_front() {
        let old = meta(&[(".rbd.csi.ceph.com/encrypted", "encrypted"), (".rbd.csi.ceph.com/dek", "d")]);
        assert!(is_encrypted(&old) && is_made(&old));
        assert_eq!(keys(&old), [Key { name: DEK.to_owned(), sealed: "d".to_owned() }]);
        assert_eq!(undotted(&old), [(ENCRYPTED, "encrypted".to_owned()), (DEK, "d".to_owned())]);
        let both = meta(&[(".rbd.csi.ceph.com/encrypted", "encrypted"), (ENCRYPTED, "encryptionPrepared\n")]);
        assert!(is_encrypted(&both) && !is_made(&both) && undotted(&both).is_empty());
        assert!(!is_encrypted(&Meta::new()) && !is_encrypted(&meta(&[(ENCRYPTED, "")])));
    }

    #[test]
    fn a_header_is_taken_off_where_there_is_one() {
        assert_eq!(header(&meta(&[(HEADER, "5")])), 0);
        assert_eq!(header(&meta(&[(ENCRYPTED, MADE), (HEADER, "4096\n")])), 4096);
        assert_eq!(header(&meta(&[(ENCRYPTED, PREPARED)])), LUKS2_HEADER);
    }

    #[test]
    fn the_newest_key_comes_first() {
        let mut all =
            meta(&[(DEK, "now"), ("rbd.csi.ceph.com/dek/2", "b"), ("rbd.csi.ceph.com/dek/10", "c")]);
        all.insert("rbd.csi.ceph.com/dek/x".to_owned(), "no number".to_owned());
        let sealed = |meta: &Meta| keys(meta).into_iter().map(|key| key.sealed).collect::<Vec<_>>();
        assert_eq!(
            (sealed(&all), sealed(&Meta::new())),
            (vec!["now".into(), "c".into(), "b".into()], vec![])
        );
        assert_eq!(next_older(&all), "rbd.csi.ceph.com/dek/11");
        assert_eq!(next_older(&Meta::new()), "rbd.csi.ceph.com/dek/1");
    }

    #[test]
    fn a_clone_inherits_no_store() {
        let (own, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let meta = Meta::from([of_key_store(own, "my store")]);
        assert_eq!((key_store(&meta, own), key_store(&meta, other)), (Some("my store"), None));
    }
}
