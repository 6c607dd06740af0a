//! How a volume wants to be mapped, by the parameters of its StorageClass, which the node gets as volume context; and
//! the options that follow for each client. Pure.

mod options;
mod place;

use std::collections::BTreeMap;
use std::path::{Component, Path};

use crate::backend::{Mapping, Parameters};
use crate::cluster::{Access, ReadAffinity};
use crate::error::{Error, Result};

pub(crate) use options::{Client, of_stash};
use options::{Options, Verb, has};

/// Where ceph-csi has rbd-nbd write its logs.
const LOG_DIR: &str = "/var/log/ceph";
pub(crate) const REMOVE: &str = "remove";
pub(crate) const COMPRESS: &str = "compress";
pub(crate) const PRESERVE: &str = "preserve";

/// What ceph-csi gives rbd-nbd unless it is told otherwise: netlink, five minutes for a daemon to come back, and no end
/// to the patience with a cluster that does not answer, as krbd has none.
const NBD_DEFAULTS: [&str; 3] = ["try-netlink", "reattach-timeout=300", "io-timeout=0"];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) nbd: bool,
    /// rbd-nbd, where krbd cannot show the image.
    pub(crate) fall_back: bool,
    map: Options,
    unmap: Options,
    /// Empty: where ceph-csi has it.
    log_dir: String,
    log_strategy: String,
}

impl Wanted {
    /// Of a volume that is to be made.
    pub(crate) fn parse(parameters: &Parameters) -> Result<Self> {
        Self::read(parameters, Verb::Unmap)
    }

    /// Of a volume that exists, maybe made by ceph-csi, which checks none of it.
    pub(crate) fn of_context(context: &Parameters) -> Result<Self> {
        Self::read(context, Verb::UnmapLiving)
    }

    fn read(parameters: &Parameters, unmap: Verb) -> Result<Self> {
        let get = |name: &str| parameters.get(name).map_or("", |value| value.trim());
        Ok(Self {
            nbd: is_nbd(get("mounter"))?,
            fall_back: is_true("tryOtherMounters", get("tryOtherMounters"))?,
            map: Options::parse(Verb::Map, get("mapOptions"))?,
            unmap: Options::parse(unmap, get("unmapOptions"))?,
            log_dir: folder(get("cephLogDir"))?,
            log_strategy: strategy(get("cephLogStrategy"))?,
        })
    }

    /// What the stash says of it before it is mapped. Where the folder of the logs was not asked for and there is none,
    /// there is no log.
    pub(crate) fn mapping(&self, client: Client) -> Mapping {
        let unmap_options = self.unmap.of(client).join(",");
        let Client::Nbd = client else { return Mapping { unmap_options, ..Mapping::default() } };
        let usual = if Path::new(LOG_DIR).is_dir() { LOG_DIR } else { "" };
        let log_dir = if self.log_dir.is_empty() { usual } else { &self.log_dir };
        let log_strategy = if log_dir.is_empty() { "" } else { &self.log_strategy };
        let (log_dir, log_strategy) = (log_dir.to_owned(), log_strategy.to_owned());
        let given = self.map.nbd.join(",");
        let map_options = if given.is_empty() { given } else { format!("nbd:{given}") };
        Mapping { nbd: true, unmap_options, map_options, log_dir, log_strategy, ..Mapping::default() }
    }

