//! One program, from its start to its end: fed, read, and killed with all its children when its time is up.
#![expect(clippy::disallowed_methods, reason = "this is the one place that the rule leads to")]

use std::fs::File;
use std::io::{self, Seek as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use futures_util::future::join3;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};

use super::super::progress::Progress;
use super::super::{Cmd, CmdError, End, Output, Slot};

/// More than any listing of ours takes; an `rbd` that aborts can print without end. What is cut off is never taken for
/// an answer.
const STDOUT_CAP: usize = 16 << 20;
/// Of what a program says, its beginning (where an abort gives its reason) and its end (where an error does).
const HEAD_KEPT: usize = 1 << 10;
const TAIL_KEPT: usize = 2 << 10;

pub(super) async fn run(cmd: &Cmd, limit: Duration, turn: Option<impl Send>) -> Result<Output, CmdError> {
    let mut output = Output::default();
    let end = match spawn(cmd) {
        Ok(mut child) => wait(&mut child, cmd, limit, turn, &mut output).await,
        Err(error) => Some(End::Start(error.to_string())),
    };
    let Some(end) = end else { return Ok(output) };
    // Both: `rados` tells an absent key on stdout, and may log a word of its own on stderr before (seen).
    let said = [summary(&output.stderr), summary(&output.stdout)];
    let said = said.iter().filter(|said| !said.is_empty()).map(String::as_str).collect::<Vec<_>>().join("; ");
    Err(CmdError { program: cmd.program, verb: verb(cmd), end, said })
}

/// None when the child has succeeded.
async fn wait(
    child: &mut Child,
    cmd: &Cmd,
    limit: Duration,
    turn: Option<impl Send>,
    output: &mut Output,
) -> Option<End> {
    let moved = Notify::new();
    let progress = matches!(cmd.slot, Slot::Long | Slot::Trash);
    let mut shown = Progress::of(cmd);
    let finish = finish(child, &cmd.stdin, output, &moved, &mut shown);
    let Some(status) = within(limit, finish, &moved, progress).await else {
        // What cannot be killed keeps its operation and its lock, and nobody else.
        drop(turn);
        kill_group(child).await;
        return Some(End::Deadline(limit));
    };
    match status.map(|status| (status.code(), status.signal())) {
        Ok((Some(0), _)) if output.stdout.len() > STDOUT_CAP => Some(End::Overflow(STDOUT_CAP)),
        Ok((Some(0), _)) => None,
        Ok((Some(code), _)) => Some(End::Exit(code)),
        Ok((None, signal)) => Some(End::Signal(signal.unwrap_or_default())),
        Err(error) => Some(End::Start(error.to_string())),
    }
}

/// `setpriv` makes the kernel end the child with the driver: no orphan works on an image that a restarted driver
/// takes up. (The kernel sends the signal when the forking *thread* ends: tokio's workers live as long as we do.)
fn spawn(cmd: &Cmd) -> io::Result<Child> {
    let stdout = cmd.stdout.as_deref().map_or_else(|| Ok(Stdio::piped()), emptied)?;
    Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "--", cmd.program])
        .args(&cmd.args)
        .env("LC_ALL", "C")
        .env("TZ", "UTC")
        // cryptsetup makes the nodes of its devices itself: it would wait for udev by a semaphore, which in a container
        // has another IPC namespace than udev's, and so for ever. Where udev links them too, both find them made.
        .env("DM_DISABLE_UDEV", "1")
        .stdin(Stdio::piped())
        .stdout(stdout)
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
}

/// A program that is run once more starts its output anew.
fn emptied(mut file: &File) -> io::Result<Stdio> {
    file.set_len(0)?;
    file.rewind()?;
    Ok(file.try_clone()?.into())
}

/// Feeds and reads the child until it has ended. A pipe that a grandchild keeps open does not hold us.
async fn finish(
    child: &mut Child,
    input: &[u8],
    output: &mut Output,
    moved: &Notify,
    shown: &mut Progress,
) -> io::Result<ExitStatus> {
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let feed = async move {
        if let Some(mut stdin) = stdin {
            // A child that does not read all of it says why by its exit status.
            let _ = stdin.write_all(input).await;
        }
    };
    let pumps = join3(
        feed,
        read_head(stdout, &mut output.stdout),
        read_tail(stderr, &mut output.stderr, moved, shown),
    );
    tokio::pin!(pumps);
    let status = tokio::select! {
        _ = &mut pumps => return child.wait().await,
        status = child.wait() => status,
    };
    let _ = timeout(Duration::from_secs(1), pumps).await;
    status
}

async fn read_head(pipe: Option<impl AsyncRead + Unpin>, kept: &mut Vec<u8>) {
    let (Some(mut pipe), mut chunk) = (pipe, vec![0; 8 << 10]) else { return };
    while let Ok(count @ 1..) = pipe.read(&mut chunk).await {
        // One byte more tells that there was more.
        let room = STDOUT_CAP + 1 - kept.len();
        kept.extend_from_slice(&chunk[..count.min(room)]);
    }
}

async fn read_tail(
    pipe: Option<impl AsyncRead + Unpin>,
    kept: &mut Vec<u8>,
    moved: &Notify,
    shown: &mut Progress,
) {
    let (Some(mut pipe), mut chunk) = (pipe, vec![0; 8 << 10]) else { return };
    while let Ok(count @ 1..) = pipe.read(&mut chunk).await {
        shown.hear(&chunk[..count]);
        kept.extend_from_slice(&chunk[..count]);
        if kept.len() > HEAD_KEPT + TAIL_KEPT {
            kept.drain(HEAD_KEPT..kept.len() - TAIL_KEPT);
        }
        moved.notify_one();
    }
}

