//! The virtual machine: a Debian kernel with krbd, nbd and dm-crypt, this machine's programs, and a shell.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// For the boot, and for one script. Emulation is slow beside anything else.
const PATIENCE: Duration = Duration::from_secs(240);

/// It lives as long as the process of the tests: what is around them ends it (tests/lab/net).
pub(super) struct Machine {
    /// With the socket of its shell, and the pid of qemu.
    control: PathBuf,
    shell: Mutex<BufReader<UnixStream>>,
}

/// One for all facts, which run one after the other.
pub(super) fn machine() -> &'static Machine {
    static MACHINE: OnceLock<Machine> = OnceLock::new();
    MACHINE.get_or_init(Machine::boot)
}

/// Of the network around the tests (tests/lab/net).
pub(super) fn address(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!("these tests need a network of their own: run `make test-vm`, or tests/lab/net with CMD")
    })
}

impl Machine {
    fn boot() -> Self {
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lab");
        let control = tempfile::tempdir().expect("a folder for the machine").keep();
        Command::new(tests.join("vm"))
            .arg("run")
            .arg(tests.join("agent"))
            .args([address("VM_IP"), address("VM_CEPH_IP")])
            .env("VM_CONTROL", &control)
            .env("VM_SECONDS", "7200")
            .stdin(Stdio::null())
            .spawn()
            .expect("tests/lab/vm");
        let shell = connect(&control.join("port"));
        shell.set_read_timeout(Some(PATIENCE)).expect("a time limit");
        let machine = Self { control, shell: Mutex::new(BufReader::new(shell)) };
        machine.run("modprobe rbd");
        machine
    }

    /// Runs a script, which has to succeed; what it printed.
    #[track_caller]
    pub(super) fn run(&self, script: &str) -> String {
        self.try_run(script).unwrap_or_else(|said| panic!("in the guest: {script}: {said}"))
    }

    /// What it printed, on both streams, in either case.
    pub(super) fn try_run(&self, script: &str) -> Result<String, String> {
        let mut shell = self.shell();
        let line = format!("eval {}\n", quoted(script));
        shell.get_mut().write_all(line.as_bytes()).expect("the guest listens");
        let mut head = String::new();
        shell.read_line(&mut head).unwrap_or_else(|error| panic!("{script}: no answer: {error}"));
        let (code, length) = head.trim().split_once(' ').unwrap_or_else(|| panic!("{script}: {head:?}"));
        let mut output = vec![0; length.parse().expect("a length")];
        shell.read_exact(&mut output).expect("what was printed");
        let output = String::from_utf8_lossy(&output).into_owned();
        if code == "0" { Ok(output) } else { Err(format!("exit {code}: {output}")) }
    }

    fn shell(&self) -> MutexGuard<'_, BufReader<UnixStream>> {
        self.shell.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It stands still, and nobody is told: until it is thawed.
    pub(super) fn freeze(&self) {
        self.signal(Signal::SIGSTOP);
    }

    pub(super) fn thaw(&self) {
        self.signal(Signal::SIGCONT);
    }

    fn signal(&self, signal: Signal) {
        let pid = std::fs::read_to_string(self.control.join("pid")).expect("the pid of qemu");
        kill(Pid::from_raw(pid.trim().parse().expect("a pid")), signal).expect("qemu runs");
    }

    /// The guest does not reach the cluster any more; it is asked as before.
    pub(super) fn cut_off(&self) {
        self.run(&format!("ip route add blackhole {}/32", address("LAB_IP")));
    }

    pub(super) fn reconnect(&self) {
        self.run(&format!("ip route del blackhole {}/32", address("LAB_IP")));
    }
}

fn connect(port: &Path) -> UnixStream {
    let end = Instant::now() + PATIENCE;
    loop {
        match UnixStream::connect(port) {
            Ok(stream) => return stream,
            Err(error) => assert!(Instant::now() < end, "no virtual machine: {error}"),
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// As bash reads it, in one line.
fn quoted(script: &str) -> String {
    format!("$'{}'", script.replace('\\', "\\\\").replace('\'', "\\'").replace('\n', "\\n"))
}
