//! What the kernel of this node knows of a mapped image and of the client behind it: files of sysfs and debugfs, which
//! answer at once. What is absent there tells nothing: another mapper, an older kernel, debugfs not shown to this
//! container. A device that is gone is found by its number (`node::health`). `sys`: another folder in tests.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::backend::{Ailment, Image, Severity};

use crate::backend::rbd::pool::health;

/// Flags of a pool in the OSD map (`CEPH_POOL_FLAG_*`).
const FULL: u64 = 1 << 1;
const FULL_QUOTA: u64 = 1 << 10;
const NEARFULL: u64 = 1 << 11;
/// Flags of the OSD map itself (`CEPH_OSDMAP_*`).
const CLUSTER_FULL: u64 = 1 << 1;
const PAUSED: u64 = 1 << 2 | 1 << 3;

pub(crate) fn image_ailments(sys: &Path, image: &Image) -> Vec<Ailment> {
    devices_of(sys, image).flat_map(|device| device.ailments(image)).collect()
}

/// The image has a device here whose client the cluster has shut out.
pub(crate) fn lost(sys: &Path, image: &Image) -> Option<Ailment> {
    devices_of(sys, image).find_map(|device| device.lost(image))
}

/// Of all clients behind the devices of this node, which is one for each cluster as a rule.
pub(crate) fn storage_ailments(sys: &Path) -> Vec<Ailment> {
    let clients: BTreeSet<PathBuf> = devices(sys).iter().filter_map(Device::client).collect();
    clients.iter().flat_map(|client| client_ailments(client)).collect()
}

/// A device of krbd.
struct Device<'a> {
    sys: &'a Path,
    number: String,
}

fn devices(sys: &Path) -> Vec<Device<'_>> {
    let entries = fs::read_dir(sys.join("bus/rbd/devices")).into_iter().flatten().flatten();
    entries.map(|entry| Device { sys, number: entry.file_name().to_string_lossy().into_owned() }).collect()
}

fn devices_of<'a>(sys: &'a Path, image: &Image) -> impl Iterator<Item = Device<'a>> {
    devices(sys).into_iter().filter(move |device| device.shows(image))
}

impl Device<'_> {
    fn shows(&self, image: &Image) -> bool {
        self.text("pool").as_ref() == Some(&image.pool)
            && self.text("name").as_ref() == Some(&image.name)
            && self.text("pool_ns").unwrap_or_default() == image.namespace
            && self.text("current_snap").is_none_or(|snapshot| snapshot == "-")
    }

    fn text(&self, file: &str) -> Option<String> {
        line(&self.sys.join("bus/rbd/devices").join(&self.number).join(file))
    }

    /// The debugfs folder of the client that has mapped it: `<fsid>.client<number>`.
    fn client(&self) -> Option<PathBuf> {
        let name = format!("{}.{}", self.text("cluster_fsid")?, self.text("client_id")?);
        Some(self.sys.join("kernel/debug/ceph").join(name))
    }

    fn ailments(&self, image: &Image) -> Vec<Ailment> {
        let mut found = Vec::new();
        let mut add = |severity, reason, message| found.push(Ailment { severity, reason, message });
        if self.text("size").is_some_and(|size| size == "0") {
            let message =
                format!("image {image} on /dev/rbd{} has no bytes: it was shrunk; look at it", self.number);
            add(Severity::DataLoss, "ImageEmpty", message);
        }
        if self.turned_read_only() {
            let message = format!(
                "/dev/rbd{} of image {image} was made read-only on this node: end the pods that use it, so that it is staged anew",
                self.number
            );
            add(Severity::Inaccessible, "DeviceReadOnly", message);
        }
        found.extend(self.lost(image));
        found.extend(self.pool_ailment(&image.pool));
        found
    }

    /// krbd watches what it has mapped to be written, and takes the watch up again where it can. All it writes down when
    /// it cannot is that the watch is not there.
    fn lost(&self, image: &Image) -> Option<Ailment> {
        let requests = fs::read_to_string(self.client()?.join("osdc")).ok()?;
        let watches = requests.split_once("LINGER REQUESTS\n")?.1;
        let header = format!("rbd_header.{}", self.text("image_id")?);
        let there = watches.split_whitespace().any(|word| word.rsplit('/').next() == Some(&header));
        if there || self.was_mapped_read_only()? {
            return None;
        }
        let message = format!(
            "/dev/rbd{} watches image {image} no more, as after the cluster has shut out its client {} (`ceph osd blocklist ls`); its writes fail: end the pods that use it on this node, so that it is staged anew",
            self.number,
            self.text("client_addr").unwrap_or_default()
        );
        Some(Ailment { severity: Severity::Inaccessible, reason: "ClientBlocklisted", message })
    }

    /// Not one that was mapped so, which its own options tell.
    fn turned_read_only(&self) -> bool {
        let block = self.sys.join("block").join(format!("rbd{}", self.number));
        let read_only = line(&block.join("ro")).is_some_and(|ro| ro == "1");
        read_only && self.was_mapped_read_only().is_some_and(|so| !so)
    }

    /// None where the kernel does not tell.
    fn was_mapped_read_only(&self) -> Option<bool> {
        let info = self.text("config_info")?;
        Some(info.split(' ').nth(1)?.split(',').any(|word| matches!(word, "ro" | "read_only")))
    }

    fn pool_ailment(&self, pool: &str) -> Option<Ailment> {
        let map = fs::read_to_string(self.client()?.join("osdmap")).ok()?;
        let start = format!("pool {} ", self.text("pool_id")?);
        let flags = flags(map.lines().find(|line| line.starts_with(&start))?)?;
        health::full(pool, flags & FULL != 0, flags & FULL_QUOTA != 0, flags & NEARFULL != 0)
    }
}

