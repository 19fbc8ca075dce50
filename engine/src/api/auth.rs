//! Keys and certificates by which nodes authenticate each other.

use crate::control::auth::certificates::{Certificates, Lists, Texts};
use crate::error::{Cause, Error, Stage};
use handfast_core::auth::{AuthMethod, KEYS_MAX, KeyRule, NamePattern};
use handfast_core::excerpt::excerpt;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes of a secret.
pub(crate) const SECRET_BYTES: usize = 32;
/// Longest file of keys or of a private key, in bytes.
pub const KEY_FILE_BYTES_MAX: usize = 64 << 10;
/// Longest file of certificates, in bytes.
pub const CERTIFICATE_FILE_BYTES_MAX: usize = 1 << 20;
/// Permissions that a file of keys must not have: any of others, and writing by its group.
const MODE_FORBIDDEN: u32 = 0o027;
/// Permissions that authorities, certificates and revocation lists must not have: writing by others.
const MODE_FORBIDDEN_PUBLIC: u32 = 0o022;
/// Length from which a text that is no path may be a secret, and is not shown.
const SECRET_CHARS_MIN: usize = 32;
/// Scheme of a source of pre-shared keys.
const PSK: &str = "psk:";
/// Scheme of a source of certificates.
const TLS: &str = "tls:";

/// A secret that nodes share.
#[derive(Clone)]
pub(crate) struct Secret(pub(crate) [u8; SECRET_BYTES]);

/// Keys or certificates by which nodes authenticate each other. A node calls and accepts only peers that
/// prove what it accepts: keys, certificates or, with [both](Self::and), either; over every control
/// connection and every lane over TCP. It refuses Mooncake's wire and nodes without them.
/// [`Builder::encrypt_lanes`](crate::Builder::encrypt_lanes) encrypts the bytes of lanes over TCP.
///
/// Those that come from files are read again when a file changes, within
/// [`EngineTiming::auth_reload_interval`](crate::EngineTiming): new connections use what is there
/// then, a session whose key or certificate is not accepted any more ends at its next call, and the
/// lanes of such a peer end.
#[derive(Clone)]
pub struct AuthOptions {
    /// Keys, certificates, or both; the node dials by the first.
    pub(crate) parts: Vec<Part>,
}

/// Keys or certificates, and the files that they came from.
#[derive(Clone)]
pub(crate) struct Part {
    pub(crate) loaded: Loaded,
    /// The files, and what they held.
    pub(crate) source: Option<(Source, Content)>,
}

/// Keys or certificates that are in use.
#[derive(Clone)]
pub(crate) enum Loaded {
    Keys(Vec<(KeyRule, Secret)>),
    Certificates(Arc<Certificates>),
}

impl Loaded {
    pub(crate) fn method(&self) -> AuthMethod {
        match self {
            Self::Keys(_) => AuthMethod::Key,
            Self::Certificates(_) => AuthMethod::Certificate,
        }
    }
}

/// Files of one node.
#[derive(Clone)]
pub(crate) enum Source {
    Psk(PathBuf),
    Tls(CertificateFiles),
}

/// Content of the files of a source.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Content {
    Psk(String),
    Tls(Texts),
}

impl Content {
    /// These authorities and revocation lists with another content's certificate and key.
    pub(crate) fn with_own_of(self, other: &Self) -> Self {
        match (self, other) {
            (Self::Tls(own), Self::Tls(other)) => {
                let Texts { authority, revocations, .. } = own;
                Self::Tls(Texts { authority, revocations, ..other.clone() })
            }
            _ => other.clone(),
        }
    }

    /// This content with another one's revocation lists.
    pub(crate) fn with_lists_of(self, other: &Self) -> Self {
        match (self, other) {
            (Self::Tls(own), Self::Tls(other)) => {
                Self::Tls(Texts { revocations: other.revocations.clone(), ..own })
            }
            _ => other.clone(),
        }
    }
}

/// The fault of content.
pub(crate) struct Unusable {
    /// Whether the revocation lists alone are at fault.
    pub(crate) is_of_lists: bool,
    pub(crate) error: Error,
}

impl From<Error> for Unusable {
    fn from(error: Error) -> Self {
        Self { is_of_lists: false, error }
    }
}

