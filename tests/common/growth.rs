//! Expansion: its calls, what a volume shows of it, and what holds for every backend.

use std::path::Path;

use tonic::Code;

use super::client::Client;
use super::csi::{CapacityRange, ControllerExpandVolumeRequest, NodeExpandVolumeRequest};
use super::driver::Driver;
use super::life::{Life, MIB};
use super::tools::{Answer, check, twice};

/// What volumes grow to.
pub(crate) const SIZE: i64 = 512 << 20;

/// Bytes that are no zeros and differ with the seed.
pub(crate) fn pattern(mib: u64, seed: u8) -> Vec<u8> {
    (0..mib * MIB).map(|at| (at % 241) as u8 ^ seed | 1).collect()
}

impl Client {
    /// The new size, and whether the node has work left.
    pub(crate) async fn ask_to_expand(&self, request: ControllerExpandVolumeRequest) -> Answer<(i64, bool)> {
        let answer = self.controller().controller_expand_volume(request).await?.into_inner();
        Ok((answer.capacity_bytes, answer.node_expansion_required))
    }
}

impl Life {
    pub(crate) fn expansion(&self, required_bytes: i64, limit_bytes: i64) -> ControllerExpandVolumeRequest {
        ControllerExpandVolumeRequest {
            volume_id: self.id.clone(),
            capacity_range: Some(CapacityRange { required_bytes, limit_bytes }),
            secrets: self.secrets.clone(),
            ..Default::default()
        }
    }

    /// ControllerExpandVolume without a limit.
    pub(crate) async fn expand(&self, driver: &Client, bytes: i64) -> Answer<(i64, bool)> {
        self.expand_within(driver, bytes, 0).await
    }

    pub(crate) async fn expand_within(&self, driver: &Client, bytes: i64, limit: i64) -> Answer<(i64, bool)> {
        driver.ask_to_expand(self.expansion(bytes, limit)).await
    }

    /// NodeExpandVolume at one of its paths.
    pub(crate) async fn expand_at(&self, driver: &Client, path: &Path, bytes: i64) -> Answer<i64> {
        let request = NodeExpandVolumeRequest {
            volume_id: self.id.clone(),
            volume_path: path.display().to_string(),
            capacity_range: Some(CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
            staging_target_path: self.staging.display().to_string(),
            volume_capability: Some(self.capability.clone()),
            secrets: self.secrets.clone(),
        };
        Ok(driver.node().node_expand_volume(request).await?.into_inner().capacity_bytes)
    }

    /// Bytes of the published device, or of the filesystem.
    pub(crate) async fn shown_size(&self, driver: &Driver) -> u64 {
        let usage = self.stats(driver, &self.target).await.expect("NodeGetVolumeStats").usage;
        u64::try_from(usage[0].total).expect("a size")
    }

    /// Up, so much of its data read, and down again.
    pub(crate) async fn content(&self, driver: &Driver, length: usize) -> Vec<u8> {
        self.up(driver).await;
        let bytes = self.read(length);
        self.down(driver).await;
        bytes
    }

    /// Up, written to, and down again.
    pub(crate) async fn filled(self, driver: &Driver, bytes: &[u8]) -> Self {
        self.up(driver).await;
        self.write(bytes).expect("a pod writes");
        self.down(driver).await;
        self
    }
}

/// What holds for a small volume that is nowhere in use; it is down again afterwards.
impl Life {
    /// Answers whether it was seen to grow before the node was asked.
    pub(crate) async fn grows_while_it_is_used(&self, driver: &Driver) -> bool {
        self.up(driver).await;
        let data = pattern(2, 1);
        self.write(&data).expect("a pod writes");
        let before = self.shown_size(driver).await;
        assert_eq!(twice(|| self.expand(driver, SIZE)).await, (SIZE, true));
        let seen = self.shown_size(driver).await != before;
        assert_eq!(twice(|| self.expand_at(driver, &self.target, SIZE)).await, SIZE);
        self.assert_stats(driver, SIZE.unsigned_abs()).await;
        assert!(self.read(data.len()) == data);
        self.down(driver).await;
        assert!(self.content(driver, data.len()).await == data);
        seen
    }

    /// csi-sanity and older COs name the published path alone; kubelet also expands what is only staged. For xfs.
    pub(crate) async fn grows_at_either_path(&self, driver: &Driver) {
        self.stage(driver).await.expect("NodeStageVolume");
        self.expand(driver, SIZE).await.expect("ControllerExpandVolume");
        assert_eq!(self.expand_at(driver, &self.staging, SIZE).await.expect("at its staging path"), SIZE);
        self.publish(driver).await.expect("NodePublishVolume");
        assert!(self.shown_size(driver).await > 400 * MIB);
        self.expand(driver, 2 * SIZE).await.expect("ControllerExpandVolume");
        let pathless = Self { staging: "".into(), ..self.clone() };
        assert_eq!(pathless.expand_at(driver, &self.target, 0).await.expect("at its target path"), 2 * SIZE);
        assert!(self.shown_size(driver).await > 900 * MIB);
        self.down(driver).await;
    }

    /// Some kernels let only a mightier process grow a mounted ext4: then it grows at the next stage.
    pub(crate) async fn has_its_new_size_after_the_next_stage(&self, driver: &Driver) {
        let data = pattern(2, 2);
        self.up(driver).await;
        self.write(&data).expect("a pod writes");
        self.expand(driver, SIZE).await.expect("ControllerExpandVolume");
        let online = self.expand_at(driver, &self.target, SIZE).await;
        assert!(self.read(data.len()) == data);
        self.write(&data).expect("it can still be written");
        match online {
            Ok(size) => assert!(size == SIZE && self.shown_size(driver).await > 400 * MIB),
            refused => check(refused, Code::FailedPrecondition, "staged again"),
        }
        self.down(driver).await;
        self.up(driver).await;
        self.assert_stats(driver, SIZE.unsigned_abs()).await;
        assert_eq!(self.expand_at(driver, &self.target, SIZE).await.expect("nothing is left to do"), SIZE);
        assert!(self.read(data.len()) == data);
        self.down(driver).await;
    }

    /// Grown while it was nowhere in use: `data` was written before.
    pub(crate) async fn shows_what_it_grew_to(&self, driver: &Driver, data: &[u8]) {
        self.up(driver).await;
        self.assert_stats(driver, SIZE.unsigned_abs()).await;
        assert!(self.read(data.len()) == data);
        self.down(driver).await;
    }
}
