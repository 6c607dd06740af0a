//! CreateVolume: an image made by one import; what is there under its name proved whole, or made again.

use std::time::Duration;

use uuid::Uuid;

use crate::backend::{CreateVolume, Image, Parameters, Volume};
use crate::error::{Error, Result, chain};
use crate::host::{CmdError, End};
use crate::id::{Pool, VolumeId, volume_uuid};

use crate::backend::rbd::ceph_csi::adopt::Earlier;
use crate::backend::rbd::ceph_csi::journal::Entry;
use crate::backend::rbd::cli::json::Info;
use crate::backend::rbd::cli::{self, Cli, errno};
use crate::backend::rbd::encryption::{Keyring, same_encryption};
use crate::backend::rbd::params::Plan;
use crate::backend::rbd::trash::tombstone::is_young;
use crate::backend::rbd::volume::id_object;
use crate::backend::rbd::volume::import;
use crate::backend::rbd::volume::placement::Placed;
use crate::backend::rbd::{DEFAULT_OBJECT_SIZE, GRANULE, Rbd, fits, meta};

/// Features that follow from other parameters (stripeUnit, dataPool), and from clones and deleted snapshots.
const IMPLIED: &[&str] = &["striping", "data-pool", "operations"];

/// What is to be made.
pub(crate) struct NewVolume<'a> {
    pub(crate) cli: &'a Cli<'a>,
    pub(crate) plan: &'a Plan,
    pub(crate) request: &'a CreateVolume,
    pub(crate) image: &'a Image,
    pub(crate) uuid: Uuid,
    pub(crate) placed: &'a Placed,
    /// Of a volume that is to be encrypted.
    pub(crate) keyring: Option<&'a Keyring>,
}

impl Rbd {
    pub(crate) async fn create_volume(&self, request: &CreateVolume) -> Result<Volume> {
        let mut plan = Plan::parse(request, &self.cluster_name)?;
        let access = self.clusters.access(&plan.cluster, &request.secrets)?;
        let cli = self.cli(&access);
        // What has no passphrase is refused before anything is asked of the cluster.
        let keyring = self.new_keyring(&plan, &request.secrets).await?;
        let uuid = volume_uuid(&self.instance, &plan.cluster, &request.name);
        let placed = self.place_volume(&cli, &mut plan, &request.places, uuid).await?;
        let reached_from = placed.reached_from.clone();
        let made = self.create_placed(&cli, &plan, request, uuid, &placed, keyring).await;
        let (id, image, size) = placed.made(&cli, made).await?;
        self.trash.take_up(&access, &plan.pool);
        let (context, source) = (volume_context(plan, &image), request.source.clone());
        Ok(Volume { id, size, context, source, reached_from })
    }

    async fn create_placed(
        &self,
        cli: &Cli<'_>,
        plan: &Plan,
        request: &CreateVolume,
        uuid: Uuid,
        placed: &Placed,
        keyring: Option<Keyring>,
    ) -> Result<(VolumeId, Image, u64)> {
        let pool = Pool::Id(self.pools.id(cli, &plan.pool).await?);
        let id = VolumeId { cluster: cli.access.cluster.clone(), pool, uuid };
        let image = cli.image(&plan.pool, &image_name(plan, &id));
        if let Some(Earlier { id, image, size }) = self.made_by_ceph_csi(cli, plan, request, &image).await? {
            return Ok((id, image, size));
        }
        if plan.prefix.is_some() {
            self.record_name(cli, &image, uuid, &request.name, plan.key_store.as_deref()).await?;
        }
        let keyring = keyring.map(|keyring| keyring.of(&id));
        let new = NewVolume { cli, plan, request, image: &image, uuid, placed, keyring: keyring.as_ref() };
        let made = match &request.source {
            None => self.make(&new).await,
            Some(source) => self.make_from(&new, source).await,
        };
        if plan.prefix.is_some() && made.as_ref().is_err_and(is_final) {
            self.forget_name_of(cli, &image, uuid).await?;
        }
        Ok((id, image, made?))
    }

    /// With a final answer nobody may ask for this name again: without an image it is of nothing.
    async fn forget_name_of(&self, cli: &Cli<'_>, image: &Image, uuid: Uuid) -> Result<()> {
        if cli.object_time(&image.pool, &id_object(image)).await.map_err(unfinished)?.is_some() {
            return Ok(());
        }
        self.forget_noted_name(cli, &image.pool, uuid).await.map_err(unfinished)?;
        self.forget(cli, &image.pool, Entry::Volume, uuid).await.map_err(unfinished)
    }

