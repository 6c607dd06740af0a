//! The built driver as a process: started, asked, signalled, and killed when it goes out of sight.

use std::ffi::OsString;
use std::fs::{self, File};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::client::Client;
use super::csi::ProbeRequest;
use super::sight::PATIENCE;
use super::wrap::Wrapper;

/// How to start a driver; the same again starts it anew on the same node.
#[derive(Clone)]
pub(crate) struct Start {
    node: String,
    socket: PathBuf,
    log: PathBuf,
    kind: String,
    flags: Vec<String>,
    variables: Vec<(&'static str, OsString)>,
    /// A program and its arguments that becomes the driver in the end, whose command line comes behind.
    pub(crate) within: Vec<String>,
}

impl Start {
    /// Of this `--type`, with its socket and its log in this folder.
    pub(crate) fn new(folder: &Path, node: &str, kind: &str) -> Self {
        Self {
            node: node.to_owned(),
            socket: folder.join(format!("{node}.sock")),
            log: folder.join(format!("{node}.log")),
            kind: kind.to_owned(),
            flags: Vec::new(),
            variables: Vec::new(),
            within: Vec::new(),
        }
    }

    pub(crate) fn flag(mut self, flag: &str) -> Self {
        self.flags.push(flag.to_owned());
        self
    }

    pub(crate) fn variable(mut self, name: &'static str, value: impl Into<OsString>) -> Self {
        self.variables.push((name, value.into()));
        self
    }

    pub(crate) fn wrapped(self, wrapper: &Wrapper) -> Self {
        self.variable("PATH", wrapper.path())
    }

    /// Started, and it answers.
    pub(crate) async fn start(&self) -> Driver {
        let mut driver = self.launch();
        driver.until_ready().await;
        driver
    }

    /// Started, and nothing more.
    pub(crate) fn launch(&self) -> Driver {
        let log = File::options().create(true).append(true).open(&self.log).expect("the driver's log");
        let errors = log.try_clone().expect("the log, twice");
        let mut words = self.within.iter().map(String::as_str).chain([env!("CARGO_BIN_EXE_ceph-rbd-csi")]);
        let mut command = Command::new(words.next().unwrap_or_default());
        command
            .args(words)
            .arg(format!("--type={}", self.kind))
            .arg(format!("--nodeid={}", self.node))
            .arg(format!("--endpoint=unix://{}", self.socket.display()))
            .args(&self.flags)
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .env_remove("CEPH_CONF")
            .stdout(log)
            .stderr(errors);
        let child = command.spawn().expect("the driver starts");
        let client = Client::of(&format!("unix://{}", self.socket.display()));
        Driver { start: self.clone(), child, client }
    }
}

/// A running driver.
pub(crate) struct Driver {
    start: Start,
    child: Child,
    client: Client,
}

impl Driver {
    async fn until_ready(&mut self) {
        let end = Instant::now() + PATIENCE;
        loop {
            let answer = self.identity().probe(ProbeRequest {}).await;
            if answer.as_ref().is_ok_and(|answer| answer.get_ref().ready != Some(false)) {
                return;
            }
            let ended = self.child.try_wait().expect("the driver's state");
            assert!(
                ended.is_none() && Instant::now() < end,
                "no driver: {ended:?}, {answer:?}\n{}",
                self.log()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.start.log).unwrap_or_default()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).expect("the driver runs");
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).expect("a pid"))
    }

    /// Waits until it has ended by itself.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("the driver's state") {
                return status;
            }
            assert!(Instant::now() < end, "the driver does not end\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// SIGKILL, and a new one on the same socket.
    pub(crate) async fn killed_and_started(mut self) -> Self {
        self.end();
        let start = self.start.clone();
        drop(self);
        start.start().await
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Deref for Driver {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Drop for Driver {
    #[expect(clippy::print_stderr, reason = "what the driver said explains why a test failed")]
    fn drop(&mut self) {
        self.end();
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!(
                "the end of the log of {}:\n{}",
                self.start.node,
                lines[lines.len().saturating_sub(30)..].join("\n")
            );
        }
    }
}
