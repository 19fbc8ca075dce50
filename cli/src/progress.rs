//! Progress: a bar on a terminal, plain lines elsewhere.

use crate::terminal::Window;
use crate::{output, size};
use indicatif::{ProgressBar, ProgressStyle};
use std::time::{Duration, Instant};

/// Interval of plain lines of a copy, which keeps the log of a long one short.
const LINE_INTERVAL: Duration = Duration::from_secs(2);

/// A bar, which is cleared on drop, or plain lines.
pub(crate) struct Progress {
    pub(crate) bar: ProgressBar,
    /// Interval of plain lines; `None` with a bar.
    interval: Option<Duration>,
    last_line: Instant,
}

impl Progress {
    /// `quiet` disables both.
    pub(crate) fn start(length: u64, template: &str, interval: Duration, quiet: bool) -> Self {
        let bar = if quiet { ProgressBar::hidden() } else { ProgressBar::new(length) };
        let style = ProgressStyle::with_template(template);
        let bar = bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        let interval = (bar.is_hidden() && !quiet).then_some(interval);
        Self { bar, interval, last_line: Instant::now() }
    }

    /// Moves the bar, or prints a line if one is due.
    pub(crate) fn update(&mut self, position: u64, line: impl FnOnce() -> String) {
        self.bar.set_position(position);
        if self.interval.is_some_and(|interval| self.last_line.elapsed() >= interval) {
            self.last_line = Instant::now();
            output::note(format_args!("{}", line()));
        }
    }
}

/// The progress of a copy.
pub(crate) struct CopyProgress {
    progress: Progress,
    what: &'static str,
    total: u64,
    done: u64,
    started: Instant,
}

impl CopyProgress {
    pub(crate) fn start(what: &'static str, total: u64, quiet: bool) -> Self {
        let columns = Window::of(std::io::stderr()).map_or(0, |window| window.columns);
        let progress = Progress::start(total, template(columns), LINE_INTERVAL, quiet);
        progress.bar.set_prefix(what);
        Self { progress, what, total, done: 0, started: Instant::now() }
    }

    pub(crate) fn add(&mut self, bytes: u64) {
        self.done += bytes;
        let (done, total) = (self.done, self.total);
        self.progress.update(done, || {
            let percent = done * 100 / total.max(1);
            let (done, total) = (size::show(done), size::show(total));
            format!("{}: {done} of {total} ({percent} %)", self.what)
        });
    }

    /// Clears the bar, and returns the duration of the copy.
    pub(crate) fn finish(self) -> Duration {
        self.started.elapsed()
    }
}

/// Returns a template that fits the width; parts that do not fit are omitted, never wrapped.
fn template(columns: usize) -> &'static str {
    match columns {
        72.. => "{prefix} {wide_bar} {bytes}/{total_bytes} {binary_bytes_per_sec} {eta}",
        32.. => "{prefix} {wide_bar} {percent}% {eta}",
        _ => "{prefix} {percent}%",
    }
}

/// Formats a rate such as `1.2 GiB/s`.
pub(crate) fn rate(bytes: u64, took: Duration) -> String {
    format!("{}/s", size::show(size::per_second(bytes, took)))
}
