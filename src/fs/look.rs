//! Reading a device: on a thread of its own, so that storage that hangs holds nobody up for long.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::time::Duration;

use crate::error::{Error, Result};

const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// Where signatures are: at both ends.
const END: u64 = 1 << 20;

pub(super) async fn look<T: Send + 'static>(
    device: &Path,
    read: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
) -> Result<T> {
    let asked = device.to_owned();
    let reading = tokio::task::spawn_blocking(move || read(&asked));
    let Ok(read) = tokio::time::timeout(ANSWER_WITHIN, reading).await else {
        let device = device.display();
        return Err(Error::TimedOut(format!("{device} does not answer: the storage behind it hangs")));
    };
    read.map_err(io::Error::other).and_then(|read| read).map_err(|error| {
        let what = format!(
            "{} cannot be read: look at the kernel's log of this node, and at the health of the storage",
            device.display()
        );
        Error::internal(what, error)
    })
}

/// Whether the places can be read where signatures are.
pub(super) fn both_ends(device: &Path) -> io::Result<()> {
    let mut file = File::open(device)?;
    io::copy(&mut (&mut file).take(END), &mut io::sink())?;
    let size = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(size.saturating_sub(END)))?;
    io::copy(&mut file, &mut io::sink()).map(drop)
}