    /// Of a device whose StorageClass is not told: what the stash says of how it was mapped.
    pub(crate) fn of_mapping(mapping: &Mapping) -> Parameters {
        let mounter = if mapping.nbd { "rbd-nbd" } else { "" };
        let told = [
            ("mounter", mounter),
            ("mapOptions", &mapping.map_options),
            ("cephLogDir", &mapping.log_dir),
            ("cephLogStrategy", &mapping.log_strategy),
        ];
        told.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    /// What the user gives wins over what is derived. `noudev`: in a container `rbd map` waits for udev for ever.
    pub(crate) fn krbd_options(&self, access: &Access, nearby: Option<String>) -> String {
        let given = &self.map.krbd;
        let mut options = vec!["noudev".to_owned()];
        if !has(given, "ms_mode") {
            options.extend(place::ms_mode(&access.monitors).map(str::to_owned));
        }
        if !has(given, "read_from_replica") && !has(given, "crush_location") {
            options.extend(nearby);
        }
        options.extend(given.iter().filter(|option| *option != "noudev").cloned());
        options.join(",")
    }

    /// `help`: what the installed rbd-nbd says of itself; of the defaults it gets those that it knows (14.2 knows neither
    /// `cookie` nor `io-timeout`, and 18.2 has no `try-netlink` any more). The cookie tells whose device it is.
    pub(crate) fn nbd_options(&self, volume: &str, help: &str) -> String {
        let given = &self.map.nbd;
        let name = |option: &str| option.split('=').next().unwrap_or_default().to_owned();
        let known = |option: &str| help.contains(&format!("--{}", name(option)));
        let defaults = NBD_DEFAULTS.iter().filter(|option| known(option) && !has(given, &name(option)));
        let mut options: Vec<String> = defaults.map(|&option| option.to_owned()).collect();
        if known("cookie") && is_cookie(volume) {
            options.push(format!("cookie={volume}"));
        }
        options.extend(given.iter().cloned());
        options.join(",")
    }
}

/// The labels that say what is near, where reads are to stay near. What the cluster's entry in config.json says counts
/// before the flags.
pub(crate) fn affinity<'a>(access: &'a Access, flags: &'a ReadAffinity) -> Option<&'a [String]> {
    let own = access.read_affinity.as_ref();
    if !own.unwrap_or(flags).enabled {
        return None;
    }
    Some(own.map(|own| &own.labels).filter(|labels| !labels.is_empty()).unwrap_or(&flags.labels))
}

/// The map options that let krbd read from what is near.
pub(crate) fn nearby(access: &Access, wanted: &[String], node: &BTreeMap<String, String>) -> Option<String> {
    let options = place::nearby(wanted, node);
    if options.is_none() {
        tracing::warn!(
            cluster = access.cluster,
            ?wanted,
            "read affinity: this node has none of these labels"
        );
    }
    options
}

/// What rbd-nbd writes about a volume; also of one that ceph-csi mapped.
pub(crate) fn log_file(folder: &str, volume: &str) -> Option<String> {
    let safe = !volume.contains('/') && self::folder(folder).is_ok() && !folder.is_empty();
    safe.then(|| format!("{folder}/rbd-nbd-{volume}.log"))
}

fn is_nbd(mounter: &str) -> Result<bool> {
    match mounter {
        "" | "rbd" | "krbd" => Ok(false),
        "rbd-nbd" => Ok(true),
        other => Err(Error::Invalid(format!("mounter={other:?}: it is rbd (krbd) or rbd-nbd"))),
    }
}

fn is_true(name: &str, value: &str) -> Result<bool> {
    match value.to_ascii_lowercase().as_str() {
        "" | "false" => Ok(false),
        "true" => Ok(true),
        _ => Err(Error::Invalid(format!("{name}={value:?}: it is \"true\" or \"false\""))),
    }
}

fn folder(text: &str) -> Result<String> {
    let path = Path::new(text);
    let upward = path.components().any(|part| part == Component::ParentDir);
    if !text.is_empty() && (!path.is_absolute() || upward || text.chars().any(char::is_control)) {
        return Err(Error::Invalid(format!("cephLogDir={text:?}: it is an absolute path without '..'")));
    }
    Ok(text.trim_end_matches('/').to_owned())
}

fn strategy(text: &str) -> Result<String> {
    let name = text.to_ascii_lowercase();
    match name.as_str() {
        "" => Ok(REMOVE.to_owned()),
        REMOVE | COMPRESS | PRESERVE => Ok(name),
        _ => {
            Err(Error::Invalid(format!("cephLogStrategy={text:?}: it is {REMOVE}, {COMPRESS} or {PRESERVE}")))
        }
    }
}

/// Volume ids are; the name of a static volume's image may hold what ends an option.
fn is_cookie(volume: &str) -> bool {
    volume.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

#[cfg(test)]
mod tests;
