//! The terminal: its size, its colours, and the language of its user.

use handfast_diagnosis::{COLUMNS_MIN, Language, Style};
use std::io::IsTerminal;
use std::os::fd::AsFd;

/// Maximum width of text, since longer lines are hard to read.
const COLUMNS_MAX: usize = 110;
/// Width of output to a file or another program.
const COLUMNS_ELSEWHERE: usize = 100;
/// The assumed size of a terminal that reports none.
const USUAL: Window = Window { columns: 80, rows: 24 };

/// The size of a terminal.
#[derive(Clone, Copy)]
pub(crate) struct Window {
    pub(crate) columns: usize,
    pub(crate) rows: usize,
}

impl Window {
    /// The size of the terminal behind a stream; `None` for a file or a pipe.
    pub(crate) fn of(stream: impl AsFd + IsTerminal) -> Option<Self> {
        if !stream.is_terminal() {
            return None;
        }
        let size = rustix::termios::tcgetwinsize(stream).ok();
        let size = size.filter(|size| size.ws_col > 0 && size.ws_row > 0);
        Some(
            size.map_or(USUAL, |size| Self {
                columns: size.ws_col.into(),
                rows: size.ws_row.into(),
            }),
        )
    }
}

/// The style of standard output.
pub(crate) fn style(language: Option<Language>) -> Style {
    let window = Window::of(std::io::stdout());
    let of_variable = || std::env::var("COLUMNS").ok()?.parse().ok();
    let columns = window.map(|window| window.columns).or_else(of_variable);
    // Set by users who want no colours, or by terminals without them.
    let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
        || std::env::var_os("TERM").is_some_and(|name| name == "dumb");
    let of_environment = || Language::of_environment(|name| std::env::var(name).ok());
    Style {
        language: language.unwrap_or_else(of_environment),
        columns: columns.unwrap_or(COLUMNS_ELSEWHERE).clamp(COLUMNS_MIN, COLUMNS_MAX),
        colour: window.is_some() && !no_colour,
    }
}
