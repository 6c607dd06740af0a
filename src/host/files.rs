//! A small file that is whole at any instant: the old one or the new one, even after a power cut.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Temp file, fsync, rename, fsync of the folder. `mode`: of the file, before the umask.
pub(crate) fn replace(folder: &Path, name: &str, mode: u32, text: &[u8]) -> io::Result<()> {
    let temporary = temporary(folder, name);
    let mut file = File::options().create(true).write(true).truncate(true).mode(mode).open(&temporary)?;
    file.write_all(text)?;
    file.sync_all()?;
    fs::rename(temporary, folder.join(name))?;
    File::open(folder)?.sync_all()
}

/// What a kill in the midst of `replace` leaves beside the file.
pub(crate) fn temporary(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.tmp"))
}
