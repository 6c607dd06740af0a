//! What opens an image on a node. What a pod has written is never shown as if nothing were there: an image that says that it
//! is encrypted is opened, whatever the volume context says, and one that does not is never encrypted on the way.

use crate::backend::{Attach, Encryption, Target};
use crate::error::{Error, Result};
use crate::id::VolumeId;

use crate::backend::rbd::Rbd;
use crate::backend::rbd::ceph_csi::journal::Entry;
use crate::backend::rbd::cli::Cli;
use crate::backend::rbd::encryption::Keyring;
use crate::backend::rbd::meta::{self, Meta};
use crate::backend::rbd::params::encryption;
use crate::keys;

impl Rbd {
    /// None: the image is plain.
    pub(crate) async fn encryption(
        &self,
        cli: &Cli<'_>,
        request: &Attach,
        meta: &Meta,
    ) -> Result<Option<Encryption>> {
        let (target, image) = (&request.target, &request.image);
        let wanted = encryption::is_encrypted(&target.context)?;
        if !meta::is_encrypted(meta) {
            return if wanted { Err(was_plain(request)) } else { Ok(None) };
        }
        let made = meta::is_made(meta);
        if let Some(mode) = target.context.get("integrityMode").filter(|mode| !made && !mode.is_empty()) {
            return Err(Error::Invalid(format!(
                "volume {:?} has integrityMode={mode:?}, which is not built in this version of the driver",
                target.volume
            )));
        }
        let keyring = self.keyring_of(cli, target, &image.pool, meta).await?;
        Ok(Some(Encryption { keys: keyring.open(meta).await?, made }))
    }

    /// By the volume context; where that says nothing, by what was written down.
    pub(super) async fn keyring_of(
        &self,
        cli: &Cli<'_>,
        target: &Target,
        pool: &str,
        meta: &Meta,
    ) -> Result<Keyring> {
        let id = VolumeId::parse(&target.volume).ok().filter(|_| !target.is_static());
        let store = match id {
            _ if encryption::is_encrypted(&target.context)? => Some(encryption::store(&target.context)?),
            Some(id) => self.key_store_of(cli, pool, meta, &(Entry::Volume, id.uuid)).await?,
            None => None,
        };
        let store = store.unwrap_or_else(|| keys::DEFAULT.to_owned());
        self.keyring(&store, target.volume.clone(), &target.secrets).await
    }
}

fn was_plain(request: &Attach) -> Error {
    let Attach { target, image, .. } = request;
    Error::Precondition(format!(
        "volume {:?} is to be encrypted, as its volume context has it, and image {image} is not: it was made plain (its metadata \
         has no {}), and is left untouched; what it holds would be lost",
        target.volume,
        meta::ENCRYPTED
    ))
}
