//! What takes long, told once per interval: how old it is, and what it waits for. Work runs in `watched`, and whoever makes
//! it wait says so by `waiting`. Knows neither calls nor commands.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval_at};

/// What is told of one wait, in characters: an argument may be as long as its sender likes.
const MOST: usize = 300;

tokio::task_local! {
    static WAITS: Waits;
}

/// Runs `work` to its end; meanwhile `tell` hears once per interval how old it is and what it waits for. An interval of
/// zero: never.
pub(crate) async fn watched<T>(
    every: Duration,
    work: impl Future<Output = T>,
    tell: impl Fn(&str, &str),
) -> T {
    if every.is_zero() {
        return work.await;
    }
    let (waits, since) = (Waits::default(), Instant::now());
    let work = WAITS.scope(waits.clone(), work);
    tokio::pin!(work);
    let mut tick = interval_at(since + every, every);
    tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        tokio::select! {
            biased;
            ended = &mut work => return ended,
            _ = tick.tick() => {}
        }
        if let Some(what) = waits.told() {
            tell(&age(since), &what);
        }
    }
}

/// The work that runs here waits for this, until what is returned goes.
pub(crate) fn waiting(what: impl FnOnce() -> String) -> Waiting {
    note(|| Some(what().chars().take(MOST).collect()))
}

/// The work that runs here waits for work that is watched itself: nothing is told of it, until what is returned goes.
pub(crate) fn told_elsewhere() -> Waiting {
    note(|| None)
}

fn note(what: impl FnOnce() -> Option<String>) -> Waiting {
    let waits = WAITS.try_with(Clone::clone).ok();
    Waiting(waits.map(|waits| {
        let number = waits.enter(Wait { what: what(), since: Instant::now() });
        (waits, number)
    }))
}

/// A wait that is noted.
#[must_use = "the wait is noted as long as this is kept"]
pub(crate) struct Waiting(Option<(Waits, u64)>);

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some((waits, number)) = &self.0 {
            waits.lock().current.remove(number);
        }
    }
}

/// What one piece of work waits for: several things at once, where it does things side by side.
#[derive(Clone, Default)]
struct Waits(Arc<Mutex<Noted>>);

#[derive(Default)]
struct Noted {
    last: u64,
    current: BTreeMap<u64, Wait>,
}

struct Wait {
    /// None: it is told elsewhere.
    what: Option<String>,
    since: Instant,
}

impl Waits {
    fn enter(&self, wait: Wait) -> u64 {
        let mut noted = self.lock();
        noted.last += 1;
        let number = noted.last;
        noted.current.insert(number, wait);
        number
    }

    /// None: another tells it.
    fn told(&self) -> Option<String> {
        let noted = self.lock();
        let one = |wait: &Wait| wait.what.as_ref().map(|what| format!("{what} (for {})", age(wait.since)));
        let all: Option<Vec<String>> = noted.current.values().map(one).collect();
        let all = all?;
        Some(if all.is_empty() { "nothing that is known of".to_owned() } else { all.join(", and ") })
    }

    /// A std mutex: it is held for a few instructions and never across an await.
    fn lock(&self) -> MutexGuard<'_, Noted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn age(since: Instant) -> String {
    humantime::format_duration(Duration::from_secs(since.elapsed().as_secs())).to_string()
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    /// What is told of work with an interval of ten seconds.
    async fn told(work: impl Future<Output = ()>) -> Vec<String> {
        let lines = Mutex::new(Vec::new());
        let tell = |age: &str, what: &str| lines.lock().expect("lines").push(format!("{age}: {what}"));
        watched(Duration::from_secs(10), work, tell).await;
        lines.into_inner().expect("lines")
    }

    async fn seconds(count: u64) {
        sleep(Duration::from_secs(count)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn what_takes_long_is_told_once_per_interval_with_what_it_waits_for() {
        let work = async {
            let first = waiting(|| "a slot".to_owned());
            seconds(15).await;
            drop(first);
            let _second = waiting(|| "rbd info".to_owned());
            seconds(10).await;
        };
        assert_eq!(told(work).await, ["10s: a slot (for 10s)", "20s: rbd info (for 5s)"]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_done_side_by_side_is_told_together() {
        let wait = |what: &'static str| async move {
            let _waiting = waiting(|| what.to_owned());
            seconds(15).await;
        };
        let work = async {
            tokio::join!(wait("rbd info"), wait("rbd status"));
        };
        assert_eq!(told(work).await, ["10s: rbd info (for 10s), and rbd status (for 10s)"]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_quick_or_told_elsewhere_is_not_told() {
        assert_eq!(told(seconds(9)).await, Vec::<String>::new());
        let work = async {
            let _elsewhere = told_elsewhere();
            seconds(25).await;
        };
        assert_eq!(told(work).await, Vec::<String>::new());
        assert_eq!(told(seconds(11)).await, ["10s: nothing that is known of"]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_interval_of_zero_tells_nothing() {
        let tell = |_: &str, _: &str| panic!("it was told");
        watched(Duration::ZERO, seconds(1000), tell).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_is_told_at_a_bounded_length() {
        let work = async {
            let _waiting = waiting(|| "x".repeat(1 << 20));
            seconds(11).await;
        };
        assert_eq!(told(work).await[0].len(), "10s: ".len() + MOST + " (for 10s)".len());
    }
}
