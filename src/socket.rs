//! The Unix socket: of its owner alone from its first instant on, in place of one that an earlier run left.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use nix::sys::stat::{Mode, fchmod};
use tokio::net::{UnixListener, UnixSocket};

/// Connections that wait to be accepted.
const BACKLOG: u32 = 1024;

/// Replaces a socket that an earlier run left; never anything else.
pub(crate) fn listen(path: &Path) -> io::Result<UnixListener> {
    let context =
        |error: io::Error| io::Error::new(error.kind(), format!("listening on {}: {error}", path.display()));
    if let Ok(meta) = fs::symlink_metadata(path) {
        if !meta.file_type().is_socket() {
            return Err(context(io::Error::other("there is a file that is no socket")));
        }
        fs::remove_file(path).map_err(context)?;
    }
    bind(path).map_err(context)
}

/// The mode of a socket that is not bound yet is that of the file which bind(2) makes: there is no instant at which
/// others could connect.
fn bind(path: &Path) -> io::Result<UnixListener> {
    let socket = UnixSocket::new_stream()?;
    fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR)?;
    socket.bind(path)?;
    socket.listen(BACKLOG)
}

/// Why somebody else could put a socket of his own in the place of this one, and so be handed the secrets of whoever
/// calls; None: nobody can.
pub(crate) fn danger(path: &Path) -> Option<String> {
    let folder = path.parent()?;
    let meta = fs::metadata(folder).ok()?;
    let (everybody, sticky) = (meta.mode() & 0o002 != 0, meta.mode() & 0o1000 != 0);
    (everybody && !sticky).then(|| {
        format!(
            "{} may be written by everybody, who could put a socket of his own in the place of the driver's and be handed \
             its secrets: chmod o-w {}",
            folder.display(),
            folder.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::net::UnixListener as StdListener;

    use super::*;

    /// The mode that the file of a socket has as bind(2) makes it.
    #[tokio::test]
    async fn a_socket_is_its_owner_s_alone_without_any_later_change() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("csi.sock");
        let _listener = bind(&path).expect("bound");
        let meta = fs::symlink_metadata(&path).expect("a file");
        assert_eq!(meta.mode() & 0o7777, 0o600);
        // What changes a mode after the file was made moves its change time.
        assert_eq!((meta.ctime(), meta.ctime_nsec()), (meta.mtime(), meta.mtime_nsec()));
    }

    #[tokio::test]
    async fn a_socket_of_an_earlier_run_is_replaced_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let (socket, file, link) =
            (folder.path().join("socket"), folder.path().join("file"), folder.path().join("link"));
        drop(StdListener::bind(&socket).expect("an earlier run"));
        assert!(listen(&socket).is_ok());
        fs::write(&file, "kept").expect("a file");
        std::os::unix::fs::symlink(&file, &link).expect("a link");
        for path in [&file, &link] {
            let error = listen(path).expect_err("no socket").to_string();
            assert!(error.contains("no socket") && error.contains(&path.display().to_string()), "{error}");
        }
        assert_eq!(fs::read_to_string(&file).expect("the file"), "kept");
    }

    #[test]
    fn a_folder_that_everybody_writes_to_is_a_danger() {
        let folder = tempfile::tempdir().expect("a folder");
        let check = |mode: u32| {
            fs::set_permissions(folder.path(), Permissions::from_mode(mode)).expect("a mode");
            danger(&folder.path().join("csi.sock"))
        };
        assert!(check(0o777).is_some_and(|why| why.contains("chmod o-w")));
        assert_eq!([check(0o755), check(0o775), check(0o1777)], [None, None, None]);
    }
}
