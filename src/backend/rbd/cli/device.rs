//! Images as devices of this node.

use std::path::Path;

use crate::backend::Image;
use crate::error::{Error, Result};

use super::{Cli, explain};

impl Cli<'_> {
    /// Maps the image with krbd; answers its device. `noudev`: in a container `rbd map` waits for udev for ever.
    pub(crate) async fn map(&self, image: &Image, read_only: bool) -> Result<String> {
        let spec = image.to_string();
        let mut args = vec!["map", &spec, "--device-type", "krbd", "--options", "noudev"];
        args.extend(read_only.then_some("--read-only"));
        let output = self
            .run("rbd", args, |cmd| cmd)
            .await
            .map_err(|error| explain(&format!("mapping {image}"), error))?;
        let device = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if !Path::new(&device).is_absolute() {
            return Err(Error::broken(format!(
                "mapping {image}: rbd answered {device:?}, which is no device"
            )));
        }
        Ok(device)
    }
}
