//! `mapOptions` and `unmapOptions`, in ceph-csi's syntax: `<krbd|nbd>:op1,op2;<krbd|nbd>:op1`; without a prefix they are
//! krbd's. Only names that are known go on to a command: behind `--options` rbd-nbd takes any setting of Ceph, such as
//! one that names a program to run. Pure.

use crate::error::{Error, Result};

/// Who maps an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Client {
    /// The kernel.
    Krbd,
    Nbd,
}

/// What the options are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Map,
    Unmap,
    /// Of a volume that exists, whose parameters nobody can change any more.
    UnmapLiving,
}

/// Options of each client, each as `name` or `name=value`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) krbd: Vec<String>,
    pub(crate) nbd: Vec<String>,
}

const KRBD_MAP: &[&str] = &[
    "abort_on_full",
    "alloc_size",
    "cephx_require_signatures",
    "cephx_sign_messages",
    "compression_hint",
    "crc",
    "crush_location",
    "fsid",
    "ip",
    "lock_on_read",
    "lock_timeout",
    "mount_timeout",
    "ms_mode",
    "nocephx_require_signatures",
    "nocephx_sign_messages",
    "nocrc",
    "noshare",
    "notcp_nodelay",
    "notrim",
    "noudev",
    "osd_idle_ttl",
    "osd_request_timeout",
    "osdkeepalive",
    "queue_depth",
    "read_from_replica",
    "rxbounce",
    "share",
    "tcp_nodelay",
];
/// Those of rbd-nbd itself; beside them, settings of librbd (`librbd`).
const NBD_MAP: &[&str] = &[
    "io-timeout",
    "max_part",
    "nbds_max",
    "no-trim",
    "notrim",
    "reattach-timeout",
    "timeout",
    "try-netlink",
];
/// What librbd's settings that may be given begin with: its cache, its reading ahead, its limits, its log.
const LIBRBD: &[&str] =
    &["debug_rbd", "debug-rbd", "rbd_cache", "rbd_qos_", "rbd_read_from_replica_policy", "rbd_readahead_"];
const KRBD_UNMAP: &[&str] = &["noudev"];

const EXCLUSIVE: &str = "the controller could not grow the volume any more: rbd resize then fails with 30";
const MODE: &str = "whether a volume is read-only follows from its access mode";
const DEVICE: &str = "which device shows a volume is the node's to choose";
const QUIESCE: &str = "it lets a snapshot run a program on the node";
const LUKS: &str = "encryption is not asked for by a map option";
const FORCE: &str = "the device would go away under who still writes to it; without it, the unmap waits and tells who that is";
const UDEV: &str = "in a container rbd waits for udev for ever";
const COOKIE: &str = "the cookie is the volume id";

/// What must not be given, for either client, and why.
const REFUSED: &[(&str, &str)] = &[
    ("cookie", COOKIE),
    ("device", DEVICE),
    ("encryption-format", LUKS),
    ("encryption-passphrase-file", LUKS),
    ("exclusive", EXCLUSIVE),
    ("force", FORCE),
    ("quiesce", QUIESCE),
    ("quiesce-hook", QUIESCE),
    ("read-only", MODE),
    ("read_only", MODE),
    ("ro", MODE),
    ("rw", MODE),
    ("snap-id", DEVICE),
    ("udev", UDEV),
];

impl Options {
    /// Refuses what is not known, and what would break a promise of the driver.
    pub(crate) fn parse(verb: Verb, text: &str) -> Result<Self> {
        let mut parsed = Self::default();
        for part in text.split(';').map(str::trim).filter(|part| !part.is_empty()) {
            let (client, options) = client(part).map_err(|why| refusal(verb, text, &why))?;
            for option in options.split(',').map(str::trim).filter(|option| !option.is_empty()) {
                if verb == Verb::UnmapLiving && option == "force" {
                    tracing::warn!(text, "unmapOptions: force is left out: {FORCE}");
                    continue;
                }
                check(client, verb, option).map_err(|why| refusal(verb, text, &why))?;
                parsed.of_mut(client).push(option.to_owned());
            }
        }
        Ok(parsed)
    }

    pub(crate) fn of(&self, client: Client) -> &[String] {
        match client {
            Client::Krbd => &self.krbd,
            Client::Nbd => &self.nbd,
        }
    }

    fn of_mut(&mut self, client: Client) -> &mut Vec<String> {
        match client {
            Client::Krbd => &mut self.krbd,
            Client::Nbd => &mut self.nbd,
        }
    }
}

/// Whether one of the options has this name.
pub(crate) fn has(options: &[String], name: &str) -> bool {
    options.iter().any(|option| name_of(option) == name)
}

/// What a stash says, as far as it can be used: the way back never fails for it.
pub(crate) fn of_stash(client: Client, text: &str) -> Vec<String> {
    let known = |option: &&str| match check(client, Verb::Unmap, option) {
        Ok(()) => true,
        Err(why) => {
            tracing::warn!(text, "an unmap option of the stash is left out: {why}");
            false
        }
    };
    let options = text.split(',').map(str::trim).filter(|option| !option.is_empty());
    options.filter(known).map(str::to_owned).collect()
}

fn client(part: &str) -> Result<(Client, &str), String> {
    match part.split_once(':') {
        None => Ok((Client::Krbd, part)),
        Some((name, options)) => match name.trim().to_ascii_lowercase().as_str() {
            "krbd" => Ok((Client::Krbd, options)),
            "nbd" => Ok((Client::Nbd, options)),
            _ => Err(format!(
                "{name:?} stands before a ':' and is neither krbd nor nbd: where a value holds a ':', begin with krbd: or nbd:"
            )),
        },
    }
}

