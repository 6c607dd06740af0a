//! Volumes as RBD images: what is made, when an image counts as whole, what may be deleted, who may write.

mod attach;
mod cli;
mod delete;
mod expand;
mod find;
mod json;
mod meta;
mod params;
mod pools;
mod publish;
mod stream;
mod trash;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use uuid::Uuid;

use crate::backend::{
    Attach, Attached, Backend, Capability, CreateVolume, FormatMark, Image, Offer, Publish, SizeRange,
    Target, Volume,
};
use crate::cluster::{Access, Clusters, Secrets};
use crate::error::{Error, Result, chain};
use crate::host::{CmdError, End, Host};
use crate::id::{Pool, VolumeId, volume_uuid};
use crate::ops::Ops;

use cli::{Cli, errno};
use find::{id_object, not_found};
use json::Watcher;
use params::Plan;
use pools::Pools;
use trash::Trash;

/// Image sizes are whole MiB, as ceph-csi's are.
const GRANULE: u64 = 1 << 20;
/// librbd's object map counts at most so many objects.
const MAX_OBJECTS: u64 = 256_000_000;
/// How often watchers are looked at before they are believed.
const LOOKS: u32 = 3;
const LOOK_AGAIN: Duration = Duration::from_millis(700);
const DEFAULT_OBJECT_SIZE: u64 = 4 << 20;

pub(crate) struct Rbd {
    host: Arc<dyn Host>,
    clusters: Clusters,
    instance: String,
    cluster_name: String,
    deadline: Duration,
    pools: Pools,
    trash: Arc<Trash>,
    /// /sys/bus/rbd/devices
    sysfs: PathBuf,
}

impl Rbd {
    /// `deadline`: `--command-timeout`.
    pub(crate) fn new(
        host: Arc<dyn Host>,
        clusters: Clusters,
        instance: String,
        cluster_name: String,
        deadline: Duration,
        ops: Ops,
    ) -> Self {
        let trash = Arc::new(Trash::new(host.clone(), &instance, deadline, ops));
        let (pools, sysfs) = (Pools::default(), PathBuf::from("/sys/bus/rbd/devices"));
        Self { host, clusters, instance, cluster_name, deadline, pools, trash, sysfs }
    }

    fn cli<'a>(&'a self, access: &'a Access) -> Cli<'a> {
        Cli { host: self.host.as_ref(), access, deadline: self.deadline }
    }
}

#[async_trait]
impl Backend for Rbd {
    fn offers(&self) -> &'static [Offer] {
        &[Offer::Expansion]
    }

    fn volume_uuid(&self, request: &CreateVolume) -> Result<Uuid> {
        let plan = Plan::parse(request, &self.cluster_name)?;
        size(&plan, request)?;
        Ok(volume_uuid(&self.instance, &plan.cluster, &request.name))
    }

    async fn create(&self, request: &CreateVolume) -> Result<Volume> {
        let plan = Plan::parse(request, &self.cluster_name)?;
        let access = self.clusters.access(&plan.cluster, &request.secrets)?;
        let cli = self.cli(&access);
        let uuid = volume_uuid(&self.instance, &plan.cluster, &request.name);
        let id = VolumeId {
            cluster: plan.cluster.clone(),
            pool: Pool::Id(self.pools.id(&cli, &plan.pool).await?),
            uuid,
        };
        let image = cli.image(&plan.pool, &image_name(&plan, &id));
        if plan.prefix.is_some() {
            self.record_name(&cli, &image, uuid, &request.name).await?;
        }
        let size = self.make(&cli, &plan, request, &image, uuid).await?;
        self.trash.take_up(&access, &plan.pool);
        Ok(Volume { id, size, context: volume_context(plan, &image), source: None })
    }

    async fn refusal(&self, id: &VolumeId, _: &[Capability], secrets: &Secrets) -> Result<Option<String>> {
        if secrets.is_empty() {
            // csc and older COs send none with ValidateVolumeCapabilities: then the id is judged by its form alone.
            return Ok(None);
        }
        let access = self.clusters.access(&id.cluster, secrets)?;
        let found = self.find_meta(&self.cli(&access), id).await?;
        found.map(|_| None).ok_or_else(|| not_found(id, &id.default_image()))
    }

    async fn delete(&self, id: &VolumeId, secrets: &Secrets) -> Result<()> {
        self.delete_volume(id, secrets).await
    }

    async fn expand(&self, id: &VolumeId, size: SizeRange, secrets: &Secrets) -> Result<u64> {
        self.expand_volume(id, size, secrets).await
    }

    async fn publish(&self, request: &Publish) -> Result<()> {
        self.publish_volume(request).await
    }

    async fn unpublish(&self, id: &VolumeId, node: Option<&str>, secrets: &Secrets) -> Result<()> {
        self.unpublish_volume(id, node, secrets).await
    }

    async fn locate(&self, target: &Target) -> Result<Image> {
        self.locate_image(target).await
    }

    async fn attach(&self, request: &Attach) -> Result<Attached> {
        self.attach_image(request).await
    }

    async fn detach(&self, image: &Image, _: Option<&Path>) -> Result<()> {
        self.detach_image(image).await
    }

    async fn attached(&self, volume: &str) -> Result<Vec<Image>> {
        self.attached_images(volume).await
    }

    async fn refresh(&self, image: &Image) -> Result<u64> {
        self.refresh_image(image).await
    }

    async fn is_empty(&self, request: &Attach) -> Result<bool> {
        let access = self.target_access(&request.target)?;
        self.cli(&access).is_empty(&request.image).await
    }

    async fn mark_format(&self, request: &Attach, mark: &FormatMark) -> Result<()> {
        let id = VolumeId::parse(&request.target.volume)?;
        let access = self.target_access(&request.target)?;
        let cli = self.cli(&access);
        match meta::format_value(mark, id.uuid) {
            Some(value) => cli.set_meta(&request.image, meta::FORMAT, &value).await,
            None => cli.remove_meta(&request.image, meta::FORMAT).await,
        }
    }
}

