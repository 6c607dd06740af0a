//! One random request of one of the calls.

use prost::Message;
use tonic::{Response, Status};

use crate::common::client::Client;
use crate::common::csi::{
    ControllerExpandVolumeRequest, ControllerGetVolumeHealthRequest, ControllerGetVolumeRequest,
    ControllerListVolumeHealthRequest, ControllerModifyVolumeRequest, ControllerPublishVolumeRequest,
    ControllerUnpublishVolumeRequest, CreateSnapshotRequest, CreateVolumeRequest, DeleteSnapshotRequest,
    DeleteVolumeRequest, GetCapacityRequest, GetMetadataAllocatedRequest, GetMetadataDeltaRequest,
    GetPluginInfoRequest, GetSnapshotRequest, ListSnapshotsRequest, ListVolumesRequest,
    NodeExpandVolumeRequest, NodeGetInfoRequest, NodeGetStorageHealthRequest, NodeGetVolumeHealthRequest,
    NodeGetVolumeStatsRequest, NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest,
    NodeUnstageVolumeRequest, ProbeRequest, Topology, ValidateVolumeCapabilitiesRequest,
};
use crate::common::life::Map;

use super::{Asked, World, died};

/// Asks a service, and says what was asked by the bytes of the request: they name it whole, and `secrets` are a test's own.
macro_rules! ask {
    ($service:expr, $method:ident, $request:expr) => {{
        let request = $request;
        let text = String::from_utf8_lossy(&request.encode_to_vec()).chars().take(2000).collect();
        (stringify!($method), text, $service.$method(request).await)
    }};
}

