//! What only a real kernel shows: the node service in a virtual machine, the controller and the cluster outside.
//! Run with `make test-vm`; each fact has a machine for itself meanwhile, and there are two.

mod machine;
mod node;

mod adopted;
mod copies;
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
