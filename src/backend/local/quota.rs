//! Project quotas of ext4 and xfs, which hold a folder to a size: through chattr, lsattr and xfs_quota.

use std::path::{Path, PathBuf};

use uuid::Uuid;

use crate::error::{Error, Result};
use crate::host::{Cmd, Host, Mount, Output};

/// Numbers that are tried before giving up: with some 2^30 of them, one that is taken is rare.
const TRIES: u32 = 16;

/// The quotas of one filesystem.
pub(super) struct Quotas<'a> {
    host: &'a dyn Host,
    mount: PathBuf,
}

impl<'a> Quotas<'a> {
    /// None where the filesystem that holds the path was not mounted with prjquota. Nothing else tells: without it an
    /// ext4 takes projects and limits, shows them, and enforces none (seen).
    pub(super) fn around(host: &'a dyn Host, path: &Path) -> Result<Option<Self>> {
        let mount = mount_of(host, path)?;
        let on = mount.super_options.split(',').any(|option| matches!(option, "prjquota" | "pquota"));
        let offered = on && matches!(mount.fs_type.as_str(), "ext4" | "xfs");
        Ok(offered.then_some(Self { host, mount: mount.target }))
    }

    /// Gives an empty folder a project of its own: a number that follows from the volume and that nobody uses, in this
    /// root or beside it (kubelet and container runtimes have theirs).
    pub(super) async fn give(&self, folder: &Path, uuid: Uuid) -> Result<u32> {
        let (_, low) = uuid.as_u64_pair();
        let first = u32::try_from(low >> 34).unwrap_or_default().max(1);
        for project in first..first + TRIES {
            if self.is_unused(project).await? {
                let args = ["-p", &project.to_string(), "+P", &folder.to_string_lossy()];
                self.run(
                    Cmd::new("chattr", args),
                    format!("giving {} the project {project}", folder.display()),
                )
                .await?;
                return Ok(project);
            }
        }
        Err(Error::broken(format!(
            "the projects {first} and {TRIES} behind it are all in use at {}",
            self.mount.display()
        )))
    }

    /// Holds a project to so many bytes; 0 for no limit.
    pub(super) async fn limit(&self, project: u32, bytes: u64) -> Result<()> {
        let limit = format!("limit -p bhard={}k {project}", bytes.div_ceil(1024));
        self.xfs_quota(&limit, format!("limiting project {project}")).await.map(drop)
    }

    /// The project of a folder.
    pub(super) async fn of(&self, folder: &Path) -> Result<Option<u32>> {
        let what = format!("looking for the project of {}", folder.display());
        let output = self.run(Cmd::new("lsattr", ["-p", "-d", &folder.to_string_lossy()]), what).await?;
        let text = String::from_utf8_lossy(&output.stdout);
        let number = text.split_whitespace().next().and_then(|number| number.parse().ok());
        Ok(number.filter(|number| *number > 0))
    }

    /// `DEVICE USED SOFT HARD …`, in KiB; nothing for a project that was never used.
    async fn is_unused(&self, project: u32) -> Result<bool> {
        let what = format!("looking at project {project}");
        let output = self.xfs_quota(&format!("quota -p -N -n -b -v {project}"), what).await?;
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.split_whitespace().skip(1).take(3).all(|number| number == "0"))
    }

    async fn xfs_quota(&self, command: &str, what: String) -> Result<Output> {
        let cmd = Cmd::new("xfs_quota", ["-x", "-f", "-c", command, &self.mount.to_string_lossy()]);
        let output = self.run(cmd, format!("{what} at {}", self.mount.display())).await?;
        // It ends with 0 also when it has failed.
        match String::from_utf8_lossy(&output.stderr).trim() {
            "" => Ok(output),
            said => Err(Error::broken(format!("{what} at {}: xfs_quota: {said}", self.mount.display()))),
        }
    }

    async fn run(&self, cmd: Cmd, what: String) -> Result<Output> {
        self.host.run(cmd).await.map_err(|error| Error::internal(what, error))
    }
}

/// The mount that holds a path (without symlinks).
pub(super) fn mount_of(host: &dyn Host, path: &Path) -> Result<Mount> {
    let around = host.mounts()?.into_iter().filter(|mount| path.starts_with(&mount.target));
    // The last of the deepest: what is mounted over another hides it.
    let deepest = around.max_by_key(|mount| mount.target.components().count());
    deepest.ok_or_else(|| Error::broken(format!("no mount holds {}", path.display())))
}
