//! How far a long program has come, as it says on stderr (`Image flatten: 12% complete...`): a line in the log now and then.

use std::time::{Duration, Instant};

use crate::metrics::METRICS;

use super::{Cmd, Slot};

const EVERY: Duration = Duration::from_secs(10);

pub(super) struct Progress {
    /// What runs; None where nobody wants to know.
    what: Option<String>,
    told: Instant,
}

impl Progress {
    pub(super) fn of(cmd: &Cmd) -> Self {
        let what = matches!(cmd.slot, Slot::Long | Slot::Trash).then(|| {
            let words = cmd.args.iter().filter(|arg| !arg.starts_with('-')).take(2);
            words.map(String::as_str).collect::<Vec<_>>().join(" ")
        });
        Self { what, told: Instant::now() }
    }

    pub(super) fn hear(&mut self, said: &[u8]) {
        let Some((what, percent)) = self.what.as_ref().zip(percent(said)) else { return };
        if what.starts_with("flatten ") {
            METRICS.flattened.set(f64::from(percent) / 100.0);
        }
        if self.told.elapsed() >= EVERY {
            tracing::info!(percent, "{what} goes on");
            self.told = Instant::now();
        }
    }
}

/// The last percentage in there.
fn percent(said: &[u8]) -> Option<u8> {
    let text = String::from_utf8_lossy(said);
    let (before, _) = text.rsplit_once('%')?;
    let digits = before.rsplit(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok().filter(|percent| *percent <= 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_percentage_is_read() {
        let check = |said: &str| percent(said.as_bytes());
        assert_eq!(check("\rImage flatten: 9% complete...\rImage flatten: 10% complete..."), Some(10));
        assert_eq!(check("Image flatten: 100% complete...done.\n"), Some(100));
        assert_eq!(check("rbd: flatten error: (22) Invalid argument"), None);
        assert_eq!(check("% 999% "), None);
    }
}
