//! What a volume is attached for. A snapshot of a mounted filesystem has a dirty journal, which a read-only mount refuses
//! and `norecovery` loses (fsynced files too): so the first node that is to read a volume replays it, alone, and says so
//! on the image; then any number of nodes map it read-only.

use std::path::Path;

use crate::backend::{Attach, Backend as _, Detach, Mapping, Stashed};
use crate::error::Result;
use crate::id::VolumeId;

use crate::backend::rbd::Rbd;
use crate::backend::rbd::cli::Cli;
use crate::backend::rbd::cli::json::Device;
use crate::backend::rbd::meta::{self, Meta};
use crate::backend::rbd::params::mapping::Wanted;

/// What a node does with an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Write,
    /// Mount it once, to be written by nobody else, so that it can be read.
    Replay,
    Read,
}

impl Purpose {
    pub(crate) fn of(request: &Attach, meta: &Meta) -> Self {
        let id = VolumeId::parse(&request.target.volume).ok().filter(|_| !request.target.is_static());
        let given = |id: &VolumeId| {
            let records = meta::published(meta, id.uuid);
            records.iter().any(|record| record.node == request.node && record.read_only)
        };
        if !request.mode.read_only() && !id.as_ref().is_some_and(given) {
            return Self::Write;
        }
        // One of ceph-csi (or of an administrator) may have readers already, of whom nothing tells.
        let ours = id.filter(|id| id.uuid.get_version_num() == 5);
        match ours {
            Some(id) if !request.block && !meta::is_replayed(meta, id.uuid) => Self::Replay,
            _ => Self::Read,
        }
    }
}

impl Rbd {
    /// Who is going to write makes the journal dirty again.
    pub(crate) async fn forget_replay(&self, cli: &Cli<'_>, request: &Attach, meta: &Meta) -> Result<()> {
        if meta.contains_key(meta::REPLAYED) {
            cli.remove_meta(&request.image, meta::REPLAYED).await?;
        }
        Ok(())
    }

    /// Asked when the image is mapped: another node may have come to its end, and be reading, which shows no watch.
    pub(crate) async fn was_replayed(&self, cli: &Cli<'_>, request: &Attach) -> Result<bool> {
        let meta = cli.meta(&request.image).await?.unwrap_or_default();
        Ok(Purpose::of(request, &meta) != Purpose::Replay)
    }

    pub(crate) async fn note_replay(&self, request: &Attach) -> Result<()> {
        let id = VolumeId::parse(&request.target.volume)?;
        let access = self.target_access(&request.target)?;
        self.cli(&access).set_meta(&request.image, meta::REPLAYED, &id.uuid.to_string()).await
    }

    /// A device of this node, unless it was mapped for something else (a killed call may have left that) or has lost its
    /// client.
    pub(crate) async fn usable(
        &self,
        request: &Attach,
        wanted: &Wanted,
        device: Option<Device>,
        purpose: Purpose,
    ) -> Result<Option<Device>> {
        let Some(device) = device else { return Ok(None) };
        let fits = is_read_only(&device.path).is_none_or(|read_only| read_only == (purpose == Purpose::Read));
        let lost = self.lost(&request.image);
        if fits && lost.is_none() {
            return Ok(Some(device));
        }
        let mapping = Mapping { device: device.path.clone(), ..wanted.mapping(device.client()) };
        let stashed = Stashed { image: request.image.clone(), mapping };
        let (volume, shown) = (request.target.volume.as_str(), None);
        self.detach_image(&Detach { volume, stashed: &stashed, shown, kept: &[] }).await?;
        Ok(None)
    }
}

/// None where the kernel does not tell.
fn is_read_only(device: &str) -> Option<bool> {
    let name = Path::new(device).file_name()?;
    let flag = std::fs::read_to_string(Path::new("/sys/block").join(name).join("ro")).ok()?;
    Some(flag.trim() == "1")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{Image, Mode, Target};
    use crate::cluster::Secrets;
    use crate::id::volume_uuid;

    fn check(mode: Mode, block: bool, records: &[(&str, &str)]) -> Purpose {
        let uuid = volume_uuid("i", "c", "n");
        let volume = format!("0001-0001-c-0000000000000001-{uuid}");
        let records = records.iter().map(|(key, value)| ((*key).to_owned(), format!("{value}{uuid}")));
        let target = Target { volume, context: [].into(), secrets: Secrets::default() };
        let image = Image { pool: String::new(), namespace: String::new(), name: String::new() };
        let request = Attach { target, image, mode, block, node: "a".to_owned() };
        Purpose::of(&request, &records.collect())
    }

    #[test]
    fn readers_read_what_was_replayed() {
        let replayed = [(meta::REPLAYED, "")];
        assert_eq!(check(Mode::MultiNodeReader, false, &[]), Purpose::Replay);
        assert_eq!(check(Mode::MultiNodeReader, false, &replayed), Purpose::Read);
        assert_eq!(check(Mode::MultiNodeReader, false, &[(meta::REPLAYED, "other")]), Purpose::Replay);
        assert_eq!(check(Mode::SingleNodeReader, true, &[]), Purpose::Read);
        assert_eq!(check(Mode::SingleNodeWriter, false, &replayed), Purpose::Write);
    }

    #[test]
    fn a_writer_that_was_given_it_read_only_reads() {
        let record = |node: &str| format!("{}{node}", meta::PUBLISHED);
        assert_eq!(check(Mode::SingleNodeWriter, false, &[(&record("a"), "ro single ")]), Purpose::Replay);
        assert_eq!(check(Mode::SingleNodeWriter, true, &[(&record("a"), "ro single ")]), Purpose::Read);
        assert_eq!(check(Mode::SingleNodeWriter, false, &[(&record("b"), "ro single ")]), Purpose::Write);
    }
}
