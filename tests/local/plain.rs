//! The driver as a few maps in memory: what each call has to answer, and what a volume then holds.

use std::collections::{BTreeMap, BTreeSet};

use tonic::Code;

pub(crate) const VOLUMES: usize = 4;
/// The last volume has a filesystem.
pub(crate) const FILESYSTEM: usize = VOLUMES - 1;
pub(crate) const SNAPSHOTS: usize = 3;

/// What a CO does; volumes, snapshots and targets by number, sizes in MiB.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Create { volume: usize, mib: u64, from: Option<From> },
    Delete(usize),
    Expand(usize, u64),
    NodeExpand(usize),
    Snapshot { snapshot: usize, of: usize },
    DeleteSnapshot(usize),
    Attach { volume: usize, read_only: bool },
    Detach(usize),
    Stage(usize),
    Unstage(usize),
    Publish { volume: usize, target: usize },
    Unpublish { volume: usize, target: usize },
    Write { volume: usize, place: u64, byte: u8 },
    Restart,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum From {
    Snapshot(usize),
    Volume(usize),
}

/// A volume's origin, as its id tells it: a snapshot's tells its source too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    Snapshot { snapshot: usize, of: usize },
    Volume(usize),
}

/// The byte that fills a place: the first 4 KiB of a MiB, or the one file of a filesystem.
pub(crate) type Content = BTreeMap<u64, u8>;

#[derive(Debug, Clone, Default)]
pub(crate) struct Volume {
    pub(crate) mib: u64,
    origin: Option<Origin>,
    pub(crate) content: Content,
    attached: Option<bool>,
    /// Staged: the size that its device has.
    pub(crate) device: Option<u64>,
    pub(crate) targets: BTreeSet<usize>,
}

#[derive(Debug, Clone)]
pub(crate) struct Snapshot {
    pub(crate) mib: u64,
    pub(crate) of: usize,
    pub(crate) content: Content,
}

#[derive(Debug, Default)]
pub(crate) struct Plain {
    /// Whether what is in use as a block device can be copied.
    pub(crate) reflinks: bool,
    pub(crate) volumes: BTreeMap<usize, Volume>,
    pub(crate) snapshots: BTreeMap<usize, Snapshot>,
}

/// A size, where the call answers one.
pub(crate) type Outcome = Result<Option<u64>, Code>;

/// The mode of volume 0 allows several targets.
pub(crate) fn many_targets(volume: usize) -> bool {
    volume == 0
}

impl Plain {
    /// Does it; answers what the driver has to answer.
    pub(crate) fn step(&mut self, step: &Step) -> Outcome {
        match *step {
            Step::Create { volume, mib, from } => self.create(volume, mib, from),
            Step::Delete(volume) => self.delete(volume),
            Step::Expand(volume, mib) => {
                let volume = self.volumes.get_mut(&volume).ok_or(Code::NotFound)?;
                volume.mib = volume.mib.max(mib);
                Ok(Some(volume.mib))
            }
            Step::NodeExpand(volume) => self.node_expand(volume),
            Step::Snapshot { snapshot, of } => self.snapshot(snapshot, of),
            Step::DeleteSnapshot(snapshot) => {
                self.snapshots.remove(&snapshot);
                Ok(None)
            }
            Step::Attach { volume, read_only } => self.attach(volume, read_only),
            Step::Detach(volume) => self.detach(volume),
            Step::Stage(volume) => {
                let volume = self.volumes.get_mut(&volume).ok_or(Code::NotFound)?;
                volume.device = volume.device.or(Some(volume.mib));
                Ok(None)
            }
            Step::Unstage(volume) => self.unstage(volume),
            Step::Publish { volume, target } => self.publish(volume, target),
            Step::Unpublish { volume, target } => {
                if let Some(volume) = self.volumes.get_mut(&volume) {
                    volume.targets.remove(&target);
                }
                Ok(None)
            }
            Step::Write { volume, place, byte } => {
                if let Some(volume) = self.volumes.get_mut(&volume) {
                    volume.content.insert(place, byte);
                }
                Ok(None)
            }
            Step::Restart => Ok(None),
        }
    }

    pub(crate) fn is_attached(&self, volume: usize) -> bool {
        self.volumes.get(&volume).is_some_and(|volume| volume.attached.is_some())
    }

