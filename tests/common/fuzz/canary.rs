//! What nobody may touch: a tree of files beside the paths of the requests, and links from there into it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};

pub(crate) struct Canary {
    folder: PathBuf,
    before: BTreeMap<PathBuf, (u32, Vec<u8>)>,
}

impl Canary {
    /// In this folder, as `canary`; `link` is a link to it, and so is one to its file in a pod's place.
    pub(crate) fn planted(folder: &Path) -> Self {
        let tree = folder.join("canary");
        fs::create_dir_all(tree.join("folder")).expect("a canary");
        for (file, text) in [("file", "sings"), ("folder/file", "sings too"), ("image-meta.json", "{}")] {
            fs::write(tree.join(file), text).expect("a file of the canary");
        }
        let before = seen(&tree);
        for (link, to) in
            [("link", "."), ("pods/link", "folder"), ("pods/file-link", "file"), ("staging/link", ".")]
        {
            let link = folder.join(link);
            fs::create_dir_all(link.parent().expect("a parent")).expect("a folder");
            symlink(tree.join(to), link).expect("a link to the canary");
        }
        Self { folder: tree, before }
    }

    /// Every file is as it was.
    #[track_caller]
    pub(crate) fn sings(&self) {
        let now = seen(&self.folder);
        for (path, before) in &self.before {
            assert_eq!(now.get(path), Some(before), "{} is not what it was", path.display());
        }
    }
}

/// Each file and folder, with its mode and what it holds.
fn seen(folder: &Path) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let (path, meta) = (entry.path(), entry.metadata().expect("what it is"));
        if meta.is_dir() {
            all.extend(seen(&path));
        }
        let text = if meta.is_file() { fs::read(&path).expect("a file") } else { Vec::new() };
        all.insert(path, (meta.mode(), text));
    }
    all
}
