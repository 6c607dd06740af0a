//! README.md and deploy/docs are true: their tables are what the source and `--help` say, their links lead somewhere, and the
//! files, targets, flags and messages that they name exist.
#![expect(
    clippy::disallowed_methods,
    reason = "a test has no event loop to block: it runs the driver and waits"
)]

mod flags;
mod links;
mod map;
mod names;
mod pages;
mod source;
mod tables;