    /// One process in the common case. Where the name exists, what is there is proved whole or made again.
    async fn make(&self, new: &NewVolume<'_>) -> Result<u64> {
        let NewVolume { cli, plan, request, image, uuid, placed, keyring } = *new;
        let size = size(plan, request, plan.header())?;
        let shown = size - plan.header();
        let (qos, marker) = (plan.qos.records(shown)?, meta::created(uuid, size));
        let keys = match keyring {
            Some(keyring) => keyring.records(uuid).await?,
            None => Vec::new(),
        };
        let meta = plan
            .labels
            .iter()
            .chain(&qos)
            .chain(&keys)
            .chain([&marker])
            .map(|(key, value)| (key.as_str(), value.as_str()));
        let stream = import::empty_image(size, meta);
        for _ in 0..2 {
            placed.still_ours()?;
            match cli.import(image, import_options(plan), stream.clone()).await {
                Ok(true) => return Ok(shown),
                Ok(false) => {}
                Err(error) => return Err(self.creation_failed(cli, image, error).await),
            }
            if self.drop_old_name(cli, image).await.map_err(unfinished)? {
                continue;
            }
            match existing(new).await? {
                Some(size) => return Ok(size),
                None => self.discard_half_made(cli, image).await?,
            }
        }
        Err(Error::Busy(format!("image {image} was made anew by somebody else meanwhile: ask again")))
    }

