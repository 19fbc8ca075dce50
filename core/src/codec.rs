//! Values as words of a line: exact, canonical and readable, for traces.
//!
//! A number is decimal, an incarnation 32 hexadecimal digits, a text `=` and its characters with
//! spaces, controls and `%` as `%xx`, an absent value `-` and a present one `+` and its words, a list
//! its length and its elements, a variant its name and its fields, in the order of their declaration.
//! There is one way to write each value, and what is written another way is refused.

mod types;

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt::{Display, Write as _};
use core::str::FromStr;

/// Longest word that an error quotes, in bytes.
const QUOTED_BYTES_MAX: usize = 64;

/// A value that can be written as words and read again.
pub trait Code: Sized {
    /// Appends its words.
    fn write(&self, to: &mut Writer);

    /// Reads its words.
    ///
    /// # Errors
    /// [`CodeError`] at the first word that is not what this build would have written.
    fn read(from: &mut Reader<'_>) -> Result<Self, CodeError>;
}

/// A line in the making.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    line: String,
}

impl Writer {
    /// Appends a word, which has neither space nor control character.
    pub fn word(&mut self, word: &str) {
        self.display(word);
    }

    fn display(&mut self, word: impl Display) {
        let space = if self.line.is_empty() { "" } else { " " };
        // Writing to a string does not fail.
        let _ = write!(self.line, "{space}{word}");
    }

    /// Appends a text of any characters as one word.
    pub fn text(&mut self, text: &str) {
        self.word("=");
        for character in text.chars() {
            match character {
                '%' | ' ' | '\0'..='\u{1f}' | '\u{7f}' => {
                    let _ = write!(self.line, "%{:02x}", u32::from(character));
                }
                _ => self.line.push(character),
            }
        }
    }

    /// The words so far.
    pub fn as_str(&self) -> &str {
        &self.line
    }

    /// Begins a new line, and keeps the room of this one.
    pub fn clear(&mut self) {
        self.line.clear();
    }
}

/// What a text is, for whoever maps texts while they are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TextKind {
    /// A node's or a NIC's name. Names are compared, so a mapping must keep their order.
    Name,
    /// `host:port` of a peer, or empty.
    Address,
    /// A GID in text form, or empty.
    Gid,
    /// A token of a lane, or empty.
    Token,
    /// Words for people.
    Detail,
}

/// What is done with texts while they are read.
pub trait Texts {
    /// The text to take in place of the one read.
    fn text(&mut self, kind: TextKind, text: String) -> String;

    /// The name of a call, limit or step for as long as the program runs; `None` if there are too
    /// many different ones.
    fn lasting(&mut self, name: &str) -> Option<&'static str>;
}

/// Why a line is not what was expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodeError {
    /// A word is missing, or another than this build would write.
    #[error("word {position} is {}, where {expected} is expected", quoted(.found))]
    Word {
        /// Its place in the line, from 1.
        position: usize,
        /// What should stand there.
        expected: &'static str,
        /// What does, at most 64 bytes of it; `None` at the end of the line.
        found: Option<String>,
    },
    /// The words read well, and do not add up to the state of a node.
    #[error("the parts of the state do not fit together: {0}")]
    State(&'static str),
    /// A name of a call, limit or step is new, and there are too many already.
    #[error("there are too many different names of calls")]
    TooManyNames,
}

fn quoted(found: &Option<String>) -> String {
    match found {
        Some(word) => alloc::format!("'{word}'"),
        None => "missing".to_string(),
    }
}

/// A line that is read word by word.
pub struct Reader<'a> {
    words: core::str::Split<'a, char>,
    position: usize,
    texts: &'a mut dyn Texts,
}

impl<'a> Reader<'a> {
    /// Reads `line` from its first word.
    pub fn new(line: &'a str, texts: &'a mut dyn Texts) -> Self {
        Self { words: line.split(' '), position: 0, texts }
    }

    /// The next word; `expected` is said if there is none.
    ///
    /// # Errors
    /// [`CodeError::Word`] at the end of the line.
    pub fn word(&mut self, expected: &'static str) -> Result<&'a str, CodeError> {
        self.position += 1;
        let missing = CodeError::Word { position: self.position, expected, found: None };
        self.words.next().ok_or(missing)
    }

    /// The error that the word read last is not `expected`.
    pub fn unexpected(&self, expected: &'static str, found: &str) -> CodeError {
        let mut text = String::new();
        for letter in found.chars() {
            if text.len() + letter.len_utf8() > QUOTED_BYTES_MAX {
                break;
            }
            text.push(letter);
        }
        CodeError::Word { position: self.position, expected, found: Some(text) }
    }

    /// A text, as it is to be taken.
    ///
    /// # Errors
    /// [`CodeError::Word`] if the word is no text.
    pub fn text(&mut self, kind: TextKind) -> Result<String, CodeError> {
        let text = self.plain_text()?;
        Ok(self.texts.text(kind, text))
    }

    /// The name of a call, limit or step.
    ///
    /// # Errors
    /// [`CodeError::TooManyNames`], and as [`Reader::text`].
    pub fn lasting(&mut self) -> Result<&'static str, CodeError> {
        let name = self.plain_text()?;
        self.texts.lasting(&name).ok_or(CodeError::TooManyNames)
    }

