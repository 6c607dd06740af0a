//! The daemons of rbd-nbd: kept where they outlive the driver, missed where they are gone, and begun anew for the devices
//! that they left, which wait for that as long as `reattach-timeout` says.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::backend::{Attach, Image, Mapping, Stashed, Target};
use crate::error::{Error, Result};
use crate::host::{Cmd, Slot, holders, shelter};

use crate::backend::rbd::Rbd;
use crate::backend::rbd::cli::json::Device;
use crate::backend::rbd::cli::{Cli, explain};
use crate::backend::rbd::params::mapping::{self, Client, Wanted};

/// Looks at a device that is going to have another size at once, where its daemon can tell that to the kernel.
const SIZE_LOOKS: u32 = 10;
const SIZE_AGAIN: Duration = Duration::from_millis(200);
/// What /sys counts sizes in.
const SECTOR: u64 = 512;

/// Not one of krbd's, which the kernel serves itself.
pub(crate) fn has_daemon(mapping: &Mapping) -> bool {
    let of_nbd = mapping.nbd && mapping.device.starts_with("/dev/nbd");
    !of_nbd || !holders::serving(Path::new(&mapping.device)).is_empty()
}

impl Rbd {
    /// Devices of a volume that no daemon serves any more: `rbd device list` does not have them.
    pub(crate) fn left_behind(&self, volume: &str, image: &Image) -> Vec<Device> {
        let left = of_volume(self.sys(), volume).into_iter().filter(|path| holders::serving(path).is_empty());
        left.map(|path| device(image, path.display().to_string())).collect()
    }

    /// Has a daemon serve a device that is mapped already, with this size at least.
    pub(crate) async fn serve_device(&self, request: &Attach, stashed: &Stashed, size: u64) -> Result<()> {
        let Stashed { image, mapping } = stashed;
        let served = has_daemon(mapping);
        if !mapping.nbd || (served && self.shows_size(&mapping.device, size).await) {
            return Ok(());
        }
        let request = as_mapped(request, mapping);
        let access = self.target_access(&request.target).map_err(|error| no_credential(stashed, &error))?;
        let cli = self.cli(&access);
        if served {
            if cli.info(image).await?.is_none_or(|info| info.size < size) {
                return Ok(());
            }
            tracing::info!(%image, device = mapping.device, "rbd-nbd did not tell the kernel that the image has grown: another one does");
            self.let_go(&mapping.device).await?;
        }
        self.attach_image(&request).await.map(drop)
    }

    /// Another daemon for a device that was left behind. The kernel takes none beside one that lives.
    pub(crate) async fn serve_anew(
        &self,
        cli: &Cli<'_>,
        request: &Attach,
        wanted: &Wanted,
        left: &Device,
        read_only: bool,
    ) -> Result<Device> {
        let (image, volume) = (&request.image, &request.target.volume);
        let options = wanted.nbd_options(volume, self.nbd_help().await?);
        let log = mapping::log_file(&wanted.mapping(Client::Nbd).log_dir, volume);
        let served = cli.serve_by_nbd(image, &left.path, volume, &options, read_only, log.as_deref()).await;
        let what = format!("having a new rbd-nbd serve {image} on {}", left.path);
        served.map_err(|error| explain(&what, error))?;
        tracing::warn!(%image, device = left.path, "no rbd-nbd served this device any more: a new one does");
        self.shelter(left).await;
        Ok(left.clone())
    }

    /// Ends the daemon; the device waits for another one.
    pub(crate) async fn let_go(&self, device: &str) -> Result<()> {
        let cmd = Cmd::new("rbd", ["device", "detach", device, "--device-type", "nbd"]).slot(Slot::Cluster);
        let ended = self.host.run(cmd).await;
        ended.map(drop).map_err(|error| explain(&format!("detaching {device} from its rbd-nbd"), error))
    }

