//! Programs put in front of `rbd` on the driver's PATH: they count its processes, slow them down or kill them.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common::wrap::Wrapper;

/// Shell scripts around `rbd`. `$1` is its verb; `$RBD` is the program that it would have been.
pub(crate) const COUNT: &str = r#"exec "$RBD" "$@""#;

impl Wrapper {
    /// An `rbd` that writes down its arguments and then does what `script` says.
    pub(crate) fn of_rbd(folder: PathBuf, script: &str) -> Self {
        let (rbd, real) = (programs().remove(0), real());
        let head = format!("RBD={}\nREAL={}\necho \"$*\" >>$CALLS", rbd.display(), real.display());
        Self::new(folder, &["rbd"], &format!("{head}\n{script}"))
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
        fs::write(self.folder().join("calls"), "").expect("an empty list of calls");
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
