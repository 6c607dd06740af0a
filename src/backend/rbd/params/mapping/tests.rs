//! What follows from the parameters, as tables.

use super::*;
use crate::cluster::{Clusters, Secrets};

const HELP_16: &str = "--io-timeout <sec> --reattach-timeout <sec> --try-netlink --show-cookie --cookie";
const HELP_18: &str = "--io-timeout <sec> --reattach-timeout <sec> --show-cookie --cookie --snap-id";
const HELP_14: &str = "--timeout <seconds> --try-netlink";

fn parameters(pairs: &[(&str, &str)]) -> Parameters {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn wanted(pairs: &[(&str, &str)]) -> Wanted {
    Wanted::parse(&parameters(pairs)).expect("good parameters")
}

fn access(config: &str) -> Access {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), format!(r#"[{{"clusterID":"a",{config}}}]"#)).expect("written");
    let secrets = parameters(&[("userID", "u"), ("userKey", "c2VjcmV0")]);
    Clusters::new(file.path().into()).access("a", &Secrets::new(secrets)).expect("access")
}

#[test]
fn krbd_is_given_what_it_needs_and_what_the_user_wants() {
    let (old, new) = (access(r#""monitors":["m:6789"]"#), access(r#""monitors":["v2:1.2.3.4:3300"]"#));
    let near = || Some("read_from_replica=localize,crush_location=zone:z".to_owned());
    let plain = wanted(&[]);
    assert_eq!(plain.krbd_options(&old, None), "noudev");
    assert_eq!(plain.krbd_options(&new, None), "noudev,ms_mode=prefer-crc");
    assert_eq!(plain.krbd_options(&old, near()), format!("noudev,{}", near().expect("options")));
    let own = wanted(&[("mapOptions", "krbd:ms_mode=secure,noudev,crush_location=zone:a;nbd:notrim")]);
    assert_eq!(own.krbd_options(&new, near()), "noudev,ms_mode=secure,crush_location=zone:a");
}

#[test]
fn rbd_nbd_is_given_what_it_knows() {
    let plain = wanted(&[("mounter", "rbd-nbd")]);
    assert_eq!(plain.nbd_options("v", HELP_16), "try-netlink,reattach-timeout=300,io-timeout=0,cookie=v");
    assert_eq!(plain.nbd_options("v", HELP_18), "reattach-timeout=300,io-timeout=0,cookie=v");
    assert_eq!(plain.nbd_options("v", HELP_14), "try-netlink");
    assert_eq!(plain.nbd_options("a,exclusive", HELP_18), "reattach-timeout=300,io-timeout=0");
    let own = wanted(&[("mapOptions", "nbd:io-timeout=9,rbd_cache=false")]);
    assert_eq!(own.nbd_options("v", HELP_18), "reattach-timeout=300,cookie=v,io-timeout=9,rbd_cache=false");
}

#[test]
fn the_stash_is_told_the_options_of_the_client_that_maps() {
    let both = wanted(&[
        ("unmapOptions", "noudev"),
        ("cephLogDir", "/log/"),
        ("cephLogStrategy", "Compress"),
        ("mounter", "rbd-nbd"),
    ]);
    let nbd = both.mapping(Client::Nbd);
    assert_eq!((nbd.nbd, nbd.log_dir.as_str(), nbd.log_strategy.as_str()), (true, "/log", "compress"));
    assert_eq!(nbd.unmap_options, "");
    let krbd = both.mapping(Client::Krbd);
    assert_eq!(krbd, Mapping { unmap_options: "noudev".to_owned(), ..Mapping::default() });
}

#[test]
fn a_new_daemon_gets_the_options_of_the_one_before() {
    for options in ["", "krbd:crc;nbd:io-timeout=9,rbd_cache=false"] {
        let told = wanted(&[("mounter", "rbd-nbd"), ("mapOptions", options), ("cephLogDir", "/log")]);
        let again = Wanted::of_context(&Wanted::of_mapping(&told.mapping(Client::Nbd))).expect("taken");
        assert_eq!(again.nbd_options("v", HELP_18), told.nbd_options("v", HELP_18));
        assert_eq!(again.mapping(Client::Nbd), told.mapping(Client::Nbd));
    }
}

#[test]
fn what_cannot_be_meant_is_refused() {
    for (name, value) in [
        ("mounter", "nbd"),
        ("mounter", "rbd-nbd --x"),
        ("tryOtherMounters", "yes"),
        ("mapOptions", "--id=admin"),
        ("unmapOptions", "force"),
        ("cephLogDir", "logs"),
        ("cephLogDir", "/var/../etc"),
        ("cephLogDir", "/var/\u{7}log"),
        ("cephLogStrategy", "rotate"),
    ] {
        assert!(Wanted::parse(&parameters(&[(name, value)])).is_err(), "{name}={value:?} was taken");
    }
    assert!(Wanted::of_context(&parameters(&[("unmapOptions", "force")])).is_ok());
    assert!(wanted(&[("tryOtherMounters", "True")]).fall_back);
}

#[test]
fn a_log_file_is_named_after_its_volume_and_stays_in_its_folder() {
    assert_eq!(log_file("/log", "v").as_deref(), Some("/log/rbd-nbd-v.log"));
    assert_eq!(log_file("", "v"), None);
    assert_eq!(log_file("/log/../etc", "v"), None);
    assert_eq!(log_file("/log", "../v"), None);
}

#[test]
fn read_affinity_is_the_clusters_before_it_is_the_flags() {
    let node = parameters(&[("a/zone", "z"), ("a/rack", "r")]);
    let flags = |enabled, label: &str| ReadAffinity { enabled, labels: vec![label.to_owned()] };
    let check = |config: &str, flags: &ReadAffinity| {
        let access = access(config);
        nearby(&access, affinity(&access, flags)?, &node)
    };
    let [silent, off, on, own] = [
        r#""monitors":["m"]"#,
        r#""monitors":["m"],"readAffinity":{"enabled":false}"#,
        r#""monitors":["m"],"readAffinity":{"enabled":true}"#,
        r#""monitors":["m"],"readAffinity":{"enabled":true,"crushLocationLabels":["a/rack"]}"#,
    ];
    let found = |place: &str| Some(format!("read_from_replica=localize,crush_location={place}"));
    assert_eq!(check(silent, &flags(false, "a/zone")), None);
    assert_eq!(check(silent, &flags(true, "a/zone")), found("zone:z"));
    assert_eq!(check(off, &flags(true, "a/zone")), None);
    assert_eq!(check(on, &flags(false, "a/zone")), found("zone:z"));
    assert_eq!(check(own, &flags(false, "a/zone")), found("rack:r"));
    assert_eq!(check(own, &flags(false, "")), found("rack:r"));
}
