//! What of the map options follows from where things are: the protocol that the monitors speak, and the replicas that are
//! near. Pure.

use std::collections::BTreeMap;

/// How krbd has to be told to talk, where it would not find that out: without it, it speaks msgr1 alone, and a cluster of
/// msgr2 answers "possible ms_mode mismatch" or not at all (ceph-csi#3076, rook#8464). One monitor that can be reached by
/// msgr1 is enough.
pub(crate) fn ms_mode(monitors: &str) -> Option<&'static str> {
    let mut addresses = monitors.split([',', ' ', ';']).filter(|address| !address.is_empty()).peekable();
    (addresses.peek().is_some() && addresses.all(only_msgr2)).then_some("ms_mode=prefer-crc")
}

/// As Ceph reads an address: `v2:`, or no prefix and the port that is msgr2's.
fn only_msgr2(address: &str) -> bool {
    let address = address.strip_prefix('[').filter(|rest| rest.starts_with('v')).unwrap_or(address);
    let of_msgr2 =
        |address: &str| address.split('/').next().is_some_and(|address| address.ends_with(":3300"));
    address.starts_with("v2:") || (!address.starts_with("v1:") && of_msgr2(address))
}

/// `read_from_replica=localize,crush_location=K:V|K:V` for those of the labels that the node has; None where it has
/// none. As ceph-csi makes CRUSH buckets of labels: the name behind the last '/', `hostname` is CRUSH's `host`, and a
/// bucket's name has no dots.
pub(crate) fn nearby(wanted: &[String], node: &BTreeMap<String, String>) -> Option<String> {
    let places: Vec<String> =
        wanted.iter().filter_map(|label| place(label, node.get(label)?.trim())).collect();
    (!places.is_empty()).then(|| format!("read_from_replica=localize,crush_location={}", places.join("|")))
}

fn place(label: &str, value: &str) -> Option<String> {
    let kind = label.rsplit('/').next().unwrap_or(label);
    let kind = if kind == "hostname" { "host" } else { kind };
    let plain = |text: &str| {
        let fine = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        !text.is_empty() && text.bytes().all(fine)
    };
    (plain(kind) && plain(value)).then(|| format!("{kind}:{}", value.replace('.', "-")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ms_mode_is_told_where_no_monitor_speaks_msgr1() {
        for (monitors, told) in [
            ("10.0.0.1:6789", false),
            ("10.0.0.1", false),
            ("mon.example.com", false),
            ("10.0.0.1:6789,10.0.0.2:3300", false),
            ("v1:10.0.0.1:6789/0", false),
            ("[v2:10.0.0.1:3300,v1:10.0.0.1:6789]", false),
            ("[v2:10.0.0.1:3300/0,v1:10.0.0.1:6789/0],[v2:10.0.0.2:3300/0,v1:10.0.0.2:6789/0]", false),
            ("v2:10.0.0.1:3300,v2:10.0.0.2:3300", true),
            ("v2:10.0.0.1:3300/0", true),
            ("[v2:10.0.0.1:3300/0]", true),
            ("v2:10.0.0.1:7777", true),
            ("10.0.0.1:3300", true),
            ("10.0.0.1:3300,10.0.0.2:3300", true),
            ("[fd00::1]:3300", true),
            ("[fd00::1]:6789", false),
            ("[fd00::1]", false),
            ("[v2:[fd00::1]:3300/0,v1:[fd00::1]:6789/0]", false),
            ("v2:[fd00::1]:3300/0", true),
            ("v2.example.com:6789", false),
            ("", false),
        ] {
            assert_eq!(ms_mode(monitors).is_some(), told, "{monitors:?}");
        }
    }

    fn check(wanted: &[&str], node: &[(&str, &str)]) -> Option<String> {
        let wanted: Vec<String> = wanted.iter().map(|&label| label.to_owned()).collect();
        let node = node.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        nearby(&wanted, &node)
    }

    #[test]
    fn labels_of_the_node_become_places_of_crush() {
        let zone = "topology.kubernetes.io/zone";
        let node =
            [(zone, "south.east.1"), ("topology.rook.io/rack", "r1"), ("kubernetes.io/hostname", "w1")];
        let found = |places: &str| Some(format!("read_from_replica=localize,crush_location={places}"));
        assert_eq!(check(&[zone], &node), found("zone:south-east-1"));
        assert_eq!(check(&["topology.rook.io/rack", zone], &node), found("rack:r1|zone:south-east-1"));
        assert_eq!(check(&["kubernetes.io/hostname"], &node), found("host:w1"));
    }

    #[test]
    fn where_nothing_is_known_nothing_is_said() {
        assert_eq!(check(&[], &[("a/zone", "z")]), None);
        assert_eq!(check(&["a/zone"], &[]), None);
        assert_eq!(check(&["a/zone"], &[("b/zone", "z")]), None);
        assert_eq!(check(&["a/zone"], &[("a/zone", "z,ms_mode=legacy")]), None);
        assert_eq!(check(&["a/zone"], &[("a/zone", "")]), None);
    }
}
