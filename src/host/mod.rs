//! What the driver needs of its machine: programs and mounts. One trait, four verbs; `linux` is the real one. Beside it,
//! what is asked of the kernel without it (`holders`, `mapper`, `kernel`, `cgroup`), `files`, which are whole at any instant,
//! and a `shelter` for daemons.

pub(crate) mod cgroup;
pub(crate) mod files;
pub(crate) mod holders;
pub(crate) mod kernel;
#[cfg(debug_assertions)]
pub(crate) mod killing;
pub(crate) mod linux;
pub(crate) mod mapper;
pub(crate) mod mountinfo;
mod progress;
pub(crate) mod shelter;

use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use nix::libc::dev_t;
use nix::sys::stat::{major, minor};
use zeroize::Zeroizing;

use crate::error::Result;

pub(crate) use mountinfo::Mount;

#[async_trait]
pub(crate) trait Host: Send + Sync {
    /// Runs a program to its end. A program that fails, by exit status, signal or deadline, is a `CmdError`.
    async fn run(&self, cmd: Cmd) -> Result<Output, CmdError>;
    /// The mounts of the driver's own mount namespace.
    fn mounts(&self) -> Result<Vec<Mount>>;
    async fn mount(&self, what: MountCall) -> io::Result<()>;
    /// Takes away the topmost mount at this path. A path that is no mount point is `InvalidInput`.
    async fn unmount(&self, path: &Path) -> io::Result<()>;
}

/// Every program that the driver runs, and modprobe, which `rbd map` does. tests/image looks for them in the image.
const PROGRAMS: &[&str] = &[
    "blkid",
    "ceph",
    "chattr",
    "cp",
    "cryptsetup",
    "fsck.ext4",
    "fsfreeze",
    "gzip",
    "losetup",
    "lsattr",
    "mkfs.ext4",
    "mkfs.xfs",
    "modprobe",
    "nsenter",
    "rados",
    "rbd",
    "rbd-nbd",
    "resize2fs",
    "rm",
    "setpriv",
    "xfs_growfs",
    "xfs_quota",
];

/// A program to run.
#[derive(Clone)]
pub(crate) struct Cmd {
    pub(crate) program: &'static str,
    pub(crate) args: Vec<String>,
    /// May be a passphrase: it is wiped when it goes.
    pub(crate) stdin: Zeroizing<Vec<u8>>,
    pub(crate) slot: Slot,
    pub(crate) deadline: Option<Duration>,
    /// Takes what the program prints, from its beginning on, however much it is; None: memory does, with a cap.
    pub(crate) stdout: Option<Arc<File>>,
    hidden_value: bool,
}

impl Cmd {
    pub(crate) fn new<S: Into<String>>(program: &'static str, args: impl IntoIterator<Item = S>) -> Self {
        debug_assert!(
            cfg!(test) || PROGRAMS.contains(&program),
            "{program} is not in PROGRAMS: is it in the image?"
        );
        let args = args.into_iter().map(Into::into).collect();
        Self {
            program,
            args,
            stdin: Zeroizing::default(),
            slot: Slot::Free,
            deadline: None,
            stdout: None,
            hidden_value: false,
        }
    }

    /// What stands behind `--` is not for a log: it may be a sealed key.
    pub(crate) fn with_hidden_value(mut self) -> Self {
        self.hidden_value = true;
        self
    }

    /// The arguments for a log.
    pub(crate) fn told(&self) -> &[String] {
        let value = self.args.iter().position(|arg| self.hidden_value && arg == "--");
        &self.args[..value.unwrap_or(self.args.len())]
    }

    pub(crate) fn slot(mut self, slot: Slot) -> Self {
        self.slot = slot;
        self
    }

    /// Another total deadline than `--command-timeout`.
    pub(crate) fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    pub(crate) fn stdin(mut self, bytes: Vec<u8>) -> Self {
        self.stdin = Zeroizing::new(bytes);
        self
    }

    pub(crate) fn stdout(mut self, file: Arc<File>) -> Self {
        self.stdout = Some(file);
        self
    }

    /// What `rbd`, `rados` or `cryptsetup` is asked to do. What other programs are given are paths.
    pub(crate) fn verb(&self) -> String {
        match (self.program, self.args.as_slice()) {
            ("rbd", [kind, what, ..]) if TWO_WORDS.contains(&kind.as_str()) => format!("{kind} {what}"),
            ("cryptsetup", [quiet, verb, ..]) if quiet == "-q" => verb.clone(),
            ("rbd" | "rados" | "cryptsetup", [verb, ..]) => verb.clone(),
            _ => String::new(),
        }
    }
}

/// Without its stdin, which may be a passphrase.
impl fmt::Debug for Cmd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.program, self.args)
    }
}

/// What `rbd` is asked to do begins with one of these, or is one word.
const TWO_WORDS: &[&str] = &["config", "device", "image-meta", "namespace", "snap", "trash"];

/// Which queue a program waits in before it starts, and what its deadline means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slot {
    /// Small local programs: no queue.
    Free,
    /// `rbd` and `rados`: `--max-rbd-processes` at once, first in, first out.
    Cluster,
    /// Work that grows with the image, in slots of its own, so that no request waits behind it. Its deadline starts
    /// anew whenever the program reports progress.
    Long,
    /// The emptying of the trash and other long work that no request waits for: beside `Long`, and like it.
    Trash,
    /// `rbd` and `rados` that no request waits for: one at a time, when no other of `Cluster` runs or has waited long.
    Behind,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Output {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

/// Why a program failed.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{program} {verb} {end}{}", colon(.said))]
pub(crate) struct CmdError {
    pub(crate) program: &'static str,
    pub(crate) verb: String,
    pub(crate) end: End,
    /// The first and last lines of stderr, then those of stdout.
    pub(crate) said: String,
}

/// How a program ended that did not succeed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum End {
    #[error("exited with {0}")]
    Exit(i32),
    #[error("was killed by signal {0}")]
    Signal(i32),
    #[error("did not end within {} and was killed", humantime::format_duration(*.0))]
    Deadline(Duration),
    #[error("printed more than the {0} bytes that are read of it")]
    Overflow(usize),
    #[error("could not be started: {0}")]
    Start(String),
}

impl CmdError {
    pub(crate) fn exit(&self) -> Option<i32> {
        match self.end {
            End::Exit(code) => Some(code),
            End::Signal(_) | End::Deadline(_) | End::Overflow(_) | End::Start(_) => None,
        }
    }
}

fn colon(said: &str) -> String {
    if said.is_empty() { String::new() } else { format!(": {said}") }
}

/// One call of mount(2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MountCall {
    /// A filesystem on a device. `options` as mount(8) takes them, flags and data mixed.
    Filesystem { device: PathBuf, target: PathBuf, fs_type: String, options: Vec<String> },
    /// A directory or file shown at another place.
    Bind { source: PathBuf, target: PathBuf, options: Vec<String>, read_only: bool },
}

impl MountCall {
    pub(crate) fn target(&self) -> &Path {
        let (Self::Filesystem { target, .. } | Self::Bind { target, .. }) = self;
        target
    }
}

/// A device as the kernel's own files name it: `major:minor`.
pub(crate) fn device_number(device: dev_t) -> String {
    format!("{}:{}", major(device), minor(device))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_is_fed_is_not_printed() {
        let cmd = Cmd::new("cryptsetup", ["luksOpen"]).stdin(b"secret".to_vec());
        assert_eq!(format!("{cmd:?}"), r#"cryptsetup ["luksOpen"]"#);
    }
}
