//! ControllerPublishVolume and ControllerUnpublishVolume: whether this node was given a volume, noted beside it.

use crate::backend::Publish;
use crate::error::{Error, Result};
use crate::id::VolumeId;

use super::meta::{Meta, Published};
use super::root::{Objects, Root};
use super::{Local, io};

impl Local {
    pub(super) async fn publish_volume(&self, request: &Publish) -> Result<()> {
        let root = self.root().await?;
        let (folder, mut meta) = self.volume(&root, &request.id)?;
        let wanted = Published { node: request.node.clone(), read_only: request.read_only };
        match &meta.published {
            Some(there) if *there == wanted => return Ok(()),
            Some(there) if there.node == wanted.node => {
                return Err(Error::Conflict(format!(
                    "volume {} is published on {} already, {}: unpublish it first",
                    request.id,
                    there.node,
                    if there.read_only { "read-only" } else { "read-write" }
                )));
            }
            // Of a name that this node had before.
            Some(_) | None => {}
        }
        self.has_room_for_one_more(&root)?;
        meta.published = Some(wanted);
        io(|| meta.write(&folder))
    }

    pub(super) async fn unpublish_volume(&self, id: &VolumeId, node: Option<&str>) -> Result<()> {
        let root = self.root().await?;
        let Some((folder, mut meta)) = Self::volume_if_there(&root, id)? else {
            return self.prove_absent(&root, Objects::Volumes, id);
        };
        let of_node = |published: &Published| node.is_none_or(|node| node == published.node);
        if !meta.published.as_ref().is_some_and(of_node) {
            return Ok(());
        }
        self.let_go(&folder, &meta).await?;
        meta.published = None;
        io(|| meta.write(&folder))
    }

    fn has_room_for_one_more(&self, root: &Root) -> Result<()> {
        if self.max_volumes == 0 {
            return Ok(());
        }
        let published = |uuid| Meta::read(&root.object(Objects::Volumes, uuid)).ok()??.published;
        let count = io(|| Ok(root.uuids(Objects::Volumes)?.into_iter().filter_map(published).count()))?;
        if u32::try_from(count).unwrap_or(u32::MAX) < self.max_volumes {
            return Ok(());
        }
        Err(Error::NoSpace(format!(
            "node {} has {count} volumes, and --max-volumes-per-node={} are the most",
            self.node, self.max_volumes
        )))
    }
}
