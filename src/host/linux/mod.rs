//! The real host. Only this folder starts programs and calls mount(2).
#![expect(
    clippy::disallowed_methods,
    reason = "the driver looks for its programs where the system does: on PATH"
)]

mod mounting;
mod program;

use std::io;
use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep};

use crate::error::Error;
use crate::metrics::{Counted, METRICS};
use crate::request;
use crate::slow;
use crate::traces::Span;

use super::{Cmd, CmdError, End, Host, Mount, MountCall, Output, Slot, mountinfo};

/// Programs of `Slot::Long` at once, and of `Slot::Trash`.
const LONG_SLOTS: usize = 2;
/// How long a program of `Slot::Behind` lets others go first, and how often it looks for them.
const BEHIND_AT_MOST: Duration = Duration::from_secs(10);
const BEHIND_LOOK: Duration = Duration::from_millis(20);

pub(crate) struct Linux {
    cluster: Semaphore,
    long: Semaphore,
    trash: Semaphore,
    behind: Semaphore,
    processes: usize,
    deadline: Duration,
}

impl Linux {
    /// `processes`: how many `rbd` and `rados` run at once. `deadline`: of a command that names none.
    pub(crate) fn new(processes: usize, deadline: Duration) -> Self {
        let [long, trash] = [LONG_SLOTS; 2].map(Semaphore::new);
        let (cluster, behind) = (Semaphore::new(processes), Semaphore::new(1));
        let linux = Self { cluster, long, trash, behind, processes, deadline };
        for slot in [Slot::Cluster, Slot::Long, Slot::Trash, Slot::Behind] {
            if let Some((queue, slots)) = linux.queue(slot) {
                METRICS.has_slots(queue, slots.available_permits());
            }
        }
        linux
    }
}

/// A place in a queue that has come to its turn.
struct Turn<'a> {
    _slot: Option<SemaphorePermit<'a>>,
    _counted: Counted,
}

impl Linux {
    /// Its name in the metrics, and its slots.
    fn queue(&self, slot: Slot) -> Option<(&'static str, &Semaphore)> {
        match slot {
            Slot::Free => None,
            Slot::Cluster => Some(("cluster", &self.cluster)),
            Slot::Long => Some(("long", &self.long)),
            Slot::Trash => Some(("trash", &self.trash)),
            Slot::Behind => Some(("behind", &self.behind)),
        }
    }

    async fn turn(&self, cmd: &Cmd) -> Option<Turn<'_>> {
        let (queue, slots) = self.queue(cmd.slot)?;
        let _waiting = slow::waiting(|| format!("its turn among the {queue} commands, to run {}", line(cmd)));
        let waits = METRICS.waits(queue);
        // The semaphores are never closed, and they are fair: first in, first out.
        let taken = slots.acquire().await.ok();
        if cmd.slot == Slot::Behind {
            self.let_others_go_first().await;
        }
        drop(waits);
        Some(Turn { _slot: taken, _counted: METRICS.runs(queue) })
    }

    async fn let_others_go_first(&self) {
        let end = Instant::now() + BEHIND_AT_MOST;
        while self.cluster.available_permits() < self.processes && Instant::now() < end {
            sleep(BEHIND_LOOK).await;
        }
    }
}

/// Those of the programs that are not on PATH.
pub(crate) fn missing<'a>(programs: &[&'a str]) -> Vec<&'a str> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = |program: &&str| std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    programs.iter().copied().filter(|program| !found(program)).collect()
}

#[async_trait]
impl Host for Linux {
    async fn run(&self, cmd: Cmd) -> Result<Output, CmdError> {
        let span = traced(&cmd);
        let asked = Instant::now();
        let turn = self.turn(&cmd).await;
        let _waiting = slow::waiting(|| line(&cmd));
        let started = Instant::now();
        let result = program::run(&cmd, cmd.deadline.unwrap_or(self.deadline), turn).await;
        let error = result.as_ref().err();
        let end = error.map_or_else(|| "succeeded".to_owned(), |error| error.end.to_string());
        let exit = exit(error.map(|error| &error.end));
        tracing::debug!(program = cmd.program, args = ?cmd.told(), seconds = started.elapsed().as_secs_f64(), "command {end}");
        span.set("exit", exit.clone());
        span.set("waited_seconds", (started - asked).as_secs_f64());
        // An exit status may be an answer: what it means shows in the call.
        span.end(error.filter(|error| error.exit().is_none()).map(|_| end));
        METRICS.ran(cmd.program, &cmd.verb(), exit, started.elapsed());
        result
    }

    fn mounts(&self) -> crate::error::Result<Vec<Mount>> {
        let read = std::fs::read("/proc/self/mountinfo");
        let text = read.map_err(|error| Error::internal("reading the mounts of this node", error))?;
        Ok(mountinfo::parse(&text))
    }

    async fn mount(&self, what: MountCall) -> io::Result<()> {
        let _waiting = slow::waiting(|| format!("mount(2) at {}", what.target().display()));
        blocking(move || mounting::mount(&what)).await
    }

    async fn unmount(&self, path: &Path) -> io::Result<()> {
        let path = path.to_owned();
        let _waiting = slow::waiting(|| format!("umount(2) of {}", path.display()));
        blocking(move || mounting::unmount(&path)).await
    }
}

/// A command as a log may have it.
fn line(cmd: &Cmd) -> String {
    format!("{} {}", cmd.program, cmd.told().join(" "))
}

/// Without its arguments, as in the metrics.
fn traced(cmd: &Cmd) -> Span {
    let verb = cmd.verb();
    let span = request::current().span.child(format!("{} {verb}", cmd.program).trim_end());
    span.set("program", cmd.program);
    span.set("verb", verb);
    span
}

/// In the words of metrics and traces.
fn exit(end: Option<&End>) -> String {
    match end {
        None => "0".to_owned(),
        Some(End::Exit(code)) => code.to_string(),
        Some(End::Signal(_)) => "signal".to_owned(),
        Some(End::Deadline(_)) => "deadline".to_owned(),
        Some(End::Overflow(_)) => "overflow".to_owned(),
        Some(End::Start(_)) => "start".to_owned(),
    }
}

/// A system call that may hang, on a thread of its own.
async fn blocking(call: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
    tokio::task::spawn_blocking(call).await.map_err(io::Error::other)?
}
