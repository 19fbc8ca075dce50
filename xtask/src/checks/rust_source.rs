//! Rust sources as tokens and as comments, as far as the checks need them.

/// A part of a source outside comments and literals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token {
    Word(String),
    /// `::`
    PathSign,
    Sign(char),
}

/// A comment or a text literal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Prose {
    /// The line it begins in, from 1.
    pub(super) line: usize,
    /// Its text, without quotes and slashes.
    pub(super) text: String,
    pub(super) kind: ProseKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProseKind {
    /// A comment from `//` to the end of its line, of any kind.
    Comment,
    /// A block comment.
    Block,
    /// A text literal, with its escapes as they stand.
    Literal,
}

/// The tokens of a source, without comments and literals.
pub(super) fn tokens(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    scan(text, &mut |part| {
        if let Part::Code(code) = part {
            tokens_of(code, &mut tokens);
        }
    });
    tokens
}

/// The comments and text literals of a source, in order.
pub(super) fn prose(text: &str) -> Vec<Prose> {
    let mut prose = Vec::new();
    scan(text, &mut |part| {
        if let Part::Prose(part) = part {
            prose.push(part);
        }
    });
    prose
}

/// Leaves out items with `#[cfg(test)]`, or with another condition that begins with `test`.
pub(super) fn without_tests(tokens: Vec<Token>) -> Vec<Token> {
    let begin = ["#", "[", "cfg", "("].map(token_of);
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let rest = &tokens[at..];
        let condition = rest.strip_prefix(&begin[..]).and_then(<[Token]>::first);
        if condition == Some(&token_of("test")) {
            at += item_length(rest);
        } else {
            kept.push(tokens[at].clone());
            at += 1;
        }
    }
    kept
}

fn token_of(text: &str) -> Token {
    match text.chars().next() {
        Some(sign) if !sign.is_alphabetic() => Token::Sign(sign),
        _ => Token::Word(text.to_owned()),
    }
}

/// Tokens up to the end of an item: a semicolon or a block, outside parentheses and brackets.
fn item_length(tokens: &[Token]) -> usize {
    let mut depth = 0_usize;
    let mut in_block = false;
    for (at, token) in tokens.iter().enumerate() {
        match token {
            Token::Sign('{') => {
                in_block |= depth == 0 && tokens[at - 1] != Token::PathSign;
                depth += 1;
            }
            Token::Sign('(' | '[') => depth += 1,
            Token::Sign(')' | ']') => depth = depth.saturating_sub(1),
            Token::Sign('}') => {
                depth = depth.saturating_sub(1);
                if depth == 0 && in_block {
                    return at + 1;
                }
            }
            Token::Sign(';') if depth == 0 => return at + 1,
            _ => {}
        }
    }
    tokens.len()
}

fn tokens_of(code: &str, tokens: &mut Vec<Token>) {
    let mut rest = code;
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let length = if is_word(first) {
            let length = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            tokens.push(Token::Word(rest[..length].to_owned()));
            length
        } else if rest.starts_with("::") {
            tokens.push(Token::PathSign);
            2
        } else {
            if !first.is_whitespace() {
                tokens.push(Token::Sign(first));
            }
            first.len_utf8()
        };
        rest = &rest[length..];
    }
}

enum Part<'a> {
    Code(&'a str),
    Prose(Prose),
}

