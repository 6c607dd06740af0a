//! A new key for an encrypted volume that is staged here (EncryptionKeyRotate of CSI-Addons).

use std::path::Path;

use crate::backend::{NewKey, Target};
use crate::cluster::Secrets;
use crate::error::{Error, Result};
use crate::host::mapper;
use crate::luks;

use super::device::SYS;
use super::unlock::attached_device;
use super::{Node, is_staged};

impl Node {
    /// The header first, the record then: cut off at any instant, a key that is recorded opens it.
    pub(crate) async fn rotate(&self, volume: &str, secrets: Secrets) -> Result<()> {
        let mounts = self.host.mounts()?;
        let staged = mounts
            .iter()
            .find(|mount| is_staged(mount, volume))
            .ok_or_else(|| Error::NotFound(format!("volume {volume} is not staged on this node")))?;
        let opened = mapper::named(&luks::name(volume)?, Path::new(SYS));
        let (Some(_), Some(device)) = (opened, attached_device(staged)) else {
            return Err(Error::Precondition(format!("volume {volume} is not encrypted: it has no key")));
        };
        let image = self.image(volume, staged).await?;
        let target = Target { volume: volume.to_owned(), context: [].into(), secrets };
        let NewKey { keys, new } = self.backend.new_key(&target, &image).await?;
        let replaced = luks::add_key(self.host.as_ref(), &device, &keys, &new).await?;
        self.backend.replace_key(&target, &image, &new).await?;
        luks::remove_key(self.host.as_ref(), &device, &replaced).await?;
        tracing::info!(volume, "the volume has a new key");
        Ok(())
    }
}