fn client_ailments(client: &Path) -> Vec<Ailment> {
    let name = client.file_name().unwrap_or_default().display().to_string();
    let flags = line(&client.join("osdmap")).as_deref().and_then(flags).unwrap_or_default();
    let homeless = line(&client.join("osdc")).as_deref().and_then(homeless).unwrap_or_default();
    let told = [
        (flags & CLUSTER_FULL != 0, "ClusterFull", "the cluster is full, and all writes wait: add disks"),
        (flags & PAUSED != 0, "ClusterPaused", "the cluster is paused, and requests wait: ceph osd unpause"),
        (
            homeless > 0,
            "NoOsdForRequests",
            "requests wait because no OSD serves them: look at `ceph health detail`",
        ),
    ];
    let told = told.into_iter().filter(|(so, _, _)| *so);
    let ailment = |(_, reason, what): (bool, &'static str, &str)| Ailment {
        severity: Severity::Inaccessible,
        reason,
        message: format!("{what} (client {name})"),
    };
    told.map(ailment).collect()
}

/// The number behind `flags 0x`. A pool's name stands before it and may hold anything.
fn flags(line: &str) -> Option<u64> {
    let digits = line.rsplit_once(" flags 0x")?.1;
    u64::from_str_radix(digits.split(' ').next()?, 16).ok()
}

/// `REQUESTS 3 homeless 1`
fn homeless(line: &str) -> Option<u64> {
    line.strip_prefix("REQUESTS ")?.split_once(" homeless ")?.1.trim().parse().ok()
}

