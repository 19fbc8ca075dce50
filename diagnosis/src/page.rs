//! Pages of the catalogue for terminals and for the printed catalogue.

use crate::language::Language;
use crate::problem::{Problem, Severity};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Minimum width: on narrower terminals words would no longer fit.
pub const COLUMNS_MIN: usize = 30;
/// Minimum width of a page with labels to the left of their text.
const COLUMNS_WIDE: usize = 56;

/// The style of a page.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// Language.
    pub language: Language,
    /// Maximum width in columns; a longer word, such as a path, is not broken.
    pub columns: usize,
    /// Whether to use colours.
    pub colour: bool,
}

impl Style {
    /// Formats a text in bold.
    pub fn bold(&self, text: &str) -> String {
        self.coloured("1", text)
    }

    /// Formats a text in the colour of a severity.
    pub fn of_severity(&self, severity: Severity, text: &str) -> String {
        let code = match severity {
            Severity::Fatal => "1;31",
            Severity::Degraded => "1;33",
            Severity::Risk => "33",
            Severity::CannotTell => "35",
            Severity::Info => "36",
        };
        self.coloured(code, text)
    }

    /// Formats a text in the colour of a success.
    pub fn good(&self, text: &str) -> String {
        self.coloured("32", text)
    }

    fn coloured(&self, code: &str, text: &str) -> String {
        if self.colour { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }

    /// Formats the head of a page: a problem's name, its severity and its title.
    pub(crate) fn head(&self, problem: &Problem, severity: Severity) -> String {
        let word = self.of_severity(severity, severity.word(self.language));
        let title = self.lines("", problem.title.get(self.language));
        format!("{}  {word}\n{title}", self.bold(problem.id.as_str()))
    }

    /// Breaks a text into lines that fit, each preceded by `indent`.
    pub(crate) fn lines(&self, indent: &str, text: &str) -> String {
        let lines = wrapped(text, self.columns.saturating_sub(indent.len()));
        lines.iter().map(|line| format!("{indent}{line}\n")).collect()
    }

    /// Formats a label with its text to the right, or below it on a narrow terminal.
    pub fn entry(&self, label: &str, text: &str) -> String {
        const LABEL_COLUMNS: usize = 10;
        if self.columns < COLUMNS_WIDE {
            let columns = self.columns.max(COLUMNS_MIN);
            return format!("{}\n", self.bold(label))
                + &Self { columns, ..*self }.lines("  ", text);
        }
        let indent = " ".repeat(LABEL_COLUMNS);
        let room = " ".repeat(LABEL_COLUMNS.saturating_sub(label.width()).max(1));
        self.lines(&indent, text).replacen(&indent, &format!("{}{room}", self.bold(label)), 1)
    }

    /// Formats a command, which is never broken, so that it can be copied.
    pub fn command(&self, command: &str) -> String {
        let indent = if self.columns < COLUMNS_WIDE { "  " } else { "            " };
        format!("{indent}{}\n", self.coloured("36", &format!("$ {command}")))
    }
}

/// Breaks text into lines of at most `columns`, at blanks and between Chinese characters. A piece
/// without such a place stays whole.
pub fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for piece in pieces(text) {
        let is_first = line.is_empty();
        let width = line.width() + piece.trim_end().width();
        if !is_first && width > columns && !may_not_begin(piece) {
            lines.push(line.trim_end().to_owned());
            line.clear();
        }
        line.push_str(if line.is_empty() { piece.trim_start() } else { piece });
    }
    if !line.is_empty() || lines.is_empty() {
        lines.push(line.trim_end().to_owned());
    }
    lines
}

/// Whether the piece is closing punctuation, which must not begin a line.
fn may_not_begin(piece: &str) -> bool {
    piece.starts_with(['，', '。', '、', '；', '：', '）', '”', '！', '？', ',', ';', '.', ')'])
}

/// Splits text where a line may break: after a blank, on both sides of a wide character, and after
/// punctuation that follows one.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let mut end = None;
        let mut chars = rest.char_indices().peekable();
        while let Some((at, c)) = chars.next() {
            let after = at + c.len_utf8();
            let is_wide = |c: char| c.width() == Some(2);
            let next_is_wide = chars.peek().is_some_and(|(_, next)| is_wide(*next));
            let closes = at == 0 && matches!(c, ',' | ';' | ':' | '.' | ')');
            if c == ' ' || closes || is_wide(c) || next_is_wide {
                end = Some(after);
                break;
            }
        }
        let (piece, later) = rest.split_at(end.unwrap_or(rest.len()));
        rest = later;
        (!piece.is_empty()).then_some(piece)
    })
}

