//! What is written to a clone behind the answer: the marker that proves it whole, and its own labels in place of those
//! that it has inherited. One process at a time, which lets those go first that somebody waits for.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt as _;
use uuid::Uuid;

use crate::backend::Image;
use crate::cluster::Access;
use crate::error::{Result, chain};
use crate::host::{Cmd, CmdError, Host, Mount, MountCall, Output, Slot};
use crate::ops::Ops;

use crate::backend::rbd::cli::Cli;
use crate::backend::rbd::cli::json::{Info, Parent};
use crate::backend::rbd::meta::{self, Meta};
use crate::backend::rbd::params::is_label;
use crate::backend::rbd::volume::clone::verify::Family;

pub(crate) struct MarkerQueue {
    host: Patient,
    deadline: Duration,
    ops: Ops,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    working: bool,
}

/// A clone that was answered.
pub(crate) struct Job {
    pub(crate) access: Access,
    pub(crate) image: Image,
    pub(crate) uuid: Uuid,
    /// All that it is to have; None where they are not known.
    pub(crate) labels: Option<Vec<(String, String)>>,
}

/// Snapshots and their clones, by the id of the image and the name of the snapshot. A clone that is in there is whole,
/// however long ago that was asked: an image made anew has another id.
type Families = HashMap<(String, String), Family>;

impl MarkerQueue {
    pub(crate) fn new(host: &Arc<dyn Host>, deadline: Duration, ops: Ops) -> Self {
        Self { host: Patient(host.clone()), deadline, ops, queue: Mutex::default() }
    }

    pub(crate) fn add(self: &Arc<Self>, job: Job) {
        let mut queue = self.queue();
        queue.jobs.push_back(job);
        if !queue.working {
            queue.working = true;
            let behind = self.clone();
            self.ops.behind(async move { behind.work().await });
        }
    }

    async fn work(&self) {
        let mut families = Families::new();
        while let Some(job) = self.next() {
            // ControllerPublishVolume queues it again.
            match AssertUnwindSafe(self.finish(&job, &mut families)).catch_unwind().await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::warn!(image = %job.image, "writing the metadata of a clone: {}", chain(&error));
                }
                Err(_) => {
                    tracing::error!(image = %job.image, "a bug in the driver: its marker is not written");
                }
            }
        }
    }

    fn next(&self) -> Option<Job> {
        let mut queue = self.queue();
        let job = queue.jobs.pop_front();
        queue.working = job.is_some();
        job
    }

    async fn finish(&self, job: &Job, families: &mut Families) -> Result<()> {
        let cli = Cli { host: &self.host, access: &job.access, deadline: self.deadline };
        let Some(info) = cli.info(&job.image).await? else { return Ok(()) };
        let meta = cli.meta(&job.image).await?.unwrap_or_default();
        if let Some(labels) = &job.labels {
            relabel(&cli, &job.image, &meta, labels).await?;
        }
        let marked = meta::created_by(&meta, job.uuid).is_some_and(|made| made.is_of(&info.id));
        match &info.parent {
            Some(parent) if !marked => mark(&cli, job, &info, parent, families).await,
            _ => Ok(()),
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn relabel(cli: &Cli<'_>, image: &Image, meta: &Meta, labels: &[(String, String)]) -> Result<()> {
    for (key, value) in labels.iter().filter(|(key, value)| meta.get(key) != Some(value)) {
        cli.set_meta(image, key, value).await?;
    }
    let wanted = |key: &String| labels.iter().any(|(label, _)| label == key);
    for key in meta.keys().filter(|key| is_label(key) && !wanted(key)) {
        cli.remove_meta(image, key).await?;
    }
    Ok(())
}

async fn mark(cli: &Cli<'_>, job: &Job, info: &Info, parent: &Parent, families: &mut Families) -> Result<()> {
    let key = (parent.id.clone(), parent.snapshot.clone());
    if !families.get(&key).is_some_and(|family| family.has(&info.id)) {
        let Some(family) = Family::of(cli, parent).await? else { return Ok(()) };
        families.insert(key.clone(), family);
    }
    let family = families.get(&key).filter(|family| family.has(&info.id));
    let Some(source) = family.and_then(|family| family.source(parent, job.uuid)) else { return Ok(()) };
    let (key, value) = meta::cloned(job.uuid, info.size, &info.id, &source);
    cli.set_meta(&job.image, &key, &value).await
}

/// A host on which the commands of requests go first.
struct Patient(Arc<dyn Host>);

#[async_trait]
impl Host for Patient {
    async fn run(&self, cmd: Cmd) -> Result<Output, CmdError> {
        self.0.run(cmd.slot(Slot::Behind)).await
    }

    fn mounts(&self) -> Result<Vec<Mount>> {
        self.0.mounts()
    }

    async fn mount(&self, what: MountCall) -> io::Result<()> {
        self.0.mount(what).await
    }

    async fn unmount(&self, path: &Path) -> io::Result<()> {
        self.0.unmount(path).await
    }
}
