//! The tables of the documents are the lists of the source, both ways round.

use std::collections::BTreeSet;

use crate::pages::{configuration, page};
use crate::source::{all_code, between, code_of, keys, list, strings, strings_behind};

const PARAMETERS: &str = "src/backend/rbd/params/mod.rs";
const LOCAL_PARAMETERS: &str = "src/backend/local/params.rs";

/// What is found wrong on Ceph, by the controller, by the backend on a node, and by the node itself.
const HEALTH: &[&str] =
    &["src/backend/rbd/pool/health.rs", "src/backend/rbd/attach/sysfs.rs", "src/node/health.rs"];

#[test]
fn the_table_of_parameters_is_what_is_built() {
    assert_eq!(configuration().first_cells("## StorageClass parameters"), list(PARAMETERS, "BUILT"));
}

#[test]
fn the_table_of_snapshot_parameters_is_what_is_built() {
    let built = list("src/backend/rbd/params/snapshot.rs", "BUILT");
    assert_eq!(configuration().first_cells("## VolumeSnapshotClass parameters"), built);
}

#[test]
fn the_table_of_mutable_parameters_is_what_is_built() {
    let path = "src/backend/rbd/params/qos.rs";
    let code = code_of(path);
    let limits = between(&code, "const LIMITS", "];").expect("a list");
    let names = ["base: ", "max: ", "per_gib: "].iter().flat_map(|words| strings_behind(limits, words));
    let built = names.chain(list(path, "BASE_SIZE")).collect();
    assert_eq!(configuration().first_cells("## Mutable parameters"), built);
}

#[test]
fn the_table_of_local_parameters_is_what_is_built() {
    let (page, heading) = (configuration(), "## StorageClass parameters of --type=local");
    assert_eq!(page.first_cells(heading), list(LOCAL_PARAMETERS, "BUILT"));
    let changeable = page.rows(heading).into_iter().filter(|cells| cells[2] == "yes");
    let changeable: BTreeSet<_> = changeable.map(|cells| cells[0].clone()).collect();
    assert_eq!(changeable, list(LOCAL_PARAMETERS, "MUTABLE"));
}

#[test]
fn parameters_that_are_refused_are_named() {
    assert_eq!(configuration().bullet("Parameters refused:"), list(PARAMETERS, "UNBUILT"));
}

#[test]
fn parameters_that_are_ignored_are_named() {
    assert_eq!(configuration().bullet("Parameters ignored:"), list(PARAMETERS, "IGNORED"));
}

#[test]
fn the_table_of_clusters_is_what_is_read() {
    let entry = keys("src/cluster/mod.rs", "Entry", "");
    let mut read = entry;
    read.extend(keys("src/cluster/mod.rs", "Rbd", "rbd."));
    read.extend(keys("src/cluster/credential.rs", "Credential", "rbd.credential."));
    read.extend(keys("src/cluster/mod.rs", "ReadAffinity", "readAffinity."));
    // They have the others in them.
    for outer in ["rbd", "rbd.credential", "readAffinity"] {
        assert!(read.remove(outer), "{outer} is not read");
    }
    assert_eq!(configuration().first_cells("## Clusters: config.json"), read);
}

#[test]
fn the_table_of_mapped_clusters_is_what_is_read() {
    let read = keys("src/cluster/mapping.rs", "Pair", "");
    assert_eq!(configuration().first_cells("## cluster-mapping.json"), read);
}

#[test]
fn the_table_of_secrets_is_what_is_read() {
    let code = code_of("src/cluster/credential.rs");
    let pairs = between(&code, "fn credential(", ".iter()").expect("pairs of names");
    let read = strings(pairs).chain(strings_behind(&code, "self.0.get(")).collect();
    assert_eq!(configuration().first_cells("## Secrets"), read);
}

#[test]
fn the_table_of_key_stores_is_what_is_read() {
    let read = ["KIND", "SECRET", "NAMESPACE"].iter().flat_map(|name| list("src/keys/stores.rs", name));
    assert_eq!(configuration().first_cells("## Key stores: --kms-config"), read.collect());
}

#[test]
fn the_kinds_of_key_stores_are_what_is_built() {
    let built = ["DEFAULT", "METADATA"].iter().flat_map(|name| list("src/keys/stores.rs", name));
    assert_eq!(page("security").first_cells("### Key stores"), built.collect());
}

/// The parameters of a StorageClass come back as context, and have a table of their own.
#[test]
fn the_table_of_volume_context_is_what_else_is_read() {
    let code = all_code();
    let mut read = strings_behind(&code, "context.get(");
    read.extend(strings_behind(&code, "context(target, "));
    read.extend(strings_behind(&code_of("src/backend/types.rs"), "says("));
    let parameters = list(PARAMETERS, "BUILT");
    let read: BTreeSet<String> = read.difference(&parameters).cloned().collect();
    assert_eq!(configuration().first_cells("## Volume context"), read);
}

#[test]
fn the_table_of_health_is_what_is_found() {
    let code: String = HEALTH.iter().map(|path| code_of(path)).collect();
    let found = strings(&code).filter(|word| is_reason(word)).collect();
    assert_eq!(page("operations").first_cells("## Health"), found);
}

/// CamelCase of two words or more.
fn is_reason(word: &str) -> bool {
    let capitals = word.chars().filter(char::is_ascii_uppercase).count();
    word.starts_with(|c: char| c.is_ascii_uppercase())
        && capitals > 1
        && word.len() > 2 * capitals
        && word.chars().all(|c| c.is_ascii_alphabetic())
}

/// The source has them without their unit.
#[test]
fn the_table_of_metrics_is_what_is_measured() {
    let code = all_code();
    let is_metric = |name: &&str| name.starts_with("ceph_rbd_csi_") || name.starts_with("csi_");
    let measured: BTreeSet<&str> = code.split('"').filter(is_metric).collect();
    let named = page("metrics").first_cells("# Metrics");
    let unnamed = measured.iter().filter(|metric| !named.iter().any(|name| name.starts_with(**metric)));
    assert_eq!(unnamed.collect::<Vec<_>>(), Vec::<&&str>::new(), "measured, and not in the table");
    let unmeasured = named.iter().filter(|name| !measured.iter().any(|metric| name.starts_with(metric)));
    assert_eq!(unmeasured.collect::<Vec<_>>(), Vec::<&String>::new(), "in the table, and not measured");
}
