//! cluster-mapping.json, beside config.json: which cluster stands in for one that is not described here, with its pools'
//! numbers. For mirrored volumes after a failover, whose ids name the cluster that they were made on. ceph-csi's format.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

use serde::Deserialize;

use crate::error::{Error, Result};

const FILE: &str = "cluster-mapping.json";

/// A cluster in the place of another.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Standin {
    pub(super) cluster: String,
    /// Its pools' numbers, by those in the ids.
    pub(super) pools: BTreeMap<u64, u64>,
}

#[derive(Debug, Deserialize)]
struct Pair {
    #[serde(rename = "clusterIDMapping", default)]
    clusters: BTreeMap<String, String>,
    #[serde(rename = "RBDPoolIDMapping", default)]
    pools: Vec<BTreeMap<String, String>>,
}

/// Those that may stand in for this one. The file is the same on both sides, so each pair is read both ways.
pub(super) fn standins(config: &Path, cluster: &str) -> Result<Vec<Standin>> {
    let path = config.with_file_name(FILE);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => {
            return Err(Error::Precondition(format!("{} cannot be read: {error}", path.display())));
        }
    };
    parse(&text, cluster)
        .map_err(|what| Error::Precondition(format!("{} is not valid: {what}", path.display())))
}

fn parse(text: &str, cluster: &str) -> Result<Vec<Standin>, String> {
    let pairs: Vec<Pair> = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let mut found = Vec::new();
    for pair in &pairs {
        for (one, other) in &pair.clusters {
            if one == cluster {
                found.push(Standin { cluster: other.clone(), pools: numbers(pair, true)? });
            } else if other == cluster {
                found.push(Standin { cluster: one.clone(), pools: numbers(pair, false)? });
            }
        }
    }
    Ok(found)
}

/// Where a number stands on both sides, the direction of the clusters decides.
fn numbers(pair: &Pair, forward: bool) -> Result<BTreeMap<u64, u64>, String> {
    let number = |text: &String| {
        text.parse::<u64>()
            .map_err(|_| format!("RBDPoolIDMapping has {text:?}, which is no number of a pool"))
    };
    let (mut along, mut against) = (BTreeMap::new(), BTreeMap::new());
    for (one, other) in pair.pools.iter().flatten() {
        let (one, other) = (number(one)?, number(other)?);
        along.insert(one, other);
        against.insert(other, one);
    }
    let (mut pools, first) = if forward { (against, along) } else { (along, against) };
    pools.extend(first);
    Ok(pools)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEXT: &str = r#"[{"clusterIDMapping":{"east":"west"},"RBDPoolIDMapping":[{"1":"2"},{"2":"5"}],
        "CephFSFscIDMapping":[{"1":"34"}]},{"clusterIDMapping":{"north":"south"}}]"#;

    #[test]
    fn a_pair_is_read_both_ways() {
        let find = |cluster| parse(TEXT, cluster).expect("a mapping").remove(0);
        let east = find("east");
        assert_eq!((east.cluster.as_str(), east.pools[&1], east.pools[&2]), ("west", 2, 5));
        let west = find("west");
        assert_eq!((west.cluster.as_str(), west.pools[&2], west.pools[&5]), ("east", 1, 2));
        assert_eq!(find("south"), Standin { cluster: "north".to_owned(), pools: BTreeMap::new() });
        assert_eq!(parse(TEXT, "elsewhere"), Ok(vec![]));
    }

    #[test]
    fn what_is_no_number_is_named() {
        let text = r#"[{"clusterIDMapping":{"a":"b"},"RBDPoolIDMapping":[{"rbd":"2"}]}]"#;
        assert!(parse(text, "a").is_err_and(|what| what.contains("\"rbd\"")));
        assert!(parse("{", "a").is_err());
    }

    proptest! {
        #[test]
        fn any_mapping_is_read_or_refused(text in "[\\[\\]{}:,\"a-zA-Z0-9 -]{0,60}|\\PC{0,60}") {
            let _ = parse(&text, "east");
        }

        #[test]
        fn every_mapping_leads_there_and_back(one in "[a-z]{1,8}", other in "[A-Z]{1,8}", pools: (u64, u64)) {
            let text = serde_json::json!([{
                "clusterIDMapping": { one.as_str(): other },
                "RBDPoolIDMapping": [{ pools.0.to_string(): pools.1.to_string() }],
            }]);
            let there = parse(&text.to_string(), &one).expect("there");
            let back = parse(&text.to_string(), &other).expect("back");
            for (found, cluster, (from, to)) in [(there, other, pools), (back, one, (pools.1, pools.0))] {
                prop_assert_eq!(found.len(), 1);
                prop_assert_eq!(&found[0].cluster, &cluster);
                prop_assert_eq!(found[0].pools.get(&from), Some(&to));
            }
        }
    }
}
