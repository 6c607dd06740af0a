//! What is found of volumes that are to go back to ceph-csi, told to a person: a line for each, then a sum. Pure.

use std::fmt;

use crate::backend::Image;

use crate::backend::rbd::cli::json::Info;

/// All pools that were looked at.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) found: Vec<Found>,
    /// Or only looked at.
    pub(crate) written: bool,
}

/// One image.
#[derive(Debug)]
pub(crate) struct Found {
    image: Image,
    /// Of the request that made it, where anything tells.
    name: Option<String>,
    state: State,
    /// Keys of the journal that were not there.
    pub(crate) missing: usize,
    notes: Vec<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// A volume of this driver, which ceph-csi can have.
    Ready,
    /// A volume that ceph-csi made.
    CephCsi,
    /// What ceph-csi cannot have, and why.
    Stays(String),
    /// In the trash, on its way out. Its id.
    Deleted(String),
}

impl State {
    pub(crate) fn snapshots(names: &[String]) -> Self {
        Self::Stays(format!(
            "it has snapshots of this driver, which ceph-csi can neither restore nor delete: {}: delete their \
             VolumeSnapshots first ({} without one: rbd snap rm)",
            names.join(", "),
            "csi-clone-…"
        ))
    }

    pub(crate) fn differs(object: &str, key: &str, said: &str, right: &str) -> Self {
        Self::Stays(format!(
            "the journal says otherwise, and is left as it is: {key} of {object} is {said:?}, where {right:?} is right: \
             look who wrote it (rados listomapvals {object})"
        ))
    }
}

impl Found {
    pub(crate) fn of_a_volume(image: Image, name: Option<String>, info: &Info) -> Self {
        let mut notes = Vec::new();
        if name.is_none() {
            notes.push(
                "its name is not known (see --names): by its id ceph-csi uses, grows, copies and deletes it; only a \
                 CreateVolume repeated by its name would make a second volume"
                    .to_owned(),
            );
        }
        if let Some(parent) = &info.parent {
            notes.push(format!("it shares data with {}/{}, its source", parent.pool, parent.image));
        }
        Self { image, name, state: State::Ready, missing: 0, notes }
    }

    /// Or half of one of this driver's, which nobody was ever given.
    pub(crate) fn of_ceph_csi(image: Image, half_made: bool, snapshots: &[String]) -> Self {
        let state = match (half_made, snapshots) {
            (true, _) => State::Stays(
                "it is no whole volume: a command that made or deleted it was killed: let this driver repeat the \
                 CreateVolume or DeleteVolume"
                    .to_owned(),
            ),
            (false, []) => State::CephCsi,
            (false, names) => State::snapshots(names),
        };
        Self { state, ..Self::plain(image) }
    }

    pub(crate) fn tombstone(image: Image, snapshots: &[String]) -> Self {
        let why = format!(
            "it is what is left of a deleted volume, for the sake of its snapshots: {}: delete their VolumeSnapshots first",
            snapshots.join(", ")
        );
        Self { state: State::Stays(why), ..Self::plain(image) }
    }

    pub(crate) fn deleted(image: Image, id: String) -> Self {
        Self { state: State::Deleted(id), ..Self::plain(image) }
    }

    pub(crate) fn with(self, state: State) -> Self {
        Self { state, ..self }
    }

    fn plain(image: Image) -> Self {
        Self { image, name: None, state: State::CephCsi, missing: 0, notes: Vec::new() }
    }

    fn stays(&self) -> bool {
        matches!(self.state, State::Stays(_))
    }
}

impl Report {
    /// Whether ceph-csi can have all that there is.
    pub(crate) fn is_fine(&self) -> bool {
        !self.found.iter().any(Found::stays)
    }

    fn count(&self, is: impl Fn(&Found) -> bool) -> usize {
        self.found.iter().filter(|found| is(found)).count()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for found in self.found.iter().filter(|found| found.state != State::CephCsi) {
            let Found { image, name, .. } = found;
            write!(f, "{image} {}: ", name.as_deref().unwrap_or("-"))?;
            match (&found.state, found.missing) {
                (State::Stays(why), _) => writeln!(f, "cannot go back: {why}")?,
                (State::Deleted(id), _) => writeln!(
                    f,
                    "deleted, and in the trash, which this driver empties when no clone shares its data any more; ceph-csi \
                     does not: remove it then by hand (rbd trash rm, image id {id})"
                )?,
                (_, 0) => writeln!(f, "ready")?,
                (_, keys) if self.written => writeln!(f, "ready, {keys} keys written")?,
                (_, keys) => writeln!(f, "{keys} keys to write")?,
            }
            found.notes.iter().try_for_each(|note| writeln!(f, "    note: {note}"))?;
        }
        let (ready, stay) = (self.count(|found| found.state == State::Ready), self.count(Found::stays));
        let own = self.count(|found| found.state == State::CephCsi);
        let lack = self.count(|found| found.missing > 0);
        let lack = match (self.written, lack) {
            (true, _) | (_, 0) => String::new(),
            (false, lack) => format!(" ({lack} lack keys: --write writes them)"),
        };
        writeln!(
            f,
            "{ready} volumes of this driver can go back{lack}, {stay} images cannot; {own} are ceph-csi's own"
        )
    }
}
