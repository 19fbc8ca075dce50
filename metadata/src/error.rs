//! Errors of metadata stores.

use std::fmt;

/// An operation on a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreOperation {
    /// Connect.
    Connect,
    /// Read an entry.
    Get,
    /// Write an entry.
    Put,
    /// Remove an entry.
    Remove,
    /// Watch for changes.
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

/// A TLS failure with a reachable store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsFailure {
    /// No trusted authority signed its certificate.
    #[error("no trusted authority signed its certificate")]
    UnknownAuthority,
    /// Its certificate names other hosts.
    #[error("its certificate is for another name")]
    WrongName,
    /// Its certificate has expired or is not valid yet.
    #[error("its certificate is not valid at this time")]
    NotValidNow,
    /// Its certificate is unusable for another reason.
    #[error("its certificate cannot be used")]
    BadCertificate,
    /// It asks for a client certificate, and none is configured.
    #[error("it asks for a client certificate, and none is configured")]
    OursMissing,
    /// It refuses the client certificate.
    #[error("it refuses the client certificate")]
    OursRefused,
    /// It does not speak TLS at that port.
    #[error("it does not speak TLS there")]
    NotSpoken,
    /// The two sides share no TLS version or cipher.
    #[error("it shares no TLS version or cipher with this side")]
    NothingInCommon,
}

impl TlsFailure {
    /// The remedy, in one sentence.
    pub fn cure(self) -> &'static str {
        match self {
            Self::UnknownAuthority => "name the authority of the store's certificate",
            Self::WrongName => {
                "use the name in the store's certificate, or issue one for the used name"
            }
            Self::NotValidNow => "renew the store's certificate, and check the clocks of both",
            Self::BadCertificate => "give the store a certificate for servers",
            Self::OursMissing => "name a certificate and its key",
            Self::OursRefused => "name a valid certificate signed by the store's authority",
            Self::NotSpoken => "check the port, or name the store without https",
            Self::NothingInCommon => "let the store speak TLS 1.2 or 1.3",
        }
    }
}

/// The cause of a failure of a store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreCause {
    /// The store cannot be reached.
    #[error("it cannot be reached: {0}")]
    Unreachable(String),
    /// It was reached, and TLS failed.
    #[error("{failure} ({detail})")]
    Tls {
        /// The failure.
        failure: TlsFailure,
        /// The text of the TLS library, at most 200 bytes, in one line.
        detail: String,
    },
    /// The store did not answer in time.
    #[error("no answer within {} ms", .timeout.as_millis())]
    Silent {
        /// The timeout that passed.
        timeout: std::time::Duration,
    },
    /// The store refused the request.
    #[error("it refused with status {status}: {text}")]
    Refused {
        /// Its code.
        status: u16,
        /// The text of the answer, at most 200 bytes, in one line.
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
    /// The store needs a feature that this build lacks.
    #[error("this program was built without {feature}; build with `--features {feature}`")]
    NotBuilt {
        /// Name of the missing feature.
        feature: &'static str,
    },
    /// Files with certificates or keys cannot be used.
    #[error("the certificates for it cannot be used: {0}")]
    Certificates(String),
    /// A value is not UTF-8.
    #[error("the value is not UTF-8")]
    NotText,
}

/// A failure of a store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{operation} the metadata store {store} failed: {cause}")]
pub struct StoreError {
    /// The store.
    pub store: String,
    /// The operation.
    pub operation: StoreOperation,
    /// The cause.
    pub cause: StoreCause,
}

impl StoreError {
    pub(crate) fn new(store: &str, operation: StoreOperation, cause: StoreCause) -> Self {
        Self { store: store.to_owned(), operation, cause }
    }

    /// The failure of TLS, if that is the cause.
    pub fn tls_failure(&self) -> Option<TlsFailure> {
        match &self.cause {
            StoreCause::Tls { failure, .. } => Some(*failure),
            _ => None,
        }
    }
}

/// Maximum length of a store's text that an error quotes, in bytes.
pub(crate) const WORDS_BYTES_MAX: usize = 200;

/// Returns the beginning of a store's text, in one line and without control characters.
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

/// Appended where a text is cut.
const ELLIPSIS: &str = "\u{2026}";

/// Formats an error and its sources in one line, without repetitions.
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

/// Returns the cause for an error of the connection.
pub(crate) fn broken(error: &(dyn std::error::Error + 'static)) -> StoreCause {
    let detail = chain(error);
    #[cfg(feature = "tls")]
    if let Some(failure) = crate::tls::failure(error) {
        return StoreCause::Tls { failure, detail };
    }
    StoreCause::Unreachable(detail)
}

/// Checks a key and a value against the limits of every store.
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
