//! The log of nodes on this thread, and the findings of `explain` in it.

use handfast_diagnosis::explain::explain;
use std::io::{self, Write};
use std::sync::{Arc, LazyLock, Mutex};
use tracing::subscriber::{DefaultGuard, NoSubscriber, set_default};
use tracing::{Dispatch, Level};

/// A log in memory.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

/// With a single subscriber tracing caches the interest of the first thread that meets an event,
/// which may have none. With two it asks both.
static SECOND: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(NoSubscriber::default()));

impl Log {
    /// Keeps what is logged on this thread until the guard goes.
    pub(crate) fn keep(&self) -> DefaultGuard {
        LazyLock::force(&SECOND);
        let log = self.clone();
        let format = tracing_subscriber::fmt().with_max_level(Level::DEBUG).with_ansi(false);
        set_default(format.with_writer(move || log.clone()).finish())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    /// The id of what everything in it follows from.
    pub(crate) fn first(&self) -> Option<&'static str> {
        explain(&self.text()).first.map(|first| first.id.as_str())
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
