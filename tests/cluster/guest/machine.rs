//! The virtual machine: a Debian kernel with krbd, nbd and dm-crypt, this machine's programs, and a shell.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// For the boot, and for one script. Emulation is slow beside anything else.
const PATIENCE: Duration = Duration::from_secs(240);

/// It lives as long as the process of the tests: what is around them ends it (tests/lab/net).
pub(super) struct Machine {
    /// With the socket of its shell, and the pid of qemu.
    control: PathBuf,
    /// Where it is asked.
    pub(super) address: String,
    shell: Mutex<BufReader<UnixStream>>,
    _vm: Child,
}

/// That of the fact which runs on this thread: it has it alone.
pub(super) fn machine() -> &'static Machine {
    thread_local! {
        static LEASE: Lease = Lease::take();
    }
    LEASE.with(|lease| lease.0)
}

/// Machines that no fact has, and how many were booted.
static IDLE: Mutex<(Vec<&'static Machine>, usize)> = Mutex::new((Vec::new(), 0));

struct Lease(&'static Machine);

impl Lease {
    fn take() -> Self {
        let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(machine) = idle.0.pop() {
            return Self(machine);
        }
        let number = idle.1;
        idle.1 += 1;
        drop(idle);
        Self(Box::leak(Box::new(Machine::boot(number))))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        IDLE.lock().unwrap_or_else(PoisonError::into_inner).0.push(self.0);
    }
}

/// Of the network around the tests (tests/lab/net).
fn network(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!("these tests need a network of their own: run `make test-vm`, or tests/lab/net with CMD")
    })
}

impl Machine {
    fn boot(number: usize) -> Self {
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lab");
        let control = tempfile::tempdir().expect("a folder for the machine").keep();
        let taps = network("VM_TAPS");
        let tap =
            taps.split(' ').nth(number).unwrap_or_else(|| panic!("--test-threads: {taps} is all there is"));
        let on = |net: &str| format!("{}.{}", network(net), number + 2);
        let address = on("VM_NET");
        let vm = Command::new(tests.join("vm"))
            .arg("run")
            .arg(tests.join("agent"))
            .args([&address, &on("VM_CEPH_NET")])
            .env("VM_CONTROL", &control)
            .env("VM_SECONDS", "7200")
            .env("VM_TAP", tap)
            .env("VM_MAC", format!("52:54:00:99:00:{number:02x}"))
            .stdin(Stdio::null())
            .spawn()
            .expect("tests/lab/vm");
        let shell = connect(&control.join("port"));
        shell.set_read_timeout(Some(PATIENCE)).expect("a time limit");
        let machine = Self { control, address, shell: Mutex::new(BufReader::new(shell)), _vm: vm };
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
        let (code, output) =
            self.ask(script).map_err(|error| format!("the guest does not answer: {error}"))?;
        if code == "0" { Ok(output) } else { Err(format!("exit {code}: {output}")) }
    }

    fn ask(&self, script: &str) -> std::io::Result<(String, String)> {
        let mut shell = self.shell.lock().unwrap_or_else(PoisonError::into_inner);
        shell.get_mut().write_all(format!("eval {}\n", quoted(script)).as_bytes())?;
        let mut head = String::new();
        shell.read_line(&mut head)?;
        let parsed =
            head.trim().split_once(' ').and_then(|(code, length)| Some((code, length.parse().ok()?)));
        let (code, length) = parsed.ok_or_else(|| std::io::Error::other(format!("{head:?}")))?;
        let mut output = vec![0; length];
        shell.read_exact(&mut output)?;
        Ok((code.to_owned(), String::from_utf8_lossy(&output).into_owned()))
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
        self.run(&format!("ip route add blackhole {}/32", network("LAB_IP")));
    }

    pub(super) fn reconnect(&self) {
        self.run(&format!("ip route del blackhole {}/32", network("LAB_IP")));
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
