//! Images as devices of this node: listed, mapped and unmapped, by krbd or by rbd-nbd.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::backend::{Attach, Detach, Image, Mapping, Stashed};
use crate::cluster::Access;
use crate::error::{Error, Result};
use crate::host::{Cmd, CmdError, Slot, holders};
use crate::id::VolumeId;

use crate::backend::rbd::Rbd;
use crate::backend::rbd::attach::refused::{is_beyond_krbd, not_mapped_by_nbd};
use crate::backend::rbd::attach::shows;
use crate::backend::rbd::cli::json::{Device, Devices};
use crate::backend::rbd::cli::{Cli, errno, explain};
use crate::backend::rbd::params::mapping::{self, Client, Wanted, of_stash};

/// Tries to unmap a busy device: who looks at it only in passing (udev, blkid) is gone by then.
const UNMAP_TRIES: u32 = 8;
const UNMAP_AGAIN: Duration = Duration::from_millis(500);

impl Device {
    pub(crate) fn client(&self) -> Client {
        if self.nbd { Client::Nbd } else { Client::Krbd }
    }

    pub(crate) fn image(&self) -> Image {
        let (pool, namespace, name) = (self.pool.clone(), self.namespace.clone(), self.name.clone());
        Image { pool, namespace, name }
    }
}

impl Rbd {
    /// A listing that fails is an error, never "nothing is mapped": a second map of an image only warns.
    pub(crate) async fn devices(&self) -> Result<Vec<Device>> {
        let (mut devices, by_nbd) = tokio::try_join!(self.devices_of("krbd"), self.devices_by_nbd())?;
        devices.extend(by_nbd.into_iter().flatten());
        Ok(devices)
    }

    /// None where rbd-nbd is not installed: then it has mapped nothing here. (Where the kernel has no nbd it answers an
    /// empty list, seen.)
    async fn devices_by_nbd(&self) -> Result<Option<Vec<Device>>, Error> {
        match self.list("nbd").await {
            Ok(devices) => {
                Ok(Some(devices.into_iter().map(|device| Device { nbd: true, ..device }).collect()))
            }
            Err(ListError::Failed(error)) if is_not_installed(&error) => Ok(None),
            Err(error) => Err(error.explained()),
        }
    }

    async fn devices_of(&self, kind: &str) -> Result<Vec<Device>> {
        self.list(kind).await.map_err(ListError::explained)
    }

    async fn list(&self, kind: &str) -> Result<Vec<Device>, ListError> {
        let args = ["device", "list", "--device-type", kind, "--format=json"];
        let output = self.host.run(Cmd::new("rbd", args).slot(Slot::Cluster)).await;
        let output = output.map_err(ListError::Failed)?;
        let devices: Devices = serde_json::from_slice(&output.stdout).map_err(ListError::Answer)?;
        Ok(devices.0)
    }

    pub(crate) async fn attached_images(&self, volume: &str) -> Result<Vec<Stashed>> {
        let id = VolumeId::parse(volume).ok();
        let ours = |name: &str| match &id {
            Some(id) => name.ends_with(&id.uuid.to_string()),
            None => name == volume,
        };
        let name = id.as_ref().map_or_else(|| volume.to_owned(), VolumeId::default_image);
        let left = self.left_behind(volume, &Image { pool: String::new(), namespace: String::new(), name });
        let devices = self.devices().await?.into_iter().chain(left);
        Ok(devices.filter(|device| ours(&device.name)).map(stashed).collect())
    }

    /// By krbd or by rbd-nbd, as the volume wants it.
    pub(crate) async fn map(
        &self,
        cli: &Cli<'_>,
        request: &Attach,
        wanted: &Wanted,
        read_only: bool,
    ) -> Result<Device> {
        if wanted.nbd {
            return self.map_by_nbd(cli, request, wanted, read_only).await;
        }
        let nearby = self.nearby(cli.access).await;
        let options = wanted.krbd_options(cli.access, nearby);
        let mut mapped = cli.map(&request.image, &options, read_only).await;
        if let Err(error) = &mapped
            && error.exit() == Some(errno::BLOCKLISTED)
        {
            // krbd shares one client between its maps, also one that the cluster has shut out (seen).
            tracing::warn!(image = %request.image, "the client of this node is on the cluster's blocklist: the image gets one of its own");
            mapped = cli.map(&request.image, &format!("{options},noshare"), read_only).await;
        }
        match mapped {
            Ok(path) => Ok(device(&request.image, path, Client::Krbd)),
            Err(error) if wanted.fall_back && is_beyond_krbd(&error) => {
                tracing::warn!(image = %request.image, "krbd cannot show this image ({error}): rbd-nbd is tried");
                self.map_by_nbd(cli, request, wanted, read_only).await
            }
            Err(error) => Err(cli.not_mapped(&request.image, error).await),
        }
    }

