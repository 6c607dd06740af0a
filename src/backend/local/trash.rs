//! What is on its way out: discarded objects, and what a kill left half-made or half-removed.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::error::{Error, Result, chain};
use crate::host::{Cmd, Host, Slot};

use super::quota::Quotas;
use super::root::{self, Root};
use super::{Local, failed, io};

/// A folder of millions of files takes its time.
const REMOVE_WITHIN: Duration = Duration::from_secs(1800);

/// At start, behind the first answers: what an interrupted operation left goes. Nobody was ever told of what was
/// half-made, and everybody of what was half-removed. What cannot go stays, and keeps nothing else.
pub(super) async fn sweep(host: Arc<dyn Host>, root: Arc<Root>) {
    for path in io(|| root.trash()) {
        tracing::warn!(path = %path.display(), "removing what an interrupted operation left");
        if let Err(error) = remove(host.as_ref(), &root, &path).await {
            tracing::error!(path = %path.display(), "it stays: {}", chain(&error));
        }
    }
}

impl Local {
    /// Removes what was discarded of an object, by this call or by one that did not come to its end.
    pub(super) async fn empty_trash(&self, root: &Root, uuid: Uuid) -> Result<()> {
        for path in io(|| root.discarded(uuid)) {
            remove(self.host.as_ref(), root, &path).await?;
        }
        Ok(())
    }
}

/// A directory volume goes with its quota, and without what is mounted in it (`remove_dir_all` would cross over).
pub(super) async fn remove(host: &dyn Host, root: &Root, path: &Path) -> Result<()> {
    let data = root::data(path);
    if data.is_dir() {
        if let Some(quotas) = Quotas::around(host, &root.path_now())?
            && let Some(project) = quotas.of(&data).await?
        {
            quotas.limit(project, 0).await?;
        }
        let args = ["-r", "-f", "--one-file-system", "--", &data.to_string_lossy()];
        let rm = Cmd::new("rm", args).slot(Slot::Long).deadline(REMOVE_WITHIN);
        let removed = host.run(rm).await;
        removed.map_err(|error| Error::internal(format!("removing {}", data.display()), error))?;
    }
    io(|| root::remove_all(path)).map_err(|error| failed(&format!("removing {}", path.display()), error))
}
