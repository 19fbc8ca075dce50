//! Input in the texts of errors.

use alloc::borrow::ToOwned;
use alloc::string::String;

/// Maximum bytes of input in the text of an error; `…` stands for the rest. Errors go into logs and
/// refusals, whose length no input chooses.
pub const EXCERPT_BYTES_MAX: usize = 256;

/// Returns the beginning of `text`, for an error that quotes it.
pub fn excerpt(text: &str) -> String {
    if text.len() <= EXCERPT_BYTES_MAX {
        return text.to_owned();
    }
    let end = (0..=EXCERPT_BYTES_MAX).rev().find(|at| text.is_char_boundary(*at));
    let mut cut = text[..end.unwrap_or_default()].to_owned();
    cut.push('…');
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A text at the limit is whole, and a longer one ends at a whole character within the limit.
    #[test]
    fn long_texts_are_cut_at_the_limit() {
        let at_limit = "x".repeat(EXCERPT_BYTES_MAX);
        assert_eq!(excerpt(&at_limit), at_limit);
        assert_eq!(excerpt(&(at_limit.clone() + "y")), at_limit + "…");
        let wide = excerpt(&"错".repeat(EXCERPT_BYTES_MAX));
        assert_eq!(wide, "错".repeat(EXCERPT_BYTES_MAX / 3) + "…");
    }
}
