//! Why a store did not do what it was asked.

use std::fmt;

/// What was asked of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreOperation {
    /// To connect.
    Connect,
    /// To read.
    Get,
    /// To write.
    Put,
    /// To remove.
    Remove,
    /// To tell of changes.
    Watch,
}

impl fmt::Display for StoreOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connect => "connecting to",
            Self::Get => "reading from",
            Self::Put => "writing to",
            Self::Remove => "removing from",
            Self::Watch => "watching",
        })
    }
}

/// Why there is no encrypted connection to a store that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsFailure {
    /// Nobody whom we trust vouches for its certificate.
    #[error("nobody whom we trust vouches for its certificate")]
    UnknownAuthority,
    /// Its certificate is for other names than the one it is spoken to by.
    #[error("its certificate is for another name")]
    WrongName,
    /// Its certificate has expired or is not valid yet.
    #[error("its certificate is not valid at this time")]
    NotValidNow,
    /// Its certificate cannot be used for something else.
    #[error("its certificate cannot be used")]
    BadCertificate,
    /// It asks for a certificate of ours, and there is none.
    #[error("it asks for a certificate of ours, and none is given")]
    OursMissing,
    /// It does not take our certificate.
    #[error("it refuses our certificate")]
    OursRefused,
    /// It speaks no TLS at that port.
    #[error("it does not speak TLS there")]
    NotSpoken,
    /// The two have no version or cipher in common.
    #[error("it has no way to encrypt in common with us")]
    NothingInCommon,
}

impl TlsFailure {
    /// What to do about it, in one sentence.
    pub fn cure(self) -> &'static str {
        match self {
            Self::UnknownAuthority => {
                "name the authority of the store's certificate: --metadata-ca"
            }
            Self::WrongName => {
                "name the store as its certificate does, or give it one with the name that is used"
            }
            Self::NotValidNow => "renew the store's certificate, and check the clocks of both",
            Self::BadCertificate => "give the store a certificate for servers",
            Self::OursMissing => {
                "name a certificate and its key: --metadata-cert and --metadata-key"
            }
            Self::OursRefused => {
                "name a certificate that the store's authority vouches for, and that is still \
                 valid: --metadata-cert and --metadata-key"
            }
            Self::NotSpoken => "check the port, or name the store without https",
            Self::NothingInCommon => "let the store speak TLS 1.2 or 1.3",
        }
    }
}

/// Why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreCause {
    /// It cannot be reached.
    #[error("it cannot be reached: {0}")]
    Unreachable(String),
    /// It was reached, and there is no encrypted connection to it.
    #[error("{failure} ({detail})")]
    Tls {
        /// What is wrong.
        failure: TlsFailure,
        /// As the library says it, at most 200 bytes, in one line.
        detail: String,
    },
    /// It did not answer in time.
    #[error("no answer within {timeout_ms} ms")]
    Silent {
        /// The wait that passed.
        timeout_ms: u64,
    },
    /// It refused.
    #[error("it refused with status {status}: {text}")]
    Refused {
        /// Its code.
        status: u16,
        /// Its words, at most 200 bytes, in one line.
        text: String,
    },
    /// A key or a value exceeds a limit.
    #[error("the {what} of {bytes} bytes exceeds {limit}")]
    TooLong {
        /// `key` or `value`.
        what: &'static str,
        /// Its length.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// This program was built without it.
    #[error("this program was built without {feature}; build with `--features {feature}`")]
    NotBuilt {
        /// The feature that it needs.
        feature: &'static str,
    },
    /// Files with certificates or keys cannot be used.
    #[error("the certificates for it cannot be used: {0}")]
    Certificates(String),
    /// A value is no text.
    #[error("the value is not UTF-8")]
    NotText,
}

/// A failure of a store: which, at what, why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{operation} the metadata store {store} failed: {cause}")]
pub struct StoreError {
    /// Which store.
    pub store: String,
    /// At what.
    pub operation: StoreOperation,
    /// Why.
    pub cause: StoreCause,
}

/// Longest words of a store that an error repeats, in bytes.
pub(crate) const WORDS_BYTES_MAX: usize = 200;

/// The beginning of what a store said, in one line, with nothing in it that a terminal would obey.
pub(crate) fn words(text: &str) -> String {
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() {
            line.push(' ');
        }
        for letter in word.chars() {
            match letter.is_control() {
                true => line.extend(letter.escape_default()),
                false => line.push(letter),
            }
            if line.len() > WORDS_BYTES_MAX {
                break;
            }
        }
        if line.len() > WORDS_BYTES_MAX {
            while line.len() > WORDS_BYTES_MAX - ELLIPSIS.len() {
                line.pop();
            }
            return line + ELLIPSIS;
        }
    }
    line
}

/// Where more was said.
const ELLIPSIS: &str = "\u{2026}";

/// An error and what led to it, in one line; each step that says the same as the one before once.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let (mut text, mut next) = (error.to_string(), error.source());
    while let Some(error) = next.filter(|_| text.len() <= WORDS_BYTES_MAX) {
        let step = error.to_string();
        if !text.ends_with(&step) {
            text = format!("{text}: {step}");
        }
        next = error.source();
    }
    words(&text)
}

/// What it means that a store was not spoken to.
pub(crate) fn broken(error: &(dyn std::error::Error + 'static)) -> StoreCause {
    let detail = chain(error);
    #[cfg(feature = "tls")]
    if let Some(failure) = crate::tls::failure(error) {
        return StoreCause::Tls { failure, detail };
    }
    StoreCause::Unreachable(detail)
}

/// Checks what is asked against the limits of every store.
pub(crate) fn check(key: &str, value: Option<&str>) -> Result<(), StoreCause> {
    let value = value.unwrap_or_default();
    for (what, bytes, limit) in
        [("key", key.len(), crate::KEY_BYTES_MAX), ("value", value.len(), crate::VALUE_BYTES_MAX)]
    {
        if bytes > limit {
            return Err(StoreCause::TooLong { what, bytes, limit });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_store_says_is_repeated_in_one_short_line() {
        let page = "<html>\r\n\t<h1>Error\u{1b}[2J</h1>\n</html>\n";
        assert_eq!(words(page), "<html> <h1>Error\\u{1b}[2J</h1> </html>");
        let at_limit = "x".repeat(WORDS_BYTES_MAX);
        assert_eq!(words(&at_limit), at_limit);
        for past in [format!("{at_limit}x"), format!("{at_limit} y"), "\u{4e2d}".repeat(100)] {
            let line = words(&past);
            assert!(line.len() <= WORDS_BYTES_MAX && line.ends_with(ELLIPSIS), "{line}");
        }
    }
}
