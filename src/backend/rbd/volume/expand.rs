//! ControllerExpandVolume, and the device on the node that follows it.

use std::fs::{self, File};
use std::io::{self, Seek as _, SeekFrom};
use std::path::PathBuf;
use std::sync::PoisonError;

use crate::backend::{Image, SizeRange};
use crate::cluster::Secrets;
use crate::error::{Error, Result};
use crate::id::VolumeId;

use crate::backend::rbd::attach::shows;
use crate::backend::rbd::cli::Cli;
use crate::backend::rbd::cli::json::Info;
use crate::backend::rbd::volume::not_found;
use crate::backend::rbd::{GRANULE, Rbd, fits, meta};

impl Rbd {
    pub(crate) async fn expand_volume(
        &self,
        id: &VolumeId,
        range: SizeRange,
        secrets: &Secrets,
    ) -> Result<u64> {
        let access = self.clusters.access(&id.cluster, secrets)?;
        let cli = self.cli(&access);
        let absent = || not_found(id, &id.default_image());
        let (info, meta) = tokio::try_join!(self.find_info(&cli, id), self.find_meta(&cli, id))?;
        let ((image, info), (_, meta)) = info.zip(meta).ok_or_else(absent)?;
        let size = grow(&cli, &image, &info, range, meta::header(&meta)).await?;
        self.rescale(&cli, &image, size).await?;
        Ok(size)
    }

    /// krbd hears of a new size by its watch, unless `rbd resize` was killed before it told: so it is made to look.
    pub(crate) async fn refresh_image(&self, image: &Image) -> Result<u64> {
        let devices = self.devices().await?;
        let device = devices.iter().find(|device| shows(device, image));
        let device =
            device.ok_or_else(|| Error::NotFound(format!("image {image} is not mapped on this node")))?;
        let what = format!("asking {} for its size", device.path);
        let (path, refresh) = (device.path.clone(), self.sysfs_of(&device.path, "refresh"));
        let asking = self.refreshing.clone();
        // A thread that hangs stays until the cluster answers: one for each device.
        if !asking.lock().unwrap_or_else(PoisonError::into_inner).insert(path.clone()) {
            return Err(Error::TimedOut(format!("{what}: it was asked before, and has not answered yet")));
        }
        let size = tokio::task::spawn_blocking(move || {
            let size = reread(&path, refresh);
            asking.lock().unwrap_or_else(PoisonError::into_inner).remove(&path);
            size
        });
        match tokio::time::timeout(self.deadline, size).await {
            Ok(Ok(size)) => size.map_err(|error| Error::internal(what, error)),
            Ok(Err(error)) => Err(Error::internal(what, error)),
            Err(_) => Err(Error::TimedOut(format!(
                "{what}: the cluster does not answer: check the monitors and the network"
            ))),
        }
    }
}

/// Makes the image larger, unless it is large enough; answers what a pod sees of it, which is all but the header.
async fn grow(cli: &Cli<'_>, image: &Image, info: &Info, range: SizeRange, header: u64) -> Result<u64> {
    let shown = |info: &Info| info.size.saturating_sub(header);
    if range.required <= shown(info) {
        return range.keep(shown(info));
    }
    let size = range.choose(GRANULE)?;
    let whole = fits(size.saturating_add(header), info.object_size)?;
    let Err(error) = cli.resize(image, whole).await else { return Ok(size) };
    // It may have crashed when its work was done; run once more, it refuses the size that the image has.
    let now = match error {
        Error::Internal { .. } => cli.info(image).await.ok().flatten(),
        _ => None,
    };
    now.filter(|info| info.size >= whole).map_or(Err(error), |info| range.keep(shown(&info)))
}

/// The size that the device has, once krbd has read the header of its image anew (ABI/testing/sysfs-bus-rbd).
fn reread(device: &str, refresh: Option<PathBuf>) -> io::Result<u64> {
    refresh.filter(|file| file.exists()).map_or(Ok(()), |file| fs::write(file, "1"))?;
    File::open(device)?.seek(SeekFrom::End(0))
}