    async fn map_by_nbd(
        &self,
        cli: &Cli<'_>,
        request: &Attach,
        wanted: &Wanted,
        read_only: bool,
    ) -> Result<Device> {
        let (image, volume) = (&request.image, &request.target.volume);
        let options = wanted.nbd_options(volume, self.nbd_help().await?);
        let log_dir = wanted.mapping(Client::Nbd).log_dir;
        let log = mapping::log_file(&log_dir, volume);
        if log.is_some() {
            fs::create_dir_all(&log_dir).map_err(|error| {
                Error::Precondition(format!("cephLogDir={log_dir:?} cannot be made on this node: {error}"))
            })?;
        }
        let mapped = cli.map_by_nbd(image, &options, read_only, log.as_deref()).await;
        let path = mapped.map_err(|error| not_mapped_by_nbd(image, error))?;
        let device = device(image, path, Client::Nbd);
        self.shelter(&device).await;
        Ok(device)
    }

    /// The options that let krbd read from what is near this node, as far as that is known.
    async fn nearby(&self, access: &Access) -> Option<String> {
        let wanted = mapping::affinity(access, &self.read_affinity)?;
        let labels = match &self.labels {
            Some(labels) => labels.values().await,
            None => Ok(BTreeMap::new()),
        };
        let labels = labels.inspect_err(|error| tracing::warn!("read affinity: {error}")).unwrap_or_default();
        mapping::nearby(access, wanted, &labels)
    }

    pub(crate) async fn nbd_help(&self) -> Result<&str> {
        let help = self.nbd_help.get_or_try_init(async || {
            let output = self.host.run(Cmd::new("rbd-nbd", ["--help"])).await.map_err(|error| {
                Error::Precondition(format!(
                    "mounter rbd-nbd: the program rbd-nbd does not run on this node: {error}"
                ))
            })?;
            Ok::<_, Error>(String::from_utf8_lossy(&output.stdout).into_owned())
        });
        Ok(help.await?.as_str())
    }

    pub(crate) async fn detach_image(&self, request: &Detach<'_>) -> Result<()> {
        let Stashed { image, mapping } = request.stashed;
        let (krbd, nbd) = tokio::try_join!(self.devices_of("krbd"), self.devices_by_nbd())?;
        if mapping.nbd && nbd.is_none() && is_nbd_in_use() {
            return Err(Error::Precondition(format!(
                "image {image} was mapped by rbd-nbd, which is not installed here: it has to take it away"
            )));
        }
        let devices = krbd.into_iter().chain(nbd.into_iter().flatten());
        let left = self.left_behind(request.volume, image);
        let (kept, gone): (Vec<_>, Vec<_>) = devices
            .filter(|device| shows(device, image))
            .chain(left)
            .partition(|device| request.kept.iter().any(|kept| kept == Path::new(&device.path)));
        let mounts = self.host.mounts()?;
        for device in gone {
            // A device node that is bound somewhere does not keep krbd from unmapping it: the next volume would get its
            // number, and a pod write into that.
            let path = Path::new(&device.path);
            if let Some(mount) = mounts.iter().find(|mount| mount.device_path().as_deref() == Some(path)) {
                return Err(Error::Precondition(format!(
                    "image {image} still shows at {} by {}: unmount it there first",
                    mount.target.display(),
                    device.path
                )));
            }
            self.unmap(image, &device, mapping).await?;
        }
        if kept.is_empty() && mapping.nbd {
            self.put_log_away(request.volume, mapping).await;
        }
        Ok(())
    }