    /// Any code but ABORTED and DEADLINE_EXCEEDED tells the provisioner that nothing exists: so look first.
    pub(crate) async fn creation_failed(&self, cli: &Cli<'_>, image: &Image, error: CmdError) -> Error {
        let what = format!("creating image {image}");
        let denied = matches!(error.exit(), Some(errno::PERM | errno::ACCES));
        let object = id_object(image);
        let gone = denied || matches!(cli.object_time(&image.pool, &object).await, Ok(None));
        match (gone, error.exit()) {
            (_, Some(errno::TIMEDOUT)) => cli::explain(&what, error),
            _ if matches!(error.end, End::Deadline(_)) => cli::explain(&what, error),
            (true, Some(errno::INVAL | errno::NOSYS)) => {
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
    pub(crate) async fn discard_half_made(&self, cli: &Cli<'_>, image: &Image) -> Result<()> {
        let object = id_object(image);
        let (watchers, made) = tokio::try_join!(cli.watchers(image), cli.object_time(&image.pool, &object))
            .map_err(unfinished)?;
        if let Some(watcher) = watchers.unwrap_or_default().first() {
            return Err(Error::Busy(format!(
                "image {image} is being made by {}: ask again",
                watcher.address
            )));
        }
        if made.is_some_and(|made| is_young(made, self.deadline)) {
            let wait = humantime::format_duration(Duration::from_secs(self.deadline.as_secs()));
            return Err(Error::Busy(format!(
                "image {image} is half-made and younger than {wait}: ask again"
            )));
        }
        // Never handed out, so never written to. Where it was, somebody has taken our marker away.
        if !untouched(cli, image).await.map_err(unfinished)? {
            return Err(Error::Precondition(format!(
                "image {image} holds data, but not the mark of a volume that this driver made: it is left alone; look at it"
            )));
        }
        tracing::warn!(%image, "an earlier, interrupted command left this image half-made: it is made again");
        self.trash.discard(cli, image, None).await.map(drop).map_err(unfinished)
    }
}

/// Whether nothing was ever written to the image itself, or it cannot be opened.
pub(crate) async fn untouched(cli: &Cli<'_>, image: &Image) -> Result<bool> {
    match cli.info(image).await? {
        None => Ok(true),
        Some(info) if info.parent.is_some() => Ok(cli.own_bytes(image).await? == 0),
        Some(_) => cli.is_empty(image).await,
    }
}

/// What a pod sees of a whole image that is what the request asks for; None when only half of one is there.
async fn existing(new: &NewVolume<'_>) -> Result<Option<u64>> {
    let NewVolume { cli, image, uuid, .. } = *new;
    let (info, meta) = tokio::try_join!(cli.info(image), cli.meta(image)).map_err(unfinished)?;
    let Some((info, meta)) = info.zip(meta) else { return Ok(None) };
    let made = meta::created_by(&meta, uuid).filter(|made| info.size >= made.size && made.is_of(&info.id));
    if info.parent.is_some() || made.as_ref().is_some_and(|made| made.source.is_some()) {
        return differs(new, "made from a snapshot or a volume, where an empty one is asked for");
    }
    let Some(made) = made else { return Ok(None) };
    let header = meta::header(&meta);
    let (size, first) = (info.size.saturating_sub(header), made.size.saturating_sub(header));
    same_encryption(new, &meta, true)?;
    if !new.request.size.admits(size) {
        let asked = &new.request.size;
        return differs(new, &format!("with {size} bytes (made with {first}), where {asked} are asked for"));
    }
    agrees(new, &info)?;
    if let Some(what) = new.plan.qos.differs_from(&meta) {
        return differs(new, &what);
    }
    if let Some(keyring) = new.keyring {
        keyring.open(&meta).await?;
    }
    Ok(Some(size))
}

/// Upon any other one the provisioner asks again.
fn is_final(error: &Error) -> bool {
    !matches!(error, Error::Busy(_) | Error::TimedOut(_))
}

/// ALREADY_EXISTS: the image is whole, and not what is asked for.
pub(crate) fn differs<T>(new: &NewVolume<'_>, what: &str) -> Result<T> {
    let NewVolume { request, image, .. } = new;
    Err(Error::Conflict(format!("volume {:?} exists as image {image}, {what}", request.name)))
}

/// Refuses a whole image with other features or another data pool than the request asks for.
pub(crate) fn agrees(new: &NewVolume<'_>, info: &Info) -> Result<()> {
    let plan = new.plan;
    let mut features: Vec<&String> =
        info.features.iter().filter(|name| !IMPLIED.contains(&name.as_str())).collect();
    let mut asked: Vec<&String> = plan.features.iter().collect();
    features.sort();
    asked.sort();
    if features != asked {
        return differs(new, &format!("with features {features:?} where {asked:?} are asked for"));
    }
    if info.data_pool != plan.data_pool {
        let (has, asked) = (&info.data_pool, &plan.data_pool);
        return differs(new, &format!("with data pool {has:?} where {asked:?} is asked for"));
    }
    Ok(())
}

/// Of the image of an empty volume, or of one that is larger than its source. `header`: bytes in it that no pod sees.
pub(crate) fn size(plan: &Plan, request: &CreateVolume, header: u64) -> Result<u64> {
    let shown = request.size.choose(GRANULE)?;
    // What cannot be is refused before anything is made.
    plan.qos.records(shown)?;
    fits(shown.saturating_add(header), plan.object_size.unwrap_or(DEFAULT_OBJECT_SIZE))
}

pub(crate) fn image_name(plan: &Plan, id: &VolumeId) -> String {
    plan.prefix.as_ref().map_or_else(|| id.default_image(), |prefix| format!("{prefix}{}", id.uuid))
}

pub(crate) fn import_options(plan: &Plan) -> Vec<String> {
    let mut options: Vec<String> =
        plan.features.iter().map(|feature| format!("--image-feature={feature}")).collect();
    options.extend(plan.data_pool.iter().map(|pool| format!("--data-pool={pool}")));
    options.extend(plan.object_size.iter().map(|size| format!("--object-size={size}")));
    if let Some((unit, count)) = plan.striping {
        options.extend([format!("--stripe-unit={unit}"), format!("--stripe-count={count}")]);
    }
    options
}

fn volume_context(plan: Plan, image: &Image) -> Parameters {
    let mut context = plan.context;
    context.insert("journalPool".to_owned(), plan.pool);
    context.insert("pool".to_owned(), image.pool.clone());
    context.insert("imageName".to_owned(), image.name.clone());
    if !image.namespace.is_empty() {
        context.insert("radosNamespace".to_owned(), image.namespace.clone());
    }
    context
}

/// A failure while an image of ours may be there, half-made: never a final code, or the provisioner forgets it.
pub(crate) fn unfinished(error: Error) -> Error {
    match error {
        Error::Busy(_) | Error::TimedOut(_) => error,
        other => Error::Busy(format!(
            "{}; an image is there, perhaps half-made: asking again finishes it",
            chain(&other)
        )),
    }
}
