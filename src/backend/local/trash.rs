//! What is on its way out: discarded objects, and what a kill left half-made or half-removed.

use std::path::Path;
use std::time::Duration;

use uuid::Uuid;

use crate::error::{Error, Result, chain};
use crate::host::{Cmd, Slot};

use super::quota::Quotas;
use super::root::{self, Root};
use super::{Local, failed, io};

/// A folder of millions of files takes its time.
const REMOVE_WITHIN: Duration = Duration::from_secs(1800);

impl Local {
    /// At start: nobody was ever told of what is half-made, and everybody of what is half-removed. What cannot go stays,
    /// and keeps nothing else.
    pub(super) async fn sweep(&self, root: &Root) {
        for path in io(|| root.leftovers()) {
            tracing::warn!(path = %path.display(), "removing what an interrupted operation left");
            if let Err(error) = self.remove(root, &path).await {
                tracing::error!(path = %path.display(), "it stays: {}", chain(&error));
            }
        }
    }

    /// Removes what was discarded of an object, by this call or by one that did not come to its end.
    pub(super) async fn empty_trash(&self, root: &Root, uuid: Uuid) -> Result<()> {
        for path in io(|| root.discarded(uuid)) {
            self.remove(root, &path).await?;
        }
        Ok(())
    }

    /// A directory volume goes with its quota, and without what is mounted in it (`remove_dir_all` would cross over).
    pub(super) async fn remove(&self, root: &Root, path: &Path) -> Result<()> {
        let data = root::data(path);
        if data.is_dir() {
            if let Some(quotas) = Quotas::around(self.host.as_ref(), &root.path_now())?
                && let Some(project) = quotas.of(&data).await?
            {
                quotas.limit(project, 0).await?;
            }
            let args = ["-r", "-f", "--one-file-system", "--", &data.to_string_lossy()];
            let rm = Cmd::new("rm", args).slot(Slot::Long).deadline(REMOVE_WITHIN);
            let removed = self.host.run(rm).await;
            removed.map_err(|error| Error::internal(format!("removing {}", data.display()), error))?;
        }
        io(|| root::remove_all(path)).map_err(|error| failed(&format!("removing {}", path.display()), error))
    }
}
