//! Where nodes are and which pool is reached from there: the labels of `--domainlabels` and `topologyConstrainedPools`.

use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use uuid::Uuid;

use crate::backend::{Image, Parameters, Places, Segments, is_in};
use crate::config::Label;
use crate::error::{Error, Result};
use crate::id::{Pool, VolumeId};
use crate::labels::NodeLabels;

use crate::backend::rbd::Rbd;
use crate::backend::rbd::cli::Cli;
use crate::backend::rbd::meta::{self, Meta};
use crate::backend::rbd::params::{Candidate, Candidates, Plan};
use crate::backend::rbd::volume::create::image_name;
use crate::backend::rbd::volume::id_object;

/// What the object of a claim is called before the uuid of the volume.
pub(crate) const PLACE: &str = "csi.rbd.place.";

/// The labels that tell where nodes are, as CSI has them: `topology.<driver>/<last part of the label>`.
pub(crate) struct Topology {
    prefix: String,
    names: Vec<String>,
    /// Of this one, where it is a node.
    node: Option<NodeLabels>,
}

impl Topology {
    pub(crate) fn new(driver: &str, labels: &[Label], node: Option<NodeLabels>) -> Self {
        let prefix = format!("topology.{}/", driver.to_lowercase());
        let names = labels.iter().map(|label| label.name().to_owned()).collect();
        Self { prefix, names, node }
    }

    /// The place of this node.
    pub(crate) async fn place(&self) -> Result<Option<Segments>> {
        let Some(node) = &self.node else { return Ok(None) };
        let segment = |(key, value): (String, String)| {
            let name = key.rsplit('/').next().unwrap_or_default();
            (format!("{}{name}", self.prefix), value)
        };
        Ok(Some(node.values().await?.into_iter().map(segment).collect()))
    }

    /// A domain that no node tells is a mistake in the StorageClass or in the flag: nothing would ever fit.
    fn check(&self, candidates: &Candidates) -> Result<()> {
        let unknown = candidates.domains().find(|name| !self.names.iter().any(|known| known == name));
        let Some(name) = unknown else { return Ok(()) };
        Err(Error::Precondition(format!(
            "StorageClass parameter topologyConstrainedPools: domainLabel {name:?} is none of {:?}, the last parts of \
             --domainlabels: mend one of the two",
            self.names
        )))
    }
}

/// That a volume is placed by nobody else, for a time: two replicas that prefer different pools would make it twice.
struct Claim {
    pool: String,
    object: String,
    since: Instant,
    lasts: Duration,
    /// Or of another replica, which may have been killed.
    ours: bool,
}

/// Where a volume is made.
#[derive(Default)]
pub(crate) struct Placed {
    /// Empty: reached from everywhere.
    pub(crate) reached_from: Vec<Segments>,
    claim: Option<Claim>,
    /// It was begun, or made, where this request cannot have it.
    misfit: Option<Error>,
}

impl Placed {
    /// With what the making came to. Only a whole volume can be refused for its place: its name leads to it.
    pub(crate) async fn made<T>(self, cli: &Cli<'_>, made: Result<T>) -> Result<T> {
        if let Some(claim) = &self.claim {
            claim.release(cli).await;
        }
        let made = made?;
        self.misfit.map_or(Ok(made), Err)
    }

    /// Asked before an image is made, when that comes late: its name may be somebody else's by now.
    pub(crate) fn still_ours(&self) -> Result<()> {
        self.claim.as_ref().map_or(Ok(()), Claim::still_ours)
    }
}

impl Claim {
    async fn get(cli: &Cli<'_>, pool: &str, uuid: Uuid) -> Result<Self> {
        let object = format!("{PLACE}{uuid}");
        let lasts = cli.deadline * 2;
        let since = Instant::now();
        let ours = cli.claim_for(pool, &object, lasts).await?;
        Ok(Self { pool: pool.to_owned(), object, since, lasts, ours })
    }

    fn busy(&self) -> Error {
        let lasts = humantime::format_duration(self.lasts);
        Error::Busy(format!(
            "{} in {}: the volume is being made by another replica, or one was killed meanwhile: ask again (it ends within {lasts})",
            self.object, self.pool
        ))
    }

    /// In its first half: the other one is for the command that makes the image.
    fn still_ours(&self) -> Result<()> {
        if self.since.elapsed() < self.lasts / 2 {
            return Ok(());
        }
        Err(Error::Busy("finding the pool of the volume has taken too long: ask again".to_owned()))
    }

