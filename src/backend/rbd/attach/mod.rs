//! The node's side of an image: which one a request means, and mapping it with one writer proved.

pub(crate) mod daemons;
pub(crate) mod devices;
mod refused;
pub(crate) mod replay;
pub(crate) mod sysfs;
mod writer;

use std::path::PathBuf;

use crate::backend::{Attach, Attached, Encryption, FormatMark, Image, Mapping, Shown, Target};
use crate::cluster::Access;
use crate::error::{Error, Result};
use crate::id::VolumeId;

use crate::backend::rbd::Rbd;
use crate::backend::rbd::attach::replay::Purpose;
use crate::backend::rbd::attach::writer::Writer;
use crate::backend::rbd::cli::Cli;
use crate::backend::rbd::cli::json::Device;
use crate::backend::rbd::meta::{self, Meta};
use crate::backend::rbd::params::mapping::Wanted;
use crate::backend::rbd::params::{check_plain, encryption};
use crate::backend::rbd::volume::not_found;

impl Rbd {
    pub(crate) fn target_access(&self, target: &Target) -> Result<Access> {
        let cluster = match VolumeId::parse(&target.volume) {
            Ok(id) if !target.is_static() => id.cluster,
            _ => context(target, "clusterID")?.to_owned(),
        };
        self.clusters.access(&cluster, &target.secrets)
    }

    pub(crate) async fn locate_image(&self, target: &Target) -> Result<Image> {
        encryption::check_kind(&target.context)?;
        Wanted::of_context(&target.context)?;
        let access = self.target_access(target)?;
        let cli = self.cli(&access);
        let mut image = if target.is_static() {
            cli.image(context(target, "pool")?, &target.volume)
        } else {
            let id = VolumeId::parse(&target.volume).map_err(|error| Error::NotFound(error.to_string()))?;
            match (target.context.get("pool"), target.context.get("imageName")) {
                (Some(pool), Some(name)) => cli.image(pool, name),
                _ => self.find_meta(&cli, &id).await?.ok_or_else(|| not_found(&id, &id.default_image()))?.0,
            }
        };
        if let Some(namespace) = target.context.get("radosNamespace") {
            image.namespace.clone_from(namespace);
        }
        check_plain("pool", &image.pool)?;
        check_plain("image", &image.name)?;
        if !image.namespace.is_empty() {
            check_plain("radosNamespace", &image.namespace)?;
        }
        Ok(image)
    }

