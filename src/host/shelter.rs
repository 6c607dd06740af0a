//! Where a daemon is kept that has to outlive the driver: outside the control group of the driver's container, which is
//! killed as a whole when the container ends. Version 2: in a group of its own beside those of the pods; version 1: in
//! the topmost group of each hierarchy.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use super::cgroup::groups;
use super::{Cmd, Host};

const GROUP: &str = "ceph-rbd-csi";
const PROCESSES: &str = "cgroup.procs";
/// Every group of version 2 has it but the topmost one.
const EVENTS: &str = "cgroup.events";
/// Where control groups are mounted: by the machine's first process, and in the driver's own container.
const MOUNTS: [&str; 2] = ["proc/1/root/sys/fs/cgroup", "sys/fs/cgroup"];

/// Takes a process out of the driver's control groups, unless it is out already. Why it stays, in words.
pub(crate) async fn give(host: &dyn Host, process: u32) -> Result<(), String> {
    for group in plan(Path::new("/"), process)? {
        enter(host, &group, process).await.map_err(|error| format!("{}: {error}", group.display()))?;
    }
    Ok(())
}

/// The groups that the process has to be moved to.
fn plan(root: &Path, process: u32) -> Result<Vec<PathBuf>, String> {
    let read = |process: &str| {
        let file = root.join("proc").join(process).join("cgroup");
        fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))
    };
    let own = read("self")?;
    let each = groups(&own).map(|(controllers, path)| Group { controllers, path });
    let around: Vec<Group> = each.filter(|group| group.is_around(root)).collect();
    if around.is_empty() || read(&process.to_string())? != own {
        return Ok(Vec::new());
    }
    if read("1")? == own {
        return Err("its process namespace ends with the driver's container: hostPID is needed".to_owned());
    }
    around.iter().map(|group| group.outside(root)).collect()
}

struct Group<'a> {
    controllers: &'a str,
    path: &'a str,
}

impl Group<'_> {
    /// Not the topmost group. A control group namespace shows its own group as that.
    fn is_around(&self, root: &Path) -> bool {
        let hidden = |folder: PathBuf| folder.join(EVENTS).exists();
        self.path != "/" || (self.controllers.is_empty() && hidden(root.join(MOUNTS[1])))
    }

    fn outside(&self, root: &Path) -> Result<PathBuf, String> {
        let folders: Vec<PathBuf> = MOUNTS.iter().flat_map(|mount| self.folders(&root.join(mount))).collect();
        let topmost = |folder: &&PathBuf| folder.join(PROCESSES).exists() && !folder.join(EVENTS).exists();
        let found = folders.iter().find(topmost).ok_or_else(|| {
            format!(
                "the machine's control groups ({}) do not show at {}: hostPID and privileged are needed",
                if self.controllers.is_empty() { "version 2" } else { self.controllers },
                folders.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(", ")
            )
        })?;
        Ok(if self.controllers.is_empty() { found.join(GROUP) } else { found.clone() })
    }

    fn folders(&self, mount: &Path) -> Vec<PathBuf> {
        match self.controllers.strip_prefix("name=").unwrap_or(self.controllers) {
            "" => vec![mount.to_owned(), mount.join("unified")],
            controllers => vec![mount.join(controllers)],
        }
    }
}

async fn enter(host: &dyn Host, group: &Path, process: u32) -> Result<(), String> {
    match fs::create_dir(group) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error.to_string()),
        _ => {}
    }
    let file = group.join(PROCESSES);
    match write(&file, process) {
        // Out of a control group namespace nobody moves anything: it is done from that of the machine.
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let script = "echo \"$1\" >\"$0\"";
            let place = file.display().to_string();
            let args = ["--target=1", "--cgroup", "--", "sh", "-c", script, &place, &process.to_string()];
            host.run(Cmd::new("nsenter", args)).await.map(drop).map_err(|error| error.to_string())
        }
        written => written.map_err(|error| error.to_string()),
    }
}

fn write(file: &Path, process: u32) -> io::Result<()> {
    File::options().write(true).open(file)?.write_all(process.to_string().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: &str = "0::/kubepods/pod1/c1\n";

    /// A machine where the driver and process 7 are in these groups, the first process in the others; `shown`: its files.
    fn check(own: &str, first: &str, shown: &[&str]) -> Result<Vec<String>, String> {
        let machine = tempfile::tempdir().expect("a folder");
        let root = machine.path();
        for (file, text) in [("proc/self/cgroup", own), ("proc/7/cgroup", own), ("proc/1/cgroup", first)]
            .into_iter()
            .chain(shown.iter().map(|file| (*file, "")))
        {
            let file = root.join(file);
            fs::create_dir_all(file.parent().expect("a folder")).expect("made");
            fs::write(file, text).expect("written");
        }
        let plain = |text: String| text.replace(&format!("{}/", root.display()), "");
        let planned = plan(root, 7).map_err(plain)?;
        Ok(planned.into_iter().map(|group| plain(group.display().to_string())).collect())
    }

    #[test]
    fn version_2_has_a_group_for_daemons_beside_the_pods() {
        let at = |group: &str| Ok(vec![group.to_owned()]);
        let machine = "proc/1/root/sys/fs/cgroup/cgroup.procs";
        assert_eq!(check(POD, "0::/init.scope\n", &[machine]), at("proc/1/root/sys/fs/cgroup/ceph-rbd-csi"));
        assert_eq!(
            check(POD, "0::/init.scope\n", &["sys/fs/cgroup/cgroup.procs"]),
            at("sys/fs/cgroup/ceph-rbd-csi")
        );
        // A namespace hides where the container is, and its own mount is no way out.
        let own = ["sys/fs/cgroup/cgroup.procs", "sys/fs/cgroup/cgroup.events"];
        assert_eq!(
            check("0::/\n", "0::/../../init.scope\n", &[&own[..], &[machine]].concat()),
            at("proc/1/root/sys/fs/cgroup/ceph-rbd-csi")
        );
        assert!(check("0::/\n", "0::/../../init.scope\n", &own).is_err_and(|why| why.contains("version 2")));
    }

    #[test]
    fn version_1_has_the_topmost_group_of_each_hierarchy() {
        let own = "2:cpu,cpuacct:/pod\n1:name=systemd:/pod\n3:freezer:/\n0::/\n";
        let shown = ["sys/fs/cgroup/cpu,cpuacct/cgroup.procs", "sys/fs/cgroup/systemd/cgroup.procs"];
        assert_eq!(
            check(own, "0::/\n", &shown),
            Ok(["sys/fs/cgroup/cpu,cpuacct", "sys/fs/cgroup/systemd"].map(str::to_owned).to_vec())
        );
        assert!(check(own, "0::/\n", &shown[..1]).is_err_and(|why| why.contains("name=systemd")));
    }

    #[test]
    fn what_ends_with_the_driver_whatever_is_done_is_told() {
        assert!(check(POD, POD, &["sys/fs/cgroup/cgroup.procs"]).is_err_and(|why| why.contains("hostPID")));
    }

    #[test]
    fn where_no_group_is_around_the_driver_nothing_is_moved() {
        assert_eq!(check("0::/\n", "0::/\n", &["sys/fs/cgroup/cgroup.procs"]), Ok(vec![]));
    }
}
