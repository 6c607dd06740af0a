//! The node's side of a volume: its loop device made, found again and taken away; whether anything was ever written.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::unistd::{Whence, lseek};

use crate::backend::{Attach, Attached, FormatMark, Image, Mapping, Shown, Target};
use crate::error::{Error, Result, chain};
use crate::host::holders;
use crate::id::VolumeId;

use super::loops::{self, Loop};
use super::meta::Meta;
use super::params::Kind;
use super::root::{self, Objects, Root};
use super::{Local, copy, directory, failed, folder, image_of, io, uuid_of};

impl Local {
    pub(super) async fn locate_image(&self, target: &Target) -> Result<Image> {
        if target.is_static() {
            return Err(Error::Invalid(format!(
                "volume {:?} is static: --type=local has no volumes but those that it made",
                target.volume
            )));
        }
        let id = VolumeId::parse(&target.volume).map_err(|error| Error::NotFound(error.to_string()))?;
        let root = self.root().await?;
        self.volume(&root, &id)?;
        Ok(image_of(&root.path_now(), id.uuid))
    }

    pub(super) async fn attach_image(&self, request: &Attach) -> Result<Attached> {
        let (folder, meta) = read(&request.image)?;
        let published = meta.published.as_ref().is_some_and(|published| published.read_only);
        let read_only = request.mode.read_only() || published;
        let format = meta.format.clone();
        if meta.kind == Kind::Directory {
            // The root may have been mounted otherwise since.
            if !io(|| directory::is_held(&folder, &meta)) {
                directory::enforce(self.host.as_ref(), &folder, &meta).await?;
            }
            let shown = Shown::Directory(root::data(&folder));
            return Ok(Attached {
                shown,
                mapping: Mapping::default(),
                read_only,
                to_replay: false,
                format,
                encryption: None,
            });
        }
        let file = root::image(&folder);
        whole(&file, &meta)?;
        // A read-only mount of a filesystem replays its journal first, which a read-only device would not let it.
        let device = self.device(&file, read_only && request.block, meta.direct_io).await?;
        Ok(Attached {
            shown: Shown::Device(device),
            mapping: Mapping::default(),
            read_only,
            to_replay: false,
            format,
            encryption: None,
        })
    }

    pub(super) async fn detach_image(
        &self,
        image: &Image,
        shown: Option<&Path>,
        kept: &[PathBuf],
    ) -> Result<()> {
        for device in
            self.devices_of(image, shown).await?.into_iter().filter(|found| !kept.contains(&found.device))
        {
            loops::detach(self.host.as_ref(), &device).await?;
        }
        Ok(())
    }

    pub(super) async fn attached_images(&self, volume: &str) -> Result<Vec<Image>> {
        let Ok(id) = VolumeId::parse(volume) else { return Ok(Vec::new()) };
        let mut images = Vec::new();
        for root in self.roots().await {
            let image = image_of(&root, id.uuid);
            if !self.devices_of(&image, None).await?.is_empty() {
                images.push(image);
            }
        }
        Ok(images)
    }

    pub(super) async fn refresh_image(&self, image: &Image) -> Result<u64> {
        let (folder, meta) = read(image)?;
        if meta.kind == Kind::Directory {
            return Ok(meta.size);
        }
        let devices = self.devices_of(image, None).await?;
        if devices.is_empty() {
            return Err(Error::NotFound(format!(
                "volume {} has no loop device on this node: stage it",
                meta.id
            )));
        }
        for device in &devices {
            loops::refresh(self.host.as_ref(), &device.device).await?;
        }
        let file = root::image(&folder);
        file.metadata()
            .map(|meta| meta.len())
            .map_err(|error| failed(&format!("looking at {}", file.display()), error))
    }

    /// After a start nothing is on its way: a device that shows no file system and that nobody holds was left by a kill.
    pub(super) async fn free_devices(&self, root: &Root) -> Result<()> {
        let host = self.host.as_ref();
        for device in loops::list()? {
            let image = device.volume().map(|uuid| root::image(&root.object(Objects::Volumes, uuid)));
            let Some(image) = image else { continue };
            if !loops::on(host, &image).await?.contains(&device) {
                continue;
            }
            copy::thaw_all(host, &device.device).await;
            if holders::of(&device.device).await.is_some() {
                continue;
            }
            if let Err(error) = loops::detach(host, &device).await {
                tracing::debug!("a loop device stays: {}", chain(&error));
            }
        }
        Ok(())
    }