/// Shows the parts of a source in order.
fn scan(text: &str, show: &mut dyn FnMut(Part<'_>)) {
    let (mut at, mut begin) = (0, 0);
    let mut line = 1;
    while at < text.len() {
        let rest = &text[at..];
        let Some((length, inner, kind)) = prose_at(text, at) else {
            let first = rest.chars().next().map_or(1, char::len_utf8);
            // A quote sign begins a character or a lifetime; its content is no code of interest.
            at += char_literal(rest).unwrap_or(first);
            continue;
        };
        line += lines(&text[begin..at]);
        show(Part::Code(&text[begin..at]));
        show(Part::Prose(Prose { line, text: inner.to_owned(), kind }));
        line += lines(&text[at..at + length]);
        at += length;
        begin = at;
    }
    show(Part::Code(&text[begin..]));
}

fn lines(text: &str) -> usize {
    text.bytes().filter(|byte| *byte == b'\n').count()
}

/// The bytes of a comment or text literal at a place, its inner text and its kind.
fn prose_at(text: &str, at: usize) -> Option<(usize, &str, ProseKind)> {
    let rest = &text[at..];
    if rest.starts_with("//") {
        let length = rest.find('\n').unwrap_or(rest.len());
        let inner = rest[..length].trim_start_matches('/').trim_start_matches('!');
        return Some((length, inner.trim(), ProseKind::Comment));
    }
    if rest.starts_with("/*") {
        let length = rest.find("*/").map_or(rest.len(), |end| end + 2);
        return Some((length, &rest[..length], ProseKind::Block));
    }
    let after_word = text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
    let (prefix, raw) = literal_prefix(rest)?;
    if after_word && prefix > 0 {
        return None;
    }
    let body = &rest[prefix..];
    let hashes = body.len() - body.trim_start_matches('#').len();
    let body = body[hashes..].strip_prefix('"')?;
    let end =
        if raw { body.find(&format!("\"{}", "#".repeat(hashes)))? } else { end_of_literal(body)? };
    let length = prefix + 2 * hashes + 2 + end;
    Some((length, &body[..end], ProseKind::Literal))
}

/// The letters before the quotes of a literal, and whether it is a raw one.
fn literal_prefix(rest: &str) -> Option<(usize, bool)> {
    let prefixes = [("\"", 0, false), ("b\"", 1, false), ("c\"", 1, false)];
    let raw = [("r\"", 1), ("r#", 1), ("br\"", 2), ("br#", 2)];
    let plain = prefixes.into_iter().find(|(begin, ..)| rest.starts_with(begin));
    let raw = raw.into_iter().find(|(begin, _)| rest.starts_with(begin));
    plain.map(|(_, length, raw)| (length, raw)).or(raw.map(|(_, length)| (length, true)))
}

fn end_of_literal(body: &str) -> Option<usize> {
    let mut escaped = false;
    body.bytes().position(|byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    })
}

/// The bytes of a character literal such as `'"'`; `None` where a lifetime begins, or nothing of it.
fn char_literal(rest: &str) -> Option<usize> {
    let inner = rest.strip_prefix('\'')?;
    let first = inner.chars().next()?;
    let length =
        if first == '\\' { 1 + inner[1..].chars().next()?.len_utf8() } else { first.len_utf8() };
    let end = inner[length..].find('\'')?;
    let is_literal = end == 0 || (first == '\\' && end < 12);
    is_literal.then_some(1 + length + end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        let words = tokens(text).into_iter().filter_map(|token| match token {
            Token::Word(word) => Some(word),
            _ => None,
        });
        words.collect()
    }

    #[test]
    fn comments_and_literals_are_no_tokens() {
        let text = "a // b\n/* c */ d \"e \\\" f\" g r#\"h \" i\"# j '\"' k 'l b\"n\" o '\\'' p";
        assert_eq!(words(text), ["a", "d", "g", "j", "k", "l", "o", "p"]);
        assert_eq!(tokens("a::b;"), [token_of("a"), Token::PathSign, token_of("b"), token_of(";")]);
    }

    #[test]
    fn prose_has_its_line_and_kind() {
        let text = "//! One\nfn f() { // two\n    g(\"three\n four\")\n}\n/// five\n";
        let found = prose(text);
        let found: Vec<_> = found.iter().map(|it| (it.line, it.text.as_str(), it.kind)).collect();
        let expected = [
            (1, "One", ProseKind::Comment),
            (2, "two", ProseKind::Comment),
            (3, "three\n four", ProseKind::Literal),
            (6, "five", ProseKind::Comment),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn items_of_tests_are_left_out() {
        let left = |text| without_tests(tokens(text));
        let kept = left("a; #[cfg(test)] mod tests { b { c } } d");
        assert_eq!(kept, tokens("a; d"));
        assert_eq!(left("#[cfg(test)] use a::{b, c}; d"), tokens("d"));
        assert_eq!(left("#[cfg(unix)] mod a;"), tokens("#[cfg(unix)] mod a;"));
    }
}