/// The first line of a file.
fn line(file: &Path) -> Option<String> {
    Some(fs::read_to_string(file).ok()?.lines().next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WELL: &str = "epoch 15 barrier 0 flags 0x588000\n\
        pool 2 'a flags 0x2' type 1 size 3 min_size 2 pg_num 8 pg_num_mask 7 flags 0x1 lfor 0 read_tier -1 write_tier -1\n\
        pool 12 'b' type 1 size 3 min_size 2 pg_num 8 pg_num_mask 7 flags 0x2403 lfor 0 read_tier -1 write_tier -1\n";

    const WATCHED: &str = "REQUESTS 2 homeless 0\nLINGER REQUESTS\n\
        18446462598732840961\tosd0\t2.82f160c\t2.4\t[0]/0\t[0]/0\te15\tns/rbd_header.10ab\t0x20\t0\tWC/0\n\
        BACKOFFS\n";

    /// A /sys with image p/ns/i on rbd0, healthy, as Linux 6.1 has it.
    fn sys() -> tempfile::TempDir {
        let sys = tempfile::tempdir().expect("a folder");
        let client = "kernel/debug/ceph/028c9754-9b2a.client4305";
        for (file, text) in [
            ("bus/rbd/devices/0/pool", "p\n"),
            ("bus/rbd/devices/0/pool_id", "2\n"),
            ("bus/rbd/devices/0/pool_ns", "ns\n"),
            ("bus/rbd/devices/0/name", "i\n"),
            ("bus/rbd/devices/0/current_snap", "-\n"),
            ("bus/rbd/devices/0/size", "1048576\n"),
            ("bus/rbd/devices/0/image_id", "10ab\n"),
            ("bus/rbd/devices/0/cluster_fsid", "028c9754-9b2a\n"),
            ("bus/rbd/devices/0/client_id", "client4305\n"),
            ("bus/rbd/devices/0/config_info", "1.2.3.4:6789 name=csi,key=client.csi p i -\n"),
            ("block/rbd0/ro", "0\n"),
            (&format!("{client}/osdmap"), WELL),
            (&format!("{client}/osdc"), WATCHED),
        ] {
            let path = sys.path().join(file);
            fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            fs::write(path, text).expect("written");
        }
        sys
    }

    /// What is told of p/ns/i and of the storage when a file of that /sys has another text.
    fn told(file: &str, text: &str) -> (Vec<&'static str>, Vec<&'static str>) {
        let sys = sys();
        if !file.is_empty() {
            fs::write(sys.path().join(file), text).expect("written");
        }
        let image = Image { pool: "p".to_owned(), namespace: "ns".to_owned(), name: "i".to_owned() };
        let reasons = |found: Vec<Ailment>| found.into_iter().map(|ailment| ailment.reason).collect();
        (reasons(image_ailments(sys.path(), &image)), reasons(storage_ailments(sys.path())))
    }

    #[test]
    fn a_healthy_image_and_what_is_not_there_have_no_ailment() {
        assert_eq!(told("", ""), (vec![], vec![]));
        let image = Image { pool: "p".to_owned(), namespace: String::new(), name: "i".to_owned() };
        assert_eq!(image_ailments(sys().path(), &image), []);
        let empty = tempfile::tempdir().expect("a folder");
        assert_eq!((image_ailments(empty.path(), &image), storage_ailments(empty.path())), (vec![], vec![]));
    }

    #[test]
    fn a_device_that_changed_is_told() {
        assert_eq!(told("bus/rbd/devices/0/size", "0\n").0, ["ImageEmpty"]);
        assert_eq!(told("block/rbd0/ro", "1\n").0, ["DeviceReadOnly"]);
        let both = "bus/rbd/devices/0/config_info";
        assert_eq!(told(both, "1.2.3.4:6789 name=csi,ro p i -\n").0, Vec::<&str>::new());
    }

    #[test]
    fn a_device_that_was_mapped_read_only_is_well() {
        let sys = sys();
        fs::write(sys.path().join("block/rbd0/ro"), "1\n").expect("written");
        let image = Image { pool: "p".to_owned(), namespace: "ns".to_owned(), name: "i".to_owned() };
        assert_eq!(image_ailments(sys.path(), &image).len(), 1);
        let info = sys.path().join("bus/rbd/devices/0/config_info");
        fs::write(&info, "1.2.3.4:6789 name=csi,ro p i -\n").expect("written");
        assert_eq!(image_ailments(sys.path(), &image), []);
        fs::remove_file(&info).expect("removed");
        assert_eq!(image_ailments(sys.path(), &image), []);
    }

    #[test]
    fn a_device_whose_watch_is_gone_has_lost_its_client() {
        let requests = "kernel/debug/ceph/028c9754-9b2a.client4305/osdc";
        let without = "REQUESTS 0 homeless 0\nLINGER REQUESTS\nBACKOFFS\n";
        assert_eq!(told(requests, without), (vec!["ClientBlocklisted"], vec![]));
        let other = WATCHED.replace("ns/rbd_header.10ab", "rbd_header.10abc");
        assert_eq!(told(requests, &other).0, ["ClientBlocklisted"]);
        assert_eq!(told(requests, &WATCHED.replace("ns/", "")).0, Vec::<&str>::new());
        assert_eq!(told(requests, "REQUESTS 0 homeless 0\n").0, Vec::<&str>::new());
        // Read-only maps hold no watch.
        assert_eq!(
            told("bus/rbd/devices/0/config_info", "1.2.3.4:6789 name=csi,ro p i -\n").0,
            Vec::<&str>::new()
        );
    }

    #[test]
    fn the_flags_of_pool_and_cluster_are_read() {
        let of_pool = |number: &str| told("bus/rbd/devices/0/pool_id", number);
        assert_eq!(of_pool("12\n").0, ["PoolQuotaReached"]);
        assert_eq!(of_pool("1\n").0, Vec::<&str>::new());
        let map = "kernel/debug/ceph/028c9754-9b2a.client4305/osdmap";
        assert_eq!(told(map, "epoch 15 barrier 0 flags 0x58800c\n").1, ["ClusterPaused"]);
        assert_eq!(told(map, "epoch 15 barrier 0 flags 0x588002\n").1, ["ClusterFull"]);
        assert_eq!(told(map, "").1, Vec::<&str>::new());
        let requests = "kernel/debug/ceph/028c9754-9b2a.client4305/osdc";
        assert_eq!(told(requests, "REQUESTS 3 homeless 1\n").1, ["NoOsdForRequests"]);
    }

    proptest! {
        #[test]
        fn any_line_of_the_kernel_is_read_or_says_nothing(line in "(REQUESTS | homeless | flags 0x|[0-9a-fA-F é'x-]{0,20}){0,6}|\\PC{0,60}") {
            prop_assert!(homeless(&line).is_none() || line.starts_with("REQUESTS "));
            prop_assert!(flags(&line).is_none() || line.contains(" flags 0x"));
        }
    }
}
