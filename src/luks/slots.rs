//! A new key for a header that is open, in the place of the one in force: two slots take turns, as ceph-csi's do. At each
//! instant a key that is recorded opens the header.

use std::path::Path;

use crate::error::{Error, Result};
use crate::host::{Cmd, Host, Slot};
use crate::keys::Passphrase;

use super::{Failed, OPEN_WITHIN, PBKDF_MEMORY, exit, run};

/// The slots that keys are in.
const SLOTS: [&str; 2] = ["0", "1"];

/// The slot of a key that another one replaces.
pub(crate) struct Replaced(&'static str);

/// Adds a key beside the first one that opens the header; answers where that is.
pub(crate) async fn add_key(
    host: &dyn Host,
    device: &Path,
    keys: &[Passphrase],
    new: &Passphrase,
) -> Result<Replaced> {
    let Some((key, old)) = in_force(host, device, keys).await? else {
        return Err(Error::Denied(format!(
            "none of the volume's keys opens its LUKS header on {} by slot {} or {}: nothing was changed",
            device.display(),
            SLOTS[0],
            SLOTS[1]
        )));
    };
    let other = if old == SLOTS[0] { SLOTS[1] } else { SLOTS[0] };
    // What an earlier try, cut off, has left: no record has that key, or one that opens older snapshots.
    kill_slot(host, device, other).await?;
    let node = device.to_string_lossy();
    let args = ["-q", "luksAddKey", "--key-slot", other, "--hash", "sha256", "--pbkdf-memory", PBKDF_MEMORY];
    let both = [key.bytes(), b"\n", new.bytes(), b"\n"].concat();
    let cmd = Cmd::new("cryptsetup", args.into_iter().chain([node.as_ref()]));
    let added = run(host, cmd.slot(Slot::Long).deadline(OPEN_WITHIN).stdin(both)).await;
    added.map_err(|failed| failed.explained(format!("adding a key to the LUKS header on {node}")))?;
    Ok(Replaced(old))
}

/// Takes away the key that was replaced.
pub(crate) async fn remove_key(host: &dyn Host, device: &Path, replaced: &Replaced) -> Result<()> {
    kill_slot(host, device, replaced.0).await
}

async fn in_force<'a>(
    host: &dyn Host,
    device: &Path,
    keys: &'a [Passphrase],
) -> Result<Option<(&'a Passphrase, &'static str)>> {
    for key in keys {
        for slot in SLOTS {
            if opens(host, device, key, slot).await? {
                return Ok(Some((key, slot)));
            }
        }
    }
    Ok(None)
}

async fn opens(host: &dyn Host, device: &Path, key: &Passphrase, slot: &str) -> Result<bool> {
    let node = device.to_string_lossy();
    let args = ["open", "--test-passphrase", "--key-slot", slot, "-d", "-", node.as_ref()];
    let cmd = Cmd::new("cryptsetup", args).slot(Slot::Long).deadline(OPEN_WITHIN);
    match run(host, cmd.stdin(key.bytes().to_vec())).await {
        Ok(_) => Ok(true),
        // 1: nothing is in that slot.
        Err(Failed(error)) if matches!(error.exit(), Some(exit::UNUSABLE | exit::NO_PERMISSION)) => Ok(false),
        Err(failed) => Err(failed.explained(format!("trying a key of the LUKS header on {node}"))),
    }
}

/// Empty already is success.
async fn kill_slot(host: &dyn Host, device: &Path, slot: &str) -> Result<()> {
    let node = device.to_string_lossy();
    match run(host, Cmd::new("cryptsetup", ["-q", "luksKillSlot", node.as_ref(), slot])).await {
        Ok(_) => Ok(()),
        Err(Failed(error)) if error.exit() == Some(exit::UNUSABLE) => Ok(()),
        Err(failed) => Err(failed.explained(format!("taking a key from the LUKS header on {node}"))),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::host::linux::Linux;
    use crate::luks;

    fn key(text: &str) -> Passphrase {
        Passphrase::new(text.as_bytes().to_vec())
    }

    async fn opening(host: &Linux, device: &Path, texts: &[&'static str]) -> Vec<&'static str> {
        let mut opening = Vec::new();
        for text in texts {
            if in_force(host, device, &[key(text)]).await.expect("tried").is_some() {
                opening.push(*text);
            }
        }
        opening
    }

    /// As the backend does it: added, recorded, removed; the second time what is left of a try that was cut off.
    #[tokio::test]
    async fn keys_take_turns() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        file.as_file().set_len(64 << 20).expect("a size");
        let (host, device) = (Linux::new(1, Duration::from_secs(60)), file.path());
        luks::format(&host, device, &key("a"), &[].into()).await.expect("a header");
        let replaced = add_key(&host, device, &[key("a")], &key("b")).await.expect("added");
        assert_eq!(opening(&host, device, &["a", "b"]).await, ["a", "b"]);
        remove_key(&host, device, &replaced).await.expect("removed");
        assert_eq!(opening(&host, device, &["a", "b"]).await, ["b"]);
        add_key(&host, device, &[key("b")], &key("lost")).await.expect("added");
        let replaced = add_key(&host, device, &[key("b"), key("a")], &key("c")).await.expect("added");
        remove_key(&host, device, &replaced).await.expect("removed");
        assert_eq!(opening(&host, device, &["a", "b", "lost", "c"]).await, ["c"]);
        let error = add_key(&host, device, &[key("x")], &key("y")).await.err().expect("refused");
        assert!(matches!(error, Error::Denied(_)), "{error}");
        assert_eq!(opening(&host, device, &["c", "y"]).await, ["c"]);
    }
}
