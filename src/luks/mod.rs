//! LUKS headers: made, opened, closed and grown, through `cryptsetup`, with ceph-csi's arguments and names. Whether one
//! may be made is decided in node/unlock.rs.

mod slots;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::host::mapper::{self, Mapper};
use crate::host::{Cmd, CmdError, Host, Output, Slot, holders};
use crate::keys::Passphrase;

pub(crate) use slots::{add_key, remove_key};

/// What blkid calls a device with a header.
pub(crate) const SIGNATURE: &str = "crypto_LUKS";
/// The kernel's limit, without the zero at its end.
const LONGEST_NAME: usize = 127;
/// What cryptsetup calls a device that it needs for a moment; a killed one leaves it.
const TEMPORARY: &str = "temporary-cryptsetup-";
/// Deriving a key takes 2 s on a machine that has nothing else to do.
const OPEN_WITHIN: Duration = Duration::from_secs(150);
/// It writes some 50 MiB.
const FORMAT_WITHIN: Duration = Duration::from_secs(600);
/// KiB, so that what makes the key takes no more memory than a container has.
const PBKDF_MEMORY: &str = "32768";
/// Parameters of a volume that say how it is encrypted, and cryptsetup's options for them.
const CHOICES: [(&str, &str); 3] = [
    ("encryptionCipher", "--cipher"),
    ("encryptionKeySize", "--key-size"),
    ("encryptionSectorSize", "--sector-size"),
];

/// cryptsetup(8), RETURN CODES.
mod exit {
    pub(super) const UNUSABLE: i32 = 1;
    pub(super) const NO_PERMISSION: i32 = 2;
    pub(super) const WRONG_DEVICE: i32 = 4;
    pub(super) const IN_USE: i32 = 5;
    /// Of `setpriv`, which starts it.
    pub(super) const NOT_FOUND: i32 = 127;
}

/// What the opened device of a volume is called.
pub(crate) fn name(volume: &str) -> Result<String> {
    let name = format!("luks-rbd-{volume}");
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"#+-.:=@_".contains(&byte);
    if name.len() <= LONGEST_NAME && name.bytes().all(plain) {
        return Ok(name);
    }
    Err(Error::Precondition(format!(
        "volume {volume:?} cannot be encrypted: a device mapper is named after it, for which it has to be at most {} \
         letters, digits, - and _",
        LONGEST_NAME + volume.len() - name.len()
    )))
}

/// Writes a new header, over whatever is there.
pub(crate) async fn format(
    host: &dyn Host,
    device: &Path,
    key: &Passphrase,
    parameters: &BTreeMap<String, String>,
) -> Result<()> {
    let cmd = Cmd::new("cryptsetup", format_args(device, parameters));
    let cmd = cmd.slot(Slot::Long).deadline(FORMAT_WITHIN).stdin(key.bytes().to_vec());
    let what = || format!("making a LUKS header on {}", device.display());
    run(host, cmd).await.map(drop).map_err(|failed| failed.explained(what()))
}

fn format_args(device: &Path, parameters: &BTreeMap<String, String>) -> Vec<String> {
    let fixed = ["-q", "luksFormat", "--type", "luks2", "--hash", "sha256"];
    let choices = CHOICES.iter().filter_map(|(name, option)| Some([*option, parameters.get(*name)?]));
    let sizes = ["--luks2-metadata-size", "4096k", "--luks2-keyslots-size", "8192k"];
    let memory = ["--pbkdf-memory", PBKDF_MEMORY];
    let device = device.to_string_lossy();
    let all = fixed.into_iter().chain(choices.flatten()).chain(sizes).chain(memory);
    all.chain([device.as_ref(), "-d", "-"]).map(str::to_owned).collect()
}