fn check(client: Client, verb: Verb, option: &str) -> Result<(), String> {
    let plain = option.bytes().all(|byte| byte.is_ascii_graphic()) && !option.starts_with(['-', '=']);
    let name = name_of(option);
    let known = match (client, verb) {
        (Client::Krbd, Verb::Map) => KRBD_MAP.contains(&name),
        (Client::Nbd, Verb::Map) => {
            NBD_MAP.contains(&name) || LIBRBD.iter().any(|start| name.starts_with(start))
        }
        (Client::Krbd, Verb::Unmap | Verb::UnmapLiving) => KRBD_UNMAP.contains(&name),
        (Client::Nbd, Verb::Unmap | Verb::UnmapLiving) => false,
    };
    match REFUSED.iter().find(|(refused, _)| *refused == name) {
        _ if !plain => Err(format!("{option:?} is no option: it has a space, or '-' or '=' in front")),
        Some((_, why)) => Err(format!("{name} is refused: {why}")),
        None if known => Ok(()),
        None => Err(format!("{name:?} is no option that this driver hands on")),
    }
}

fn name_of(option: &str) -> &str {
    option.split_once('=').map_or(option, |(name, _)| name)
}

fn refusal(verb: Verb, text: &str, why: &str) -> Error {
    let parameter = if verb == Verb::Map { "mapOptions" } else { "unmapOptions" };
    Error::Invalid(format!("{parameter}={text:?}: {why}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(text: &str) -> Result<(String, String), String> {
        let options = Options::parse(Verb::Map, text).map_err(|error| error.to_string())?;
        Ok((options.krbd.join(","), options.nbd.join(",")))
    }

    fn both(krbd: &str, nbd: &str) -> (String, String) {
        (krbd.to_owned(), nbd.to_owned())
    }

    #[test]
    fn ceph_csi_s_spellings_are_read() {
        assert_eq!(check("").ok(), Some(both("", "")));
        assert_eq!(
            check("lock_on_read,queue_depth=1024").ok(),
            Some(both("lock_on_read,queue_depth=1024", ""))
        );
        assert_eq!(
            check("krbd:lock_on_read, queue_depth=1024; nbd:try-netlink").ok(),
            Some(both("lock_on_read,queue_depth=1024", "try-netlink"))
        );
        assert_eq!(check("NBD:io-timeout=5;crc;").ok(), Some(both("crc", "io-timeout=5")));
        let location = "read_from_replica=localize,crush_location=zone:zone1|rack:r1";
        assert_eq!(check(&format!("krbd:{location}")).ok(), Some(both(location, "")));
        assert!(check("crush_location=zone:zone1").is_err_and(|why| why.contains("krbd:")));
    }

    #[test]
    fn what_breaks_a_promise_is_refused_with_its_reason() {
        for (text, why) in [
            ("exclusive", EXCLUSIVE),
            ("krbd:crc,ro", MODE),
            ("udev", UDEV),
            ("nbd:device=/dev/nbd9", DEVICE),
            ("nbd:quiesce-hook=/bin/sh", QUIESCE),
            ("nbd:read-only", MODE),
            ("nbd:cookie=x", COOKIE),
        ] {
            assert!(check(text).is_err_and(|error| error.contains(why)), "{text} was taken");
        }
    }

    #[test]
    fn what_would_be_another_argument_is_refused() {
        for text in [
            "-o=x",
            "--id=admin",
            "crc --id=admin",
            "crc\n--id",
            "=x",
            "nbd:keyfile=/etc/shadow",
            "nbd:conf=/tmp/c",
            "nbd:log-file=/etc/passwd",
            "nbd:rbd_plugins=x",
            "secret=x",
            "name=admin",
            "crc\u{0}",
            "ggate:x",
        ] {
            assert!(check(text).is_err(), "{text:?} was taken");
        }
    }

    #[test]
    fn force_is_refused_to_new_volumes_and_left_out_of_old_ones() {
        assert!(Options::parse(Verb::Unmap, "force").is_err_and(|error| error.to_string().contains(FORCE)));
        let old =
            Options::parse(Verb::UnmapLiving, "krbd:force,noudev;nbd:force").expect("ceph-csi's example");
        assert_eq!((old.krbd, old.nbd), (vec!["noudev".to_owned()], Vec::new()));
        assert_eq!(of_stash(Client::Krbd, "force,noudev,--x"), ["noudev"]);
        assert!(of_stash(Client::Nbd, "force").is_empty());
    }

    proptest! {
        #[test]
        fn whatever_is_taken_is_harmless_and_reads_back_as_itself(text in "[krbdn:;,=a-z_ \\-0-9.\\x00\\n]{0,40}") {
            if let Ok(options) = Options::parse(Verb::Map, &text) {
                for option in options.krbd.iter().chain(&options.nbd) {
                    prop_assert!(option.bytes().all(|byte| byte.is_ascii_graphic() && byte != b',' && byte != b';'));
                    prop_assert!(!option.starts_with('-'));
                }
                let printed = format!("krbd:{};nbd:{}", options.krbd.join(","), options.nbd.join(","));
                prop_assert_eq!(Options::parse(Verb::Map, &printed).map_err(|error| error.to_string()), Ok(options));
            }
        }

        #[test]
        fn known_options_come_through_in_their_order(
            krbd in proptest::sample::subsequence(KRBD_MAP, 0..5),
            nbd in proptest::sample::subsequence(NBD_MAP, 0..4),
        ) {
            let text = format!(" nbd: {} ;krbd:{}", nbd.join(" , "), krbd.join(","));
            prop_assert_eq!(check(&text).ok(), Some(both(&krbd.join(","), &nbd.join(","))));
        }
    }
}
