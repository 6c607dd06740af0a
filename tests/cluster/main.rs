//! The built driver on a real Ceph cluster, through its Unix socket: what it promises, what it refuses, what it survives.
//! Run with `make test`, or with `tests/lab/ceph with cargo test --test cluster`.
#![expect(
    clippy::disallowed_methods,
    reason = "a test runs programs and reads its environment like any other program"
)]

#[path = "../common/mod.rs"]
mod common;

mod ceph_csi;
mod harness;
mod keys;
mod kubernetes;
mod lab;
mod life;
mod pool;
mod snaps;
mod sources;
mod subject;
mod wrap;

mod adopted;
mod adopted_snapshots;
mod audit;
mod back;
mod blocks;
mod clone_kills;
mod clones;
mod emptying;
mod encrypted;
mod encrypted_copies;
mod encrypted_stage;
mod fencing;
mod flattens;
mod foreign;
mod format;
mod fuzz;
mod growth;
mod guest;
mod header_kills;
mod headers;
mod kills;
mod labels;
mod lifecycle;
mod limits;
mod lists;
mod machine;
mod many;
mod mapping;
mod matrix;
mod mkfs_kills;
mod outlive;
mod qos;
mod races;
mod readers;
mod refuse;
mod secrets;
mod sidecars;
mod snapshots;
mod stash;
mod takeover;
mod tombstones;
mod topology;
mod twins;
mod writer;
