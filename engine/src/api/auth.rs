//! Keys by which nodes authenticate each other.

use crate::error::{Cause, Error, Stage};
use handfast_core::auth::{KEYS_MAX, KeyRule, NamePattern};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Bytes of a secret.
const SECRET_BYTES: usize = 32;
/// Longest file of keys, in bytes.
pub const KEY_FILE_BYTES_MAX: usize = 64 << 10;
/// Permissions that a file of keys must not have: any of others, and writing by its group.
const MODE_FORBIDDEN: u32 = 0o027;
/// Scheme of a source of pre-shared keys.
const PSK: &str = "psk:";

/// A secret that nodes share.
#[derive(Clone)]
pub(crate) struct Secret(pub(crate) [u8; SECRET_BYTES]);

/// Pre-shared keys. A node with keys calls and accepts only peers that prove one of them, over every
/// control connection and every lane over TCP; it refuses Mooncake's wire and nodes without keys.
/// Bytes of lanes are not encrypted.
#[derive(Clone)]
pub struct AuthOptions {
    pub(crate) keys: Vec<(KeyRule, Secret)>,
}

impl fmt::Debug for AuthOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.keys.iter().map(|(key, _)| key.id())).finish()
    }
}

impl AuthOptions {
    /// Reads the keys that `source` names: `psk:FILE`.
    ///
    /// # Errors
    /// [`Stage::Configuration`]: another form, or as [`AuthOptions::psk_file`].
    pub fn from_source(source: &str) -> Result<Self, Error> {
        match source.strip_prefix(PSK) {
            Some(file) if !file.is_empty() => Self::psk_file(file),
            _ => Err(invalid(format!("'{source}' names no keys: write {PSK}FILE"))),
        }
    }

    /// Reads a file of pre-shared keys, one per line: an id, a secret of 64 hexadecimal digits, and
    /// the names that peers with this key may have, with `*` for any characters; without names they
    /// may have any. The node dials with the first key and accepts all. Empty lines and lines
    /// that begin with `#` are skipped.
    ///
    /// # Errors
    /// [`Stage::Configuration`]: the file cannot be read, others than its owner and group can read it,
    /// others than its owner can write it, or a line is invalid. No error quotes a secret.
    pub fn psk_file(file: impl AsRef<Path>) -> Result<Self, Error> {
        let path = file.as_ref();
        let failed = |text: &dyn fmt::Display| {
            invalid(format!("the keys in {} cannot be used: {text}", path.display()))
        };
        let mut file = File::open(path).map_err(|error| failed(&error))?;
        let mode = file.metadata().map_err(|error| failed(&error))?.permissions().mode();
        if mode & MODE_FORBIDDEN != 0 {
            let mode = mode & 0o777;
            return Err(failed(&format!(
                "its permissions are {mode:03o}; make it readable by its owner alone (`chmod 600`)"
            )));
        }
        let mut text = String::new();
        let most = KEY_FILE_BYTES_MAX as u64 + 1;
        file.by_ref().take(most).read_to_string(&mut text).map_err(|error| failed(&error))?;
        if text.len() > KEY_FILE_BYTES_MAX {
            return Err(failed(&format!("it exceeds {KEY_FILE_BYTES_MAX} bytes")));
        }
        Self::psk(&text).map_err(|error| failed(&error.cause()))
    }

    /// Takes pre-shared keys in the form of [`AuthOptions::psk_file`].
    ///
    /// # Errors
    /// [`Stage::Configuration`]: a line is invalid, there is no key, or there are too many.
    pub fn psk(text: &str) -> Result<Self, Error> {
        let mut keys: Vec<(KeyRule, Secret)> = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let mut words = line.split_whitespace();
            let Some(id) = words.next().filter(|id| !id.starts_with('#')) else { continue };
            let failed = |text: &dyn fmt::Display| invalid(format!("line {}: {text}", number + 1));
            let secret = words.next().and_then(secret);
            let secret = secret.ok_or_else(|| {
                failed(&"after its id a key has a secret of 64 hexadecimal digits")
            })?;
            let names = words.map(NamePattern::new).collect::<Result<_, _>>();
            let names = names.map_err(|error| failed(&error))?;
            let rule = KeyRule::new(id, names).map_err(|error| failed(&error))?;
            if keys.iter().any(|(key, known)| key.id() == id || known.0 == secret.0) {
                return Err(failed(&"an earlier key has the same id or secret"));
            }
            keys.push((rule, secret));
        }
        match keys.len() {
            0 => Err(invalid("there is no key".into())),
            1..=KEYS_MAX => Ok(Self { keys }),
            many => Err(invalid(format!("there are {many} keys, and at most {KEYS_MAX} are used"))),
        }
    }
}

