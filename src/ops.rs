//! Work that outlives its caller. tonic drops a handler when its client goes away or its deadline passes; the work
//! goes on here, under its locks, to its end. Knows nothing of volumes.

use std::any::Any;
use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::error::{Error, Result};
use crate::{request, slow};

/// How long an answer is waited for when the caller names no time of its own: below the sidecars' usual 150 s, so
/// that they hear "still running" from us.
const ANSWER_WITHIN: Duration = Duration::from_secs(140);

/// What is to run: which lock it holds, and what makes two requests the same.
#[derive(Debug, Clone)]
pub(crate) struct Operation {
    pub(crate) method: &'static str,
    /// The lock, held alone.
    pub(crate) target: String,
    /// Locks shared with others that only read: the source of a clone or a snapshot. See `let_sources_go`.
    pub(crate) sources: Vec<String>,
    /// A digest of the whole request.
    pub(crate) fingerprint: u64,
}

impl Operation {
    /// One that reads nothing but its target.
    pub(crate) fn of(method: &'static str, target: String, fingerprint: u64) -> Self {
        Self { method, target, sources: Vec::new(), fingerprint }
    }

    fn named(&self) -> String {
        format!("{} of {}", self.method, self.target)
    }
}

/// The operations of this process. Clones are handles on the same set.
#[derive(Clone, Default)]
pub(crate) struct Ops {
    running: Arc<Mutex<HashMap<String, Running>>>,
    tasks: TaskTracker,
    stop: CancellationToken,
    /// See `slow`; zero: nothing is told.
    slow: Duration,
}

struct Running {
    method: &'static str,
    sources: Vec<String>,
    fingerprint: u64,
    since: Instant,
    /// Of the call that it was begun for.
    request: Arc<str>,
    /// A `watch::Receiver<Option<Result<T>>>`.
    answer: Box<dyn Any + Send>,
}

type Answer<T> = watch::Receiver<Option<Result<T>>>;

impl Ops {
    /// What runs for longer than `slow` is told, and again whenever as long has passed.
    pub(crate) fn telling(slow: Duration) -> Self {
        Self { slow, ..Self::default() }
    }

    pub(crate) fn slow(&self) -> Duration {
        self.slow
    }

    /// Runs `work` under its lock to its end, whether or not the caller stays. An identical request that arrives
    /// meanwhile gets the same answer; another one on the same target gets `Busy`, naming what runs and since when.
    pub(crate) async fn run<T, W>(&self, operation: Operation, work: W) -> Result<T>
    where
        T: Clone + Send + Sync + 'static,
        W: Future<Output = Result<T>> + Send + 'static,
    {
        let (mut answer, joined) = self.start(&operation, work)?;
        let _waiting = match joined {
            None => slow::told_elsewhere(),
            Some(age) => {
                slow::waiting(|| format!("{}, begun {age} before by another call", operation.named()))
            }
        };
        let ended = tokio::time::timeout(ANSWER_WITHIN, answer.wait_for(Option::is_some)).await;
        match ended {
            Ok(Ok(result)) => result.clone().unwrap_or_else(|| Err(Error::broken("an answer is empty"))),
            Ok(Err(_)) => Err(Error::broken(format!("{} ended without an answer", operation.method))),
            Err(_) => Err(Error::TimedOut(format!(
                "{} of {} still runs after {}: ask again for its result",
                operation.method,
                operation.target,
                humantime::format_duration(ANSWER_WITHIN)
            ))),
        }
    }

    /// For an operation on this target that has read all that it needs, and goes on for long: others may work on its
    /// sources from here on.
    pub(crate) fn let_sources_go(&self, target: &str) {
        if let Some(running) = self.lock().get_mut(target) {
            running.sources.clear();
        }
    }

    /// Work that nobody waits for and that can be taken up again at any time: a shutdown ends it at once.
    pub(crate) fn background(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(self.stop.clone().run_until_cancelled_owned(work));
    }

    /// Work that nobody waits for, but that a shutdown lets come to its end, as long as its grace lasts.
    pub(crate) fn behind(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(work);
    }

    /// From here on the process is going to end.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }

