//! A small file that is whole at any instant: the old one or the new one, even after a power cut.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;

/// Temp file, fsync, rename, fsync of the folder. `mode`: of the file, before the umask. Nothing is followed: what is there
/// already under either name is replaced, whatever it is but a folder.
pub(crate) fn replace(folder: &Path, name: &str, mode: u32, text: &[u8]) -> io::Result<()> {
    let temporary = temporary(folder, name);
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = File::options().create_new(true).write(true).mode(mode).open(&temporary)?;
    file.write_all(text)?;
    file.sync_all()?;
    fs::rename(temporary, folder.join(name))?;
    File::open(folder)?.sync_all()
}

/// What a small file holds. Anything else that stands there under its name is an error: nothing is followed or waited for,
/// and no more than this is read.
pub(crate) fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
    let file = match File::options().read(true).custom_flags(flags).open(path) {
        Err(error) if error.raw_os_error() == Some(nix::libc::ELOOP) => {
            return Err(io::Error::other("it is a symbolic link, no file"));
        }
        opened => opened?,
    };
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    let mut text = Vec::new();
    file.take(most + 1).read_to_end(&mut text)?;
    if text.len() as u64 > most {
        return Err(io::Error::other(format!("it has more than {most} bytes")));
    }
    Ok(text)
}

/// Whether an error says that nothing is at a path, because nothing could be.
pub(crate) fn is_absence(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::InvalidFilename)
}

/// What a kill in the midst of `replace` leaves beside the file.
pub(crate) fn temporary(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.tmp"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    #[test]
    fn what_is_planted_in_the_place_of_a_file_is_replaced_and_never_followed() {
        let folder = tempfile::tempdir().expect("a folder");
        let (canary, temporary) = (folder.path().join("canary"), temporary(folder.path(), "f"));
        let plants: [&dyn Fn(&Path); 3] = [
            &|path| symlink(&canary, path).expect("a link"),
            &|path| symlink("/nowhere/at/all", path).expect("a dangling link"),
            &|path| mkfifo(path, Mode::S_IRWXU).expect("a fifo"),
        ];
        fs::write(&canary, "sings").expect("a canary");
        for plant in plants {
            plant(&temporary);
            let _ = fs::remove_file(folder.path().join("f"));
            plant(&folder.path().join("f"));
            replace(folder.path(), "f", 0o600, b"whole").expect("replaced");
            assert_eq!(read(&folder.path().join("f"), 5).expect("read"), b"whole");
            assert_eq!(fs::read_to_string(&canary).expect("the canary"), "sings");
            assert!(fs::symlink_metadata(&temporary).is_err(), "it was renamed");
        }
    }

    #[test]
    fn only_a_small_file_is_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        fs::write(path("small"), "12345").expect("a file");
        symlink(path("small"), path("link")).expect("a link");
        symlink(path("loop"), path("loop")).expect("a link to itself");
        mkfifo(&path("fifo"), Mode::S_IRWXU).expect("a fifo");
        fs::create_dir(path("folder")).expect("a folder");
        let said = |name: &str, most: u64| read(&path(name), most).map_err(|error| error.to_string());
        assert_eq!(said("small", 5).as_deref(), Ok(b"12345".as_slice()));
        assert_eq!(said("small", 4), Err("it has more than 4 bytes".to_owned()));
        for name in ["link", "loop"] {
            assert_eq!(said(name, 5), Err("it is a symbolic link, no file".to_owned()));
        }
        for name in ["fifo", "folder"] {
            assert_eq!(said(name, 5), Err("it is no file".to_owned()));
        }
    }
}