/// None when the time is up. With `progress`, each sign of life starts the time anew (`rbd` prints only when the
/// percentage changes).
async fn within<T>(
    limit: Duration,
    work: impl Future<Output = T>,
    moved: &Notify,
    progress: bool,
) -> Option<T> {
    tokio::pin!(work);
    let mut end = Instant::now() + limit;
    loop {
        tokio::select! {
            result = &mut work => return Some(result),
            () = moved.notified(), if progress => end = Instant::now() + limit,
            () = sleep_until(end) => return None,
        }
    }
}

/// A process in D state survives SIGKILL until the kernel lets it go: its operation, and so its lock, waits here.
async fn kill_group(child: &mut Child) {
    if let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()) {
        let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
    }
    let _ = child.wait().await;
}

/// What the program was asked to do: its first argument that is no option.
fn verb(cmd: &Cmd) -> String {
    cmd.args.iter().find(|arg| !arg.starts_with('-')).cloned().unwrap_or_default()
}

/// The first and last lines of what was said, in one.
fn summary(said: &[u8]) -> String {
    let text = String::from_utf8_lossy(&said[..said.len().min(HEAD_KEPT + TAIL_KEPT)]);
    let lines: Vec<&str> = text.split(['\n', '\r']).map(str::trim).filter(|line| !line.is_empty()).collect();
    let (head, tail) = lines.split_at(lines.len().saturating_sub(6));
    head.iter().take(2).chain(tail).copied().collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::host::Host as _;
    use crate::host::linux::Linux;

    fn sh(script: &str) -> Cmd {
        Cmd::new("sh", ["-c", script])
    }

    async fn check(cmd: Cmd, limit: Duration) -> Result<String, End> {
        let output = Linux::new(2, limit).run(cmd).await.map_err(|error| error.end)?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    #[tokio::test]
    async fn a_program_is_fed_and_read() {
        let second = Duration::from_secs(5);
        assert_eq!(
            check(sh("cat; echo $LC_ALL $TZ").stdin(b"in ".to_vec()), second).await.as_deref(),
            Ok("in C UTC\n")
        );
        assert_eq!(check(sh("exit 17"), second).await, Err(End::Exit(17)));
        assert_eq!(check(sh("kill -9 $$"), second).await, Err(End::Signal(9)));
    }

    #[tokio::test]
    async fn a_whole_group_is_killed_at_the_deadline() {
        let limit = Duration::from_millis(300);
        let folder = tempfile::tempdir().expect("a folder");
        let pid = folder.path().join("pid");
        let script = format!("sleep 1000 & echo $! > {}; wait", pid.display());
        assert_eq!(check(sh(&script), limit).await, Err(End::Deadline(limit)));
        let pid: i32 = std::fs::read_to_string(pid).expect("the pid").trim().parse().expect("a number");
        let gone =
            || std::fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(" Z "));
        while !gone() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    #[tokio::test]
    async fn progress_moves_the_deadline_of_long_work_alone() {
        let script = "for i in 1 2 3 4 5 6; do sleep 0.2; echo $i >&2; done";
        let limit = Duration::from_millis(700);
        assert!(check(sh(script).slot(Slot::Long), limit).await.is_ok());
        assert_eq!(check(sh(script), limit).await, Err(End::Deadline(limit)));
    }

    #[tokio::test]
    async fn what_a_failed_program_says_on_either_stream_is_kept() {
        let script = "echo 'No such key: x'; echo 'monclient: no authorizer?' >&2; exit 1";
        let error = Linux::new(1, Duration::from_secs(5)).run(sh(script)).await.expect_err("exit 1");
        assert_eq!(error.said, "monclient: no authorizer?; No such key: x");
    }

    #[tokio::test]
    async fn output_without_end_is_capped() {
        let error =
            Linux::new(1, Duration::from_secs(20)).run(sh("yes x | head -c 300000 >&2; exit 5")).await;
        let error = error.expect_err("exit 5");
        assert_eq!(error.exit(), Some(5));
        assert!(error.said.len() < 100, "{error}");
    }

    #[tokio::test]
    async fn an_answer_that_is_cut_off_is_none() {
        let minute = Duration::from_secs(60);
        let print = |bytes: usize| sh(&format!("head -c {bytes} /dev/zero"));
        assert_eq!(check(print(STDOUT_CAP), minute).await.map(|text| text.len()), Ok(STDOUT_CAP));
        assert_eq!(check(print(STDOUT_CAP + 1), minute).await, Err(End::Overflow(STDOUT_CAP)));
    }

    #[tokio::test]
    async fn a_file_takes_what_memory_does_not_and_is_begun_anew() {
        let file = Arc::new(tempfile::tempfile().expect("a file"));
        for bytes in [STDOUT_CAP + 1, 5] {
            let run = sh(&format!("head -c {bytes} /dev/zero")).stdout(file.clone());
            assert_eq!(check(run, Duration::from_secs(60)).await.as_deref(), Ok(""));
            assert_eq!(file.metadata().expect("its size").len(), bytes as u64);
        }
    }

    #[tokio::test]
    async fn a_pipe_kept_open_by_a_grandchild_holds_nobody() {
        assert!(check(sh("sleep 30 & exit 0"), Duration::from_secs(10)).await.is_ok());
    }
}
