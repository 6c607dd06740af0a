//! The control groups of a process, and how many processes and threads the driver's own may hold: `pids.max`, of cgroup v1
//! or v2.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use super::mountinfo::{self, Mount};

/// Controllers and path of each, from the lines of /proc/<pid>/cgroup: `number:controllers:path`. Version 2 names no
/// controllers.
pub(super) fn groups(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'))
}

/// -1: as many as the groups above allow. What the limit was is answered; why it stays as it is, in words.
pub(crate) fn limit_processes(limit: i32) -> Result<String, String> {
    let limit = if limit < 0 { "max".to_owned() } else { limit.to_string() };
    write_limit(Path::new("/proc/self"), &limit)
}

fn write_limit(process: &Path, limit: &str) -> Result<String, String> {
    let file = own_limit(process)?;
    let was = fs::read_to_string(&file).unwrap_or_default().trim().to_owned();
    let written = File::options()
        .write(true)
        .truncate(true)
        .open(&file)
        .and_then(|mut open| open.write_all(limit.as_bytes()));
    let file = file.display();
    written.map_err(|error| {
        format!("{file}, which says {was:?}: {error}: the container has to be privileged")
    })?;
    Ok(was)
}

/// `pids.max` of a process, as this mount namespace shows it.
fn own_limit(process: &Path) -> Result<PathBuf, String> {
    let read = |name: &str| {
        let file = process.join(name);
        fs::read(&file).map_err(|error| format!("{}: {error}", file.display()))
    };
    let group = Group::of(&String::from_utf8_lossy(&read("cgroup")?))
        .ok_or("it is in no control group that counts processes")?;
    let mounts = mountinfo::parse(&read("mountinfo")?);
    // The last one mounted at a place is the one that shows there.
    let files =
        mounts.iter().rev().filter_map(|mount| group.shown_by(mount)).map(|folder| folder.join("pids.max"));
    let files: Vec<PathBuf> = files.collect();
    let there = files.iter().find(|file| file.exists());
    there.cloned().ok_or_else(|| match files.first() {
        Some(file) => format!(
            "there is no {}: the topmost group has no limit, and another one where the group above it does not \
             count processes (cgroup.subtree_control)",
            file.display()
        ),
        None => format!("no mount shows the driver's control group {}: mount /sys/fs/cgroup", group.path.display()),
    })
}

/// The group that counts a process.
struct Group {
    unified: bool,
    path: PathBuf,
}

impl Group {
    /// Version 1 counts where it has the controller, also beside version 2.
    fn of(text: &str) -> Option<Self> {
        let counting = groups(text).find(|(controllers, _)| mountinfo::has(controllers, "pids"));
        let (controllers, path) =
            counting.or_else(|| groups(text).find(|(controllers, _)| controllers.is_empty()))?;
        Some(Self { unified: controllers.is_empty(), path: path.into() })
    }

