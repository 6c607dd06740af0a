//! ControllerUnpublishVolume of a node that still holds the image: refused, or, with `--enable-fencing`, the client of that
//! node is shut out of the cluster. By the address and nonce that the node recorded at stage, never by guess: another
//! client behind the same IP may be anybody's.

use crate::backend::Image;
use crate::error::{Error, Result};
use crate::id::VolumeId;

use crate::backend::rbd::Rbd;
use crate::backend::rbd::cli::Cli;
use crate::backend::rbd::cli::json::Watcher;
use crate::backend::rbd::meta::{self, Meta, Published};
use crate::backend::rbd::watchers::{LOOKS, settled_watchers, watchers_after};

/// Looks at the watchers before a client is shut out: the unmap of a healthy node may lag, and its other volumes are at stake.
const PATIENT_LOOKS: u32 = 10;

pub(crate) struct Fencing {
    /// Of this process, where it serves a node too.
    pub(crate) own_node: Option<String>,
}

/// A node and the client that it recorded.
type Client<'a> = (&'a str, &'a str);

impl Rbd {
    /// Proves that no client of this node (None: of any) holds the image.
    pub(crate) async fn prove_released(
        &self,
        cli: &Cli<'_>,
        image: &Image,
        id: &VolumeId,
        meta: &Meta,
        node: Option<&str>,
    ) -> Result<()> {
        let (volume, of_node) = (id.to_string(), |other: &str| node.is_none_or(|node| node == other));
        let recorded = meta::clients(meta, &volume);
        let clients: Vec<Client> = recorded.iter().filter(|(node, _)| of_node(node)).copied().collect();
        if clients.is_empty() {
            let alone = |record: &Published| of_node(&record.node) && !record.multi_node;
            let given = meta::published(meta, id.uuid).iter().any(alone);
            return if given { self.prove_unwatched(cli, image, id, &recorded).await } else { Ok(()) };
        }
        let looks = if self.fencing.is_some() { PATIENT_LOOKS } else { LOOKS };
        let watching = watching(looks, cli, image, &clients).await?;
        let Some(fencing) = &self.fencing else { return refused(id, watching.first()) };
        let own = |(node, _): &&Client| fencing.own_node.as_deref() == Some(*node);
        refused(id, watching.iter().find(own))?;
        // Who is cut off loses its watch after 30 s, but not its lock, and writes when it comes back.
        let owners = cli.lock_owners(image).await?.unwrap_or_default();
        let owns = |client: &&Client| !own(client) && owners.iter().any(|owner| owner == client.1);
        let held = clients.iter().filter(|client| watching.contains(client) || owns(client));
        for (node, address) in held {
            blocklist(cli, id, node, address).await?;
        }
        if watching.is_empty() {
            return Ok(());
        }
        match self::watching(LOOKS, cli, image, &clients).await?.first() {
            None => Ok(()),
            Some((node, address)) => Err(Error::Busy(format!(
                "volume {id}: the client {address} of node {node:?} is on the blocklist, and its watch has not ended yet: ask again"
            ))),
        }
    }

    /// The node was given the volume alone and has recorded no client: who holds the image may be it, and may be somebody else.
    async fn prove_unwatched(
        &self,
        cli: &Cli<'_>,
        image: &Image,
        id: &VolumeId,
        recorded: &[Client<'_>],
    ) -> Result<()> {
        let mirrors = self.mirrors(cli, image).await?;
        let unknown = |watchers: &[Watcher]| -> Vec<Watcher> {
            let known = |watcher: &Watcher| recorded.iter().any(|(_, address)| *address == watcher.address);
            watchers.iter().filter(|watcher| !known(watcher)).cloned().collect()
        };
        let fine = |watchers: &[Watcher]| unknown(watchers).len() <= mirrors;
        let watchers = settled_watchers(cli, image, fine).await?.unwrap_or_default();
        if fine(&watchers) {
            return Ok(());
        }
        Err(Error::Precondition(format!(
            "volume {id}: image {image} is in use by {}, of which no node's record tells whose it is: unmap it there; where its node is dead, its watch ends by itself after 30 s",
            meta::named(&[], &unknown(&watchers))
        )))
    }
}

/// Those of the clients that watch the image, after so many looks.
async fn watching<'a>(
    looks: u32,
    cli: &Cli<'_>,
    image: &Image,
    clients: &[Client<'a>],
) -> Result<Vec<Client<'a>>> {
    let held = |watchers: &[Watcher]| -> Vec<Client<'a>> {
        let watches = |client: &&Client| watchers.iter().any(|watcher| watcher.address == client.1);
        clients.iter().filter(watches).copied().collect()
    };
    let watchers = watchers_after(looks, cli, image, |watchers| held(watchers).is_empty()).await?;
    Ok(held(&watchers.unwrap_or_default()))
}

fn refused(id: &VolumeId, holder: Option<&Client>) -> Result<()> {
    match holder {
        None => Ok(()),
        Some((node, address)) => Err(Error::Precondition(format!(
            "volume {id} is still mapped on node {node:?} (client {address}): unstage it there, or shut the node down"
        ))),
    }
}

async fn blocklist(cli: &Cli<'_>, id: &VolumeId, node: &str, address: &str) -> Result<()> {
    if !names_one_client(address) {
        return Err(Error::Precondition(format!(
            "volume {id}: the client {address:?} of node {node:?} has no nonce, and an IP alone is never put on the blocklist: shut the node down"
        )));
    }
    cli.blocklist(address).await?;
    tracing::warn!(volume = %id, node, address, "this client still held the volume: it is on the cluster's blocklist now");
    Ok(())
}

/// `ip:port/nonce`. Ceph takes a nonce of 0 for all clients of the address.
fn names_one_client(address: &str) -> bool {
    let nonce = address.rsplit_once('/').and_then(|(_, nonce)| nonce.parse::<u64>().ok());
    nonce.is_some_and(|nonce| nonce > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ip_is_no_client() {
        for address in ["10.0.0.1", "10.0.0.1:0", "10.0.0.0/0", "10.0.0.1:0/0", "10.0.0.1:0/x", ""] {
            assert!(!names_one_client(address), "{address}");
        }
        for address in ["10.0.0.1:0/7", "[fd00::1]:0/3734294264", "v1:10.0.0.1:6801/18446744073709551615"] {
            assert!(names_one_client(address), "{address}");
        }
    }
}
