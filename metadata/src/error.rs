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
            Self::NotSpoken => "check the port, or name the store without https or rediss",
            Self::NothingInCommon => "let the store speak TLS 1.2 or 1.3",
        }
    }
}

/// The kind of an error that a Redis answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RedisRefusal {
    /// It requires another user or password, or the user has no permission.
    #[error("it refuses the user")]
    User,
    /// It is in protected mode, and refuses other hosts.
    #[error("it is in protected mode")]
    Protected,
    /// It has no such database.
    #[error("it has no such database")]
    Database,
    /// It is a replica, or a node of a cluster.
    #[error("it is a replica or part of a cluster")]
    NotPrimary,
    /// Its memory or its disk is full, or too few replicas are connected.
    #[error("it refuses writes")]
    Full,
    /// It loads its data or is busy.
    #[error("it is not ready")]
    NotReady,
    /// Another error.
    #[error("it refused")]
    Other,
}

impl RedisRefusal {
    /// The kind of an error with that code, the first word, and the rest of the text.
    #[cfg(any(feature = "redis", test))]
    pub(crate) fn of(code: &str, detail: &str) -> Self {
        match code {
            "NOAUTH" | "WRONGPASS" | "NOPERM" => Self::User,
            "DENIED" => Self::Protected,
            "READONLY" | "MOVED" | "ASK" | "CLUSTERDOWN" | "CROSSSLOT" => Self::NotPrimary,
            "OOM" | "MISCONF" | "NOREPLICAS" => Self::Full,
            "LOADING" | "MASTERDOWN" | "BUSY" | "TRYAGAIN" => Self::NotReady,
            "ERR" if detail.contains("AUTH") || detail.contains("password") => Self::User,
            "ERR" if detail.contains("DB index") || detail.contains("SELECT") => Self::Database,
            _ => Self::Other,
        }
    }

    /// The remedy, in one sentence.
    pub fn cure(self) -> &'static str {
        match self {
            Self::User => {
                "name the user and the password in the URL, or in MC_REDIS_USERNAME and \
                 MC_REDIS_PASSWORD, and let the user GET, SET and DEL the keys mooncake/*"
            }
            Self::Protected => "give the Redis a password, or bind it to an address of its network",
            Self::Database => "name a database below the Redis's `databases`, usually 0 to 15",
            Self::NotPrimary => "name the primary of a Redis without cluster mode",
            Self::Full => "make room in the memory or on the disk of the Redis",
            Self::NotReady => "wait until the Redis has loaded its data",
            Self::Other => "look into the log of the Redis",
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
    /// A Redis refused the request.
    #[error("{refusal} ({text})")]
    RedisRefused {
        /// The kind of its error.
        refusal: RedisRefusal,
        /// Its error, at most 200 bytes, in one line.
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

    /// The remedy, if the cause has one.
    pub fn cure(&self) -> Option<&'static str> {
        match &self.cause {
            StoreCause::Tls { failure, .. } => Some(failure.cure()),
            StoreCause::RedisRefused { refusal, .. } => Some(refusal.cure()),
            _ => None,
        }
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
    fn errors_of_a_redis_have_kinds_with_cures() {
        use RedisRefusal::*;
        for (line, kind) in [
            ("NOAUTH Authentication required.", User),
            ("WRONGPASS invalid username-password pair or user is disabled.", User),
            ("NOPERM this user has no permissions to run the 'set' command", User),
            ("ERR invalid password", User),
            ("ERR AUTH <password> called without any password configured", User),
            ("DENIED Redis is running in protected mode", Protected),
            ("ERR DB index is out of range", Database),
            ("ERR SELECT is not allowed in cluster mode", Database),
            ("READONLY You can't write against a read only replica.", NotPrimary),
            ("MOVED 3999 127.0.0.1:6381", NotPrimary),
            ("OOM command not allowed when used memory > 'maxmemory'.", Full),
            ("MISCONF Redis is configured to save RDB snapshots", Full),
            ("LOADING Redis is loading the dataset in memory", NotReady),
            ("ERR max number of clients reached", Other),
        ] {
            let (code, detail) = line.split_once(' ').unwrap();
            assert_eq!(RedisRefusal::of(code, detail), kind, "{line}");
            assert!(!kind.cure().is_empty());
        }
    }

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
