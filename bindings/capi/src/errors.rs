//! Failures as C programs see them.

use crate::abi::*;
use handfast_compat::c::caught;
use handfast_compat::{Failure, Remote};
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::ptr::null;

/// The code of each kind of failure.
const CODES: [(&str, i32); 18] = [
    ("argument", HANDFAST_ARGUMENT),
    ("no-such-engine", HANDFAST_NO_SUCH_ENGINE),
    ("no-such-peer", HANDFAST_NO_SUCH_PEER),
    ("no-such-batch", HANDFAST_NO_SUCH_BATCH),
    ("not-registered", HANDFAST_NOT_REGISTERED),
    ("overlap", HANDFAST_OVERLAP),
    ("in-use", HANDFAST_IN_USE),
    ("unfinished", HANDFAST_UNFINISHED),
    ("limit", HANDFAST_LIMIT),
    ("forked", HANDFAST_FORKED),
    ("cancelled", HANDFAST_CANCELLED),
    ("timeout", HANDFAST_TIMEOUT),
    ("peer-lost", HANDFAST_PEER_LOST),
    ("peer-restarted", HANDFAST_PEER_RESTARTED),
    ("not-served", HANDFAST_NOT_SERVED),
    ("closed", HANDFAST_CLOSED),
    ("engine", HANDFAST_FAILED),
    ("panicked", HANDFAST_PANICKED),
];

/// A failure, and the texts that its record points to.
struct Last {
    record: ErrorRecord,
    _texts: [Option<CString>; 4],
}

thread_local! {
    static LAST: RefCell<Option<Box<Last>>> = const { RefCell::new(None) };
}

/// Runs a call of C. A failure, or a panic, becomes the thread's last error and its code.
pub(crate) fn call(run: impl FnOnce() -> Result<i32, Failure>) -> i32 {
    caught(run).unwrap_or_else(|failure| remember(&failure))
}

/// Runs a call that returns 0 or a negative code.
pub(crate) fn done(run: impl FnOnce() -> Result<(), Failure>) -> i32 {
    call(|| run().map(|()| HANDFAST_OK))
}

fn code_of(kind: &str) -> i32 {
    CODES.iter().find(|(known, _)| *known == kind).map_or(HANDFAST_FAILED, |(_, code)| *code)
}

fn remember(failure: &Failure) -> i32 {
    let text = |text: &str| CString::new(text.replace('\0', " ")).ok();
    let texts = [
        text(&failure.stage()),
        text(failure.kind()),
        failure.id().and_then(text),
        text(&failure.to_string()),
    ];
    let start = |place: usize| texts[place].as_ref().map_or(null(), |text| text.as_ptr());
    let record = ErrorRecord {
        code: code_of(failure.kind()),
        side: if failure.side() == "peer" { HANDFAST_PEER } else { HANDFAST_LOCAL },
        remote: match failure.remote() {
            Remote::Untouched => HANDFAST_UNTOUCHED,
            Remote::Fenced => HANDFAST_FENCED,
            Remote::Indeterminate => HANDFAST_INDETERMINATE,
        },
        stage: start(0),
        cause: start(1),
        id: start(2),
        text: start(3),
    };
    // A thread that ends has no last error any more.
    let _ = LAST.try_with(|last| last.replace(Some(Box::new(Last { record, _texts: texts }))));
    record.code
}

/// Returns the failure of this thread's last call that returned a negative code; NULL if there is
/// none. It is valid until the thread's next call that fails.
#[unsafe(no_mangle)]
pub extern "C" fn handfast_last_error() -> *const ErrorRecord {
    let record = |last: &RefCell<Option<Box<Last>>>| {
        last.borrow().as_ref().map_or(null(), |last| &raw const last.record)
    };
    LAST.try_with(record).unwrap_or(null())
}

/// Returns the version of the library, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn handfast_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    /// A failure of the thread is its last error until the next one; other threads have none.
    #[test]
    fn last_error_is_of_the_thread() {
        assert!(handfast_last_error().is_null());
        assert_eq!(done(|| Err(Failure::argument("a \0 text"))), HANDFAST_ARGUMENT);
        assert_eq!(call(|| Ok(HANDFAST_PENDING)), HANDFAST_PENDING);
        // SAFETY: valid until the next failure.
        let record = unsafe { handfast_last_error().read() };
        assert_eq!((record.code, record.side, record.remote), (HANDFAST_ARGUMENT, 0, 0));
        assert!(record.id.is_null());
        // SAFETY: as above.
        let [stage, cause, text] =
            [record.stage, record.cause, record.text].map(|it| unsafe { CStr::from_ptr(it) });
        assert_eq!((stage, cause, text), (c"configuration", c"argument", c"a   text"));
        let other = std::thread::Builder::new().spawn(|| handfast_last_error().is_null()).unwrap();
        assert!(other.join().unwrap());
        assert_eq!(done(|| panic!("a bug")), HANDFAST_PANICKED);
        // SAFETY: as above.
        assert_eq!(unsafe { handfast_last_error().read() }.code, HANDFAST_PANICKED);
    }

    #[test]
    fn codes_are_negative_and_different() {
        let mut codes = CODES.map(|(_, code)| code);
        codes.sort_unstable();
        assert!(codes.windows(2).all(|pair| pair[0] < pair[1]) && codes[CODES.len() - 1] < 0);
    }
}