/// Files in PEM by which a node authenticates itself and its peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// Authorities that are trusted. Others must not be able to write this file, the certificate and the
    /// revocation lists.
    pub authority: PathBuf,
    /// Certificate of this node, and those between it and an authority.
    pub certificate: PathBuf,
    /// Its private key. Others must not be able to read the file, nor its group to write it.
    pub key: PathBuf,
    /// Revocation lists of the authorities; none if the file is empty.
    pub revocations: Option<PathBuf>,
    /// Whether the file of revocation lists may be absent, which is as an empty one until it is there.
    pub revocations_optional: bool,
}

/// One of the files of [`CertificateFiles`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CertificateFile {
    Authority,
    Certificate,
    Key,
    Revocations,
}

impl CertificateFiles {
    /// The content of a file, and its place.
    fn of(&self, file: CertificateFile) -> (&'static str, &Path) {
        match file {
            CertificateFile::Authority => ("the authorities", &self.authority),
            CertificateFile::Certificate => ("the certificate", &self.certificate),
            CertificateFile::Key => ("the private key", &self.key),
            CertificateFile::Revocations => {
                let path = self.revocations.as_deref();
                ("the revocation lists", path.unwrap_or(&self.authority))
            }
        }
    }

    /// Whether revocation lists are to be read. Those that were there cannot become absent, and a link
    /// that leads nowhere is there.
    fn has_lists(&self, had_lists: bool) -> bool {
        let is_absent = |path: &PathBuf| {
            let found = fs::symlink_metadata(path);
            found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        };
        let may_lack = self.revocations_optional && !had_lists;
        self.revocations.as_ref().is_some_and(|path| !(may_lack && is_absent(path)))
    }

    /// `ca.crt`, `tls.crt` and `tls.key` in a directory, as secrets of Kubernetes have them, and
    /// `ca.crl` once it is there.
    pub fn in_directory(directory: impl AsRef<Path>) -> Self {
        let file = |name| directory.as_ref().join(name);
        Self {
            authority: file("ca.crt"),
            certificate: file("tls.crt"),
            key: file("tls.key"),
            revocations: Some(file("ca.crl")),
            revocations_optional: true,
        }
    }
}

impl fmt::Debug for AuthOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in &self.parts {
            match &part.loaded {
                Loaded::Keys(keys) => {
                    f.debug_list().entries(keys.iter().map(|(key, _)| key.id())).finish()?;
                }
                Loaded::Certificates(_) => f.write_str("certificates")?,
            }
        }
        Ok(())
    }
}

impl Source {
    /// Reads the files. One that cannot be read keeps its content of `before`, if there is one, and the
    /// error comes with it.
    pub(crate) fn read(&self, before: Option<&Content>) -> Result<(Content, Option<Error>), Error> {
        let files = match self {
            Self::Psk(path) => return Ok((Content::Psk(read_text(path)?), None)),
            Self::Tls(files) => files,
        };
        let before = before.and_then(|content| match content {
            Content::Tls(texts) => Some(texts),
            Content::Psk(_) => None,
        });
        let mut failed = None;
        let of = |file| read(files.of(file), file == CertificateFile::Key);
        let authority = of(CertificateFile::Authority);
        let authority = kept(authority, before.map(|it| it.authority.clone()), &mut failed)?;
        let own = of(CertificateFile::Certificate)
            .and_then(|certificate| Ok((certificate, of(CertificateFile::Key)?)));
        let own_before = before.map(|it| (it.certificate.clone(), it.key.clone()));
        let (certificate, key) = kept(own, own_before, &mut failed)?;
        let had_lists = before.is_some_and(|it| !it.revocations.is_empty());
        let revocations = match files.has_lists(had_lists) {
            true => of(CertificateFile::Revocations),
            false => Ok(Vec::new()),
        };
        let revocations = kept(revocations, before.map(|it| it.revocations.clone()), &mut failed)?;
        Ok((Content::Tls(Texts { authority, certificate, key, revocations }), failed))
    }

