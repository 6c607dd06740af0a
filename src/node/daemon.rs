//! Staged volumes whose device has lost the daemon that serves it (rbd-nbd): looked for, and given a new one, by the
//! credential of a request or of the configuration. Until then whoever uses them waits.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Attach, Mode, Target};
use crate::cluster::Secrets;
use crate::error::{Error, Result, chain};
use crate::host::Mount;
use crate::ops::{Operation, Ops};

use super::device::{SYS, device_is_read_only};
use super::stash;
use super::unlock::attached_device;
use super::{Kind, Node, device_of, is_staged, kind, lock};

/// How often they are looked for.
const LOOK_EVERY: Duration = Duration::from_secs(5);

impl Node {
    /// For as long as the process lives: what a killed driver left behind, and daemons that end by themselves.
    pub(crate) async fn keep_served(self: Arc<Self>, ops: Ops) {
        let mut told = BTreeMap::new();
        loop {
            for volume in self.unserved() {
                let (node, target) = (self.clone(), nameless(&volume));
                let operation = Operation::of("a new daemon", lock(&volume), 0);
                let served = ops.run(operation, async move { node.serve(&target, None, 0).await }).await;
                // A call for the volume that runs is as good.
                let Some(error) = served.err().filter(|error| !matches!(error, Error::Busy(_))) else {
                    continue;
                };
                let why = chain(&error);
                if told.get(&volume) != Some(&why) {
                    tracing::warn!(volume, "the volume stands still: {why}");
                    told.insert(volume, why);
                }
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Has the volume served, where it is staged and is not, or where its device has not come to this size.
    pub(super) async fn serve(&self, target: &Target, mode: Option<Mode>, size: u64) -> Result<()> {
        let mounts = self.host.mounts()?;
        let Some(staged) = mounts.iter().find(|mount| is_staged(mount, &target.volume)) else {
            return Ok(());
        };
        let Some(stashed) =
            stash::beside(staged).filter(|stashed| size > 0 || !self.backend.is_served(stashed))
        else {
            return Ok(());
        };
        let block = kind(staged) == Kind::Block;
        let read_only = device_of(staged).is_some_and(|device| device_is_read_only(&device, Path::new(SYS)));
        let as_it_is = if read_only { Mode::MultiNodeReader } else { Mode::SingleNodeWriter };
        let (target, mode, node) = (target.clone(), mode.unwrap_or(as_it_is), self.id.clone());
        let attach = Attach { target, image: stashed.image.clone(), mode, block, node };
        self.backend.serve(&attach, &stashed, size).await
    }

    /// By a call that carries no secrets.
    pub(super) async fn serve_by_configuration(&self, volume: &str) -> Result<()> {
        self.serve(&nameless(volume), None, 0).await
    }

    fn unserved(&self) -> Vec<String> {
        let mounts = self.host.mounts().unwrap_or_default();
        let unserved =
            |mount: &&Mount| stash::beside(mount).is_some_and(|stashed| !self.backend.is_served(&stashed));
        let volumes = mounts.iter().filter(|mount| is_of_nbd(mount)).filter(unserved);
        volumes.filter_map(|mount| Some(mount.target.file_name()?.to_str()?.to_owned())).collect()
    }
}

/// The devices that have a daemon: only beside their mounts a stash is looked for.
fn is_of_nbd(mount: &Mount) -> bool {
    attached_device(mount).is_some_and(|device| device.to_string_lossy().starts_with("/dev/nbd"))
}

/// A volume of which nobody told more than its id.
fn nameless(volume: &str) -> Target {
    Target { volume: volume.to_owned(), context: BTreeMap::new(), secrets: Secrets::default() }
}