    /// Its folder in a mount of its hierarchy. A container's mount shows the part from its own group on; where that part
    /// begins outside (`/..`), what the kernel tells of paths does not say where the group is.
    fn shown_by(&self, mount: &Mount) -> Option<PathBuf> {
        let of_its_kind = match mount.fs_type.as_str() {
            "cgroup2" => self.unified,
            "cgroup" => !self.unified && mountinfo::has(&mount.super_options, "pids"),
            _ => false,
        };
        let below = self.path.strip_prefix(&mount.root).ok().filter(|_| of_its_kind)?;
        Some(mount.target.join(below))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HOST: &str = "12:memory:/a\n8:pids:/kubepods/pod1/c1\n1:name=systemd:/a\n0::/b\n";
    const UNIFIED: &str = "0::/kubepods.slice/pod1.slice/c1.scope\n";

    /// A process with these control groups and mounts (`root target type options`), on a machine where `there` has a
    /// limit of 1024; what is said when it is lifted, and what the limit is then.
    fn check(groups: &str, mounts: &[&str], there: &str) -> (Result<String, String>, String) {
        let machine = tempfile::tempdir().expect("a folder");
        let root = machine.path();
        let limit = root.join(there.trim_start_matches('/')).join("pids.max");
        fs::create_dir_all(limit.parent().expect("a folder")).expect("made");
        fs::write(&limit, "1024\n").expect("written");
        fs::write(root.join("cgroup"), groups).expect("written");
        let line = |mount: &&str| {
            let fields: Vec<&str> = mount.split(' ').collect();
            let (from, to) = (fields[0], root.join(fields[1].trim_start_matches('/')));
            format!("36 35 0:30 {from} {} rw - {} none {}\n", to.display(), fields[2], fields[3])
        };
        fs::write(root.join("mountinfo"), mounts.iter().map(line).collect::<String>()).expect("written");
        let said = write_limit(root, "max");
        let said = said.map_err(|said| said.replace(&root.display().to_string(), ""));
        (said, fs::read_to_string(limit).expect("the limit"))
    }

    #[track_caller]
    fn lifted(groups: &str, mounts: &[&str], there: &str) {
        assert_eq!(check(groups, mounts, there), (Ok("1024".to_owned()), "max".to_owned()));
    }

    #[test]
    fn the_group_is_found_in_either_version() {
        lifted(
            HOST,
            &["/ /cg/memory cgroup rw,memory", "/ /cg/pids cgroup rw,pids"],
            "/cg/pids/kubepods/pod1/c1",
        );
        lifted("4:cpu,pids:/c1\n", &["/ /cg/cpu,pids cgroup rw,cpu,pids"], "/cg/cpu,pids/c1");
        lifted(UNIFIED, &["/ /cg cgroup2 rw"], "/cg/kubepods.slice/pod1.slice/c1.scope");
    }

    #[test]
    fn version_1_counts_where_both_are_mounted() {
        let mounts = ["/ /cg/pids cgroup rw,pids", "/ /cg/unified cgroup2 rw"];
        lifted(HOST, &mounts, "/cg/pids/kubepods/pod1/c1");
        let (said, limit) = check(HOST, &mounts, "/cg/unified/b");
        assert!(said.is_err_and(|said| said.starts_with("there is no /cg/pids/kubepods/pod1/c1/pids.max")));
        assert_eq!(limit, "1024\n");
        lifted(
            "5:cpu:/a\n0::/b\n",
            &["/ /cg/cpu cgroup rw,cpu", "/ /cg/unified cgroup2 rw"],
            "/cg/unified/b",
        );
    }

    #[test]
    fn a_container_has_its_own_group_in_front() {
        lifted(HOST, &["/kubepods/pod1/c1 /cg/pids cgroup rw,pids"], "/cg/pids");
        lifted("0::/\n", &["/ /cg cgroup2 rw"], "/cg");
        lifted(UNIFIED, &["/kubepods.slice /cg cgroup2 rw"], "/cg/pod1.slice/c1.scope");
        // The machine's /sys, and the container's own over a part of it.
        lifted("0::/\n", &["/../../.. /host/cg cgroup2 rw", "/ /cg cgroup2 rw"], "/cg");
    }

    #[test]
    fn what_cannot_be_done_is_told_with_what_to_do() {
        for (groups, mounts, there, expected) in [
            ("", "/ /cg cgroup2 rw", "/cg", "no control group"),
            (
                "0::/\n",
                "/../.. /cg cgroup2 rw",
                "/cg",
                "no mount shows the driver's control group /: mount /sys/fs/cgroup",
            ),
            ("0::/a\n", "/b /cg cgroup2 rw", "/cg", "no mount shows"),
            (
                "0::/\n",
                "/ /cg cgroup2 rw",
                "/elsewhere",
                "there is no /cg/pids.max: the topmost group has no limit",
            ),
        ] {
            let (said, limit) = check(groups, &[mounts], there);
            assert!(said.as_ref().is_err_and(|said| said.contains(expected)), "{groups:?}: {said:?}");
            assert_eq!(limit, "1024\n");
        }
    }

    proptest! {
        #[test]
        fn any_list_of_groups_is_read_or_names_none(text in "([0-9]{0,2}:[a-z,=]{0,8}:[/a-z.]{0,12}\n){0,5}|\\PC{0,60}") {
            prop_assert!(Group::of(&text).is_none_or(|group| text.contains(group.path.to_string_lossy().as_ref())));
        }
    }
}