    /// Later, it may be somebody else's. What is left then is an empty object, which the next one takes and removes.
    async fn release(&self, cli: &Cli<'_>) {
        if self.since.elapsed() < self.lasts
            && let Err(error) = cli.remove_object(&self.pool, &self.object).await
        {
            tracing::warn!("{} in {} is left and ends by itself: {error}", self.object, self.pool);
        }
    }
}

impl Rbd {
    /// Completes the plan with the pool where the volume is, whole or half-made, or else with the best of those that fit.
    pub(crate) async fn place_volume(
        &self,
        cli: &Cli<'_>,
        plan: &mut Plan,
        places: &Places,
        uuid: Uuid,
    ) -> Result<Placed> {
        let Some(candidates) = plan.candidates.take() else { return Ok(Placed::default()) };
        let topology = self.topology()?;
        topology.check(&candidates)?;
        let claim = match candidates.first() {
            Some(first) if candidates.pools().len() > 1 => {
                self.pools.id(cli, &first.pool).await?;
                Some(Claim::get(cli, &first.pool, uuid).await?)
            }
            _ => None,
        };
        let chosen = match self.choose(cli, plan, &candidates, places, uuid, claim.as_ref()).await {
            Ok(chosen) => chosen,
            Err(error) => {
                let claim = claim.filter(|claim| claim.ours);
                return Placed { claim, ..Placed::default() }.made(cli, Err(error)).await;
            }
        };
        let reached_from = candidates.reached_from(chosen, &topology.prefix);
        let misfit = misfit(&candidates, chosen, places, &topology.prefix);
        plan.labels.extend(meta::topology(&reached_from, uuid));
        settle(plan, chosen);
        Ok(Placed { reached_from, claim, misfit })
    }

    /// The pool and the data pool that a volume for this place would be made in. None: no pool is reached from there.
    pub(crate) fn pool_for(
        &self,
        parameters: &Parameters,
        place: Option<&Segments>,
    ) -> Result<Option<(String, Option<String>)>> {
        let (pool, data_pool) = (parameters.get("pool"), parameters.get("dataPool"));
        let Some(candidates) = Candidates::parse(parameters, pool, data_pool)? else {
            return Ok(pool.map(|pool| (pool.clone(), data_pool.cloned())));
        };
        let found = match place {
            Some(place) => candidates.at(place, &self.topology()?.prefix),
            None => candidates.first(),
        };
        Ok(found.map(|found| (found.pool.clone(), found.data_pool.clone())))
    }

    /// From where an image is reached, by what was noted when it was made; so too its snapshots, which are in its pool.
    /// Fails where that is not where it is wanted.
    pub(crate) fn reached_from(&self, meta: &Meta, uuid: Uuid, wanted: &Places) -> Result<Vec<Segments>> {
        let places = if self.topology.is_some() { meta::reached_from(meta, uuid) } else { Vec::new() };
        let serves = |wanted: &Segments| places.iter().any(|place| is_in(wanted, place));
        if places.is_empty() || wanted.requisite.is_empty() || wanted.requisite.iter().any(serves) {
            return Ok(places);
        }
        let (there, wanted) = (in_words(&places), in_words(&wanted.requisite));
        Err(Error::NoSpace(format!(
            "volume {uuid} is reached from {there}; its snapshot is wanted in {wanted}"
        )))
    }

    fn topology(&self) -> Result<&Topology> {
        self.topology.as_ref().ok_or_else(|| {
            Error::Precondition(
                "StorageClass parameter topologyConstrainedPools: this driver process knows no topology: give it \
                 --domainlabels, as the nodes have it"
                    .to_owned(),
            )
        })
    }