    /// The one device of an image: the one that is there, or a new one.
    async fn device(&self, file: &Path, read_only: bool, direct_io: bool) -> Result<PathBuf> {
        let host = self.host.as_ref();
        for there in loops::on(host, file).await? {
            if there.read_only == read_only {
                return Ok(there.device);
            }
            // Left by a stage of another kind, which did not come to its end.
            loops::detach(host, &there).await?;
        }
        loops::attach(host, file, read_only, direct_io).await
    }

    /// Devices of an image. The one that was mounted is the volume's, whatever has become of the root; where the root is
    /// not there, so is one whose file has the name that it had, or has now.
    async fn devices_of(&self, image: &Image, shown: Option<&Path>) -> Result<Vec<Loop>> {
        let uuid = uuid_of(image)?;
        let file_in = |root: &Path| root::image(&root::object(root, Objects::Volumes, uuid));
        let here = root::image(&folder(image)?);
        let names: Vec<PathBuf> =
            self.roots().await.iter().map(|root| file_in(root)).chain([here.clone()]).collect();
        let known = |device: &Loop| !here.exists() && names.iter().any(|name| same(&device.file, name));
        let mounted = |device: &Loop| shown == Some(&device.device) && loops::same_tail(&device.file, &here);
        let mut devices = loops::on(self.host.as_ref(), &here).await?;
        for device in loops::list()? {
            if !devices.contains(&device) && (known(&device) || mounted(&device)) {
                devices.push(device);
            }
        }
        Ok(devices)
    }

    /// Where the root is, and where the kernel shows it, should it have been moved or unmounted.
    async fn roots(&self) -> Vec<PathBuf> {
        let open = self.root.lock().await;
        match open.as_ref() {
            Some(root) => vec![root.path_now()],
            None => vec![self.path.canonicalize().unwrap_or_else(|_| self.path.clone())],
        }
    }
}

/// Whether no block of the image was ever written: it has no data, or nothing but zeros.
pub(super) fn is_empty(image: &Image) -> Result<bool> {
    let file = root::image(&folder(image)?);
    io(|| holds_nothing(&file))
        .map_err(|error| failed(&format!("looking for data in {}", file.display()), error))
}

pub(super) fn write_format(image: &Image, mark: &FormatMark) -> Result<()> {
    let (folder, mut meta) = read(image)?;
    meta.format = mark.clone();
    io(|| meta.write(&folder))
}

fn holds_nothing(path: &Path) -> std::io::Result<bool> {
    let (mut file, mut offset, mut chunk) = (File::open(path)?, 0, vec![0; 1 << 20]);
    loop {
        offset = match lseek(&file, offset, Whence::SeekData) {
            Ok(offset) => offset,
            Err(Errno::ENXIO) => return Ok(true),
            Err(errno) => return Err(errno.into()),
        };
        file.seek(SeekFrom::Start(offset.unsigned_abs()))?;
        let count = file.read(&mut chunk)?;
        if count == 0 {
            return Ok(true);
        }
        if chunk[..count].iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        offset += i64::try_from(count).unwrap_or(i64::MAX);
    }
}

fn read(image: &Image) -> Result<(PathBuf, Meta)> {
    let folder = folder(image)?;
    match io(|| Meta::read(&folder))? {
        Some(meta) => Ok((folder, meta)),
        None => Err(Error::NotFound(format!(
            "{} is not there: was the volume deleted, or is the disk that holds --local-root not mounted?",
            folder.display()
        ))),
    }
}

/// A file that is shorter than it was made has lost what was at its end.
fn whole(file: &Path, meta: &Meta) -> Result<()> {
    let length = file.metadata().map(|meta| meta.len());
    let length =
        length.map_err(|error| failed(&format!("looking at the image {}", file.display()), error))?;
    if length < meta.size {
        return Err(Error::broken(format!(
            "the image {} has {length} bytes, where volume {} has {}: data is lost; put the file back from a backup",
            file.display(),
            meta.id,
            meta.size
        )));
    }
    Ok(())
}

/// The kernel writes ` (deleted)` behind the name of a file that is gone.
fn same(shown: &Path, file: &Path) -> bool {
    let text = shown.to_string_lossy();
    shown == file || text.strip_suffix(" (deleted)").is_some_and(|name| Path::new(name) == file)
}
