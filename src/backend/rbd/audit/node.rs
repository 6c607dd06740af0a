//! What this node has mapped and nobody staged, and what is staged and not mapped. Told, never repaired: it is kubelet's to
//! ask for it, with NodeUnstageVolume, as long as the pod or its volume lives.

use crate::backend::{Image, Staging};
use crate::error::Result;
use crate::id::trailing_uuid;

use crate::backend::rbd::Rbd;
use crate::backend::rbd::audit::finding::{Finding, Kind, Remedy};
use crate::backend::rbd::snapshot::claim::PATIENCE;
use crate::backend::rbd::trash::tombstone::is_young;

impl Rbd {
    /// `stagings`: a function, as they are read behind the maps, which they come before and go after.
    pub(super) async fn audit_of_node(&self, stagings: &dyn Fn() -> Vec<Staging>) -> Result<Vec<Finding>> {
        let mapped: Vec<(Image, String)> =
            self.devices().await?.into_iter().map(|device| (device.image(), device.path)).collect();
        let stagings = stagings();
        let torn = stagings.iter().filter_map(|staging| Some((staging, staging.image.as_ref().err()?)));
        let mut found: Vec<Finding> = torn.map(|(staging, why)| torn_stash(staging, why)).collect();
        let is_staged = |image: &Image| stagings.iter().any(|staging| staging.image.as_ref() == Ok(image));
        // A torn one may be of any.
        if found.is_empty() {
            let loose =
                mapped.iter().filter(|(image, _)| trailing_uuid(&image.name).is_some() && !is_staged(image));
            found.extend(loose.map(|(image, device)| map_without_stash(image, device)));
        }
        let is_mapped = |wanted: &Image| mapped.iter().any(|(image, _)| image == wanted);
        let old = |staging: &&Staging| {
            staging.since.is_some_and(|since| !is_young(since, self.deadline * PATIENCE))
        };
        let idle =
            stagings.iter().filter(old).filter_map(|staging| Some((staging, staging.image.as_ref().ok()?)));
        found.extend(
            idle.filter(|(_, image)| !is_mapped(image))
                .map(|(staging, image)| stash_without_map(staging, image)),
        );
        found.sort_by_key(|finding| finding.kind);
        Ok(found)
    }
}

fn torn_stash(staging: &Staging, why: &str) -> Finding {
    Finding {
        kind: Kind::TornStash,
        what: staging.file.display().to_string(),
        since: staging.since,
        why: format!("it cannot be read: {why}"),
        remedy: Remedy::Never("the next NodeUnstageVolume goes by the list of mapped images".to_owned()),
    }
}

fn map_without_stash(image: &Image, device: &str) -> Finding {
    Finding {
        kind: Kind::MapWithoutStash,
        what: format!("{device} {image}"),
        since: None,
        why: "no staging folder of this node names it".to_owned(),
        remedy: Remedy::Never(format!("where nothing holds it (lsblk, mounts): rbd unmap {device}")),
    }
}

fn stash_without_map(staging: &Staging, image: &Image) -> Finding {
    Finding {
        kind: Kind::StashWithoutMap,
        what: staging.file.display().to_string(),
        since: staging.since,
        why: format!("image {image} is not mapped on this node"),
        remedy: Remedy::Never(
            "the next NodeUnstageVolume removes it, the next NodeStageVolume maps it".to_owned(),
        ),
    }
}
