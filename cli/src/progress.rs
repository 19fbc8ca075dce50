//! The progress of a copy: a bar on a terminal, plain lines elsewhere.

use crate::{output, size};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Between two plain lines, so that a log of a long copy stays short.
const LINE_INTERVAL: Duration = Duration::from_secs(2);

pub(crate) struct Progress {
    what: &'static str,
    total: u64,
    done: u64,
    bar: Option<ProgressBar>,
    last_line: Instant,
    started: Instant,
}

impl Progress {
    pub(crate) fn start(what: &'static str, total: u64, quiet: bool) -> Self {
        let terminal = std::io::stderr().is_terminal() && !quiet;
        let bar = terminal.then(|| {
            let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
            bar.with_style(
                ProgressStyle::with_template(template(columns()))
                    .unwrap_or_else(|_| ProgressStyle::default_bar()),
            )
            .with_prefix(what)
        });
        let now = Instant::now();
        // A quiet copy never reaches its first line.
        let last_line = if quiet { now + Duration::from_secs(86_400 * 365) } else { now };
        Self { what, total, done: 0, bar, last_line, started: now }
    }

    pub(crate) fn add(&mut self, bytes: u64) {
        self.done += bytes;
        if let Some(bar) = &self.bar {
            bar.set_position(self.done);
        } else if Instant::now().saturating_duration_since(self.last_line) >= LINE_INTERVAL {
            self.last_line = Instant::now();
            let percent = self.done * 100 / self.total.max(1);
            let (done, total) = (size::show(self.done), size::show(self.total));
            output::note(format_args!("{}: {done} of {total} ({percent} %)", self.what));
        }
    }

    /// Takes the bar away and says how long it took.
    pub(crate) fn finish(self) -> Duration {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        self.started.elapsed()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Columns of the terminal, or those of an old one if it does not say.
fn columns() -> u16 {
    let size = rustix::termios::tcgetwinsize(std::io::stderr());
    size.map(|size| size.ws_col).ok().filter(|columns| *columns > 0).unwrap_or(80)
}

/// A line that fits: what does not is left out, never wrapped.
fn template(columns: u16) -> &'static str {
    match columns {
        72.. => "{prefix} {wide_bar} {bytes}/{total_bytes} {binary_bytes_per_sec} {eta}",
        32.. => "{prefix} {wide_bar} {percent}% {eta}",
        _ => "{prefix} {percent}%",
    }
}

/// A rate such as `1.2 GiB/s`.
pub(crate) fn rate(bytes: u64, took: Duration) -> String {
    let seconds = took.as_secs_f64();
    if seconds == 0.0 {
        return "-".into();
    }
    format!("{}/s", size::show((bytes as f64 / seconds) as u64))
}