    /// Parses what was read.
    pub(crate) fn load(&self, content: &Content, lists: Lists) -> Result<Loaded, Unusable> {
        match (self, content) {
            (Self::Psk(path), Content::Psk(text)) => keys(text)
                .map(Loaded::Keys)
                .map_err(|error| unusable(("the keys", path), error.cause()).into()),
            (Self::Tls(files), Content::Tls(texts)) => {
                let certificates = Certificates::new(texts, lists).map(Arc::new);
                certificates.map(Loaded::Certificates).map_err(|(file, text)| Unusable {
                    is_of_lists: file == CertificateFile::Revocations,
                    error: unusable(files.of(file), &text),
                })
            }
            _ => Err(invalid("another kind of file was read".into()).into()),
        }
    }

    fn options(self) -> Result<AuthOptions, Error> {
        let (content, _) = self.read(None)?;
        let loaded = self.load(&content, Lists::Checked).map_err(|fault| fault.error)?;
        Ok(AuthOptions { parts: vec![Part { loaded, source: Some((self, content)) }] })
    }
}

impl AuthOptions {
    /// Reads the keys or certificates that `source` names: `psk:FILE`, `tls:DIRECTORY` as
    /// [`CertificateFiles::in_directory`], or `tls:AUTHORITY,CERTIFICATE,KEY[,REVOCATIONS]`; or two of
    /// them with a space between, as [`AuthOptions::and`].
    ///
    /// # Errors
    /// [`Stage::Configuration`]: another form, or as [`AuthOptions::psk_file`],
    /// [`AuthOptions::tls`] and [`AuthOptions::and`].
    pub fn from_source(source: &str) -> Result<Self, Error> {
        let second = [PSK, TLS].iter().filter_map(|scheme| source.find(&format!(" {scheme}")));
        match second.min() {
            Some(end) => {
                let (first, rest) = source.split_at(end);
                Self::from_one(first.trim_end())?.and(Self::from_source(rest.trim_start())?)
            }
            None => Self::from_one(source),
        }
    }

    /// Accepts also the peers that `other` accepts: of keys and certificates, by which a fleet passes
    /// from one to the other. The node dials by `self` alone, and a peer that refuses it gets no call by
    /// the other.
    ///
    /// # Errors
    /// [`Stage::Configuration`]: both have keys, or both have certificates.
    pub fn and(self, other: Self) -> Result<Self, Error> {
        let has = |method| self.parts.iter().any(|own| own.loaded.method() == method);
        if other.parts.iter().any(|part| has(part.loaded.method())) {
            let text = "a node has one file of keys and one certificate; several keys are lines of \
                        one file, and several authorities parts of one";
            return Err(invalid(text.into()));
        }
        Ok(Self { parts: self.parts.into_iter().chain(other.parts).collect() })
    }