    /// Each pool is asked for the image before one is made: the order of wishes changes between two tries.
    async fn choose<'a>(
        &self,
        cli: &Cli<'_>,
        plan: &Plan,
        candidates: &'a Candidates,
        places: &Places,
        uuid: Uuid,
        claim: Option<&Claim>,
    ) -> Result<&'a Candidate> {
        let others = claim.filter(|claim| !claim.ours);
        let fitting = candidates.fitting(places, &self.topology()?.prefix);
        let holding = self.holding(cli, plan, &candidates.pools(), uuid).await?;
        let image = match (&holding[..], others) {
            ([], Some(claim)) => return Err(claim.busy()),
            ([], None) => return fitting.first().copied().ok_or_else(|| no_pool(candidates, places)),
            // What is whole is nobody's to make any more, whoever was killed after it.
            ([image], Some(claim)) if !is_whole(cli, image, uuid).await? => return Err(claim.busy()),
            ([image], _) => image,
            ([one, other, ..], _) => {
                return Err(Error::Precondition(format!(
                    "the volume is there twice, as {one} and as {other}: remove the one that no PersistentVolume names"
                )));
            }
        };
        let in_pool = candidates.of_pool(&image.pool);
        let best = fitting.into_iter().find(|candidate| in_pool.contains(candidate));
        let best = best.or(in_pool.first().copied());
        let alike = in_pool.iter().all(|other| Some(&other.data_pool) == best.map(|best| &best.data_pool));
        let info = if alike { None } else { cli.info(image).await? };
        let same = info.and_then(|info| in_pool.into_iter().find(|known| known.data_pool == info.data_pool));
        same.or(best).ok_or_else(|| Error::broken(format!("{image} is in no pool that was asked")))
    }

    /// The images of this volume, whole or not; one that is not made yet is found by its recorded name.
    async fn holding(&self, cli: &Cli<'_>, plan: &Plan, pools: &[&str], uuid: Uuid) -> Result<Vec<Image>> {
        let ask = async |pool: &&str| {
            let pool_id = Pool::Id(self.pools.id(cli, pool).await?);
            let id = VolumeId { cluster: plan.cluster.clone(), pool: pool_id, uuid };
            let image = cli.image(pool, &image_name(plan, &id));
            let made = cli.object_time(pool, &id_object(&image)).await?.is_some();
            let there = made || plan.prefix.is_some() && self.recorded_name(cli, pool, uuid).await?.is_some();
            Ok(there.then_some(image))
        };
        Ok(try_join_all(pools.iter().map(ask)).await?.into_iter().flatten().collect())
    }
}

async fn is_whole(cli: &Cli<'_>, image: &Image, uuid: Uuid) -> Result<bool> {
    let (info, meta) = tokio::try_join!(cli.info(image), cli.meta(image))?;
    Ok(info.zip(meta).is_some_and(|(info, meta)| {
        meta::created_by(&meta, uuid).is_some_and(|made| info.size >= made.size && made.is_of(&info.id))
    }))
}

/// The context names the pool that was chosen, as ceph-csi's does.
fn settle(plan: &mut Plan, chosen: &Candidate) {
    plan.pool.clone_from(&chosen.pool);
    plan.data_pool.clone_from(&chosen.data_pool);
    plan.context.insert("pool".to_owned(), chosen.pool.clone());
    match &chosen.data_pool {
        Some(pool) => plan.context.insert("dataPool".to_owned(), pool.clone()),
        None => plan.context.remove("dataPool"),
    };
}

/// RESOURCE_EXHAUSTED lets the CO try other places, among them the one where the volume is.
fn misfit(candidates: &Candidates, chosen: &Candidate, places: &Places, prefix: &str) -> Option<Error> {
    let fits = |other: &&Candidate| other.pool == chosen.pool && other.data_pool == chosen.data_pool;
    if places.is_empty() || candidates.fitting(places, prefix).iter().any(fits) {
        return None;
    }
    let (pool, wanted) = (&chosen.pool, wanted(places));
    let there = in_words(&candidates.reached_from(chosen, prefix));
    Some(Error::NoSpace(format!(
        "the volume exists already, in pool {pool:?}, which is reached from {there}; it is wanted in {wanted}"
    )))
}

fn no_pool(candidates: &Candidates, places: &Places) -> Error {
    let (pools, wanted) = (candidates.pools(), wanted(places));
    Error::NoSpace(format!(
        "none of the pools {pools:?} of topologyConstrainedPools is reached from {wanted}"
    ))
}

fn wanted(places: &Places) -> String {
    in_words(if places.requisite.is_empty() { &places.preferred } else { &places.requisite })
}

fn in_words(places: &[Segments]) -> String {
    let place = |segments: &Segments| {
        let labels: Vec<String> = segments.iter().map(|(key, value)| format!("{key}={value}")).collect();
        labels.join(",")
    };
    places.iter().map(place).collect::<Vec<_>>().join(" or ")
}
