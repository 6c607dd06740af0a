//! Random requests of every call, half of them hostile, and what has to hold whatever is asked. `FUZZ_CALLS` says how
//! many; the seed is printed, and `FUZZ_SEED` asks the same again.

mod after;
mod asks;
mod canary;
mod dice;
mod hostile;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tonic::{Code, Status};

use super::client::Client;
use super::csi::CreateVolumeRequest;
use super::driver::Driver;
use super::life::Map;

pub(crate) use canary::Canary;
use dice::Dice;

/// More than any call may take: the driver answers by itself before the sidecars' 150 s.
const PATIENCE: Duration = Duration::from_secs(150);

/// Put around `setpriv`, which starts every program of the driver: writes down each one that was given an option which is
/// a text of a request. (What `mkfsOptions` says are options.)
pub(crate) const OPTIONS: &str = r#"
for word in "${@:5}"; do
    [[ $word != -- && $4 != mkfs.* ]] || break
    [[ ${word%%=*} != -*fuzzed* ]] || printf '%q ' "$@" $'\n' >>"$CALLS"
done
PATH=${PATH#*:} exec setpriv "$@""#;

/// How many calls, as the environment has it.
pub(crate) fn calls(usually: u64) -> u64 {
    number("FUZZ_CALLS").unwrap_or(usually)
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|error| panic!("{variable}={text}: {error}")))
}

/// What requests are made of, and what is known of the driver.
pub(crate) struct World {
    dice: Dice,
    seed: u64,
    /// Paths of requests are below it.
    folder: PathBuf,
    /// Names of parameters and values that are good.
    parameters: Vec<(&'static str, Vec<String>)>,
    /// Without which nothing is made.
    needed: Map,
    secrets: Map,
    node: String,
    volumes: Vec<String>,
    snapshots: Vec<String>,
    unanswered: Vec<CreateVolumeRequest>,
    /// How often each call ended in each way.
    tally: BTreeMap<(&'static str, String), u64>,
}

impl World {
    /// `needed`: parameters without which nothing is made; `secrets`: of each request.
    #[expect(clippy::print_stderr, reason = "the seed of a run that fails has to be known")]
    pub(crate) fn new(folder: &Path, node: &str, needed: Map, secrets: Map) -> Self {
        let by_time = || std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs();
        let seed = number("FUZZ_SEED").unwrap_or_else(by_time);
        eprintln!("FUZZ_SEED={seed}");
        Self {
            dice: Dice::new(seed),
            seed,
            folder: folder.to_owned(),
            parameters: Vec::new(),
            needed,
            secrets,
            node: node.to_owned(),
            volumes: Vec::new(),
            snapshots: Vec::new(),
            unanswered: Vec::new(),
            tally: BTreeMap::new(),
        }
    }

    /// A parameter, and values that it may have.
    pub(crate) fn parameter(mut self, name: &'static str, values: &[&str]) -> Self {
        self.parameters.push((name, values.iter().map(|value| (*value).to_owned()).collect()));
        self
    }

    /// Asks one thing; an answer that no request may get ends the test.
    pub(crate) async fn ask(&mut self, driver: &Client) {
        let asked = self.answered(driver).await;
        self.judge(&asked);
    }

    /// The same; in so many of a hundred calls the driver is killed meanwhile, and then there may be no answer. Whether it was.
    pub(crate) async fn ask_at_risk(&mut self, driver: &Driver, percent: u64) -> bool {
        let moment = Duration::from_millis(self.dice.below(400));
        if !self.dice.chance(percent) {
            self.ask(driver).await;
            return false;
        }
        let kill = async {
            tokio::time::sleep(moment).await;
            driver.signal(Signal::SIGKILL);
        };
        let (asked, ()) = tokio::join!(self.answered(driver), kill);
        if !asked.answer.as_ref().err().is_some_and(died) {
            self.judge(&asked);
        }
        true
    }

    async fn answered(&mut self, driver: &Client) -> Asked {
        let since = Instant::now();
        let Ok(asked) = tokio::time::timeout(PATIENCE, asks::one(self, driver)).await else {
            panic!("FUZZ_SEED={}: a call has no answer after {:?}", self.seed, since.elapsed());
        };
        asked
    }

    fn judge(&mut self, asked: &Asked) {
        let code = asked.answer.as_ref().err().map_or(Code::Ok, Status::code);
        *self.tally.entry((asked.call, format!("{code:?}"))).or_default() += 1;
        let Err(status) = &asked.answer else { return };
        let never = matches!(code, Code::Internal | Code::Unknown | Code::DataLoss | Code::Unavailable);
        assert!(!never, "FUZZ_SEED={}: {} answers {status:?} to\n{}", self.seed, asked.call, asked.request);
        assert!(!status.message().is_empty(), "{} says nothing with {code:?}", asked.call);
        // A text of a request may be megabytes; what is said of it is not.
        assert!(
            status.message().len() < 16 << 10,
            "{} says too much: {}",
            asked.call,
            status.message().len()
        );
    }

    /// Shown where a test is told not to capture it, and where it fails.
    #[expect(clippy::print_stderr, reason = "who runs many calls wants to see what became of them")]
    pub(crate) fn tell(&self) {
        eprintln!("{}", self.told());
    }

    /// How often each call ended in each way.
    fn told(&self) -> String {
        let line = |((call, code), count): (&(&str, String), &u64)| format!("{count:6} {call} {code}");
        self.tally.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    /// Calls that did what was asked, of those that make and show volumes: what only refuses tests little.
    pub(crate) fn successes(&self, call: &'static str) -> u64 {
        self.tally.get(&(call, "Ok".to_owned())).copied().unwrap_or_default()
    }
}

/// Whether there is no answer, because the driver has died.
fn died(status: &Status) -> bool {
    let words = ["transport", "h2 protocol error", "connection"];
    matches!(status.code(), Code::Unavailable | Code::Unknown | Code::Cancelled | Code::Internal)
        && words.iter().any(|word| status.message().contains(word))
}

/// One call and its end.
struct Asked {
    call: &'static str,
    /// In words, without secrets.
    request: String,
    answer: Result<(), Status>,
}
