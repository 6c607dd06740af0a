//! Proves that nobody else writes to an image, before and after it is mapped, and records who does.

use crate::backend::{Attach, Mode};
use crate::error::{Error, Result};
use crate::id::VolumeId;

use crate::backend::rbd::Rbd;
use crate::backend::rbd::attach::replay::Purpose;
use crate::backend::rbd::cli::Cli;
use crate::backend::rbd::cli::json::{Device, Watcher};
use crate::backend::rbd::meta::{self, Meta};
use crate::backend::rbd::params::mapping::Wanted;
use crate::backend::rbd::watchers::settled_watchers;

/// Two maps of one image on two nodes both succeed, and the filesystem is destroyed.
pub(super) struct Writer<'a> {
    pub(super) rbd: &'a Rbd,
    pub(super) cli: &'a Cli<'a>,
    pub(super) request: &'a Attach,
    pub(super) meta: &'a Meta,
    pub(super) purpose: Purpose,
    /// Watchers that rbd-mirror may hold.
    pub(super) mirrors: usize,
    /// The device is to get a new daemon: the client recorded for this node is dead.
    pub(super) anew: bool,
    /// A LUKS header is to be made: however many may write later, who makes it is alone.
    pub(super) unmade: bool,
}

impl Writer<'_> {
    pub(super) async fn alone_before(&self, local: Option<&str>) -> Result<()> {
        if self.shared() {
            return Ok(());
        }
        let kernel = local.and_then(|device| self.rbd.client_address(device));
        let others = |watchers: &[Watcher]| -> Vec<Watcher> {
            let own = match (local, kernel.as_deref().or_else(|| self.recorded()), watchers) {
                (Some(_), Some(address), _) => Some(address),
                // Mapped here, and one client holds it: that is this node's.
                (Some(_), None, [only]) => Some(only.address.as_str()),
                _ => None,
            };
            watchers.iter().filter(|watcher| Some(watcher.address.as_str()) != own).cloned().collect()
        };
        let watchers = self.watchers(|watchers| self.nobody(&others(watchers))).await?;
        let others = others(&watchers);
        if self.nobody(&others) {
            return Ok(());
        }
        let clients = meta::clients(self.meta, &self.request.target.volume);
        let (image, named) = (&self.request.image, meta::named(&clients, &others));
        Err(if self.purpose == Purpose::Replay {
            Error::Busy(format!("image {image} is made ready to be read, or written, by {named}: ask again"))
        } else {
            Error::Precondition(format!(
                "image {image} is in use by {named}: it has to be unstaged there first; where that node is dead, its \
                 watch ends by itself after 30 s"
            ))
        })
    }

    /// mkfs, fsck and mount come only after this second look. It also records who the writer is.
    pub(super) async fn alone_after(&self, device: &str, before: Option<&[Watcher]>) -> Result<()> {
        let known = self.rbd.client_address(device);
        if self.shared() {
            return match (known, before) {
                (Some(address), _) => self.record(&address).await,
                (None, Some(before)) => self.record_newcomer(before).await,
                (None, None) => Ok(()),
            };
        }
        // Nobody watched before, so the only one now is us.
        let own = |watchers: &[Watcher]| {
            known.clone().or_else(|| watchers.first().map(|watcher| watcher.address.clone()))
        };
        let alone = |watchers: &[Watcher]| {
            let own = own(watchers)?;
            // A device whose client does not watch this image shows another one: of another cluster, by the same name.
            let (ours, others): (Vec<_>, Vec<_>) =
                watchers.iter().cloned().partition(|watcher| watcher.address == own);
            (!ours.is_empty() && self.nobody(&others)).then_some(own)
        };
        let watchers = self.watchers(|watchers| alone(watchers).is_some()).await?;
        match alone(&watchers) {
            Some(own) => self.record(&own).await,
            None => Err(Error::Busy(format!(
                "image {} on {device} is not this node's alone (watched by {}): ask again",
                self.request.image,
                watchers.iter().map(|watcher| watcher.address.as_str()).collect::<Vec<_>>().join(", ")
            ))),
        }
    }

    /// Who watches an image of several writers before rbd-nbd maps it here: nothing on this node tells that one's address.
    pub(super) async fn seen_before(
        &self,
        wanted: &Wanted,
        local: Option<&Device>,
    ) -> Result<Option<Vec<Watcher>>> {
        let asked = self.shared() && self.purpose == Purpose::Write && local.is_none();
        if asked && (wanted.nbd || wanted.fall_back) {
            return self.watchers(|_| true).await.map(Some);
        }
        Ok(None)
    }

    async fn record_newcomer(&self, before: &[Watcher]) -> Result<()> {
        let Attach { image, target, node, .. } = self.request;
        let meta = self.cli.meta(image).await?.unwrap_or_default();
        let others = meta::clients(&meta, &target.volume).into_iter().filter(|(other, _)| other != node);
        let known: Vec<&str> =
            others.map(|(_, address)| address).chain(before.iter().map(|old| old.address.as_str())).collect();
        let new = |watchers: &[Watcher]| -> Vec<Watcher> {
            watchers.iter().filter(|watcher| !known.contains(&watcher.address.as_str())).cloned().collect()
        };
        let watchers = self.watchers(|watchers| new(watchers).len() == 1).await?;
        if let [own] = new(&watchers).as_slice() {
            return self.record(&own.address).await;
        }
        tracing::warn!(%image, "several clients came at once: which is this node's is not recorded, so it is never fenced");
        Ok(())
    }

    /// Written only where it changes: one monitor commit less on a repeated call.
    async fn record(&self, address: &str) -> Result<()> {
        if self.recorded() == Some(address) {
            return Ok(());
        }
        let key = meta::client_key(&self.request.target.volume, &self.request.node);
        self.cli.set_meta(&self.request.image, &key, address).await
    }

    fn recorded(&self) -> Option<&str> {
        let key = meta::client_key(&self.request.target.volume, &self.request.node);
        self.meta.get(&key).map(String::as_str)
    }

    async fn watchers(&self, fine: impl Fn(&[Watcher]) -> bool) -> Result<Vec<Watcher>> {
        let image = &self.request.image;
        let living = |watchers: &[Watcher]| -> Vec<Watcher> {
            let dead = self.recorded().filter(|_| self.anew);
            watchers.iter().filter(|watcher| dead != Some(&watcher.address)).cloned().collect()
        };
        let watchers = settled_watchers(self.cli, image, |watchers| fine(&living(watchers))).await?;
        let watchers = watchers.ok_or_else(|| Error::NotFound(format!("image {image} does not exist")))?;
        Ok(living(&watchers))
    }

    fn nobody(&self, others: &[Watcher]) -> bool {
        let clients = meta::clients(self.meta, &self.request.target.volume);
        meta::only_mirrors(&clients, others, self.mirrors)
    }

    /// Several nodes may hold it: the CO's users agree among themselves who writes.
    fn shared(&self) -> bool {
        match self.purpose {
            Purpose::Read => true,
            Purpose::Replay => false,
            Purpose::Write => {
                let many =
                    matches!(self.request.mode, Mode::MultiNodeMultiWriter | Mode::MultiNodeSingleWriter)
                        || (self.anew && self.was_given_to_many());
                many && !self.unmade
            }
        }
    }

    /// Who begins a daemon anew may not be told the access mode.
    fn was_given_to_many(&self) -> bool {
        let Ok(id) = VolumeId::parse(&self.request.target.volume) else { return false };
        let records = meta::published(self.meta, id.uuid);
        records.iter().any(|record| record.node == self.request.node && record.multi_node)
    }
}