impl Rbd {
    /// One process in the common case. Where the name exists, what is there is proved whole or made again.
    async fn make(
        &self,
        cli: &Cli<'_>,
        plan: &Plan,
        request: &CreateVolume,
        image: &Image,
        uuid: Uuid,
    ) -> Result<u64> {
        let size = size(plan, request)?;
        let marker = meta::created(uuid, size);
        let meta = plan.labels.iter().chain([&marker]).map(|(key, value)| (key.as_str(), value.as_str()));
        let stream = stream::empty_image(size, meta);
        for _ in 0..2 {
            match cli.import(image, import_options(plan), stream.clone()).await {
                Ok(true) => return Ok(size),
                Ok(false) => {}
                Err(error) => return Err(self.import_failed(cli, image, error).await),
            }
            match self.existing(cli, plan, request, image, uuid).await? {
                Some(size) => return Ok(size),
                None => self.discard_half_made(cli, image).await?,
            }
        }
        Err(Error::Busy(format!("image {image} was made anew by somebody else meanwhile: ask again")))
    }

    /// The size of a whole image that is what the request asks for; None when only half of one is there.
    async fn existing(
        &self,
        cli: &Cli<'_>,
        plan: &Plan,
        request: &CreateVolume,
        image: &Image,
        uuid: Uuid,
    ) -> Result<Option<u64>> {
        let (info, meta) = tokio::try_join!(cli.info(image), cli.meta(image)).map_err(unfinished)?;
        let Some((info, meta)) = info.zip(meta) else { return Ok(None) };
        let Some(made) = meta::created_size(&meta, uuid).filter(|made| info.size >= *made) else {
            return Ok(None);
        };
        let differs = |what: String| {
            Err(Error::Conflict(format!("volume {:?} exists as image {image}, {what}", request.name)))
        };
        if !request.size.admits(info.size) {
            return differs(format!(
                "with {} bytes (made with {made}), where {} are asked for",
                info.size, request.size
            ));
        }
        let mut features: Vec<&String> =
            info.features.iter().filter(|name| !IMPLIED.contains(&name.as_str())).collect();
        let mut asked: Vec<&String> = plan.features.iter().collect();
        features.sort();
        asked.sort();
        if features != asked {
            return differs(format!("with features {features:?} where {asked:?} are asked for"));
        }
        if info.data_pool != plan.data_pool {
            return differs(format!(
                "with data pool {:?} where {:?} is asked for",
                info.data_pool, plan.data_pool
            ));
        }
        Ok(Some(info.size))
    }

    /// Any code but ABORTED and DEADLINE_EXCEEDED tells the provisioner that nothing exists: so look first.
    async fn import_failed(&self, cli: &Cli<'_>, image: &Image, error: CmdError) -> Error {
        let what = format!("creating image {image}");
        let denied = matches!(error.exit(), Some(errno::PERM | errno::ACCES));
        let object = id_object(image);
        let gone = denied || matches!(cli.object_time(&image.pool, &object).await, Ok(None));
        match (gone, error.exit()) {
            (_, Some(errno::TIMEDOUT)) => cli::explain(&what, error),
            _ if matches!(error.end, End::Deadline(_)) => cli::explain(&what, error),
            (true, Some(errno::INVAL)) => {
                Error::Invalid(format!("{what}: {error}: the parameters do not fit together"))
            }
            (true, Some(errno::NOENT)) => Error::Precondition(format!(
                "{what}: {error}: create the pool, the data pool or the namespace first"
            )),
            (true, Some(_)) => cli::explain(&what, error),
            _ => Error::Busy(format!("{what}: {error}; it may be half-made, and asking again finishes it")),
        }
    }

