//! Programs put in front of `rbd` on the driver's PATH: they count its processes, slow them down or kill them.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Shell scripts around `rbd`. `$1` is its verb; `$RBD` is the program that it would have been.
pub(crate) const COUNT: &str = r#"exec "$RBD" "$@""#;

/// A folder for the front of PATH, with an `rbd` that writes down its arguments and then does what `script` says.
pub(crate) struct Wrapper {
    folder: PathBuf,
}

impl Wrapper {
    pub(crate) fn new(folder: PathBuf, script: &str) -> Self {
        fs::create_dir(&folder).expect("a folder for the wrapper");
        let (calls, rbd) = (folder.join("calls"), programs().remove(0));
        fs::write(&calls, "").expect("an empty list of calls");
        let head = format!(
            "#!/bin/bash\nCALLS={}\nRBD={}\nREAL={}\n",
            calls.display(),
            rbd.display(),
            real().display()
        );
        let path = folder.join("rbd");
        fs::write(&path, format!("{head}echo \"$*\" >>$CALLS\n{script}\n")).expect("the wrapper");
        fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("an executable wrapper");
        Self { folder }
    }

    pub(crate) fn path(&self) -> String {
        let path = std::env::var("PATH").unwrap_or_default();
        format!("{}:{path}", self.folder.display())
    }

    /// The arguments of each `rbd` since the last call of `forget`.
    pub(crate) fn calls(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.folder.join("calls")).expect("the list of calls");
        calls.lines().map(str::to_owned).collect()
    }

    pub(crate) fn count(&self, verb: &str) -> usize {
        self.calls().iter().filter(|call| call.starts_with(verb)).count()
    }

    /// Whether no `rbd` was started for a moment.
    pub(crate) fn settled(&self) -> bool {
        let before = self.calls().len();
        std::thread::sleep(Duration::from_millis(500));
        self.calls().len() == before
    }

    pub(crate) fn forget(&self) {
        fs::write(self.folder.join("calls"), "").expect("an empty list of calls");
    }
}

/// Each `rbd` on PATH, in order: the lab's stand-in, where it is needed, and the real one.
fn programs() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|folder| folder.join("rbd"))
        .filter(|program| program.is_file())
        .collect()
}

/// The real `rbd`. Told to the stand-in too, which would else take a wrapper for it.
pub(crate) fn real() -> PathBuf {
    let stand_in = |program: &Path| program.ends_with("tests/lab/bin/rbd");
    programs()
        .into_iter()
        .find(|program| !stand_in(program))
        .expect("rbd on PATH: tests/lab/install puts it there")
}