type Told<T> = (&'static str, String, Result<Response<T>, Status>);

pub(super) async fn one(world: &mut World, driver: &Client) -> Asked {
    match world.dice.below(100) {
        0..12 => create(world, driver).await,
        12..16 => asked(delete(world, driver).await),
        16..26 => attach(world, driver).await,
        26..45 => stage(world, driver).await,
        45..58 => publish(world, driver).await,
        58..66 => take_down(world, driver).await,
        66..72 => snapshot(world, driver).await,
        72..81 => grow(world, driver).await,
        81..90 => look_at_a_node(world, driver).await,
        _ => look(world, driver).await,
    }
}

fn asked<T>((call, request, answer): Told<T>) -> Asked {
    Asked { call, request, answer: answer.map(drop) }
}

async fn create(world: &mut World, driver: &Client) -> Asked {
    let name = world.name("pvc");
    let request = CreateVolumeRequest {
        capacity_range: world.range(),
        volume_capabilities: world.capability(&name).into_iter().collect(),
        name,
        parameters: world.parameters(),
        secrets: world.secrets(),
        volume_content_source: world.source(),
        accessibility_requirements: world.places(),
        mutable_parameters: if world.good() { Map::new() } else { world.parameters() },
    };
    let told = ask!(driver.controller(), create_volume, request.clone());
    if told.2.as_ref().err().is_some_and(died) {
        world.unanswered.push(request);
    }
    if let Ok(answer) = &told.2 {
        let id = answer.get_ref().volume.as_ref().map(|volume| volume.volume_id.clone());
        world.volumes.extend(id.filter(|id| !world.volumes.contains(id)));
    }
    asked(told)
}

async fn delete(world: &mut World, driver: &Client) -> Told<crate::common::csi::DeleteVolumeResponse> {
    let request = DeleteVolumeRequest { volume_id: world.volume_id(), secrets: world.secrets() };
    ask!(driver.controller(), delete_volume, request)
}

async fn attach(world: &mut World, driver: &Client) -> Asked {
    let volume_id = world.volume_id();
    if world.dice.chance(70) {
        let request = ControllerPublishVolumeRequest {
            volume_capability: world.capability(&volume_id),
            volume_id,
            node_id: world.node(),
            readonly: !world.good(),
            secrets: world.secrets(),
            volume_context: world.parameters(),
        };
        return asked(ask!(driver.controller(), controller_publish_volume, request));
    }
    let request =
        ControllerUnpublishVolumeRequest { volume_id, node_id: world.node(), secrets: world.secrets() };
    asked(ask!(driver.controller(), controller_unpublish_volume, request))
}

async fn stage(world: &mut World, driver: &Client) -> Asked {
    let volume_id = world.volume_id();
    let request = NodeStageVolumeRequest {
        staging_target_path: world.staging(&volume_id),
        volume_capability: world.capability(&volume_id),
        volume_id,
        publish_context: if world.good() { Map::new() } else { world.parameters() },
        secrets: world.secrets(),
        volume_context: world.parameters(),
    };
    asked(ask!(driver.node(), node_stage_volume, request))
}

async fn publish(world: &mut World, driver: &Client) -> Asked {
    let volume_id = world.volume_id();
    let request = NodePublishVolumeRequest {
        staging_target_path: world.staging(&volume_id),
        target_path: world.target(&volume_id),
        volume_capability: world.capability(&volume_id),
        volume_id,
        publish_context: Map::new(),
        readonly: !world.good(),
        secrets: Map::new(),
        volume_context: world.parameters(),
    };
    asked(ask!(driver.node(), node_publish_volume, request))
}

async fn take_down(world: &mut World, driver: &Client) -> Asked {
    let volume_id = world.volume_id();
    if world.dice.chance(60) {
        let request = NodeUnpublishVolumeRequest { target_path: world.target(&volume_id), volume_id };
        return asked(ask!(driver.node(), node_unpublish_volume, request));
    }
    let request = NodeUnstageVolumeRequest { staging_target_path: world.staging(&volume_id), volume_id };
    asked(ask!(driver.node(), node_unstage_volume, request))
}

async fn snapshot(world: &mut World, driver: &Client) -> Asked {
    if world.dice.chance(30) {
        let request = DeleteSnapshotRequest { snapshot_id: world.snapshot_id(), secrets: world.secrets() };
        return asked(ask!(driver.controller(), delete_snapshot, request));
    }
    let request = CreateSnapshotRequest {
        source_volume_id: world.volume_id(),
        name: world.name("snap"),
        secrets: world.secrets(),
        parameters: if world.good() { Map::new() } else { world.parameters() },
        accessibility_requirements: world.places(),
    };
    let told = ask!(driver.controller(), create_snapshot, request);
    if let Ok(answer) = &told.2 {
        let id = answer.get_ref().snapshot.as_ref().map(|snapshot| snapshot.snapshot_id.clone());
        world.snapshots.extend(id.filter(|id| !world.snapshots.contains(id)));
    }
    asked(told)
}

async fn grow(world: &mut World, driver: &Client) -> Asked {
    let volume_id = world.volume_id();
    match world.dice.below(4) {
        0 => {
            let mutable_parameters = world.parameters();
            let request =
                ControllerModifyVolumeRequest { volume_id, secrets: world.secrets(), mutable_parameters };
            asked(ask!(driver.controller(), controller_modify_volume, request))
        }
        1 => {
            let request = NodeExpandVolumeRequest {
                volume_path: world.target(&volume_id),
                capacity_range: world.range(),
                staging_target_path: world.staging(&volume_id),
                volume_capability: world.capability(&volume_id),
                secrets: world.secrets(),
                volume_id,
            };
            asked(ask!(driver.node(), node_expand_volume, request))
        }
        _ => {
            let request = ControllerExpandVolumeRequest {
                capacity_range: world.range(),
                secrets: world.secrets(),
                volume_capability: world.capability(&volume_id),
                volume_id,
            };
            asked(ask!(driver.controller(), controller_expand_volume, request))
        }
    }
}

async fn look_at_a_node(world: &mut World, driver: &Client) -> Asked {
    let volume_id = world.volume_id();
    let (staging_target_path, path) = (world.staging(&volume_id), world.target(&volume_id));
    match world.dice.below(5) {
        0 => {
            let request =
                NodeGetVolumeHealthRequest { volume_id, volume_publish_path: path, staging_target_path };
            asked(ask!(driver.node(), node_get_volume_health, request))
        }
        1 => {
            let request = NodeGetStorageHealthRequest { secrets: world.secrets() };
            asked(ask!(driver.node(), node_get_storage_health, request))
        }
        2 => asked(ask!(driver.node(), node_get_info, NodeGetInfoRequest {})),
        _ => {
            let request = NodeGetVolumeStatsRequest { volume_id, volume_path: path, staging_target_path };
            asked(ask!(driver.node(), node_get_volume_stats, request))
        }
    }
}

async fn look(world: &mut World, driver: &Client) -> Asked {
    let (controller, secrets) = (driver.controller(), world.secrets());
    let (max_entries, starting_token) = world.page();
    match world.dice.below(11) {
        0 => asked(ask!(driver.identity(), probe, ProbeRequest {})),
        1 => asked(ask!(driver.identity(), get_plugin_info, GetPluginInfoRequest {})),
        2 => {
            let request = ListVolumesRequest { max_entries, starting_token };
            asked(ask!({ controller }, list_volumes, request))
        }
        3 => {
            let request = ListSnapshotsRequest {
                max_entries,
                starting_token,
                source_volume_id: if world.good() { String::new() } else { world.volume_id() },
                snapshot_id: if world.good() { String::new() } else { world.snapshot_id() },
                secrets,
            };
            asked(ask!({ controller }, list_snapshots, request))
        }
        4 => {
            let segments = if world.good() { Map::new() } else { world.parameters() };
            let request = GetCapacityRequest {
                volume_capabilities: world.capability("any").into_iter().collect(),
                parameters: world.parameters(),
                accessible_topology: Some(Topology { segments }).filter(|_| !world.good()),
            };
            asked(ask!({ controller }, get_capacity, request))
        }
        5 => {
            let volume_id = world.volume_id();
            let request = ValidateVolumeCapabilitiesRequest {
                volume_context: world.parameters(),
                volume_capabilities: world.capability(&volume_id).into_iter().collect(),
                parameters: world.parameters(),
                secrets,
                mutable_parameters: Map::new(),
                volume_id,
            };
            asked(ask!({ controller }, validate_volume_capabilities, request))
        }
        6 => {
            let request = ControllerGetVolumeRequest { volume_id: world.volume_id() };
            asked(ask!({ controller }, controller_get_volume, request))
        }
        7 => {
            let request = GetSnapshotRequest { snapshot_id: world.snapshot_id(), secrets };
            asked(ask!({ controller }, get_snapshot, request))
        }
        8 => {
            let request = ControllerGetVolumeHealthRequest { volume_id: world.volume_id(), secrets };
            asked(ask!({ controller }, controller_get_volume_health, request))
        }
        9 => {
            let request = ControllerListVolumeHealthRequest { max_entries, starting_token, secrets };
            asked(ask!({ controller }, controller_list_volume_health, request))
        }
        _ => blocks(world, driver).await,
    }
}

/// The first message of a stream is its answer.
async fn blocks(world: &mut World, driver: &Client) -> Asked {
    let (starting_offset, secrets) = (if world.good() { 0 } else { world.size() }, world.secrets());
    let max_results = if world.good() { 0 } else { world.page().0 };
    let target = world.snapshot_id();
    if world.dice.chance(50) {
        let request =
            GetMetadataAllocatedRequest { snapshot_id: target, starting_offset, max_results, secrets };
        let (call, text, answer) = ask!(driver.blocks(), get_metadata_allocated, request);
        let answer = match answer {
            Ok(stream) => stream.into_inner().message().await.map(drop),
            Err(status) => Err(status),
        };
        return Asked { call, request: text, answer };
    }
    let request = GetMetadataDeltaRequest {
        base_snapshot_id: world.snapshot_id(),
        target_snapshot_id: target,
        starting_offset,
        max_results,
        secrets,
    };
    let (call, text, answer) = ask!(driver.blocks(), get_metadata_delta, request);
    let answer = match answer {
        Ok(stream) => stream.into_inner().message().await.map(drop),
        Err(status) => Err(status),
    };
    Asked { call, request: text, answer }
}