    /// Lets the daemon of a device outlive the driver's container. Where that cannot be, it is said once.
    pub(crate) async fn shelter(&self, device: &Device) {
        for daemon in holders::serving(Path::new(&device.path)) {
            let Err(why) = shelter::give(self.host.as_ref(), daemon).await else { continue };
            if !self.told_of_no_shelter.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    daemon,
                    device = device.path,
                    "rbd-nbd ends with the driver's container, and its volume stands still until it is served anew \
                     ({why}): update the DaemonSet with updateStrategy OnDelete, on nodes that were drained before"
                );
            }
        }
    }

    /// A newer rbd-nbd tells the kernel of a new size a moment after it was changed.
    async fn shows_size(&self, device: &str, size: u64) -> bool {
        let Some(name) = Path::new(device).file_name() else { return false };
        let file = self.sys().join("block").join(name).join("size");
        for _ in 0..SIZE_LOOKS {
            let sectors = fs::read_to_string(&file).ok().and_then(|text| text.trim().parse::<u64>().ok());
            if size == 0 || sectors.is_some_and(|sectors| sectors * SECTOR >= size) {
                return true;
            }
            tokio::time::sleep(SIZE_AGAIN).await;
        }
        false
    }
}

/// Devices that are in use, by the cookie that tells whose they are (since Linux 5.14).
fn of_volume(sys: &Path, volume: &str) -> Vec<PathBuf> {
    let block = fs::read_dir(sys.join("block")).into_iter().flatten().flatten();
    let ours = block.map(|entry| entry.path()).filter(|device| {
        let cookie = fs::read_to_string(device.join("backend"));
        cookie.is_ok_and(|cookie| cookie.trim() == volume) && device.join("pid").exists()
    });
    ours.filter_map(|device| Some(Path::new("/dev").join(device.file_name()?))).collect()
}

/// What is not told, the stash knows.
fn as_mapped(request: &Attach, mapping: &Mapping) -> Attach {
    let told = !request.target.context.is_empty();
    let context = if told { request.target.context.clone() } else { Wanted::of_mapping(mapping) };
    let target = Target { context, ..request.target.clone() };
    let (image, node) = (request.image.clone(), request.node.clone());
    Attach { target, image, mode: request.mode, block: request.block, node }
}

fn no_credential(stashed: &Stashed, error: &Error) -> Error {
    let Stashed { image, mapping } = stashed;
    Error::Precondition(format!(
        "image {image} on {} needs a new rbd-nbd, and that a credential, of the request (node-stage, node-publish or \
         node-expand secret) or of the cluster configuration (rbd.credential): {error}",
        mapping.device
    ))
}

fn device(image: &Image, path: String) -> Device {
    let Image { pool, namespace, name } = image.clone();
    Device { pool, namespace, name, snap: String::new(), path, nbd: true }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_devices_of_a_volume_are_known_by_their_cookie() {
        let sys = tempfile::tempdir().expect("a folder");
        for (file, text) in [
            ("nbd0/backend", "other\n"),
            ("nbd0/pid", "1\n"),
            ("nbd1/backend", "volume\n"),
            ("nbd1/pid", "2\n"),
            ("nbd2/backend", "volume\n"),
            ("nbd3/pid", "3\n"),
            ("sda/size", "8\n"),
        ] {
            let file = sys.path().join("block").join(file);
            fs::create_dir_all(file.parent().expect("a folder")).expect("made");
            fs::write(file, text).expect("written");
        }
        assert_eq!(of_volume(sys.path(), "volume"), [Path::new("/dev/nbd1")]);
        assert_eq!(of_volume(sys.path(), ""), Vec::<PathBuf>::new());
    }

    #[test]
    fn a_device_of_krbd_and_one_that_is_not_known_need_no_daemon() {
        let check = |nbd: bool, device: &str| {
            has_daemon(&Mapping { nbd, device: device.to_owned(), ..Mapping::default() })
        };
        assert!(check(false, "/dev/rbd0") && check(true, "") && check(true, "/dev/loop0"));
        assert!(!check(true, "/dev/nbd/does-not-exist"));
    }
}
