//! For the tests of crashes, in debug builds alone: the driver dies by SIGKILL just before or just after a step of its
//! machine. `--kill-file` names a file: with `2 after` in it, the driver dies after its third step from then on; every step
//! is added to the file beside it whose name ends in `.steps`.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use nix::sys::signal::{Signal, raise};

use crate::error::Result;

use super::{Cmd, CmdError, Host, Mount, MountCall, Output};

pub(crate) struct Killing<H> {
    host: H,
    file: Option<PathBuf>,
    /// Steps may be taken side by side; they are counted one by one.
    counting: Mutex<()>,
}

impl<H> Killing<H> {
    pub(crate) fn around(host: H, file: Option<PathBuf>) -> Self {
        Self { host, file, counting: Mutex::default() }
    }

    /// True where the driver is to die after this step.
    fn begin(&self, step: &str) -> bool {
        let Some(file) = &self.file else { return false };
        let _counting = self.counting.lock().unwrap_or_else(PoisonError::into_inner);
        note(&file.with_extension("steps"), step);
        let order = fs::read_to_string(file).unwrap_or_default();
        let Some((left, when)) = order.trim().split_once(' ') else { return false };
        let Some(left) = left.parse::<u32>().ok().and_then(|left| left.checked_sub(1)) else {
            let _ = fs::write(file, "");
            if when == "before" {
                let _ = raise(Signal::SIGKILL);
            }
            return true;
        };
        let _ = fs::write(file, format!("{left} {when}"));
        false
    }

    async fn step<T>(&self, step: &str, work: impl Future<Output = T>) -> T {
        let dies = self.begin(step);
        let result = work.await;
        if dies {
            let _ = raise(Signal::SIGKILL);
        }
        result
    }
}

fn note(file: &Path, step: &str) {
    let opened = File::options().create(true).append(true).open(file);
    let _ = opened.and_then(|mut file| writeln!(file, "{step}"));
}

#[async_trait]
impl<H: Host> Host for Killing<H> {
    async fn run(&self, cmd: Cmd) -> Result<Output, CmdError> {
        let step = format!("{} {}", cmd.program, cmd.verb());
        self.step(step.trim(), self.host.run(cmd)).await
    }

    fn mounts(&self) -> Result<Vec<Mount>> {
        self.host.mounts()
    }

    async fn mount(&self, what: MountCall) -> io::Result<()> {
        let step = match &what {
            MountCall::Filesystem { .. } => "mount",
            MountCall::Bind { .. } => "mount --bind",
        };
        self.step(step, self.host.mount(what)).await
    }

    async fn unmount(&self, path: &Path) -> io::Result<()> {
        self.step("umount", self.host.unmount(path)).await
    }
}
