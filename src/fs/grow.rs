//! Growing a filesystem to the size of its device.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::host::{Cmd, Host, Slot};

use super::look::look;
use super::superblock::{self, Extent};

/// Both programs write little for each GiB.
const GROW_WITHIN: Duration = Duration::from_secs(1800);
/// In the masks of /proc/self/status (capability.h).
const CAP_SYS_RESOURCE: u32 = 24;

/// Whether the filesystem could fill more of its device.
pub(crate) async fn is_smaller(device: &Path) -> Result<bool> {
    let (extent, size) = look(device, measure).await?;
    let extent = extent
        .ok_or_else(|| Error::broken(format!("no superblock of ext4 or xfs is on {}", device.display())))?;
    let smaller = !extent.fills(size);
    if smaller {
        tracing::info!(device = %device.display(), size, filesystem = extent.bytes(), "the filesystem is smaller than its device");
    }
    Ok(smaller)
}

fn measure(device: &Path) -> io::Result<(Option<Extent>, u64)> {
    let mut file = File::open(device)?;
    let mut head = vec![0; superblock::LENGTH];
    file.read_exact(&mut head)?;
    Ok((superblock::read(&head), file.seek(SeekFrom::End(0))?))
}

/// Whether the kernel lets this process grow a mounted filesystem of this type. ext4 can also be grown unmounted, but
/// only mounted is it journaled: a resize2fs killed at its work on an unmounted one leaves what `fsck -p` does not mend
/// (seen, at nearly every write).
pub(crate) fn grows_mounted(fs_type: &str) -> bool {
    let allowed = || std::fs::read_to_string("/proc/self/status").is_ok_and(|status| has_capability(&status));
    fs_type != "ext4" || allowed()
}

fn has_capability(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> CAP_SYS_RESOURCE & 1 == 1)
}

/// Why a filesystem was not grown.
pub(crate) enum NotGrown {
    /// The program refused: a filesystem that it does not grow, or a kernel that does not let it. Nothing has changed.
    Refused(Error),
    /// It did not come to its end.
    CutOff(Error),
}

impl NotGrown {
    pub(crate) fn into_error(self) -> Error {
        match self {
            Self::Refused(error) | Self::CutOff(error) => error,
        }
    }
}

/// `place`: where it is mounted. An ext4 that is not was checked with `Check::All` just before.
pub(crate) async fn grow(
    host: &dyn Host,
    device: &Path,
    fs_type: &str,
    place: Option<&Path>,
) -> Result<(), NotGrown> {
    let (program, what) = match (fs_type, place) {
        ("ext4", _) => ("resize2fs", device),
        ("xfs", Some(place)) => ("xfs_growfs", place),
        _ => {
            let error = Error::broken(format!("{fs_type} on {} cannot be grown", device.display()));
            return Err(NotGrown::Refused(error));
        }
    };
    let cmd = Cmd::new(program, [what.to_string_lossy()]).slot(Slot::Long).deadline(GROW_WITHIN);
    match host.run(cmd).await {
        Ok(_) => {
            tracing::info!(device = %device.display(), fs_type, "the filesystem was grown");
            Ok(())
        }
        Err(error) if place.is_some() && error.said.contains("Permission denied") => {
            Err(NotGrown::Refused(Error::Precondition(format!(
                "the kernel lets this driver not grow the mounted {fs_type} on {}: run its container privileged, or \
                 with CAP_SYS_RESOURCE; or unstage the volume (end its pods), it grows when it is staged again ({error})",
                device.display()
            ))))
        }
        Err(error) => {
            let refused = error.exit().is_some();
            let error =
                Error::internal(format!("growing the {fs_type} on {} to its size", device.display()), error);
            Err(if refused { NotGrown::Refused(error) } else { NotGrown::CutOff(error) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capability_is_read_from_the_effective_mask() {
        let status =
            |mask: &str| format!("Name:\tx\nCapPrm:\t000001ffffffffff\nCapEff:\t{mask}\nCapBnd:\t0\n");
        assert!(has_capability(&status("000001ffffffffff")));
        assert!(has_capability(&status("0000000001000000")));
        assert!(!has_capability(&status("000001fffeffffff")));
        assert!(!has_capability("") && !has_capability(&status("x")));
    }
}