    /// What a killed command left under our name was never handed out. But it may be at work still, in a twin: one
    /// that is watched, or younger than any command can be, is left alone.
    async fn discard_half_made(&self, cli: &Cli<'_>, image: &Image) -> Result<()> {
        let object = id_object(image);
        let (watchers, made) = tokio::try_join!(cli.watchers(image), cli.object_time(&image.pool, &object))
            .map_err(unfinished)?;
        if let Some(watcher) = watchers.unwrap_or_default().first() {
            return Err(Error::Busy(format!(
                "image {image} is being made by {}: ask again",
                watcher.address
            )));
        }
        let age = made.map(|made| SystemTime::now().duration_since(made).unwrap_or_default());
        if age.is_some_and(|age| age < self.deadline) {
            let wait = humantime::format_duration(Duration::from_secs(self.deadline.as_secs()));
            return Err(Error::Busy(format!(
                "image {image} is half-made and younger than {wait}: ask again"
            )));
        }
        // Never handed out, so never written to. Where it was, somebody has taken our marker away.
        let opens = cli.info(image).await.map_err(unfinished)?.is_some();
        if opens && !cli.is_empty(image).await.map_err(unfinished)? {
            return Err(Error::Precondition(format!(
                "image {image} holds data, but not the mark of a volume that this driver made: it is left alone; look at it"
            )));
        }
        tracing::warn!(%image, "an earlier, interrupted command left this image half-made: it is made again");
        self.trash.discard(cli, image, None).await.map(drop).map_err(unfinished)
    }
}

fn size(plan: &Plan, request: &CreateVolume) -> Result<u64> {
    fits(request.size.choose(GRANULE)?, plan.object_size.unwrap_or(DEFAULT_OBJECT_SIZE))
}

/// The size, where an image whose objects have so many bytes can have it.
fn fits(size: u64, object_size: u64) -> Result<u64> {
    let most = object_size.saturating_mul(MAX_OBJECTS);
    if size > most {
        return Err(Error::OutOfRange(format!(
            "{size} bytes: an image of this object size holds at most {most}"
        )));
    }
    Ok(size)
}

/// Features that follow from other parameters (stripeUnit, dataPool).
const IMPLIED: &[&str] = &["striping", "data-pool"];

/// Looks at the watchers until they are `fine`, a few times: every command that opens an image for writing (also
/// `rbd image-meta list`) watches it for a moment. None where there is no such image.
async fn settled_watchers(
    cli: &Cli<'_>,
    image: &Image,
    fine: impl Fn(&[Watcher]) -> bool,
) -> Result<Option<Vec<Watcher>>> {
    let mut watchers = cli.watchers(image).await?;
    for _ in 1..LOOKS {
        if watchers.as_deref().is_none_or(&fine) {
            break;
        }
        tokio::time::sleep(LOOK_AGAIN).await;
        watchers = cli.watchers(image).await?;
    }
    Ok(watchers)
}

fn image_name(plan: &Plan, id: &VolumeId) -> String {
    plan.prefix.as_ref().map_or_else(|| id.default_image(), |prefix| format!("{prefix}{}", id.uuid))
}

fn import_options(plan: &Plan) -> Vec<String> {
    let mut options: Vec<String> =
        plan.features.iter().map(|feature| format!("--image-feature={feature}")).collect();
    options.extend(plan.data_pool.iter().map(|pool| format!("--data-pool={pool}")));
    options.extend(plan.object_size.iter().map(|size| format!("--object-size={size}")));
    if let Some((unit, count)) = plan.striping {
        options.extend([format!("--stripe-unit={unit}"), format!("--stripe-count={count}")]);
    }
    options
}

fn volume_context(plan: Plan, image: &Image) -> super::Parameters {
    let mut context = plan.context;
    context.insert("journalPool".to_owned(), image.pool.clone());
    context.insert("imageName".to_owned(), image.name.clone());
    if !image.namespace.is_empty() {
        context.insert("radosNamespace".to_owned(), image.namespace.clone());
    }
    context
}

/// A failure while an image of ours may be there, half-made: never a final code, or the provisioner forgets it.
fn unfinished(error: Error) -> Error {
    match error {
        Error::Busy(_) | Error::TimedOut(_) => error,
        other => Error::Busy(format!(
            "{}; an image is there, perhaps half-made: asking again finishes it",
            chain(&other)
        )),
    }
}
