//! Images as devices of this node.

use std::path::Path;

use crate::backend::Image;
use crate::host::{Cmd, CmdError, End, Slot};

use crate::backend::rbd::cli::Cli;

impl Cli<'_> {
    /// Maps the image with krbd; answers its device.
    pub(crate) async fn map(
        &self,
        image: &Image,
        options: &str,
        read_only: bool,
    ) -> Result<String, CmdError> {
        let args = map_args("krbd", image, options, read_only);
        self.run_mapping(args.into_iter().chain(self.connection())).await
    }

    /// Maps the image with rbd-nbd, whose daemon stays. It is not told to give up on operations that take long, as
    /// commands are: that would be I/O errors for pods, and krbd waits too.
    pub(crate) async fn map_by_nbd(
        &self,
        image: &Image,
        options: &str,
        read_only: bool,
        log: Option<&str>,
    ) -> Result<String, CmdError> {
        self.run_nbd(map_args("nbd", image, options, read_only), log).await
    }

    async fn run_nbd(&self, mut args: Vec<String>, log: Option<&str>) -> Result<String, CmdError> {
        args.extend(log.map(|log| format!("--log-file={log}")));
        args.extend(self.connection().into_iter().filter(|arg| !arg.starts_with("--rados_")));
        self.run_mapping(args).await
    }

    /// Lets a new daemon of rbd-nbd serve a device that has lost its own. The cookie says that the device is this image's,
    /// and `rbd` takes it apart from the other options.
    pub(crate) async fn serve_by_nbd(
        &self,
        image: &Image,
        device: &str,
        cookie: &str,
        options: &str,
        read_only: bool,
        log: Option<&str>,
    ) -> Result<String, CmdError> {
        let options: Vec<&str> = options.split(',').filter(|option| !option.starts_with("cookie=")).collect();
        let mut args = map_args("nbd", image, &options.join(","), read_only);
        args.splice(..1, ["device", "attach"].map(str::to_owned));
        args.extend(["--device", device, "--cookie", cookie].map(str::to_owned));
        self.run_nbd(args, log).await
    }

    /// In the network namespace that the cluster is reached from, where the configuration names one. Never run twice.
    async fn run_mapping(&self, args: impl IntoIterator<Item = String>) -> Result<String, CmdError> {
        let namespace = &self.access.net_namespace;
        let cmd = if namespace.is_empty() {
            Cmd::new("rbd", args)
        } else {
            let inside = [format!("--net={namespace}"), "--".to_owned(), "rbd".to_owned()];
            Cmd::new("nsenter", inside.into_iter().chain(args))
        };
        let (program, cmd) = (cmd.program, cmd.slot(Slot::Cluster));
        let output = self.host.run(cmd).await.map_err(|error| self.redacted(error))?;
        let said = String::from_utf8_lossy(&output.stdout);
        let device = said.lines().last().unwrap_or_default().trim();
        if Path::new(device).is_absolute() {
            return Ok(device.to_owned());
        }
        let end = End::Start(format!("it answered {device:?}, which is no device"));
        Err(CmdError { program, verb: "map".to_owned(), end, said: String::new() })
    }
}

fn map_args(kind: &str, image: &Image, options: &str, read_only: bool) -> Vec<String> {
    let image = image.to_string();
    let args = ["map", &image, "--device-type", kind, "--options", options];
    let args = args.into_iter().chain(read_only.then_some("--read-only"));
    args.map(str::to_owned).collect()
}
