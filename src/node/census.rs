//! How many volumes are staged on this node, and what is wrong with how many of them, for the metrics. Like `health`, it
//! asks the kernel alone, and waits for no volume.

use std::collections::HashSet;

use crate::backend::Ailment;
use crate::host::Mount;
use crate::id::VolumeId;
use crate::metrics::{Ailing, METRICS};

use super::Node;
use super::stash;
use super::unlock::attached_device;

impl Node {
    pub(crate) fn count(&self) {
        let mounts = self.host.mounts().unwrap_or_default();
        let staged = mounts.iter().filter(|mount| shows_a_volume(mount));
        let volumes: HashSet<_> = staged.filter_map(|mount| mount.target.file_name()?.to_str()).collect();
        let (mut unhealthy, mut storage) = (Ailing::new(), Ailing::new());
        for volume in &volumes {
            // One that was unstaged meanwhile has none.
            add(&mut unhealthy, &self.health(volume).unwrap_or_default());
        }
        add(&mut storage, &self.storage_health());
        METRICS.staged(volumes.len(), &unhealthy, &storage);
    }
}

/// A staged volume is mounted by its id. That of a static volume may be any name: there the stash beside it decides, which
/// is looked for where a device of ours is mounted.
fn shows_a_volume(mount: &Mount) -> bool {
    let name = mount.target.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    VolumeId::parse(name).is_ok() || is_mapped(mount) && stash::beside(mount).is_some()
}

fn is_mapped(mount: &Mount) -> bool {
    let of = |device: &str| device.starts_with("/dev/rbd") || device.starts_with("/dev/nbd");
    attached_device(mount).is_some_and(|device| of(&device.to_string_lossy()))
}

fn add(ailing: &mut Ailing, found: &[Ailment]) {
    let reasons: HashSet<_> = found.iter().map(|ailment| ailment.reason).collect();
    for reason in reasons {
        *ailing.entry(reason).or_default() += 1;
    }
}
