//! What the kernel of this node can do for a map: its modules, what its krbd knows, the network that krbd's connections
//! live in. Files of /proc and /sys, which answer at once. `rbd map` and `rbd-nbd map` load the modules themselves
//! (`/sbin/modprobe`, where /sys does not show them); what they say when they cannot does not tell what to do.

use std::fs;
use std::path::{Path, PathBuf};

/// Bits of `supported_features` by the names that `rbd` has for them (`RBD_FEATURE_*`).
const FEATURES: [&str; 12] = [
    "layering",
    "striping",
    "exclusive-lock",
    "object-map",
    "fast-diff",
    "deep-flatten",
    "journaling",
    "data-pool",
    "operations",
    "migrating",
    "non-primary",
    "dirty-cache",
];

/// A kernel, by what it shows: this node's below `/`, another one's in tests.
pub(crate) struct Kernel {
    root: PathBuf,
}

/// What maps images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Module {
    Rbd,
    Nbd,
}

impl Module {
    fn name(self) -> &'static str {
        match self {
            Self::Rbd => "rbd",
            Self::Nbd => "nbd",
        }
    }

    /// Is there where it is loaded or built in.
    fn shown_at(self) -> &'static str {
        match self {
            Self::Rbd => "sys/bus/rbd",
            Self::Nbd => "sys/module/nbd",
        }
    }
}

impl Kernel {
    pub(crate) fn of_this_node() -> Self {
        Self { root: "/".into() }
    }

    /// `Linux 6.1.0-56-amd64`
    pub(crate) fn name(&self) -> String {
        format!("Linux {}", self.line("proc/sys/kernel/osrelease").unwrap_or_default())
    }

    /// What keeps a module that is not there from being loaded at need; None where nothing is known to.
    pub(crate) fn obstacle(&self, module: Module) -> Option<String> {
        if self.has(module) {
            return None;
        }
        let release = self.line("proc/sys/kernel/osrelease").unwrap_or_default();
        let tree = Path::new("lib/modules").join(release).join("modules.dep");
        let what = if self.line("proc/sys/kernel/modules_disabled").is_some_and(|flag| flag == "1") {
            "loads none any more (kernel.modules_disabled):".to_owned()
        } else if !self.root.join(&tree).exists() {
            format!("/{} is not here: mount the node's /lib/modules into the container, or", tree.display())
        } else if !self.root.join("sbin/modprobe").exists() {
            "/sbin/modprobe is not here: install kmod, or".to_owned()
        } else {
            return None;
        };
        let name = module.name();
        Some(format!("{} has no module {name}, and {what} load {name} on the node at its start", self.name()))
    }

    /// Behind a map that failed: why, and what to do, where that is for the lack of a module.
    pub(crate) fn lacks(&self, module: Module) -> Option<String> {
        let name = module.name();
        let not_loaded = || {
            format!(
                "{} has no module {name}, and it could not be loaded: try `modprobe {name}` on the node; the \
                 container has to be privileged",
                self.name()
            )
        };
        (!self.has(module)).then(|| self.obstacle(module).unwrap_or_else(not_loaded))
    }

