//! The device mappers of this node, as /sys has them: which one a name means, and what is below it. Never waits. `sys`:
//! another folder in tests.

use std::fs;
use std::path::{Path, PathBuf};

pub(crate) const SYS: &str = "/sys";
const NODES: &str = "/dev/mapper";

/// A device that the kernel's device mapper makes of others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mapper {
    pub(crate) name: String,
    /// `dm-0`
    kernel: String,
    /// `major:minor`
    pub(crate) number: String,
    pub(crate) below: Vec<PathBuf>,
    pub(crate) read_only: bool,
    /// 0 while it is only half-made.
    pub(crate) sectors: u64,
}

impl Mapper {
    fn read(block: &Path) -> Option<Self> {
        let text = |file: &str| Some(fs::read_to_string(block.join(file)).ok()?.trim().to_owned());
        Some(Self {
            name: text("dm/name")?,
            kernel: file_name(block),
            number: text("dev")?,
            below: below(block).iter().map(|below| device(&file_name(below))).collect(),
            read_only: text("ro")? == "1",
            sectors: text("size")?.parse().ok()?,
        })
    }

    /// Whether this is a path of its node.
    pub(crate) fn is_at(&self, node: &Path) -> bool {
        node == path(&self.name) || node == device(&self.kernel)
    }
}

/// Where the node of a mapper is, or is going to be.
pub(crate) fn path(name: &str) -> PathBuf {
    Path::new(NODES).join(name)
}

/// What a device is made of, by its folder in /sys. A link that leads nowhere: that one is gone.
pub(crate) fn below(block: &Path) -> Vec<PathBuf> {
    entries(&block.join("slaves"))
}

pub(crate) fn all(sys: &Path) -> Vec<Mapper> {
    entries(&sys.join("block")).iter().filter_map(|block| Mapper::read(block)).collect()
}

pub(crate) fn named(name: &str, sys: &Path) -> Option<Mapper> {
    all(sys).into_iter().find(|mapper| mapper.name == name)
}

/// The device that a storage attached: what is below this one where that is a mapper of one device, else itself.
pub(crate) fn base(node: PathBuf, sys: &Path) -> PathBuf {
    if !node.starts_with(NODES) && !file_name(&node).starts_with("dm-") {
        return node;
    }
    let mapper = all(sys).into_iter().find(|mapper| mapper.is_at(&node));
    match mapper.as_ref().map(|mapper| mapper.below.as_slice()) {
        Some([below]) => below.clone(),
        _ => node,
    }
}

/// The kernel writes `!` for a slash.
fn device(kernel: &str) -> PathBuf {
    Path::new("/dev").join(kernel.replace('!', "/"))
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A /sys with rbd0, and dm-0 of this name over these.
    fn sys(name: &str, below: &[&str]) -> tempfile::TempDir {
        let sys = tempfile::tempdir().expect("a folder");
        let block = sys.path().join("block/dm-0");
        for folder in ["dm", "slaves"] {
            fs::create_dir_all(block.join(folder)).expect("made");
        }
        fs::create_dir_all(sys.path().join("block/rbd0/slaves")).expect("made");
        for (file, text) in
            [("dm/name", name), ("dev", "253:0"), ("ro", "0"), ("size", "2048"), ("dm/uuid", "CRYPT-LUKS2-x")]
        {
            fs::write(block.join(file), format!("{text}\n")).expect("written");
        }
        for device in below {
            fs::create_dir(block.join("slaves").join(device)).expect("made");
        }
        sys
    }

    fn check(node: &str, below: &[&str]) -> String {
        base(PathBuf::from(node), sys("luks-rbd-v", below).path()).display().to_string()
    }

    #[test]
    fn the_device_below_a_mapper_is_found_by_either_of_its_names() {
        assert_eq!(check("/dev/mapper/luks-rbd-v", &["rbd0"]), "/dev/rbd0");
        assert_eq!(check("/dev/dm-0", &["rbd0"]), "/dev/rbd0");
        assert_eq!(check("/dev/dm-0", &["cciss!c0d0"]), "/dev/cciss/c0d0");
    }

    #[test]
    fn what_is_no_mapper_of_one_device_is_itself() {
        for node in ["/dev/rbd0", "/dev/mapper/other", "/dev/dm-1"] {
            assert_eq!(check(node, &["rbd0"]), node);
        }
        assert_eq!(check("/dev/dm-0", &["sda", "sdb"]), "/dev/dm-0");
        assert_eq!(check("/dev/dm-0", &[]), "/dev/dm-0");
    }

    #[test]
    fn a_mapper_is_found_by_its_name() {
        let sys = sys("luks-rbd-v", &["rbd0"]);
        let mapper = named("luks-rbd-v", sys.path()).expect("the mapper");
        assert_eq!((mapper.number.as_str(), mapper.sectors, mapper.read_only), ("253:0", 2048, false));
        assert_eq!(mapper.below, [PathBuf::from("/dev/rbd0")]);
        assert_eq!(named("luks-rbd", sys.path()), None);
    }
}
