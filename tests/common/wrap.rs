//! Programs put in front of real ones on the driver's PATH: they count them, slow them down or kill.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// A folder for the front of PATH, with programs that do what a shell script says. `$CALLS` is a list that it may add
/// lines to.
pub(crate) struct Wrapper {
    folder: PathBuf,
}

impl Wrapper {
    pub(crate) fn new(folder: PathBuf, programs: &[&str], script: &str) -> Self {
        fs::create_dir(&folder).expect("a folder for the wrapper");
        let calls = folder.join("calls");
        fs::write(&calls, "").expect("an empty list of calls");
        for program in programs {
            let path = folder.join(program);
            fs::write(&path, format!("#!/bin/bash\nCALLS={}\n{script}\n", calls.display()))
                .expect("the wrapper");
            fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("an executable wrapper");
        }
        Self { folder }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn path(&self) -> String {
        let path = std::env::var("PATH").unwrap_or_default();
        format!("{}:{path}", self.folder.display())
    }

    /// What the script wrote down.
    pub(crate) fn calls(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.folder.join("calls")).expect("the list of calls");
        calls.lines().map(str::to_owned).collect()
    }
}