    fn from_one(source: &str) -> Result<Self, Error> {
        let file = |scheme| source.strip_prefix(scheme).filter(|rest: &&str| !rest.is_empty());
        if let Some(file) = file(PSK) {
            return Self::psk_file(file);
        }
        let files = file(TLS).map(|files| files.split(',').collect::<Vec<_>>());
        match files.as_deref() {
            Some([directory]) => Self::tls(CertificateFiles::in_directory(directory)),
            Some([authority, certificate, key, rest @ ..]) if rest.len() < 2 => {
                Self::tls(CertificateFiles {
                    authority: authority.into(),
                    certificate: certificate.into(),
                    key: key.into(),
                    revocations: rest.first().map(Into::into),
                    revocations_optional: false,
                })
            }
            _ => {
                let shown = match may_be_secret(source) {
                    true => "...".to_owned(),
                    false => excerpt(source),
                };
                Err(invalid(format!(
                    "'{shown}' names no keys: write {PSK}FILE, {TLS}DIRECTORY or \
                     {TLS}AUTHORITY,CERTIFICATE,KEY[,REVOCATIONS]"
                )))
            }
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
        Source::Psk(file.as_ref().to_owned()).options()
    }

    /// Reads the authorities, the certificate and the private key of a node. Connections are TLS 1.3,
    /// with a certificate at both ends, which is for clients and servers and names its node: the host
    /// of the node's name, `host` or `host:port`, is among its DNS names and addresses, or the name is
    /// its SPIFFE id of this node's own trust domain, alone or before `:` and any text.
    /// [`Engine`](crate::Engine)s without a name get one of their certificate if they do not listen, or
    /// if the certificate has a SPIFFE id and not the address.
    ///
    /// # Errors
    /// [`Stage::Configuration`]: a file cannot be read or has no certificate or key in PEM, others can
    /// read the private key or write another file, or this build has no TLS (feature `tls`). [`Builder::start`](crate::Builder::start)
    /// fails if the certificate is not valid or does not have the node's name.
    pub fn tls(files: CertificateFiles) -> Result<Self, Error> {
        Source::Tls(files).options()
    }

    /// Takes pre-shared keys in the form of [`AuthOptions::psk_file`].
    ///
    /// # Errors
    /// [`Stage::Configuration`]: a line is invalid, there is no key, or there are too many.
    pub fn psk(text: &str) -> Result<Self, Error> {
        Ok(Self { parts: vec![Part { loaded: Loaded::Keys(keys(text)?), source: None }] })
    }

    pub(crate) fn certificates(&self) -> Option<&Arc<Certificates>> {
        self.parts.iter().find_map(|part| match &part.loaded {
            Loaded::Certificates(own) => Some(own),
            Loaded::Keys(_) => None,
        })
    }

    /// The name of a node that has none and listens at an address.
    pub(crate) fn listening_name(&self, address: &str) -> String {
        let own = self.certificates();
        own.map_or_else(|| address.to_owned(), |own| own.listening_name(address))
    }

    /// The name of a node that has none and does not listen: of the certificate, if it has one.
    pub(crate) fn client_name(&self, random: String) -> String {
        match self.certificates().and_then(|own| own.host()) {
            Some(host) => format!("{host}:{random}"),
            None => random,
        }
    }
}

fn keys(text: &str) -> Result<Vec<(KeyRule, Secret)>, Error> {
    let mut keys: Vec<(KeyRule, Secret)> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let mut words = line.split_whitespace();
        let Some(id) = words.next().filter(|id| !id.starts_with('#')) else { continue };
        let failed = |text: &dyn fmt::Display| invalid(format!("line {}: {text}", number + 1));
        let secret = words.next().and_then(secret);
        let secret = secret
            .ok_or_else(|| failed(&"after its id a key has a secret of 64 hexadecimal digits"))?;
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
        1..=KEYS_MAX => Ok(keys),
        many => Err(invalid(format!("there are {many} keys, and at most {KEYS_MAX} are used"))),
    }
}

/// The content that was read, or the one of before if reading failed; the first failure goes to `failed`.
fn kept<T>(
    read: Result<T, Error>,
    before: Option<T>,
    failed: &mut Option<Error>,
) -> Result<T, Error> {
    match (read, before) {
        (Err(error), Some(before)) => {
            failed.get_or_insert(error);
            Ok(before)
        }
        (read, _) => read,
    }
}

/// Reads a file; one that is private must not be readable by others.
fn read((what, path): (&str, &Path), is_private: bool) -> Result<Vec<u8>, Error> {
    let failed = |text: &dyn fmt::Display| unusable((what, path), text);
    let file = File::open(path).map_err(|error| failed(&error))?;
    let about = file.metadata().map_err(|error| failed(&error))?;
    let mode = about.permissions().mode() & 0o777;
    if is_private && mode & MODE_FORBIDDEN != 0 {
        return Err(failed(&format!(
            "its permissions are {mode:03o}; make it readable by its owner alone (`chmod 600`)"
        )));
    }
    // Those of a device or a pipe say nothing about its content.
    if !is_private && about.is_file() && mode & MODE_FORBIDDEN_PUBLIC != 0 {
        return Err(failed(&format!(
            "its permissions are {mode:03o}; make it writable by its owner alone (`chmod go-w`)"
        )));
    }
    let bytes_max = if is_private { KEY_FILE_BYTES_MAX } else { CERTIFICATE_FILE_BYTES_MAX };
    let mut bytes = Vec::new();
    file.take(bytes_max as u64 + 1).read_to_end(&mut bytes).map_err(|error| failed(&error))?;
    match bytes.len() > bytes_max {
        true => Err(failed(&format!("it exceeds {bytes_max} bytes"))),
        false => Ok(bytes),
    }
}

fn read_text(path: &Path) -> Result<String, Error> {
    let file = ("the keys", path);
    String::from_utf8(read(file, true)?).map_err(|_| unusable(file, &"no text"))
}

fn unusable((what, path): (&str, &Path), reason: &dyn fmt::Display) -> Error {
    let path = match path.display().to_string() {
        path if may_be_secret(&path) => "a file whose name may be a secret".to_owned(),
        path => path,
    };
    invalid(format!("{what} in {path} cannot be used: {reason}"))
}

