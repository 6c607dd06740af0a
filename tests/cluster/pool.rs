//! A pool that one test has for itself, as its administrator makes it.

use std::time::Instant;

use serde_json::Value;

use crate::common::sight::PATIENCE;
use crate::common::tools::{run, unique};
use crate::lab::Corner;

/// With the namespace of the test's corner, where it has one. Deleted when it goes out of sight.
pub(crate) struct Pool {
    pub(crate) name: String,
}

impl Pool {
    pub(crate) fn of_its_own(corner: &Corner) -> Self {
        let name = unique("pool");
        run("ceph", &["osd", "pool", "create", &name, "8", "8"]);
        run("rbd", &["pool", "init", &name]);
        if !corner.namespace.is_empty() {
            run("rbd", &["namespace", "create", &format!("{name}/{}", corner.namespace)]);
        }
        let pool = Self { name };
        pool.until(|all| all.is_some(), "reported");
        pool
    }

    pub(crate) fn set(&self, key: &str, value: &str) {
        run("ceph", &["osd", "pool", "set", &self.name, key, value]);
    }

    /// Of bytes.
    pub(crate) fn set_quota(&self, bytes: u64) {
        run("ceph", &["osd", "pool", "set-quota", &self.name, "max_bytes", &bytes.to_string()]);
        self.until(|stats| stats.is_some_and(|stats| stats["quota_bytes"] == bytes), "under its quota");
    }

    /// So many bytes, in plain objects.
    pub(crate) fn fill(&self, mib: u64) {
        run("sh", &["-c", "head -c $((1 << 20)) /dev/urandom >\"$0\"", &self.scratch()]);
        for number in 0..mib {
            run("rados", &["-p", &self.name, "put", &format!("filler-{number}"), &self.scratch()]);
        }
        let _ = std::fs::remove_file(self.scratch());
        self.until(|stats| stats.is_some_and(|stats| stats["stored"].as_u64() >= Some(mib << 20)), "filled");
    }

    /// What `ceph df` says of it.
    pub(crate) fn stats(&self) -> Option<Value> {
        let printed = run("ceph", &["df", "detail", "--format=json"]);
        let answer: Value = serde_json::from_str(&printed).expect("JSON");
        let pools = answer["pools"].as_array().cloned().unwrap_or_default();
        pools.into_iter().find(|pool| pool["name"] == self.name.as_str()).map(|pool| pool["stats"].clone())
    }

    /// Waits until Ceph's health names this pool, or its placement groups, in this check.
    pub(crate) fn until_sick(&self, check: &str) {
        self.until(
            |_| {
                let printed = run("ceph", &["health", "detail", "--format=json"]);
                let answer: Value = serde_json::from_str(&printed).expect("JSON");
                let lines = answer["checks"][check]["detail"].to_string();
                lines.contains(&self.name) || lines.contains(&format!("pg {}.", self.number()))
            },
            check,
        );
    }

    fn number(&self) -> String {
        let printed = run("ceph", &["osd", "pool", "get", &self.name, "size", "--format=json"]);
        let answer: Value = serde_json::from_str(&printed).expect("JSON");
        answer["pool_id"].to_string()
    }

    fn scratch(&self) -> String {
        std::env::temp_dir().join(&self.name).display().to_string()
    }

    fn until(&self, so: impl Fn(Option<Value>) -> bool, what: &str) {
        let end = Instant::now() + PATIENCE;
        while !so(self.stats()) {
            assert!(Instant::now() < end, "pool {} is not {what}", self.name);
            std::thread::sleep(std::time::Duration::from_millis(300));
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let args = ["osd", "pool", "delete", &self.name, &self.name, "--yes-i-really-really-mean-it"];
        let _ = std::process::Command::new("ceph").args(args).output();
    }
}
