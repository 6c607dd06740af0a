//! Why an image could not be mapped, in words that say what to do. It is looked for behind the map that failed: so it costs
//! no process where all is well, and what the kernel can do is the kernel's own word (krbd maps an image that is
//! only read where it knows no journaling, say).

use crate::backend::Image;
use crate::error::Error;
use crate::host::CmdError;
use crate::host::kernel::{Kernel, Module};

use crate::backend::rbd::cli::{Cli, errno, explain};

impl Cli<'_> {
    pub(crate) async fn not_mapped(&self, image: &Image, error: CmdError) -> Error {
        let (what, kernel) = (format!("mapping {image}"), Kernel::of_this_node());
        match (error.exit(), kernel.lacks(Module::Rbd)) {
            (Some(errno::NXIO), _) => {
                let info = self.info(image).await.ok().flatten();
                let features = info.map(|info| info.features).unwrap_or_default();
                let unknown = kernel.unknown_features(&features).unwrap_or_default();
                Error::Precondition(format!(
                    "{what}: {error}: {}",
                    unsupported(image, &kernel.name(), &unknown)
                ))
            }
            (Some(errno::NOENT), Some(lacks)) => Error::Precondition(format!("{what}: {error}: {lacks}")),
            // The image was there a moment ago: it is the monitors that are not found.
            (Some(errno::NOENT), None) => {
                Error::Precondition(format!("{what}: {error}: check ms_mode and the ports of the monitors"))
            }
            _ => explain(&what, error),
        }
    }
}

/// krbd of this node cannot show the image, or there is none: the same map fails again, and another mounter may do.
pub(crate) fn is_beyond_krbd(error: &CmdError) -> bool {
    match error.exit() {
        Some(errno::NXIO) => true,
        Some(errno::NOENT) => Kernel::of_this_node().lacks(Module::Rbd).is_some(),
        _ => false,
    }
}

/// `rbd` says 22 for whatever is wrong with rbd-nbd.
pub(crate) fn not_mapped_by_nbd(image: &Image, error: CmdError) -> Error {
    let what = format!("mapping {image} by rbd-nbd");
    match (error.exit(), Kernel::of_this_node().lacks(Module::Nbd)) {
        (Some(errno::INVAL), Some(lacks)) => Error::Precondition(format!("{what}: {error}: {lacks}")),
        _ => explain(&what, error),
    }
}

fn unsupported(image: &Image, kernel: &str, unknown: &[&str]) -> String {
    let (which, switch_off) = match unknown {
        [] => ("all features of the image".to_owned(), String::new()),
        _ => (
            format!("the image's {}", unknown.join(", ")),
            format!(
                "; or switch off what nothing needs, while no node uses the image: rbd feature disable {image} {}",
                unknown.join(" ")
            ),
        ),
    };
    format!(
        "krbd of this node ({kernel}) does not know {which}: make volumes with mounter: rbd-nbd, with \
         tryOtherMounters: \"true\", or with fewer imageFeatures{switch_off}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_that_krbd_lacks_are_named_with_every_way_out() {
        let image = Image { pool: "p".to_owned(), namespace: "n".to_owned(), name: "i".to_owned() };
        let text = unsupported(&image, "Linux 6.1", &["object-map", "journaling"]);
        for expected in [
            "(Linux 6.1) does not know the image's object-map, journaling:",
            "mounter: rbd-nbd",
            "tryOtherMounters: \"true\"",
            "imageFeatures",
            "rbd feature disable p/n/i object-map journaling",
        ] {
            assert!(text.contains(expected), "{text}");
        }
        let text = unsupported(&image, "Linux 4.4", &[]);
        assert!(text.contains("all features") && !text.contains("disable"), "{text}");
    }
}