    /// Those features of an image that krbd does not know. None where it does not tell what it knows.
    pub(crate) fn unknown_features<'a>(&self, of_image: &'a [String]) -> Option<Vec<&'a str>> {
        let mask = self.line("sys/bus/rbd/supported_features")?;
        let mask = u64::from_str_radix(mask.trim_start_matches("0x"), 16).ok()?;
        let known = |name: &str| {
            FEATURES.iter().position(|known| *known == name).is_some_and(|bit| mask >> bit & 1 == 1)
        };
        Some(of_image.iter().map(String::as_str).filter(|name| !known(name)).collect())
    }

    /// Whether the driver is in the network namespace that the kernel has started with, and which never ends: it alone
    /// has the settings of all (Linux 2.6.29 to 6.18). None where no settings are shown.
    pub(crate) fn is_first_network(&self) -> Option<bool> {
        let settings = self.root.join("proc/sys/net/core");
        settings.join("somaxconn").exists().then(|| settings.join("netdev_max_backlog").exists())
    }

    fn has(&self, module: Module) -> bool {
        self.root.join(module.shown_at()).exists()
    }

    fn line(&self, file: &str) -> Option<String> {
        Some(fs::read_to_string(self.root.join(file)).ok()?.trim().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel that shows these files (with a text) and folders.
    fn kernel(shown: &[&str]) -> (tempfile::TempDir, Kernel) {
        let root = tempfile::tempdir().expect("a folder");
        for entry in [&["proc/sys/kernel/osrelease=6.1.0\n"], shown].concat() {
            let (path, text) = entry.split_once('=').unwrap_or((entry, ""));
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            if text.is_empty() { fs::create_dir(path) } else { fs::write(path, text) }.expect("made");
        }
        let kernel = Kernel { root: root.path().into() };
        (root, kernel)
    }

    fn lacks(shown: &[&str], module: Module) -> Option<String> {
        kernel(shown).1.lacks(module)
    }

    #[test]
    fn a_module_that_is_loaded_or_built_in_is_not_missed() {
        assert_eq!(lacks(&["sys/bus/rbd"], Module::Rbd), None);
        assert_eq!(lacks(&["sys/module/nbd"], Module::Nbd), None);
        assert!(lacks(&["sys/bus/rbd"], Module::Nbd).is_some_and(|text| text.contains("no module nbd")));
    }

    #[test]
    fn why_a_module_is_not_there_is_told_with_what_to_do() {
        let tree = "lib/modules/6.1.0/modules.dep";
        for (shown, expected) in [
            (vec![], "Linux 6.1.0 has no module rbd, and /lib/modules/6.1.0/modules.dep is not here: mount"),
            (vec!["lib/modules/6.1.0", "sbin/modprobe"], "/lib/modules/6.1.0/modules.dep is not here"),
            (vec![tree], "/sbin/modprobe is not here"),
            (vec![tree, "sbin/modprobe", "proc/sys/kernel/modules_disabled=1\n"], "modules_disabled"),
            (vec![tree, "sbin/modprobe", "proc/sys/kernel/modules_disabled=0\n"], "try `modprobe rbd`"),
        ] {
            let text = lacks(&shown, Module::Rbd).expect("there is no module");
            assert!(text.contains(expected), "{shown:?}: {text}");
            let obstacle = kernel(&shown).1.obstacle(Module::Rbd);
            assert_eq!(obstacle.is_some(), !expected.contains("try"), "{obstacle:?}");
        }
    }

    #[test]
    fn features_that_krbd_does_not_know_are_named() {
        let image = ["layering", "striping", "exclusive-lock", "journaling", "operations", "of-tomorrow"];
        let image = image.map(str::to_owned);
        let unknown = |mask: &str| {
            let mask = format!("sys/bus/rbd/supported_features={mask}");
            kernel(&[&mask]).1.unknown_features(&image).map(|names| names.join(" "))
        };
        assert_eq!(unknown("0x1bf\n").as_deref(), Some("journaling of-tomorrow"));
        assert_eq!(
            unknown("0x1\n").as_deref(),
            Some("striping exclusive-lock journaling operations of-tomorrow")
        );
        assert_eq!(unknown("none\n"), None);
        assert_eq!(kernel(&["sys/bus/rbd"]).1.unknown_features(&image), None);
    }

    #[test]
    fn the_first_network_is_told_by_the_settings_of_all() {
        let settings = "proc/sys/net/core";
        let [own, all] = ["somaxconn", "netdev_max_backlog"].map(|name| format!("{settings}/{name}=1\n"));
        assert_eq!(kernel(&[&own, &all]).1.is_first_network(), Some(true));
        assert_eq!(kernel(&[&own]).1.is_first_network(), Some(false));
        assert_eq!(kernel(&[settings]).1.is_first_network(), None);
    }
}
