//! Which call the work at hand is done for: its id, which stands in each of its log lines, and its span in the traces.
//! Both go along with work that outlives the call.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use tokio::task::futures::TaskLocalFuture;
use tracing::Instrument as _;
use tracing::instrument::Instrumented;

use crate::traces::Span;

/// Tells apart the calls of several drivers, and of one that was started anew, in logs that are kept together.
static PROCESS: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(std::process::id()) & 0xffff);
static CALLS: AtomicU64 = AtomicU64::new(1);

tokio::task_local! {
    static CURRENT: Request;
}

/// Of one call. Clones are the same one; the default stands for work that no call asked for.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) id: Arc<str>,
    pub(crate) span: Span,
}

impl Default for Request {
    fn default() -> Self {
        Self { id: "none".into(), span: Span::default() }
    }
}

impl Request {
    pub(crate) fn new(span: Span) -> Self {
        let id = format!("{:04x}-{:04x}", *PROCESS, CALLS.fetch_add(1, Ordering::Relaxed));
        span.set("request", id.clone());
        Self { id: id.into(), span }
    }

    /// What it does, it does for this call.
    pub(crate) fn carries<F: Future>(self, work: F) -> TaskLocalFuture<Self, F> {
        CURRENT.scope(self, work)
    }
}

pub(crate) fn current() -> Request {
    CURRENT.try_with(Request::clone).unwrap_or_default()
}

/// Work that is going to run by itself, for the call at hand.
pub(crate) fn carried<F: Future>(work: F) -> Instrumented<TaskLocalFuture<Request, F>> {
    current().carries(work).in_current_span()
}