    pub(crate) async fn attach_image(&self, request: &Attach) -> Result<Attached> {
        let access = self.target_access(&request.target)?;
        let wanted = Wanted::of_context(&request.target.context)?;
        let cli = self.cli(&access);
        let image = &request.image;
        let (meta, devices) = tokio::try_join!(cli.meta(image), self.devices())?;
        let meta = meta
            .ok_or_else(|| Error::NotFound(format!("volume {}: no image {image}", request.target.volume)))?;
        let mut encryption = self.encryption(&cli, request, &meta).await?;
        let purpose = Purpose::of(request, &meta);
        let served = local_device(image, &devices)?;
        let left = if served.is_some() { None } else { self.one_left_behind(request)? };
        let local = self.usable(request, &wanted, served, purpose).await?;
        let left = self.usable(request, &wanted, left, purpose).await?;
        let mirrors = self.mirrors(&cli, image).await?;
        let anew = left.is_some();
        let unmade = encryption.as_ref().is_some_and(|encryption| !encryption.made);
        let writer = Writer { rbd: self, cli: &cli, request, meta: &meta, purpose, mirrors, anew, unmade };
        writer.alone_before(local.as_ref().map(|device| device.path.as_str())).await?;
        let before = writer.seen_before(&wanted, local.as_ref()).await?;
        if purpose == Purpose::Write {
            self.forget_replay(&cli, request, &meta).await?;
        }
        let read_only = purpose == Purpose::Read;
        let device = match (&local, &left) {
            (Some(device), _) => device.clone(),
            (None, Some(left)) => self.serve_anew(&cli, request, &wanted, left, read_only).await?,
            (None, None) => self.map(&cli, request, &wanted, read_only).await?,
        };
        let mapping = Mapping { device: device.path.clone(), ..wanted.mapping(device.client()) };
        let proved = writer.alone_after(&device.path, before.as_deref()).await;
        match (&proved, &local) {
            (Err(_), None) if anew => self.let_go(&device.path).await?,
            (Err(_), None) => self.unmap(image, &device, &mapping).await?,
            _ => {}
        }
        proved?;
        if purpose == Purpose::Replay && self.was_replayed(&cli, request).await? {
            self.unmap(image, &device, &mapping).await?;
            return Err(Error::Busy(format!("image {image} was made ready to be read meanwhile: ask again")));
        }
        let mut format = format_mark(request, &meta);
        if matches!(format, FormatMark::Begun(_)) || unmade {
            // Another node may have come to its end, and a pod have written, between that look and the map.
            let meta = cli.meta(image).await?.unwrap_or_default();
            format = format_mark(request, &meta);
            encryption = encryption.map(|known| Encryption { made: meta::is_made(&meta), ..known });
        }
        Ok(Attached {
            shown: Shown::Device(device.path.into()),
            mapping,
            read_only: purpose != Purpose::Write,
            to_replay: purpose == Purpose::Replay,
            format,
            encryption,
        })
    }

    fn one_left_behind(&self, request: &Attach) -> Result<Option<Device>> {
        local_device(&request.image, &self.left_behind(&request.target.volume, &request.image))
    }

    /// `mirrorDaemonCount` is the cluster's; it counts for images that are mirrored, and is asked for only then.
    pub(crate) async fn mirrors(&self, cli: &Cli<'_>, image: &Image) -> Result<usize> {
        let daemons = cli.access.mirror_daemons;
        let info = if daemons > 0 { cli.info(image).await? } else { None };
        Ok(info.map_or(0, |info| info.mirrors(daemons)))
    }
}

impl Rbd {
    /// What the kernel says is our address behind a krbd device.
    pub(super) fn client_address(&self, device: &str) -> Option<String> {
        let text = std::fs::read_to_string(self.sysfs_of(device, "client_addr")?).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    /// What the kernel has of a krbd device in sysfs; None for another kind.
    pub(crate) fn sysfs_of(&self, device: &str, file: &str) -> Option<PathBuf> {
        Some(self.sysfs.join(device.strip_prefix("/dev/rbd")?).join(file))
    }
}

fn local_device(image: &Image, devices: &[Device]) -> Result<Option<Device>> {
    let here: Vec<&Device> = devices.iter().filter(|device| shows(device, image)).collect();
    match here.as_slice() {
        [] => Ok(None),
        [only] => Ok(Some((*only).clone())),
        [first, second, ..] => Err(Error::Precondition(format!(
            "image {image} is mapped more than once on this node ({}, {}): unstage it, or rbd unmap one",
            first.path, second.path
        ))),
    }
}

pub(crate) fn shows(device: &Device, image: &Image) -> bool {
    let head = matches!(device.snap.as_str(), "" | "-");
    head && device.name == image.name && device.pool == image.pool && device.namespace == image.namespace
}

fn format_mark(request: &Attach, meta: &Meta) -> FormatMark {
    match VolumeId::parse(&request.target.volume) {
        Ok(id) if !request.target.is_static() => meta::format_mark(meta, id.uuid),
        _ => FormatMark::Never,
    }
}

fn context<'a>(target: &'a Target, key: &str) -> Result<&'a str> {
    target.context.get(key).map(String::as_str).ok_or_else(|| {
        Error::Invalid(format!(
            "volume {:?}: its volume context has no {key}: a static volume needs it",
            target.volume
        ))
    })
}
