//! Tests: parameters with any values are a plan, or INVALID_ARGUMENT; and what is in a plan is safe to give a program.

use proptest::prelude::*;

use super::*;

const NAMES: &[&str] = &[
    "clusterID",
    "pool",
    "dataPool",
    "volumeNamePrefix",
    "imageFeatures",
    "mapOptions",
    "unmapOptions",
    "mounter",
    "mkfsOptions",
    "cephLogDir",
    "cephLogStrategy",
    "tryOtherMounters",
    "encrypted",
    "encryptionKMSID",
    "encryptionType",
    "stripeUnit",
    "stripeCount",
    "objectSize",
    "topologyConstrainedPools",
    "imageFormat",
    "thickProvision",
];

fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("true".to_owned()),
        Just("rbd".to_owned()),
        Just("krbd:alloc_size=4096;nbd:notrim".to_owned()),
        Just("layering,exclusive-lock,object-map,fast-diff".to_owned()),
        "[0-9]{0,21}",
        "-[a-z-]{0,8}",
        "[\\[\\]{}:,\"a-zA-Z0-9]{0,40}",
        "[-@/. \n=,;:a-z]{0,12}",
        "\\PC{0,40}",
    ]
}

/// What begins with a dash would be an option, and what holds one of the others would name another image or place.
fn is_safe(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('-') && !name.contains(['/', '@', '\n', '\0'])
}

proptest! {
    #[test]
    fn any_parameters_are_a_safe_plan_or_invalid(values in proptest::collection::btree_map(proptest::sample::select(NAMES), value(), 0..5)) {
        let base = [("clusterID", "c"), ("pool", "p")].map(|(name, value)| (name, value.to_owned()));
        let parameters: Parameters =
            base.into_iter().chain(values).map(|(name, value)| (name.to_owned(), value)).collect();
        match Plan::of(&parameters, "k8s") {
            Ok(plan) => {
                // A cluster is looked up in the configuration, and is part of volume ids.
                prop_assert!(!plan.cluster.contains(['/', '@', '\n', '\0']));
                let names = [Some(plan.pool), plan.data_pool, plan.prefix];
                prop_assert!(names.into_iter().flatten().filter(|name| !name.is_empty()).all(|name| is_safe(&name)));
                prop_assert!(plan.features.iter().all(|feature| is_safe(feature)));
            }
            Err(error) => prop_assert!(matches!(error, Error::Invalid(_)), "{error}"),
        }
    }

    #[test]
    fn any_mutable_parameters_are_limits_or_invalid(values in proptest::collection::btree_map("(base|max)(Read|Write)?(Iops|BytesPerSecond|BytesPerSec|VolSizeBytes)|\\PC{0,12}", value(), 0..5), size: u64) {
        let limits = Qos::parse(&values).and_then(|qos| qos.records(size));
        prop_assert!(matches!(limits, Ok(_) | Err(Error::Invalid(_))), "{limits:?}");
    }

    #[test]
    fn any_places_of_pools_are_safe_or_invalid(text in "([\\[\\]{}:,\"]|\"poolName\"|\"domainSegments\"|\"domainLabel\"|\"value\"|[a-z]{1,3}){0,30}", pool in value()) {
        let listed = serde_json::json!([{ "poolName": pool, "domainSegments": [{ "domainLabel": "zone", "value": "a" }] }]);
        for text in [text, listed.to_string()] {
            let parameters: Parameters = [("topologyConstrainedPools".to_owned(), text)].into();
            match Candidates::parse(&parameters, None, None) {
                Ok(found) => prop_assert!(found.iter().flat_map(Candidates::pools).all(is_safe)),
                Err(error) => prop_assert!(matches!(error, Error::Invalid(_)), "{error}"),
            }
        }
    }
}
