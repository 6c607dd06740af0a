//! What is made of a command line.

use super::*;

fn check(args: &str) -> Result<Config, String> {
    let args = std::iter::once("ceph-rbd-csi").chain(args.split_whitespace());
    Config::parse(args.map(OsString::from)).map_err(|error| error.to_string())
}

#[test]
fn ceph_csi_s_node_manifest_is_understood() {
    let config = check("--nodeid=n1 --pluginpath=/var/lib/kubelet/plugins --stagingpath=/s/ --type=rbd -nodeserver=true --endpoint=unix:///csi/csi.sock --csi-addons-endpoint=unix:///x -v=5 --drivername=rbd.csi.ceph.com --enableprofiling=false -pidlimit -1").expect("its flags");
    assert!(config.node && !config.controller && config.pid_limit == -1);
    assert_eq!(config.endpoint, Some(Endpoint::Unix("/csi/csi.sock".into())));
    assert_eq!(config.addons, Some(Endpoint::Unix("/x".into())));
    assert_eq!((config.shown.verbosity, config.warnings.len()), (5, 3));
}

#[test]
fn ceph_csi_s_liveness_container_is_understood() {
    let config = check("--type=liveness --endpoint=unix:///csi/csi.sock --metricsport=8681 --metricspath=/metrics --polltime=60s --timeout=3s").expect("its flags");
    let poll = Poll { every: Duration::from_secs(60), within: Duration::from_secs(3) };
    assert_eq!((config.controller, config.node, config.shown.liveness), (false, false, Some(poll)));
    assert_eq!(config.shown.metrics.map(|(address, _)| address.port()), Some(8681));
    let config = check("--type=liveness").expect("flags").shown;
    assert_eq!(config.metrics.map(|(address, _)| address.port()), Some(8080));
    assert_eq!(check("--type=rbd --nodeid=n").expect("flags").shown.metrics, None);
}

#[test]
fn no_service_named_means_both() {
    assert!(check("--type=rbd --nodeid n").expect("both").serves_both());
}

#[test]
fn read_affinity_is_spelt_as_ceph_csi_spells_it() {
    let args = "--type=rbd --nodeid n --enable-read-affinity=true --crush-location-labels=";
    let config = check(&format!("{args}a/zone=z,b/rack=r")).expect("labels with values");
    let keys: Vec<_> = config.crush_labels.iter().map(|label| label.key.as_str()).collect();
    assert_eq!((config.read_affinity, keys), (true, vec!["a/zone", "b/rack"]));
    assert!(check(&format!("{args}a/zone")).is_err_and(|error| error.contains("a/zone=…")));
    let none = check("--type=rbd --nodeid n --enable-read-affinity=false --crush-location-labels=a/zone");
    assert!(!none.expect("flags").read_affinity);
}

#[test]
fn the_omap_generator_container_has_no_endpoint() {
    assert_eq!(check("--type=controller").expect("idle").endpoint, None);
}

#[test]
fn what_is_unknown_or_not_built_is_refused() {
    for args in [
        "--type=rbd --nodeid=n --nodeide=n",
        "--type=rbd",
        "--type=cephfs",
        "--type=local --nodeid=n --enable-fencing",
        "--type=rbd --nodeid=a/b",
        "--type=rbd --nodeid=n --drivername=-x",
        "--type=rbd --nodeid=n --rbdhardmaxclonedepth=15",
        "--type=rbd --nodeid=n --rbdhardmaxclonedepth=3",
        "--type=rbd --nodeid=n --maxsnapshotsonimage=501",
        "--type=rbd --nodeid=n --minsnapshotsonimage=451",
        "--type=rbd --nodeid=n --pidlimit=-2",
        "--type=liveness --metricsport=0",
        "--type=liveness --polltime=0s",
        "--type=rbd --nodeid=n --otlp-endpoint=https://a:4317",
        "--type=rbd --nodeid=n --otlp-endpoint=a:4317",
        "--type=rbd --nodeid=n --otlp-endpoint=http://a:4317/v1/traces",
        "--type=local --nodeid=n --nodeserver",
        "--type=local --nodeid=n --local-root=relative",
        "--type=local --nodeid=n --local-overcommit=0.5",
        "--type=local --nodeid=n --local-overcommit=NaN",
    ] {
        assert!(check(args).is_err(), "{args} was taken");
    }
}

#[test]
fn fencing_is_switched_on_by_name_alone() {
    for (flag, on) in [("", false), ("--enable-fencing=false", false), ("--enable-fencing", true)] {
        assert_eq!(check(&format!("--type=rbd --nodeid=n {flag}")).expect("flags").fencing, on, "{flag}");
    }
}
