//! What only a real kernel shows: the node service in a virtual machine, the controller and the cluster outside.
//! Run with `make test-vm`; these facts share one machine, so one after the other.

mod machine;
mod node;

mod daemons;
mod encrypted;
mod fencing;
mod growth;
mod kills;
mod lives;
mod nbd;
mod needs;
mod readers;
mod restores;
mod rotation;
mod truths;