fn invalid(text: String) -> Error {
    Error::local(Stage::Configuration, Cause::Invalid(text))
}

fn secret(text: &str) -> Option<Secret> {
    let digits = text.as_bytes();
    if digits.len() != 2 * SECRET_BYTES || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let mut bytes = [0; SECRET_BYTES];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    // A placeholder that nobody replaced.
    (bytes != [bytes[0]; SECRET_BYTES]).then_some(Secret(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};

    const A: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    const B: &str = "f00102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1F";

    /// A file has several keys in order, names and comments.
    #[test]
    fn keys_have_ids_secrets_and_names() {
        let text = format!("# fleet\n\nnew {A}\n  old\t{B} gpu-* cpu-1:7000\n");
        let options = AuthOptions::psk(&text).unwrap();
        let ids: Vec<_> = options.keys.iter().map(|(key, _)| key.id()).collect();
        assert_eq!(ids, ["new", "old"]);
        assert_eq!((options.keys[0].1.0[31], options.keys[1].1.0[0]), (0x1f, 0xf0));
        let covers = |key: usize, name: &str| {
            options.keys[key].0.covers(&handfast_core::NodeName::new(name).unwrap())
        };
        assert!(covers(0, "any") && covers(1, "gpu-7") && !covers(1, "cpu-2:7000"));
        assert_eq!(format!("{options:?}"), r#"["new", "old"]"#, "no secret is shown");
    }

    /// Every mistake is refused with its line, and without the secret.
    #[test]
    fn mistakes_are_refused_without_the_secret() {
        let many: String = (0..=KEYS_MAX).map(|at| format!("k{at} {:064x}\n", at + 1)).collect();
        for (text, words) in [
            (String::new(), "no key"),
            ("# only a comment\n".into(), "no key"),
            ("k".into(), "line 1"),
            (format!("k {}", &A[1..]), "64 hexadecimal digits"),
            (format!("k {}g", &A[1..]), "64 hexadecimal digits"),
            (format!("k {}", "00".repeat(32)), "64 hexadecimal digits"),
            (format!("\nk/2 {A}"), "line 2"),
            (format!("k {A} a@b"), "pattern"),
            (format!("k {A}\nk {B}"), "same id or secret"),
            (format!("k {A}\nl {A}"), "same id or secret"),
            (many.replace("k0 ", "# "), ""),
        ] {
            let result = AuthOptions::psk(&text);
            if words.is_empty() {
                assert_eq!(result.unwrap().keys.len(), KEYS_MAX, "the limit itself");
                continue;
            }
            let error = result.unwrap_err().to_string();
            assert!(error.contains(words) && !error.contains(&A[4..]), "{error}");
        }
        assert!(AuthOptions::psk(&many).unwrap_err().to_string().contains("17 keys"));
    }

    /// A file that others can read, or its group can write, is refused; so is a long one.
    #[test]
    fn file_that_others_can_read_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("keys");
        fs::write(&file, format!("k {A}\n")).unwrap();
        let source = format!("psk:{}", file.display());
        for (mode, is_safe) in
            [(0o600, true), (0o400, true), (0o440, true), (0o644, false), (0o620, false)]
        {
            fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            let read = AuthOptions::from_source(&source);
            assert_eq!(read.is_ok(), is_safe, "{mode:o}: {read:?}");
            if let Err(error) = read {
                assert!(error.to_string().contains("chmod 600"), "{error}");
            }
        }
        fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        let padding = |bytes: usize| format!("k {A}\n#{}", "x".repeat(bytes - 68));
        fs::write(&file, padding(KEY_FILE_BYTES_MAX)).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().len(), KEY_FILE_BYTES_MAX as u64);
        assert!(AuthOptions::psk_file(&file).is_ok());
        fs::write(&file, padding(KEY_FILE_BYTES_MAX + 1)).unwrap();
        assert!(AuthOptions::psk_file(&file).unwrap_err().to_string().contains("exceeds"));
        for wrong in ["psk:", "tls:x", "keys"] {
            assert!(AuthOptions::from_source(wrong).is_err(), "{wrong}");
        }
    }
}
