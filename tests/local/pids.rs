//! How many processes the driver's control group may hold, in a group that each test makes for its driver.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::driver::{Driver, Start};
use crate::common::tools::unique;
use crate::harness::Scene;

/// Before, in the driver's group.
const BEFORE: &str = "1000";
/// Becomes the driver in that group.
const ENTER: &str = r#"echo $$ >"$GROUP/cgroup.procs" && exec "$0" "$@""#;
/// ... where a container's mount shows its own group alone.
const CONTAINED: &str =
    r#"echo $$ >"$GROUP/cgroup.procs" && mount --bind "$GROUP" "$HIERARCHY" && exec "$0" "$@""#;
/// ... where the container is not privileged.
const READ_ONLY: &str =
    r#"echo $$ >"$GROUP/cgroup.procs" && mount --options bind,remount,ro "$HIERARCHY" && exec "$0" "$@""#;

/// Taken away when it goes out of sight, behind the driver in it.
struct Group {
    hierarchy: PathBuf,
    folder: PathBuf,
}

impl Group {
    /// Where this kernel counts processes: by cgroup v1, or by v2.
    fn new() -> Self {
        let [first, second] = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"].map(Path::new);
        let hierarchy = if first.exists() { first } else { second };
        if hierarchy == second {
            fs::write(second.join("cgroup.subtree_control"), "+pids").expect("groups that count processes");
        }
        let folder = hierarchy.join(unique("test"));
        fs::create_dir(&folder).expect("a control group");
        fs::write(folder.join("pids.max"), BEFORE).expect("a limit");
        Self { hierarchy: hierarchy.to_owned(), folder }
    }

    fn limit(&self) -> String {
        fs::read_to_string(self.folder.join("pids.max")).expect("a limit").trim().to_owned()
    }

    async fn start(&self, start: Start, enter: &str) -> Driver {
        let mut start = start.variable("GROUP", &self.folder).variable("HIERARCHY", &self.hierarchy);
        start.within = ["unshare", "--mount", "bash", "-c", enter].map(str::to_owned).into();
        start.start().await
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.folder);
    }
}

#[tokio::test]
async fn the_limit_of_processes_is_set_in_the_driver_s_own_group() {
    let scene = Scene::new();
    for (limit, expected) in [("-1", "max"), ("5000", "5000"), ("0", BEFORE)] {
        for enter in [ENTER, CONTAINED] {
            let group = Group::new();
            let driver = group.start(scene.driver().flag(&format!("--pidlimit={limit}")), enter).await;
            assert_eq!(group.limit(), expected, "{}", driver.log());
            assert!(!driver.log().contains("WARN"), "{}", driver.log());
        }
    }
}

#[tokio::test]
async fn a_limit_that_cannot_be_set_is_told_and_stops_nobody() {
    let (scene, group) = (Scene::new(), Group::new());
    let driver = group.start(scene.driver().flag("--pidlimit=-1"), READ_ONLY).await;
    assert_eq!(group.limit(), BEFORE);
    let file = group.folder.join("pids.max").display().to_string();
    for expected in ["--pidlimit=-1", &file, "\"1000\"", "privileged"] {
        assert!(driver.log().contains(expected), "{expected}: {}", driver.log());
    }
}
