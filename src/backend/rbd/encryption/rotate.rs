//! A new key in the place of the one in force. The header of each snapshot opens with the key of its time: so no key goes while
//! there are snapshots, those in the trash of the image included.

use crate::backend::{Image, Target};
use crate::error::{Error, Result};
use crate::keys::Passphrase;

use crate::backend::rbd::Rbd;
use crate::backend::rbd::meta::{self, DEK};

impl Rbd {
    /// Makes a key current that opens the header already; the one before stays next to it, and is to be taken from the header
    /// behind this. Cut off at any instant, the image has a key that opens its header and each of its snapshots.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "the node's part, which changes the header, comes next")
    )]
    pub(crate) async fn rotate_key(&self, target: &Target, image: &Image, key: &Passphrase) -> Result<()> {
        let access = self.target_access(target)?;
        let cli = self.cli(&access);
        let meta =
            cli.meta(image).await?.ok_or_else(|| Error::NotFound(format!("image {image} does not exist")))?;
        let keyring = self.keyring_of(&cli, target, &image.pool, &meta).await?;
        let mut older: Vec<_> =
            meta::keys(&meta).into_iter().map(|key| key.name).filter(|name| name != DEK).collect();
        let current = meta::keys(&meta).into_iter().find(|key| key.name == DEK).map(|key| key.sealed);
        if keyring.store.open(&keyring.volume, current.as_deref()).await.ok().as_ref() != Some(key) {
            let sealed = keyring.store.seal(&keyring.volume, key).await?.ok_or_else(|| {
                Error::Precondition(format!(
                    "volume {:?} is of a key store that keeps no key for each volume: there is none to be changed",
                    target.volume
                ))
            })?;
            if let Some(current) = current {
                older.push(meta::next_older(&meta));
                cli.set_meta(image, &meta::next_older(&meta), &current).await?;
            }
            cli.set_meta(image, DEK, &sealed).await?;
        }
        // Asked when the new key is in force: a snapshot that comes now has it in its header.
        if !cli.snapshots(image).await?.unwrap_or_default().is_empty() {
            return Ok(());
        }
        for name in older {
            cli.remove_meta(image, &name).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::Path;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use async_trait::async_trait;

    use super::*;
    use crate::backend::rbd::meta::Meta;
    use crate::cluster::{Clusters, Secrets};
    use crate::config::Kubernetes;
    use crate::host::{Cmd, CmdError, Host, Mount, MountCall, Output};
    use crate::keys::KeyStores;
    use crate::ops::Ops;

    const VOLUME: &str = "0001-0001-c-0000000000000001-50d53503-e5e8-51e9-a0e9-0242ac110002";

    /// An image with this metadata, with or without a snapshot.
    struct OneImage {
        meta: Mutex<Meta>,
        snapshots: &'static str,
        /// Keys that were written, in order.
        written: Mutex<Vec<String>>,
    }

    #[async_trait]
    impl Host for OneImage {
        async fn run(&self, cmd: Cmd) -> Result<Output, CmdError> {
            let words: Vec<&str> = cmd.args.iter().map(String::as_str).collect();
            let mut meta = self.meta.lock().expect("the metadata");
            let stdout = match words[..] {
                ["image-meta", "list", ..] => serde_json::to_string(&*meta).expect("JSON"),
                ["image-meta", "set", _, key, .., value] => {
                    meta.insert(key.to_owned(), value.to_owned());
                    self.written.lock().expect("the list").push(key.to_owned());
                    String::new()
                }
                ["image-meta", "remove", _, key, ..] => {
                    meta.remove(key).map(|_| String::new()).unwrap_or_default()
                }
                ["snap", "ls", ..] => self.snapshots.to_owned(),
                _ => panic!("{words:?}"),
            };
            Ok(Output { stdout: stdout.into_bytes(), stderr: Vec::new() })
        }

        fn mounts(&self) -> Result<Vec<Mount>> {
            Ok(Vec::new())
        }

        async fn mount(&self, _: MountCall) -> io::Result<()> {
            Ok(())
        }

        async fn unmount(&self, _: &Path) -> io::Result<()> {
            Ok(())
        }
    }

    /// The keys that open the image, newest first, when it was given these, and what was written for it.
    async fn rotated(
        store: &str,
        snapshots: &'static str,
        new: &[&str],
    ) -> Result<(Vec<String>, Vec<String>)> {
        let folder = tempfile::tempdir().expect("a folder");
        let (clusters, stores) = (folder.path().join("c.json"), folder.path().join("k.json"));
        std::fs::write(&clusters, r#"[{"clusterID":"c","monitors":["m"]}]"#).expect("written");
        std::fs::write(&stores, r#"{"meta":{"KMS_PROVIDER":"metadata"}}"#).expect("written");
        let meta = Meta::from([(meta::ENCRYPTED.to_owned(), meta::MADE.to_owned())]);
        let host = Arc::new(OneImage { meta: Mutex::new(meta), snapshots, written: Mutex::default() });
        let nowhere = Kubernetes { host: String::new(), port: 0, account: "/nowhere".into() };
        let stores = KeyStores::new(stores, nowhere);
        let (deadline, ops) = (Duration::from_secs(60), Ops::default());
        let name = || "default".to_owned();
        let rbd =
            Rbd::new(host.clone(), Clusters::new(clusters), stores, name(), String::new(), deadline, ops);
        let pairs =
            |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let secrets = [("userID", "u"), ("userKey", "c2VjcmV0"), ("encryptionPassphrase", "p")];
        let context = pairs(&[("encrypted", "true"), ("encryptionKMSID", store)]);
        let target = Target { volume: VOLUME.to_owned(), context, secrets: Secrets::new(pairs(&secrets)) };
        let image = Image { pool: "p".to_owned(), namespace: String::new(), name: "i".to_owned() };
        for key in new {
            rbd.rotate_key(&target, &image, &Passphrase::new(key.as_bytes().to_vec())).await?;
        }
        let access = rbd.target_access(&target)?;
        let meta = host.meta.lock().expect("the metadata").clone();
        let keys = rbd.keyring_of(&rbd.cli(&access), &target, "p", &meta).await?.open(&meta).await?;
        let keys = keys.iter().map(|key| String::from_utf8_lossy(key.bytes()).into_owned());
        Ok((keys.collect(), host.written.lock().expect("the list").clone()))
    }

    #[tokio::test]
    async fn no_key_goes_while_there_are_snapshots() {
        let trashed = r#"[{"id":4,"name":"s","size":1,"namespace":{"type":"trash","original_name":"s"}}]"#;
        let (keys, written) =
            rotated("meta", trashed, &["one", "two", "two", "three"]).await.expect("rotated");
        assert_eq!(keys, ["three", "two", "one"]);
        // The one that is in force is kept before another takes its place.
        assert_eq!(written, [DEK, "rbd.csi.ceph.com/dek/1", DEK, "rbd.csi.ceph.com/dek/2", DEK]);
        assert_eq!(rotated("meta", "[]", &["one", "two", "three"]).await.expect("rotated").0, ["three"]);
    }

    #[tokio::test]
    async fn a_store_without_keys_of_volumes_has_none_to_change() {
        let error = rotated("", "[]", &["one"]).await.expect_err("refused").to_string();
        assert!(error.contains("key of its own"), "{error}");
    }
}
