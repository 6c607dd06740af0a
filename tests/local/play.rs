//! A step of the model done with a real driver: asked, compared, and looked at.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use crate::asks;
use crate::common::csi::CreateVolumeRequest;
use crate::common::csi::VolumeCapability;
use crate::common::csi::volume_capability::access_mode::Mode;
use crate::common::driver::Driver;
use crate::common::life::{Life, MIB, block, mount};
use crate::common::tools::{Answer, unique};
use crate::harness::{NODE, Scene};
use crate::plain::{Content, FILESYSTEM, From, Outcome, Plain, Step, VOLUMES, many_targets};

/// Bytes at each place that are written and looked at.
const SPOT: usize = 4096;
/// A filesystem needs more room than a block volume: its sizes are this much larger.
const FILESYSTEM_MIB: u64 = 16;

pub(crate) struct Stage<'a> {
    scene: &'a Scene,
    driver: Driver,
    plain: Plain,
    names: Vec<String>,
    lives: Vec<Life>,
    /// The last id of each snapshot that there ever was.
    snapshots: BTreeMap<usize, String>,
    prefix: String,
}

/// How a volume is used, by its number.
fn capability(volume: usize) -> VolumeCapability {
    if volume == FILESYSTEM {
        return mount("ext4");
    }
    let mode = if many_targets(volume) { Mode::SingleNodeMultiWriter } else { Mode::SingleNodeWriter };
    block().with(mode)
}

fn real_mib(volume: usize, mib: u64) -> i64 {
    let more = if volume == FILESYSTEM { FILESYSTEM_MIB } else { 0 };
    i64::try_from(mib + more).expect("a size")
}

/// The answer as the model tells it.
fn outcome<T>(volume: usize, answer: Answer<T>, size: impl Fn(&T) -> Option<i64>) -> Outcome {
    let answer = answer.map_err(|status| status.code())?;
    let more = if volume == FILESYSTEM { FILESYSTEM_MIB } else { 0 };
    Ok(size(&answer).map(|bytes| bytes.unsigned_abs() / MIB - more))
}

impl<'a> Stage<'a> {
    /// Each volume is made once and deleted, so that its id is known: the same name has it ever after.
    pub(crate) async fn new(scene: &'a Scene) -> Self {
        let driver = scene.start().await;
        let (mut names, mut lives) = (Vec::new(), Vec::new());
        for volume in 0..VOLUMES {
            let name = unique("pvc");
            let made = driver.create(asks::volume(&name, 1, capability(volume))).await.expect("CreateVolume");
            driver.delete(&made.volume_id).await.expect("DeleteVolume");
            lives.push(Life::of(scene, &made, capability(volume)));
            names.push(name);
        }
        let plain = Plain { reflinks: scene.reflinks(), ..Plain::default() };
        Self { scene, driver, plain, names, lives, snapshots: BTreeMap::new(), prefix: unique("snap") }
    }

    pub(crate) async fn step(mut self, step: &Step) -> Result<Self, String> {
        let Some(step) = self.sensible(step) else { return Ok(self) };
        if let Step::Restart = step {
            self.driver = self.driver.killed_and_started().await;
            return Ok(self);
        }
        // The model goes second: it would know already what is about to be made.
        let (got, said) = self.done(&step).await;
        let expected = self.plain.step(&step);
        if got != expected {
            return Err(format!("{got:?} ({said}), where {expected:?} is right"));
        }
        if let Step::Publish { volume, .. } = step
            && got.is_ok()
        {
            self.looked_at(volume).await?;
        }
        Ok(self)
    }

