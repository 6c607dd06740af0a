//! Programs, names, and what a call has to answer.

use std::fmt::Debug;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use tonic::{Code, Status};

pub(crate) type Answer<T = ()> = Result<T, Status>;

/// A call that has to fail with this code and with this in its message.
#[track_caller]
pub(crate) fn check<T>(answer: Answer<T>, code: Code, fragment: &str) {
    let Err(status) = answer else { panic!("it succeeded, where {code:?} with {fragment:?} was expected") };
    let message = status.message();
    assert_eq!(status.code(), code, "{message}");
    assert!(message.contains(fragment), "{message:?} does not say {fragment:?}");
}

/// Asks the same again: the answer has to be the same.
pub(crate) async fn twice<T: Debug + PartialEq>(call: impl AsyncFn() -> Answer<T>) -> T {
    let first = call().await.expect("the first call");
    let second = call().await.expect("the same call again");
    assert_eq!(first, second);
    first
}

/// Runs a program to its end; what it printed, or what it said when it failed.
pub(crate) fn try_run(command: &mut Command) -> Result<String, String> {
    let output = command.env("LC_ALL", "C").output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("{command:?}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr)))
}

pub(crate) fn run(program: &str, args: &[&str]) -> String {
    try_run(Command::new(program).args(args)).unwrap_or_else(|error| panic!("{error}"))
}

/// A name that no other test has, now or in an earlier run.
pub(crate) fn unique(what: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let time = std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_micros();
    format!("{what}-{:x}-{count}-{time:x}", std::process::id())
}