/// Fills in the known values of a command; unknown ones are shown in capitals.
pub(crate) fn filled(template: &str, value: impl Fn(&str) -> Option<String>) -> String {
    let mut out = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        out.push_str(before);
        let name = after.split_once('}').filter(|(name, _)| {
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase())
        });
        match name {
            Some((name, later)) => {
                out.push_str(&value(name).unwrap_or_else(|| name.to_uppercase()));
                rest = later;
            }
            None => {
                out.push('{');
                rest = after;
            }
        }
    }
    out + rest
}

/// Formats the page of a problem.
pub fn page(problem: &Problem, style: &Style) -> String {
    let messages = problem.messages.iter().take(4).map(|message| format!("'{message}'"));
    let messages = messages.collect::<Vec<_>>().join(", ");
    let seen = style.entry(style.language.pick("Seen as", "日志"), &messages);
    format!("{}\n{}{seen}", style.head(problem, problem.severity), body(problem, style))
}

/// Returns a problem's page as JSON.
pub fn page_json(problem: &Problem, language: Language) -> serde_json::Value {
    serde_json::json!({
        "id": problem.id,
        "severity": problem.severity,
        "role": problem.role,
        "side": problem.side,
        "section": problem.section.get(language),
        "title": problem.title.get(language),
        "what": problem.what.get(language),
        "cause": problem.cause.get(language),
        "remedy": problem.remedy.get(language),
        "command": filled(problem.command, |_| None),
        "verify": problem.verify.get(language),
    })
}

/// Formats a page without its title.
pub(crate) fn body(problem: &Problem, style: &Style) -> String {
    let language = style.language;
    let mut out = String::new();
    for (english, chinese, text) in [
        ("What", "现象", problem.what),
        ("Why", "原因", problem.cause),
        ("Remedy", "处理", problem.remedy),
    ] {
        out.push_str(&style.entry(language.pick(english, chinese), text.get(language)));
    }
    if !problem.command.is_empty() {
        out.push_str(&style.command(&filled(problem.command, |_| None)));
    }
    out.push_str(&style.entry(language.pick("Check", "验证"), problem.verify.get(language)));
    let side = problem.side.words(language);
    out.push_str(&style.entry(language.pick("Side", "哪一侧"), side));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids;
    use crate::problem::{problem, problems};

    fn style(language: Language, columns: usize) -> Style {
        Style { language, columns, colour: false }
    }

    #[test]
    fn lines_fit_their_columns_in_both_languages() {
        for entry in problems() {
            for (language, columns) in [
                (Language::English, 60),
                (Language::Chinese, 60),
                (Language::English, 140),
                (Language::Chinese, 140),
                (Language::Chinese, 40),
            ] {
                for line in page(entry, &style(language, columns)).lines() {
                    let is_command = line.trim_start().starts_with('$');
                    let words = line.split(' ').map(UnicodeWidthStr::width);
                    let is_word = words.max().unwrap_or(0) > columns - 24;
                    // Closing punctuation may exceed the width by one character.
                    let fits = line.width() <= columns + 2;
                    assert!(fits || is_command || is_word, "{columns}: {line}");
                }
            }
        }
    }

    #[test]
    fn chinese_is_broken_between_characters_and_words_are_not() {
        assert_eq!(wrapped("一二三四五", 6), ["一二三", "四五"]);
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("a-very-long-word it is", 5), ["a-very-long-word", "it is"]);
        assert_eq!(wrapped("一二,三", 4), ["一二,", "三"]);
        assert_eq!(wrapped("", 5), [""]);
    }

    #[test]
    fn known_values_are_filled_in_and_others_are_shown_in_capitals() {
        let entry = problem(ids::PORT_DOWN);
        assert_eq!(filled(entry.command, |_| None), "ip link set NETDEV up");
        let value = |name: &str| (name == "netdev").then(|| "eth1".to_owned());
        assert_eq!(filled(entry.command, value), "ip link set eth1 up");
        assert_eq!(filled("awk '{print $1}' {", |_| None), "awk '{print $1}' {");
    }

    #[test]
    fn colours_are_used_only_where_asked_for() {
        let plain = page(problem(ids::PORT_DOWN), &style(Language::English, 80));
        assert!(!plain.contains('\u{1b}'));
        let colour = Style { colour: true, ..style(Language::English, 80) };
        assert!(page(problem(ids::PORT_DOWN), &colour).contains("\u{1b}[1;31mfatal\u{1b}[0m"));
    }
}