    fn plain_text(&mut self) -> Result<String, CodeError> {
        let word = self.word("a text")?;
        let wrong = |this: &Self| this.unexpected("a text", word);
        let escaped = word.strip_prefix('=').ok_or_else(|| wrong(self))?;
        let mut parts = escaped.split('%');
        let mut text = String::from(parts.next().unwrap_or_default());
        for part in parts {
            let code = part.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
            text.push(char::from(code.ok_or_else(|| wrong(self))?));
            text.push_str(&part[2..]);
        }
        let mut again = Writer::default();
        again.text(&text);
        if again.as_str() == word { Ok(text) } else { Err(wrong(self)) }
    }

    /// A number in the one way to write it.
    fn number<N: FromStr + Display>(&mut self) -> Result<N, CodeError> {
        let word = self.word("a number")?;
        let number = word.parse::<N>().ok().filter(|number| number.to_string() == word);
        number.ok_or_else(|| self.unexpected("a number in range", word))
    }

    /// Whether no word is left.
    pub fn is_at_end(&self) -> bool {
        self.words.clone().next().is_none()
    }

    /// Nothing may follow.
    ///
    /// # Errors
    /// [`CodeError::Word`] if something does.
    pub fn end(&mut self) -> Result<(), CodeError> {
        self.position += 1;
        match self.words.next() {
            None => Ok(()),
            Some(word) => Err(self.unexpected("the end of the line", word)),
        }
    }
}

macro_rules! code_number {
    ($($type:ty),*) => {
        $(impl Code for $type {
            fn write(&self, to: &mut Writer) {
                to.display(self);
            }
            fn read(from: &mut Reader<'_>) -> Result<Self, CodeError> {
                from.number()
            }
        })*
    };
}

code_number!(u32, u64, u128, usize, i32);

impl Code for bool {
    fn write(&self, to: &mut Writer) {
        to.word(if *self { "yes" } else { "no" });
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, CodeError> {
        match from.word("yes or no")? {
            "yes" => Ok(true),
            "no" => Ok(false),
            word => Err(from.unexpected("yes or no", word)),
        }
    }
}

/// Words for people: texts that mean something have a type or a [`TextKind`] of their own.
impl Code for String {
    fn write(&self, to: &mut Writer) {
        to.text(self);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, CodeError> {
        from.text(TextKind::Detail)
    }
}

/// The name of a call, limit or step.
impl Code for &'static str {
    fn write(&self, to: &mut Writer) {
        to.text(self);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, CodeError> {
        from.lasting()
    }
}

impl<T: Code> Code for Option<T> {
    fn write(&self, to: &mut Writer) {
        match self {
            None => to.word("-"),
            Some(value) => {
                to.word("+");
                value.write(to);
            }
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, CodeError> {
        match from.word("- or +")? {
            "-" => Ok(None),
            "+" => T::read(from).map(Some),
            word => Err(from.unexpected("- or +", word)),
        }
    }
}

impl<T: Code> Code for Vec<T> {
    fn write(&self, to: &mut Writer) {
        self.len().write(to);
        self.iter().for_each(|element| element.write(to));
    }

    /// Every element has a word of its own, so the line bounds the list, whatever its length says.
    fn read(from: &mut Reader<'_>) -> Result<Self, CodeError> {
        let length = usize::read(from)?;
        let mut list = Self::new();
        for _ in 0..length {
            list.push(T::read(from)?);
        }
        Ok(list)
    }
}

impl<A: Code, B: Code> Code for (A, B) {
    fn write(&self, to: &mut Writer) {
        self.0.write(to);
        self.1.write(to);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, CodeError> {
        Ok((A::read(from)?, B::read(from)?))
    }
}

/// Implements [`Code`] for structs whose fields all have it. A field that is left out does not
/// compile.
#[macro_export]
macro_rules! code_structs {
    ($($type:ident { $($field:ident),* $(,)? })*) => {
        $(impl $crate::codec::Code for $type {
            fn write(&self, to: &mut $crate::codec::Writer) {
                let Self { $($field),* } = self;
                $($crate::codec::Code::write($field, to);)*
            }
            fn read(
                from: &mut $crate::codec::Reader<'_>,
            ) -> Result<Self, $crate::codec::CodeError> {
                Ok(Self { $($field: $crate::codec::Code::read(from)?),* })
            }
        })*
    };
}

/// Implements [`Code`] for an enum whose fields all have it. A variant that is left out does not
/// compile.
#[macro_export]
macro_rules! code_enum {
    ($type:ident {
        $($variant:ident $(($($value:ident),*))? $({ $($field:ident),* })?),* $(,)?
    }) => {
        impl $crate::codec::Code for $type {
            fn write(&self, to: &mut $crate::codec::Writer) {
                match self {
                    $(Self::$variant $(($($value),*))? $({ $($field),* })? => {
                        to.word(stringify!($variant));
                        $($($crate::codec::Code::write($value, to);)*)?
                        $($($crate::codec::Code::write($field, to);)*)?
                    })*
                }
            }
            fn read(
                from: &mut $crate::codec::Reader<'_>,
            ) -> Result<Self, $crate::codec::CodeError> {
                let expected = concat!("a variant of ", stringify!($type));
                match from.word(expected)? {
                    $(stringify!($variant) => {
                        $($(let $value = $crate::codec::Code::read(from)?;)*)?
                        $($(let $field = $crate::codec::Code::read(from)?;)*)?
                        Ok(Self::$variant $(($($value),*))? $({ $($field),* })?)
                    })*
                    word => Err(from.unexpected(expected, word)),
                }
            }
        }
    };
}