    /// Ends when the process is going to end: for work that must not be cut off as it stands.
    pub(crate) async fn stopped(&self) {
        self.stop.cancelled().await;
    }

    /// How many operations run, and for how long the oldest has.
    pub(crate) fn oldest(&self) -> (usize, Duration) {
        let running = self.lock();
        let oldest = running.values().map(|running| running.since.elapsed()).max();
        (running.len(), oldest.unwrap_or_default())
    }

    pub(crate) fn draining(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Stops, and ends when nothing runs any more.
    pub(crate) async fn drained(&self) {
        self.stop();
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Also for how long it has been running already, where it was joined.
    fn start<T, W>(&self, operation: &Operation, work: W) -> Result<(Answer<T>, Option<String>)>
    where
        T: Clone + Send + Sync + 'static,
        W: Future<Output = Result<T>> + Send + 'static,
    {
        let mut running = self.lock();
        if let Some(other) = running.get(&operation.target) {
            return Ok((join(other, operation)?, Some(other.age())));
        }
        if let Some((target, other)) = in_the_way(&running, operation) {
            return Err(other.busy(target));
        }
        let (sender, answer) = watch::channel(None);
        let entry = Running {
            method: operation.method,
            sources: operation.sources.clone(),
            fingerprint: operation.fingerprint,
            since: Instant::now(),
            request: request::current().id,
            answer: Box::new(answer.clone()),
        };
        running.insert(operation.target.clone(), entry);
        let lock = Lock { ops: self.clone(), target: operation.target.clone() };
        let (method, named, slow) = (operation.method, operation.named(), self.slow);
        let task = async move {
            let tell = |age: &str, what: &str| {
                tracing::warn!("slow: {named} has been running for {age}: it waits for {what}");
            };
            let result = AssertUnwindSafe(slow::watched(slow, work, tell)).catch_unwind().await;
            drop(lock);
            let result = result.unwrap_or_else(|panic| Err(panicked(method, panic.as_ref())));
            if sender.send(Some(result)).is_err() {
                tracing::info!(method, "ended after its caller had left");
            }
        };
        self.tasks.spawn(request::carried(task));
        Ok((answer, None))
    }

    /// A std mutex: it is held for a few instructions and never across an await.
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn join<T: Clone + Send + Sync + 'static>(running: &Running, operation: &Operation) -> Result<Answer<T>> {
    let same = running.method == operation.method && running.fingerprint == operation.fingerprint;
    let answer = running.answer.downcast_ref::<Answer<T>>().filter(|_| same);
    let answer = answer.cloned().ok_or_else(|| running.busy(&operation.target))?;
    tracing::info!("waits for the answer to request {}, which is the same", running.request);
    Ok(answer)
}

/// What works on a source of this operation, or reads its target.
fn in_the_way<'a>(
    running: &'a HashMap<String, Running>,
    operation: &Operation,
) -> Option<(&'a String, &'a Running)> {
    let reads = |other: &Running| other.sources.contains(&operation.target);
    running.iter().find(|(target, other)| operation.sources.contains(target) || reads(other))
}

impl Running {
    fn busy(&self, target: &str) -> Error {
        Error::Busy(format!(
            "{} of {target} has been running for {} (request {}): ask again when it has ended",
            self.method,
            self.age(),
            self.request
        ))
    }