/// Whether a text in the place of a file may be a secret.
fn may_be_secret(text: &str) -> bool {
    text.len() >= SECRET_CHARS_MIN && !text.contains('/')
}

pub(crate) fn invalid(text: String) -> Error {
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
    use std::fs::Permissions;

    const A: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    const B: &str = "f00102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1F";

    /// A file has several keys in order, names and comments.
    #[test]
    fn keys_have_ids_secrets_and_names() {
        let text = format!("# fleet\n\nnew {A}\n  old\t{B} gpu-* cpu-1:7000\n");
        let options = AuthOptions::psk(&text).unwrap();
        let Loaded::Keys(keys) = &options.parts[0].loaded else { panic!("they are keys") };
        let ids: Vec<_> = keys.iter().map(|(key, _)| key.id()).collect();
        assert_eq!(ids, ["new", "old"]);
        assert_eq!((keys[0].1.0[31], keys[1].1.0[0]), (0x1f, 0xf0));
        let covers = |key: usize, name: &str| {
            keys[key].0.covers(&handfast_core::NodeName::new(name).unwrap())
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
                let Loaded::Keys(keys) = &result.unwrap().parts[0].loaded else {
                    panic!("they are keys")
                };
                assert_eq!(keys.len(), KEYS_MAX, "the limit itself");
                continue;
            }
            let error = result.unwrap_err().to_string();
            assert!(error.contains(words) && !error.contains(&A[4..]), "{error}");
        }
        assert!(AuthOptions::psk(&many).unwrap_err().to_string().contains("17 keys"));
    }

    /// Files that others can write are no authorities, certificates or revocation lists; a device may be.
    #[test]
    fn certificates_that_others_can_write_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name| directory.path().join(name);
        for name in ["ca.crt", "tls.crt", "tls.key", "ca.crl"] {
            fs::write(file(name), "").unwrap();
            let mode = if name == "tls.key" { 0o600 } else { 0o644 };
            fs::set_permissions(file(name), Permissions::from_mode(mode)).unwrap();
        }
        let source = Source::Tls(CertificateFiles::in_directory(directory.path()));
        let (content, _) = source.read(None).unwrap();
        for name in ["ca.crt", "tls.crt", "ca.crl"] {
            for (mode, is_safe) in [(0o644, true), (0o664, false), (0o646, false), (0o444, true)] {
                fs::set_permissions(file(name), Permissions::from_mode(mode)).unwrap();
                let read = source.read(None).map(|_| ());
                assert_eq!(read.is_ok(), is_safe, "{name} {mode:o}: {read:?}");
                let error = read.err().map(|error| error.to_string()).unwrap_or_default();
                assert_eq!(error.contains("chmod go-w"), !is_safe, "{error}");
                // A running node keeps what it had.
                let (kept, failed) = source.read(Some(&content)).unwrap();
                assert!(kept == content && failed.is_none() == is_safe);
            }
            fs::set_permissions(file(name), Permissions::from_mode(0o644)).unwrap();
        }
        let files = CertificateFiles::in_directory(directory.path());
        let revocations = Some("/dev/null".into());
        assert!(Source::Tls(CertificateFiles { revocations, ..files }).read(None).is_ok());
    }

    /// A secret in the place of a file is not quoted.
    #[test]
    fn secret_in_the_place_of_a_file_is_not_shown() {
        for source in [format!("psk:{A}"), format!("fleet-1 {A}"), A.into(), format!("psk:{A}g")] {
            let error = AuthOptions::from_source(&source).unwrap_err().to_string();
            assert!(!error.contains(&A[..8]), "{error}");
        }
        let error = AuthOptions::from_source("psk:/nowhere/keys").unwrap_err().to_string();
        assert!(error.contains("/nowhere/keys"), "{error}");
        let error = AuthOptions::from_source("keys").unwrap_err().to_string();
        assert!(error.contains("'keys'"), "{error}");
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
        for wrong in ["psk:", "tls:", "tls:/nowhere", "tls:a,b", "tls:a,b,c,d,e", "keys"] {
            assert!(AuthOptions::from_source(wrong).is_err(), "{wrong}");
        }
    }
}