    pub(crate) async fn unmap(&self, image: &Image, device: &Device, mapping: &Mapping) -> Result<()> {
        let path = Path::new(&device.path);
        for _ in 0..UNMAP_TRIES {
            // rbd-nbd takes a device away under its mount, and what was not written yet is lost (seen: exit 0).
            let held = device.nbd && holders::of(path).await.is_some();
            let unmap = Cmd::new("rbd", unmap_args(device, mapping)).slot(Slot::Cluster);
            let unmapped = if held { None } else { Some(self.host.run(unmap).await) };
            match unmapped {
                Some(Ok(_)) => return Ok(()),
                // krbd: not mapped any more. Of rbd-nbd it is any error, and what is not mapped is none (both seen).
                Some(Err(error)) if !device.nbd && error.exit() == Some(errno::INVAL) => return Ok(()),
                Some(Err(error)) if error.exit() != Some(errno::BUSY) => {
                    return Err(explain(&format!("unmapping {image} from {}", device.path), error));
                }
                Some(Err(_)) | None => tokio::time::sleep(UNMAP_AGAIN).await,
            }
        }
        let holders = holders::of(path).await;
        let holders = holders.as_deref().unwrap_or("nobody that /proc shows");
        Err(Error::Precondition(format!(
            "image {image} cannot be unmapped: {} is held by {holders}: end that first",
            device.path
        )))
    }

    /// As `cephLogStrategy` says. The volume is unstaged whatever becomes of its log.
    async fn put_log_away(&self, volume: &str, mapping: &Mapping) {
        let Some(file) = mapping::log_file(&mapping.log_dir, volume) else { return };
        if !Path::new(&file).exists() {
            return;
        }
        let done = match mapping.log_strategy.to_ascii_lowercase().as_str() {
            mapping::PRESERVE => Ok(()),
            mapping::COMPRESS => {
                let gzip = Cmd::new("gzip", ["--force", "--", &file]);
                self.host.run(gzip).await.map(drop).map_err(|error| error.to_string())
            }
            mapping::REMOVE | "" => fs::remove_file(&file).map_err(|error| error.to_string()),
            other => Err(format!("cephLogStrategy {other:?} is not known")),
        };
        if let Err(error) = done {
            tracing::warn!(file, "this log of rbd-nbd stays as it is: {error}");
        }
    }
}

/// Why there is no list.
enum ListError {
    Failed(CmdError),
    Answer(serde_json::Error),
}

impl ListError {
    fn explained(self) -> Error {
        let what = "listing the mapped images of this node";
        match self {
            Self::Failed(error) => explain(what, error),
            Self::Answer(error) => Error::internal(what, error),
        }
    }
}

/// Whether the kernel has any device of nbd that somebody serves, of whatever program.
fn is_nbd_in_use() -> bool {
    let served = |path: PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("nbd"))
            && path.join("pid").exists()
    };
    fs::read_dir("/sys/block").into_iter().flatten().flatten().any(|device| served(device.path()))
}

/// `rbd` looks for rbd-nbd beside itself, and says 22 for whatever is wrong with it; the words are SubProcess' own.
fn is_not_installed(error: &CmdError) -> bool {
    error.exit() == Some(errno::INVAL) && error.said.contains("exec failed: (2)")
}

fn device(image: &Image, path: String, client: Client) -> Device {
    let Image { pool, namespace, name } = image.clone();
    Device { pool, namespace, name, snap: String::new(), path, nbd: client == Client::Nbd }
}

fn stashed(device: Device) -> Stashed {
    let image = device.image();
    let mapping = Mapping { nbd: device.nbd, device: device.path, ..Mapping::default() };
    Stashed { image, mapping }
}

/// `noudev` is krbd's: rbd-nbd refuses it.
fn unmap_args(device: &Device, mapping: &Mapping) -> Vec<String> {
    let kind = if device.nbd { "nbd" } else { "krbd" };
    let mut options = of_stash(device.client(), &mapping.unmap_options);
    if !device.nbd && !options.iter().any(|option| option == "noudev") {
        options.insert(0, "noudev".to_owned());
    }
    let args = ["unmap", &device.path, "--device-type", kind].map(str::to_owned);
    let options = (!options.is_empty()).then(|| ["--options".to_owned(), options.join(",")]);
    args.into_iter().chain(options.into_iter().flatten()).collect()
}
