//! The normal form in which messages are compared, without the differences between programs,
//! terminals and the punctuation of languages.

/// Converts to lower case, without blanks, control characters and quotation marks, and full-width
/// forms to ASCII. A message has the same form wherever its line was broken.
pub(crate) fn normal(text: &str) -> String {
    text.chars().filter_map(narrow).flat_map(char::to_lowercase).collect()
}

fn narrow(c: char) -> Option<char> {
    /// From `！` to `～`, in the order of ASCII from `!` to `~`.
    const FULL_WIDTH: std::ops::RangeInclusive<char> = '\u{ff01}'..='\u{ff5e}';
    let c = match c {
        '。' => '.',
        '、' => ',',
        '【' => '[',
        '】' => ']',
        c if FULL_WIDTH.contains(&c) => char::from_u32(c as u32 - 0xfee0)?,
        c => c,
    };
    let is_quote = matches!(c, '\'' | '"' | '`' | '‘' | '’' | '“' | '”' | '「' | '」');
    let is_invisible = matches!(c, '\u{200b}'..='\u{200f}' | '\u{feff}' | '\u{ad}');
    (!c.is_whitespace() && !c.is_control() && !is_quote && !is_invisible).then_some(c)
}
