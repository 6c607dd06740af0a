//! How fast a volume may be: ceph-csi's mutable parameters (as of its 3.17) into limits of librbd, which both are kept
//! as metadata of the image, under ceph-csi's keys. krbd knows no limits. Pure.

use std::collections::BTreeMap;

use crate::backend::Parameters;
use crate::backend::names::{RESERVED, nearest};
use crate::error::{Error, Result};

use crate::backend::rbd::meta::Meta;

/// The parameters of each limit, and its name in keys.
struct Limit {
    base: &'static str,
    max: &'static str,
    per_gib: &'static str,
    key: &'static str,
}

const LIMITS: [Limit; 6] = [
    Limit { base: "baseIops", max: "maxIops", per_gib: "iopsPerGiB", key: "iops" },
    Limit { base: "baseReadIops", max: "maxReadIops", per_gib: "readIopsPerGiB", key: "read_iops" },
    Limit { base: "baseWriteIops", max: "maxWriteIops", per_gib: "writeIopsPerGiB", key: "write_iops" },
    Limit { base: "baseBps", max: "maxBps", per_gib: "bpsPerGiB", key: "bps" },
    Limit { base: "baseReadBps", max: "maxReadBps", per_gib: "readBpsPerGiB", key: "read_bps" },
    Limit { base: "baseWriteBps", max: "maxWriteBps", per_gib: "writeBpsPerGiB", key: "write_bps" },
];
/// Up to this size a volume has the base alone.
const BASE_SIZE: &str = "baseVolSizeBytes";
const GIB: u64 = 1 << 30;
/// librbd takes no more (seen).
const MOST: u64 = i64::MAX.unsigned_abs();

impl Limit {
    /// The parameters, each with the key under which its value is kept.
    fn kept(&self) -> [(&'static str, String); 3] {
        [
            (self.base, format!("rbd_base_qos_{}_limit", self.key)),
            (self.max, format!("rbd_max_qos_{}_limit", self.key)),
            (self.per_gib, format!("rbd_{}_per_gib_limit", self.key)),
        ]
    }

    /// What `rbd config image set` writes.
    fn option(&self) -> String {
        format!("conf_rbd_qos_{}_limit", self.key)
    }
}

/// The values of parameters, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Qos(BTreeMap<&'static str, u64>);

impl Qos {
    /// Refuses what is unknown and what is no number.
    pub(crate) fn parse(mutable: &Parameters) -> Result<Self> {
        let mutable = mutable.iter().filter(|(name, _)| !name.starts_with(RESERVED));
        let values = mutable.map(|(name, value)| Ok((known(name)?, number(name, value)?)));
        values.collect::<Result<_>>().map(Self)
    }