    fn age(&self) -> String {
        humantime::format_duration(Duration::from_secs(self.since.elapsed().as_secs())).to_string()
    }
}

fn panicked(method: &str, panic: &(dyn Any + Send)) -> Error {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    tracing::error!(method, "a bug in the driver: panic: {text}");
    Error::broken(format!("{method} panicked, a bug in the driver: {text}"))
}

/// Frees its target when the work has ended, however it ended.
struct Lock {
    ops: Ops,
    target: String,
}

impl Drop for Lock {
    fn drop(&mut self) {
        self.ops.lock().remove(&self.target);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    fn operation(target: &str, fingerprint: u64) -> Operation {
        Operation::of("CreateVolume", target.to_owned(), fingerprint)
    }

    fn of_source(target: &str, source: &str) -> Operation {
        Operation { sources: vec![source.to_owned()], ..operation(target, 1) }
    }

    async fn count_slowly(runs: Arc<AtomicU32>) -> Result<u32> {
        tokio::time::sleep(Duration::from_secs(5)).await;
        Ok(runs.fetch_add(1, Ordering::SeqCst) + 1)
    }

    #[tokio::test(start_paused = true)]
    async fn an_operation_outlives_its_caller() {
        let (ops, runs) = (Ops::default(), Arc::new(AtomicU32::new(0)));
        let call = ops.run(operation("a", 1), count_slowly(runs.clone()));
        assert!(tokio::time::timeout(Duration::from_secs(1), call).await.is_err());
        ops.drained().await;
        assert_eq!(runs.load(Ordering::SeqCst), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn an_identical_request_joins_and_gets_the_same_answer() {
        let (ops, runs) = (Ops::default(), Arc::new(AtomicU32::new(0)));
        let first = ops.run(operation("a", 1), count_slowly(runs.clone()));
        let second = ops.run(operation("a", 1), count_slowly(runs.clone()));
        let (first, second) = tokio::join!(first, second);
        assert_eq!((first.expect("first"), second.expect("second")), (1, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_different_request_on_the_same_target_is_busy() {
        let (ops, runs) = (Ops::default(), Arc::new(AtomicU32::new(0)));
        let first = ops.run(operation("a", 1), count_slowly(runs.clone()));
        let second = ops.run(operation("a", 2), count_slowly(runs.clone()));
        let other = ops.run(operation("b", 2), count_slowly(runs.clone()));
        let (first, second, other) = tokio::join!(first, second, other);
        assert!(first.is_ok() && other.is_ok());
        let Err(Error::Busy(text)) = second else { panic!("{second:?}") };
        assert!(text.contains("CreateVolume of a has been running"), "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_is_read_by_many_and_changed_by_none_meanwhile() {
        let (ops, runs) = (Ops::default(), Arc::new(AtomicU32::new(0)));
        let first = ops.run(of_source("clone-1", "a"), count_slowly(runs.clone()));
        let second = ops.run(of_source("clone-2", "a"), count_slowly(runs.clone()));
        let change = ops.run(operation("a", 1), count_slowly(runs.clone()));
        let (first, second, change) = tokio::join!(first, second, change);
        assert!(first.is_ok() && second.is_ok());
        assert!(matches!(change, Err(Error::Busy(_))), "{change:?}");
        let change = ops.run(operation("a", 1), count_slowly(runs.clone()));
        let third = ops.run(of_source("clone-3", "a"), count_slowly(runs.clone()));
        let (change, third) = tokio::join!(change, third);
        assert!(change.is_ok() && matches!(third, Err(Error::Busy(_))), "{third:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_that_was_let_go_is_free_and_its_reader_still_runs() {
        let (ops, runs) = (Ops::default(), Arc::new(AtomicU32::new(0)));
        let (own, counted) = (ops.clone(), runs.clone());
        let read = ops.run(of_source("clone", "a"), async move {
            own.let_sources_go("clone");
            count_slowly(counted).await
        });
        let change = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let other = ops.run(operation("clone", 2), count_slowly(runs.clone())).await;
            assert!(matches!(other, Err(Error::Busy(_))), "{other:?}");
            ops.run(operation("a", 1), async { Ok(0) }).await
        };
        let (read, change) = tokio::join!(read, change);
        assert!(read.is_ok() && change.is_ok(), "{change:?}");
    }

    #[tokio::test]
    async fn a_panic_frees_the_lock_and_answers_internal() {
        let ops = Ops::default();
        let broken = ops.run::<u32, _>(operation("a", 1), async { panic!("a bug") }).await;
        assert!(matches!(broken, Err(Error::Internal { .. })), "{broken:?}");
        assert_eq!(ops.run(operation("a", 2), async { Ok(2) }).await.expect("free again"), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_hears_that_it_still_runs_before_its_own_deadline() {
        let ops = Ops::default();
        let never = ops.run::<u32, _>(operation("a", 1), std::future::pending());
        assert!(matches!(never.await, Err(Error::TimedOut(_))));
        assert!(matches!(ops.run(operation("a", 2), async { Ok(1) }).await, Err(Error::Busy(_))));
    }
}