/// Opens a header with the first of the keys that does. False: none does.
pub(crate) async fn open(
    host: &dyn Host,
    device: &Path,
    name: &str,
    keys: &[Passphrase],
    read_only: bool,
) -> Result<bool> {
    for key in keys {
        let node = device.to_string_lossy();
        // The kernel's keyring is not a container's own; and what has its key there asks for it to be grown.
        let args = ["luksOpen", node.as_ref(), name, "--disable-keyring", "-d", "-"];
        let args = args.into_iter().chain(read_only.then_some("--readonly"));
        let cmd = Cmd::new("cryptsetup", args).slot(Slot::Long).deadline(OPEN_WITHIN);
        match run(host, cmd.stdin(key.bytes().to_vec())).await {
            Ok(_) => {
                tracing::info!(device = %device.display(), name, "the LUKS header was opened");
                return Ok(true);
            }
            Err(Failed(error)) if error.exit() == Some(exit::NO_PERMISSION) => {}
            Err(Failed(error)) if error.exit() == Some(exit::IN_USE) => {
                return Err(held(&format!("{} cannot be opened", device.display()), device, &error).await);
            }
            Err(failed) => {
                return Err(failed.explained(format!("opening the LUKS header on {}", device.display())));
            }
        }
    }
    Ok(false)
}

/// Not open is success, also where the device below is gone.
pub(crate) async fn close(host: &dyn Host, name: &str) -> Result<()> {
    match run(host, Cmd::new("cryptsetup", ["luksClose", name])).await {
        Ok(_) => Ok(()),
        Err(Failed(error)) if error.exit() == Some(exit::WRONG_DEVICE) => Ok(()),
        Err(Failed(error)) if error.exit() == Some(exit::IN_USE) => {
            Err(held(&format!("{name} cannot be closed"), &mapper::path(name), &error).await)
        }
        Err(failed) => Err(failed.explained(format!("closing {name}"))),
    }
}

/// Lets an open device have the size of the one below. Needs no passphrase, and does nothing where they agree (seen).
pub(crate) async fn grow(host: &dyn Host, name: &str) -> Result<()> {
    let grown = run(host, Cmd::new("cryptsetup", ["resize", name])).await;
    grown.map(drop).map_err(|failed| failed.explained(format!("growing {name} to the size of its device")))
}

/// The open device of a volume, and what a killed cryptsetup left over the same one.
pub(crate) fn opened(name: &str, device: Option<&Path>) -> Vec<Mapper> {
    let over =
        |mapper: &Mapper| device.is_some_and(|device| mapper.below.iter().any(|below| below == device));
    let ours = |mapper: &Mapper| mapper.name == name || (mapper.name.starts_with(TEMPORARY) && over(mapper));
    mapper::all(Path::new(mapper::SYS)).into_iter().filter(ours).collect()
}

/// Where the opened device is.
pub(crate) fn path(name: &str) -> PathBuf {
    mapper::path(name)
}

struct Failed(CmdError);

impl Failed {
    fn explained(self, what: String) -> Error {
        match self.0.exit() {
            Some(exit::NOT_FOUND) => {
                Error::Precondition(format!("{what}: cryptsetup is not installed on this node"))
            }
            Some(exit::UNUSABLE) => Error::Precondition(format!(
                "{what}: {}: nothing was changed; look at the device, and whether the kernel has dm_crypt",
                self.0
            )),
            _ => Error::internal(what, self.0),
        }
    }
}

async fn run(host: &dyn Host, cmd: Cmd) -> Result<Output, Failed> {
    host.run(cmd).await.map_err(Failed)
}

async fn held(what: &str, device: &Path, error: &CmdError) -> Error {
    let holders = holders::of(device).await;
    let holders = holders.as_deref().unwrap_or("nobody that /proc shows");
    Error::Precondition(format!("{what}: it is held by {holders}: end that first ({error})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_made_with_the_arguments_of_ceph_csi() {
        let parameters = BTreeMap::from([
            ("encryptionKeySize".to_owned(), "256".to_owned()),
            ("pool".to_owned(), "p".to_owned()),
        ]);
        let args = format_args(Path::new("/dev/rbd0"), &parameters).join(" ");
        assert_eq!(
            args,
            "-q luksFormat --type luks2 --hash sha256 --key-size 256 --luks2-metadata-size 4096k \
             --luks2-keyslots-size 8192k --pbkdf-memory 32768 /dev/rbd0 -d -"
        );
    }

    #[test]
    fn the_opened_device_is_named_after_its_volume() {
        assert_eq!(
            name("0001-0003-lab-0000000000000002-u").ok().as_deref(),
            Some("luks-rbd-0001-0003-lab-0000000000000002-u")
        );
        assert_eq!(name(&"x".repeat(118)).map(|name| name.len()).ok(), Some(127));
        for odd in ["a b", "a/b", &"x".repeat(119)] {
            assert!(matches!(name(odd), Err(Error::Precondition(_))), "{odd:?}");
        }
    }
}