    fn create(&mut self, volume: usize, mib: u64, from: Option<From>) -> Outcome {
        let origin = from.map(|from| match from {
            // The id of a snapshot that is not there (any more) is one that no volume was made from.
            From::Snapshot(snapshot) => {
                let of = self.snapshots.get(&snapshot).map_or(VOLUMES, |snapshot| snapshot.of);
                Origin::Snapshot { snapshot, of }
            }
            From::Volume(volume) => Origin::Volume(volume),
        });
        if let Some(there) = self.volumes.get(&volume) {
            let same = mib <= there.mib && origin == there.origin;
            return if same { Ok(Some(there.mib)) } else { Err(Code::AlreadyExists) };
        }
        let (least, content) = match from {
            None => (mib, Content::new()),
            Some(From::Snapshot(snapshot)) => {
                let from = self.snapshots.get(&snapshot).ok_or(Code::NotFound)?;
                (from.mib, from.content.clone())
            }
            Some(From::Volume(source)) => self.copied(source)?,
        };
        let made = Volume { mib: mib.max(least), origin, content, ..Volume::default() };
        let size = made.mib;
        self.volumes.insert(volume, made);
        Ok(Some(size))
    }

    /// The size and the content of a copy made now.
    fn copied(&self, source: usize) -> Result<(u64, Content), Code> {
        let from = self.volumes.get(&source).ok_or(Code::NotFound)?;
        if from.device.is_some() && source != FILESYSTEM && !self.reflinks {
            return Err(Code::FailedPrecondition);
        }
        Ok((from.mib, from.content.clone()))
    }

    fn delete(&mut self, volume: usize) -> Outcome {
        let used = |volume: &Volume| volume.attached.is_some() || volume.device.is_some();
        if self.volumes.get(&volume).is_some_and(used) {
            return Err(Code::FailedPrecondition);
        }
        self.volumes.remove(&volume);
        Ok(None)
    }

    fn node_expand(&mut self, volume: usize) -> Outcome {
        let volume = self.volumes.get_mut(&volume).filter(|volume| volume.device.is_some());
        let volume = volume.ok_or(Code::NotFound)?;
        volume.device = Some(volume.mib);
        Ok(Some(volume.mib))
    }

    fn snapshot(&mut self, snapshot: usize, of: usize) -> Outcome {
        if let Some(there) = self.snapshots.get(&snapshot) {
            return if there.of == of { Ok(Some(there.mib)) } else { Err(Code::AlreadyExists) };
        }
        let (mib, content) = self.copied(of)?;
        self.snapshots.insert(snapshot, Snapshot { mib, of, content });
        Ok(Some(mib))
    }

    fn attach(&mut self, volume: usize, read_only: bool) -> Outcome {
        let volume = self.volumes.get_mut(&volume).ok_or(Code::NotFound)?;
        match volume.attached {
            Some(there) if there != read_only => Err(Code::AlreadyExists),
            _ => {
                volume.attached = Some(read_only);
                Ok(None)
            }
        }
    }

    fn detach(&mut self, volume: usize) -> Outcome {
        let Some(volume) = self.volumes.get_mut(&volume) else { return Ok(None) };
        if volume.attached.is_some() && volume.device.is_some() {
            return Err(Code::FailedPrecondition);
        }
        volume.attached = None;
        Ok(None)
    }

    fn unstage(&mut self, volume: usize) -> Outcome {
        let Some(volume) = self.volumes.get_mut(&volume) else { return Ok(None) };
        if !volume.targets.is_empty() {
            return Err(Code::FailedPrecondition);
        }
        volume.device = None;
        Ok(None)
    }

    fn publish(&mut self, volume: usize, target: usize) -> Outcome {
        let many = many_targets(volume);
        let volume = self.volumes.get_mut(&volume).filter(|volume| volume.device.is_some());
        let volume = volume.ok_or(Code::FailedPrecondition)?;
        let elsewhere = volume.targets.iter().any(|there| *there != target);
        if elsewhere && !many && !volume.targets.contains(&target) {
            return Err(Code::FailedPrecondition);
        }
        volume.targets.insert(target);
        Ok(None)
    }
}