    /// What the model does not speak of is left out: copies between kinds of volumes, the online growth of ext4, writes
    /// to what is not there, and the first ControllerPublishVolume read-only, which is for readers.
    fn sensible(&self, step: &Step) -> Option<Step> {
        let plain = &self.plain;
        let kind = |volume: usize| volume == FILESYSTEM;
        let same_kind = |volume: usize, from: From| match from {
            From::Volume(source) => kind(source) == kind(volume),
            From::Snapshot(snapshot) => {
                plain.snapshots.get(&snapshot).is_none_or(|snapshot| kind(snapshot.of) == kind(volume))
            }
        };
        match *step {
            Step::Create { volume, from: Some(from), .. } if !same_kind(volume, from) => None,
            Step::NodeExpand(FILESYSTEM) => None,
            Step::Attach { volume, .. } if !plain.is_attached(volume) => {
                Some(Step::Attach { volume, read_only: false })
            }
            Step::Write { volume, place, byte } => {
                let there = plain.volumes.get(&volume)?;
                there.targets.first()?;
                let places = if kind(volume) { 1 } else { there.device? };
                Some(Step::Write { volume, place: place % places, byte })
            }
            _ => Some(step.clone()),
        }
    }

    /// Asks the driver; what it answered, and in its own words.
    async fn done(&mut self, step: &Step) -> (Outcome, String) {
        let driver = &self.driver;
        let (volume, answer) = match *step {
            Step::Create { volume, mib, from } => {
                let answer = driver.create(self.request(volume, mib, from)).await;
                (volume, answer.map(|made| Some(made.capacity_bytes)))
            }
            Step::Delete(volume) => (volume, driver.delete(&self.lives[volume].id).await.map(|()| None)),
            Step::Expand(volume, mib) => {
                let answer = driver.expand(&self.lives[volume].id, real_mib(volume, mib) << 20).await;
                (volume, answer.map(|(size, _)| Some(size)))
            }
            Step::NodeExpand(volume) => {
                let life = &self.lives[volume];
                (volume, life.expand_at(driver, &life.staging, 0).await.map(Some))
            }
            Step::Snapshot { snapshot, of } => (of, self.snapshot(snapshot, of).await.map(Some)),
            Step::DeleteSnapshot(snapshot) => {
                let id = self.snapshot_id(snapshot);
                (0, driver.delete_snapshot(&id).await.map(|()| None))
            }
            Step::Attach { volume, read_only } => {
                (volume, self.lives[volume].attach_as(driver, read_only).await.map(|()| None))
            }
            Step::Detach(volume) => (volume, self.lives[volume].detach(driver, NODE).await.map(|()| None)),
            Step::Stage(volume) => (volume, self.lives[volume].stage(driver).await.map(|()| None)),
            Step::Unstage(volume) => (volume, self.lives[volume].unstage(driver).await.map(|()| None)),
            Step::Publish { volume, target } => {
                let path = self.target(volume, target);
                (volume, self.lives[volume].publish_at(driver, &path, false).await.map(|()| None))
            }
            Step::Unpublish { volume, target } => {
                let path = self.target(volume, target);
                (volume, self.lives[volume].unpublish_at(driver, &path).await.map(|()| None))
            }
            Step::Write { volume, place, byte } => {
                self.write(volume, place, byte);
                (volume, Ok(None))
            }
            Step::Restart => (0, Ok(None)),
        };
        let said = answer.as_ref().err().map_or_else(String::new, |status| status.message().to_owned());
        (outcome(volume, answer, |size| *size), said)
    }

    fn request(&self, volume: usize, mib: u64, from: Option<From>) -> CreateVolumeRequest {
        let request = asks::volume(&self.names[volume], real_mib(volume, mib), capability(volume));
        match from {
            None => request,
            Some(From::Snapshot(snapshot)) => request.of_snapshot(&self.snapshot_id(snapshot)),
            Some(From::Volume(source)) => request.of_volume(&self.lives[source].id),
        }
    }

    /// Of one that is not there: an id that nothing ever had.
    fn snapshot_id(&self, snapshot: usize) -> String {
        let there = self.snapshots.get(&snapshot).filter(|_| self.plain.snapshots.contains_key(&snapshot));
        let volume = &self.lives[0].id;
        let absent = || format!("{}{}-{}", &volume[..volume.len() - 36], uuid::Uuid::nil(), "A".repeat(22));
        there.map_or_else(absent, Clone::clone)
    }

    async fn snapshot(&mut self, snapshot: usize, of: usize) -> Answer<i64> {
        let name = format!("{}-{snapshot}", self.prefix);
        let made = self.driver.snapshot(&name, &self.lives[of].id).await?;
        self.snapshots.insert(snapshot, made.snapshot_id);
        Ok(made.size_bytes)
    }

