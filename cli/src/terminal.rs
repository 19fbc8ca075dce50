//! The terminal: its width, its colours, and the language of its user.

use handfast_diagnosis::{COLUMNS_MIN, Language, Style};
use std::io::IsTerminal;

/// Longer lines are hard to read, however wide the terminal is.
const COLUMNS_MAX: usize = 110;
/// Of output that goes to a file or another program.
const COLUMNS_ELSEWHERE: usize = 100;

/// The style of standard output.
pub(crate) fn style(language: Option<Language>) -> Style {
    let output = std::io::stdout();
    let is_terminal = output.is_terminal();
    let size = rustix::termios::tcgetwinsize(&output).ok().filter(|_| is_terminal);
    let columns = size.map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0);
    let told = || std::env::var("COLUMNS").ok()?.parse().ok();
    let columns = columns.or_else(told).unwrap_or(COLUMNS_ELSEWHERE);
    // Asked for by users, and by terminals that show none.
    let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
        || std::env::var_os("TERM").is_some_and(|name| name == "dumb");
    let of_environment = || Language::of_environment(|name| std::env::var(name).ok());
    Style {
        language: language.unwrap_or_else(of_environment),
        columns: columns.clamp(COLUMNS_MIN, COLUMNS_MAX),
        colour: is_terminal && !no_colour,
    }
}