    /// What the image has.
    fn kept(meta: &Meta) -> Self {
        let value = |(name, key): (&'static str, String)| Some((name, meta.get(&key)?.parse().ok()?));
        Self(kept().filter_map(value).collect())
    }

    /// Whether the image has been given these; what else it has been given counts for nothing.
    pub(crate) fn differs_from(&self, meta: &Meta) -> Option<String> {
        let image = Self::kept(meta);
        let other = self.0.iter().find(|(name, value)| image.get(name) != Some(**value));
        other.map(|(name, value)| {
            let has = image.get(name).map_or_else(|| "none".to_owned(), |value| value.to_string());
            format!("with {name} {has} where {value} is asked for")
        })
    }

    /// The metadata of a volume of this size that has these parameters.
    pub(crate) fn records(&self, size: u64) -> Result<Vec<(String, String)>> {
        LIMITS.iter().try_for_each(|limit| self.fits(limit))?;
        let kept = kept().filter_map(|(name, key)| Some((key, self.get(name)?.to_string())));
        let limits =
            LIMITS.iter().filter_map(|limit| Some((limit.option(), self.limit(limit, size)?.to_string())));
        Ok(kept.chain(limits).collect())
    }

    /// What of the metadata of an image of this size has to change for these parameters. Others stay as they are.
    pub(crate) fn changes(&self, meta: &Meta, size: u64) -> Result<Vec<(String, String)>> {
        let mut all = Self::kept(meta);
        all.0.extend(&self.0);
        let mut records = all.records(size)?;
        records.retain(|(key, value)| meta.get(key) != Some(value));
        Ok(records)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn get(&self, name: &str) -> Option<u64> {
        self.0.get(name).copied()
    }

    /// Refuses a parameter that would have no effect.
    fn fits(&self, limit: &Limit) -> Result<()> {
        let Limit { base, max, per_gib, .. } = limit;
        let given = |name: &&str| self.get(name).is_some_and(|value| value > 0);
        let refuse = |what: String| Err(Error::Invalid(format!("mutable parameter {what}")));
        let lone = [per_gib, max].into_iter().find(|name| given(name));
        match (self.get(base), lone) {
            (None, Some(name)) => refuse(format!("{name} goes with {base}: give both")),
            (Some(_), _) if given(per_gib) && !self.0.contains_key(BASE_SIZE) => {
                refuse(format!("{per_gib} goes with {BASE_SIZE}: give both"))
            }
            (Some(value), _) if given(max) && self.get(max) < Some(value) => {
                refuse(format!("{base}={value} is more than {max}={}", self.get(max).unwrap_or_default()))
            }
            _ => Ok(()),
        }
    }

    /// 0 is no limit. By whole GiB, as ceph-csi counts.
    fn limit(&self, limit: &Limit, size: u64) -> Option<u64> {
        let base = self.get(limit.base)?;
        if base == 0 {
            return Some(0);
        }
        let over = self.get(BASE_SIZE).map_or(0, |first| size.saturating_sub(first) / GIB);
        let more = over.saturating_mul(self.get(limit.per_gib).unwrap_or(0));
        let most = self.get(limit.max).filter(|max| *max > 0).unwrap_or(MOST);
        Some(base.saturating_add(more).min(most))
    }
}

/// All parameters, each with the key under which its value is kept.
fn kept() -> impl Iterator<Item = (&'static str, String)> {
    let size = (BASE_SIZE, "rbd_base_qos_vol_size".to_owned());
    LIMITS.iter().flat_map(Limit::kept).chain([size])
}

/// Whether this metadata is a limit, or what limits are calculated from.
pub(crate) fn is_kept(key: &str) -> bool {
    kept().any(|(_, known)| known == key) || LIMITS.iter().any(|limit| limit.option() == key)
}

pub(crate) fn is_mutable(name: &str) -> bool {
    kept().any(|(known, _)| known == name)
}

fn known(name: &str) -> Result<&'static str> {
    let names: Vec<&'static str> = kept().map(|(name, _)| name).collect();
    names.iter().copied().find(|known| *known == name).ok_or_else(|| {
        let nearest = nearest(name, &names);
        Error::Invalid(format!("mutable parameter {name:?} is unknown; did you mean {nearest:?}?"))
    })
}

fn number(name: &str, value: &str) -> Result<u64> {
    let digits = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    let number = value.parse().ok().filter(|number| digits && *number <= MOST);
    number.ok_or_else(|| {
        Error::Invalid(format!("mutable parameter {name}={value:?}: it is a whole number from 0 to {MOST}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(pairs: &[(&str, &str)]) -> Result<Qos, String> {
        let map = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Qos::parse(&map).map_err(|error| error.to_string())
    }

    fn records(pairs: &[(&str, &str)], gib: u64) -> Result<Meta, String> {
        let records = parse(pairs)?.records(gib * GIB).map_err(|error| error.to_string())?;
        Ok(records.into_iter().collect())
    }

    fn limit(pairs: &[(&str, &str)], gib: u64) -> String {
        records(pairs, gib).expect("records")["conf_rbd_qos_read_bps_limit"].clone()
    }

    #[test]
    fn a_limit_grows_by_whole_gib_up_to_its_maximum() {
        let base = ("baseReadBps", "100");
        let scaled =
            [base, ("readBpsPerGiB", "10"), ("baseVolSizeBytes", "2147483649"), ("maxReadBps", "130")];
        assert_eq!(limit(&[base], 50), "100");
        for (gib, expected) in
            [(1, "100"), (2, "100"), (3, "100"), (4, "110"), (6, "130"), (7, "130"), (50, "130")]
        {
            assert_eq!(limit(&scaled, gib), expected, "{gib} GiB");
        }
        assert_eq!(limit(&[("baseReadBps", "0"), ("readBpsPerGiB", "7"), ("baseVolSizeBytes", "0")], 9), "0");
        let most = MOST.to_string();
        let huge = [("baseReadBps", most.as_str()), ("readBpsPerGiB", &most), ("baseVolSizeBytes", "0")];
        assert_eq!(limit(&huge, 1 << 30), most);
    }

    #[test]
    fn values_are_kept_under_the_keys_of_ceph_csi() {
        let scaled = [
            ("baseWriteIops", "5"),
            ("writeIopsPerGiB", "1"),
            ("baseVolSizeBytes", "1"),
            ("maxWriteIops", "9"),
        ];
        let expected = [
            ("conf_rbd_qos_write_iops_limit", "7"),
            ("rbd_base_qos_vol_size", "1"),
            ("rbd_base_qos_write_iops_limit", "5"),
            ("rbd_max_qos_write_iops_limit", "9"),
            ("rbd_write_iops_per_gib_limit", "1"),
        ];
        let meta = records(&scaled, 3).expect("records");
        let kept: Vec<_> = meta.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(kept, expected);
        assert_eq!(Qos::kept(&meta), parse(&scaled).expect("parameters"));
    }

    #[test]
    fn only_what_is_named_and_differs_is_changed() {
        let meta = records(
            &[("baseIops", "5"), ("baseBps", "7"), ("iopsPerGiB", "1"), ("baseVolSizeBytes", "0")],
            2,
        )
        .expect("records");
        let changes = |pairs: &[(&str, &str)], gib: u64| {
            let changes = parse(pairs).expect("parameters").changes(&meta, gib * GIB).expect("changes");
            changes.into_iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>()
        };
        assert_eq!(changes(&[("baseIops", "5")], 2), Vec::<String>::new());
        assert_eq!(
            changes(&[("baseIops", "6")], 2),
            ["rbd_base_qos_iops_limit=6", "conf_rbd_qos_iops_limit=8"]
        );
        assert_eq!(changes(&[], 4), ["conf_rbd_qos_iops_limit=9"]);
        let differs = |pairs: &[(&str, &str)]| parse(pairs).expect("parameters").differs_from(&meta);
        assert_eq!(differs(&[("baseBps", "7")]), None);
        assert!(differs(&[("baseBps", "8")]).is_some_and(|text| text.contains("baseBps 7 where 8")));
        assert!(differs(&[("baseReadBps", "8")]).is_some());
    }

    #[test]
    fn what_has_no_effect_or_no_sense_is_refused() {
        let wrong: [&[(&str, &str)]; 11] = [
            &[("baseIop", "1")],
            &[("BaseIops", "1")],
            &[("baseIops", "")],
            &[("baseIops", "-1")],
            &[("baseIops", "+1")],
            &[("baseIops", "1k")],
            &[("baseIops", "9223372036854775808")],
            &[("maxIops", "1")],
            &[("iopsPerGiB", "1"), ("baseVolSizeBytes", "1")],
            &[("iopsPerGiB", "1"), ("baseIops", "1")],
            &[("baseIops", "3"), ("maxIops", "2")],
        ];
        for pairs in wrong {
            assert!(records(pairs, 1).is_err_and(|error| error.contains(pairs[0].0)), "{pairs:?} was taken");
        }
        assert!(parse(&[("baseReadIop", "1")]).is_err_and(|error| error.contains("\"baseReadIops\"")));
    }
}
