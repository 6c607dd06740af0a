//! The built driver with `--type=local` through its Unix socket: sparse files, loop devices and mounts of this machine.
//! Run as root with `cargo test --test local`; it needs no cluster.
#![expect(
    clippy::disallowed_methods,
    reason = "a test runs programs and reads its environment like any other program"
)]

#[path = "../common/mod.rs"]
mod common;

mod asks;
mod harness;
mod life;
mod plain;
mod play;

mod containers;
mod copies;
mod faults;
mod folders;
mod fuzz;
mod growth;
mod health;
mod kills;
mod lifecycle;
mod links;
mod lists;
mod liveness;
mod logs;
mod metrics;
mod model;
mod others;
mod pids;
mod places;
mod readers;
mod reflink;
mod sidecars;
mod slow;
mod torn;
mod traces;
