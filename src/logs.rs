//! Log lines on stderr, and how many: `--v` says it at the start, then SIGUSR1 (one step more) and SIGUSR2 (as at the start).

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt, reload};

use crate::config::{LogFormat, Shown};

const LEVELS: [&str; 3] = ["info", "debug", "trace"];

/// How much is logged, and what changes it.
pub(crate) struct Loudness {
    filter: reload::Handle<EnvFilter, Registry>,
    /// What `--v` says.
    first: usize,
    now: usize,
}

pub(crate) fn start(shown: &Shown) -> Loudness {
    let first = match shown.verbosity {
        0..=3 => 0,
        4..=5 => 1,
        _ => 2,
    };
    let (filter, handle) = reload::Layer::new(of_level(first));
    let lines = fmt::layer().with_target(false).with_writer(io::stderr);
    let lines = match shown.log_format {
        LogFormat::Text => lines.with_ansi(false).boxed(),
        LogFormat::Json => lines.json().boxed(),
    };
    tracing_subscriber::registry().with(lines.with_filter(filter)).init();
    Loudness { filter: handle, first, now: first }
}

fn of_level(level: usize) -> EnvFilter {
    EnvFilter::new(format!("warn,ceph_rbd_csi={}", LEVELS[level]))
}

impl Loudness {
    /// From now on the signals are heard; what is returned obeys them, and does not end.
    pub(crate) fn by_signals(self) -> io::Result<impl Future<Output = ()>> {
        let (more, back) = (signal(SignalKind::user_defined1())?, signal(SignalKind::user_defined2())?);
        Ok(self.obey(more, back))
    }

    async fn obey(mut self, mut more: Signal, mut back: Signal) {
        loop {
            tokio::select! {
                _ = more.recv() => self.set(self.now + 1),
                _ = back.recv() => self.set(self.first),
            }
        }
    }

    fn set(&mut self, level: usize) {
        self.now = level.min(LEVELS.len() - 1);
        match self.filter.reload(of_level(self.now)) {
            Ok(()) => tracing::info!("the log level is {} now", LEVELS[self.now]),
            Err(error) => tracing::error!("the log level stays as it is: {error}"),
        }
    }
}
