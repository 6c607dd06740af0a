//! The CSI services. gRPC types stop here: `wire` turns them into the driver's own, and back.

mod addons;
mod blocks;
mod controller;
mod identity;
mod node;
mod wire;

pub(crate) use addons::Addons;
pub(crate) use blocks::SnapshotMetadata;
pub(crate) use controller::Controller;
pub(crate) use identity::Identity;
pub(crate) use node::NodeService;

/// Names the volume in the log lines and in the trace of the call that is being served.
fn note_volume(volume: &str) {
    let start: String = volume.chars().take(wire::MAX_TEXT).collect();
    tracing::Span::current().record("volume", start.as_str());
    crate::request::current().span.set("csi.volume", start);
}

/// What build.rs makes of proto/csi.proto. Messages with secrets have no `Debug`.
#[expect(
    clippy::enum_variant_names,
    clippy::pedantic,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    unreachable_pub,
    reason = "generated code"
)]
pub(crate) mod proto {
    tonic::include_proto!("csi.v1");
}

/// The same of proto/csi-addons.
#[expect(
    clippy::pedantic,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    unreachable_pub,
    reason = "generated code"
)]
pub(crate) mod addons_proto {
    pub(crate) mod identity {
        tonic::include_proto!("identity");
    }
    pub(crate) mod encryptionkeyrotation {
        tonic::include_proto!("encryptionkeyrotation");
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;
    use std::marker::PhantomData;

    use super::addons_proto::encryptionkeyrotation::EncryptionKeyRotateRequest;
    use super::proto::{
        ControllerExpandVolumeRequest, ControllerGetVolumeHealthRequest, ControllerListVolumeHealthRequest,
        ControllerModifyVolumeRequest, ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest,
        CreateSnapshotRequest, CreateVolumeRequest, DeleteSnapshotRequest, DeleteVolumeRequest,
        GetMetadataAllocatedRequest, GetMetadataDeltaRequest, GetSnapshotRequest, ListSnapshotsRequest,
        NodeExpandVolumeRequest, NodeGetStorageHealthRequest, NodePublishVolumeRequest,
        NodeStageVolumeRequest, ProbeRequest, ValidateVolumeCapabilitiesRequest,
    };

    struct Of<T>(PhantomData<T>);

    trait ByDefault {
        const PRINTABLE: bool = false;
    }

    impl<T> ByDefault for Of<T> {}

    /// Where `T` has `Debug`, this one is found first.
    impl<T: Debug> Of<T> {
        const PRINTABLE: bool = true;
    }

    #[test]
    fn a_request_with_secrets_cannot_be_printed() {
        let printable = [
            Of::<CreateVolumeRequest>::PRINTABLE,
            Of::<DeleteVolumeRequest>::PRINTABLE,
            Of::<ControllerPublishVolumeRequest>::PRINTABLE,
            Of::<ControllerUnpublishVolumeRequest>::PRINTABLE,
            Of::<ValidateVolumeCapabilitiesRequest>::PRINTABLE,
            Of::<NodeStageVolumeRequest>::PRINTABLE,
            Of::<NodePublishVolumeRequest>::PRINTABLE,
            Of::<ControllerExpandVolumeRequest>::PRINTABLE,
            Of::<ControllerModifyVolumeRequest>::PRINTABLE,
            Of::<ControllerGetVolumeHealthRequest>::PRINTABLE,
            Of::<ControllerListVolumeHealthRequest>::PRINTABLE,
            Of::<CreateSnapshotRequest>::PRINTABLE,
            Of::<DeleteSnapshotRequest>::PRINTABLE,
            Of::<GetMetadataAllocatedRequest>::PRINTABLE,
            Of::<GetMetadataDeltaRequest>::PRINTABLE,
            Of::<GetSnapshotRequest>::PRINTABLE,
            Of::<ListSnapshotsRequest>::PRINTABLE,
            Of::<NodeExpandVolumeRequest>::PRINTABLE,
            Of::<NodeGetStorageHealthRequest>::PRINTABLE,
            Of::<EncryptionKeyRotateRequest>::PRINTABLE,
            Of::<crate::cluster::Secrets>::PRINTABLE,
        ];
        assert_eq!(printable, [false; 21]);
        let other = Of::<ProbeRequest>::PRINTABLE;
        assert!(other, "the test itself tells them apart");
    }
}
