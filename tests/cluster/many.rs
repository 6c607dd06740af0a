//! A pool of ten thousand images. Takes minutes: `CLUSTER_IMAGES=10000` asks for it (`make test-all`).

use std::fs;
use std::io::Write as _;
use std::time::{Duration, Instant};

use crate::common::tools::run;
use crate::harness::Scene;
use crate::lab::POOL;

#[tokio::test]
async fn a_page_of_many_images_comes_at_once_and_costs_little() {
    let Some(count) = std::env::var("CLUSTER_IMAGES").ok().and_then(|count| count.parse::<usize>().ok())
    else {
        return;
    };
    let scene = Scene::new().listing(&[POOL]);
    let made = Instant::now();
    make(count, &scene.corner.namespace);
    say(&format!("{count} images made in {:?}", made.elapsed()));
    let driver = scene.start().await;
    driver.list(1, "").await.expect("ListVolumes, the first");
    let (mut seen, mut token, mut times) = (0, String::new(), Vec::new());
    loop {
        let asked = Instant::now();
        let page = driver.list(100, &token).await.expect("ListVolumes");
        times.push(asked.elapsed());
        seen += page.entries.len();
        token = page.next_token;
        if token.is_empty() {
            break;
        }
    }
    times.sort();
    let (median, slowest) = (times[times.len() / 2], times[times.len() - 1]);
    let (now, peak) = (memory(&driver, "VmRSS"), memory(&driver, "VmHWM"));
    say(&format!(
        "{} pages of 100: median {median:?}, slowest {slowest:?}; driver {now} kB resident, {peak} at most",
        times.len()
    ));
    assert_eq!(seen, count);
    assert!(median < Duration::from_secs(1), "{median:?}");
    assert!(peak < 40_000, "{peak} kB");
}

/// Past the test runner, which keeps what is printed by a test that succeeds.
fn say(what: &str) {
    writeln!(std::io::stderr(), "{what}").expect("standard error");
}

fn memory(driver: &crate::harness::Driver, key: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", driver.pid())).expect("its status");
    let line = status.lines().find(|line| line.starts_with(key)).expect("its memory");
    line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number")
}

/// Real images, of 1 MiB and without an object map, by librbd in two processes: a process for each takes ten times as long.
fn make(count: usize, namespace: &str) {
    const SCRIPT: &str = "
import rados, rbd, sys, uuid
count, namespace, conf, pool, half = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5])
with rados.Rados(conffile=conf) as cluster, cluster.open_ioctx(pool) as io:
    io.set_namespace(namespace)
    for number in range(half, count, 2):
        name = 'csi-vol-' + str(uuid.uuid5(uuid.NAMESPACE_OID, str(number)))
        rbd.RBD().create(io, name, 1 << 20, old_format=False, features=rbd.RBD_FEATURE_LAYERING)
";
    let conf = std::env::var("CEPH_CONF").expect("the lab's ceph.conf");
    std::thread::scope(|scope| {
        for half in ["0", "1"] {
            let args = ["-c", SCRIPT, &count.to_string(), namespace, &conf, POOL, half].map(str::to_owned);
            scope.spawn(move || run("/usr/bin/python3", &args.each_ref().map(String::as_str)));
        }
    });
}
