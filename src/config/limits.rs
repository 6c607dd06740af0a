//! How long a chain of clones may become, and how many snapshots an image may have: ceph-csi's flags.

use clap::Args;

/// Linux refuses an image with more than 16 parents or 510 snapshots.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Limits {
    /// A clone with more parents than this is flattened before CreateVolume answers, 1 to 14
    #[arg(long = "rbdhardmaxclonedepth", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=14))]
    pub(crate) hard_depth: u16,
    /// A clone with more parents than this is flattened in the background, while nobody uses it
    #[arg(long = "rbdsoftmaxclonedepth", default_value_t = 4)]
    pub(crate) soft_depth: u16,
    /// An image with so many snapshots has clones of its deleted ones flattened in the background, 1 to 500
    #[arg(long = "maxsnapshotsonimage", default_value_t = 450, value_parser = clap::value_parser!(u16).range(1..=500))]
    pub(crate) max_snapshots: u16,
    /// ... until it has no more than this
    #[arg(long = "minsnapshotsonimage", default_value_t = 250)]
    pub(crate) min_snapshots: u16,
}

impl Default for Limits {
    fn default() -> Self {
        Self { hard_depth: 8, soft_depth: 4, max_snapshots: 450, min_snapshots: 250 }
    }
}

impl Limits {
    pub(super) fn validate(self) -> Result<(), String> {
        if self.soft_depth > self.hard_depth {
            return Err(format!(
                "--rbdsoftmaxclonedepth={} is more than --rbdhardmaxclonedepth={}: give at most that",
                self.soft_depth, self.hard_depth
            ));
        }
        if self.min_snapshots > self.max_snapshots {
            return Err(format!(
                "--minsnapshotsonimage={} is more than --maxsnapshotsonimage={}: give at most that",
                self.min_snapshots, self.max_snapshots
            ));
        }
        Ok(())
    }
}