    fn target(&self, volume: usize, target: usize) -> PathBuf {
        self.lives[volume].target.with_file_name(format!("target-{target}"))
    }

    /// Where a pod sees the data of a published volume.
    fn place(&self, volume: usize) -> Option<PathBuf> {
        let target = *self.plain.volumes.get(&volume)?.targets.first()?;
        let path = self.target(volume, target);
        Some(if volume == FILESYSTEM { path.join("data") } else { path })
    }

    fn write(&self, volume: usize, place: u64, byte: u8) {
        let path = self.place(volume).expect("a published volume");
        let file = File::options().write(true).create(volume == FILESYSTEM).truncate(false).open(path);
        let file = file.expect("a place to write to");
        file.write_all_at(&[byte; SPOT], place * MIB).expect("written");
        file.sync_all().expect("written down");
    }

    /// Compares the size and each place of a published volume.
    async fn looked_at(&self, volume: usize) -> Result<(), String> {
        let (Some(there), Some(path)) = (self.plain.volumes.get(&volume), self.place(volume)) else {
            return Ok(());
        };
        if volume == FILESYSTEM {
            return compared(&path, &there.content, u64::from(!there.content.is_empty()));
        }
        let device = there.device.unwrap_or_default();
        let target = there.targets.first().copied().unwrap_or_default();
        let life = Life { target: self.target(volume, target), ..self.lives[volume].clone() };
        let shown = life.shown_size(&self.driver).await / MIB;
        if shown != device {
            return Err(format!("volume {volume} shows {shown} MiB, where {device} are right"));
        }
        compared(&path, &there.content, device)
    }

    /// Every volume and snapshot is looked at, and everything is taken down and away.
    pub(crate) async fn end(mut self) -> Result<(), String> {
        for volume in 0..VOLUMES {
            if self.plain.volumes.contains_key(&volume) {
                self.gone(volume).await?;
            }
        }
        for (snapshot, there) in self.plain.snapshots.clone() {
            let create =
                Step::Create { volume: there.of, mib: there.mib, from: Some(From::Snapshot(snapshot)) };
            self = self.step(&create).await?;
            self.gone(there.of).await?;
            self = self.step(&Step::DeleteSnapshot(snapshot)).await?;
        }
        let left = self.driver.list(0, "").await.expect("ListVolumes").entries.len();
        if left == 0 { Ok(()) } else { Err(format!("{left} volumes are listed")) }
    }

    /// Staged and published for a look, then taken down and deleted.
    async fn gone(&mut self, volume: usize) -> Result<(), String> {
        let mut steps: Vec<Step> =
            [0, 1].map(|target| Step::Unpublish { volume, target }).into_iter().collect();
        steps.extend([Step::Unstage(volume), Step::Stage(volume), Step::Publish { volume, target: 0 }]);
        steps.extend([Step::Unpublish { volume, target: 0 }, Step::Unstage(volume), Step::Detach(volume)]);
        steps.push(Step::Delete(volume));
        for step in steps {
            let (got, said) = self.done(&step).await;
            let expected = self.plain.step(&step);
            if got != expected {
                return Err(format!("{step:?}: {got:?} ({said}), where {expected:?} is right"));
            }
            if let Step::Publish { .. } = step {
                self.looked_at(volume).await?;
            }
        }
        self.lives[volume] = self.lives[volume].again(self.scene);
        Ok(())
    }
}

fn compared(path: &PathBuf, content: &Content, places: u64) -> Result<(), String> {
    if places == 0 {
        return if path.exists() { Err(format!("{} is there", path.display())) } else { Ok(()) };
    }
    let file = File::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
    for place in 0..places {
        let mut bytes = [0; SPOT];
        file.read_exact_at(&mut bytes, place * MIB)
            .map_err(|error| format!("place {place} of {}: {error}", path.display()))?;
        let expected = content.get(&place).copied().unwrap_or(0);
        if bytes != [expected; SPOT] {
            return Err(format!("place {place} holds {}, where {expected} is right", bytes[0]));
        }
    }
    Ok(())
}
