//! What the tests of every backend share: the wire contract, a driver to start, a volume's calls, what the machine shows.

pub(crate) mod client;
pub(crate) mod driver;
pub(crate) mod fuzz;
pub(crate) mod growth;
pub(crate) mod life;
pub(crate) mod sidecars;
pub(crate) mod sight;
pub(crate) mod tools;
pub(crate) mod wrap;

pub(crate) mod csi {
    #![expect(clippy::pedantic, clippy::enum_variant_names, unreachable_pub, reason = "generated")]
    #![expect(clippy::allow_attributes, clippy::allow_attributes_without_reason, reason = "generated")]
    tonic::include_proto!("csi.v1");
}

/// CSI-Addons.
pub(crate) mod addons {
    #![expect(clippy::pedantic, unreachable_pub, reason = "generated")]
    #![expect(clippy::allow_attributes, clippy::allow_attributes_without_reason, reason = "generated")]
    pub(crate) mod encryptionkeyrotation {
        tonic::include_proto!("encryptionkeyrotation");
    }
    pub(crate) mod identity {
        tonic::include_proto!("identity");
    }
}
