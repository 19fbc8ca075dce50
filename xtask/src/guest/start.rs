//! Start script of a guest's shell.

use anyhow::{Context, Result, ensure};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Number of queue pairs created and destroyed on one NIC before the command, so that the NICs'
/// numbers differ.
const NUMBERS_APART: u32 = 1_000;
/// Prefixes of environment variables passed to the command.
const ENVIRONMENT: [&str; 6] = ["CARGO", "HANDFAST_", "HOME", "PROPTEST_", "RUST", "USER"];

/// Kind of a guest's NICs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum WhichNics {
    /// Soft-RoCE: rxe0 and rxe1.
    #[default]
    Rxe,
    /// Soft-iWARP: siw0 and siw1, which connect through the connection manager alone.
    Siw,
}

impl WhichNics {
    /// Returns the driver's name, the prefix of its devices' names.
    fn driver(self) -> &'static str {
        match self {
            Self::Rxe => "rxe",
            Self::Siw => "siw",
        }
    }
}

/// Command of a guest.
pub(crate) struct GuestCommand {
    pub(crate) words: Vec<OsString>,
    /// One guest with two NICs, or two with one each.
    pub(crate) hosts: u8,
    pub(crate) nics: WhichNics,
    /// The time limit of the command.
    pub(crate) limit: Duration,
    /// Program that creates and destroys queue pairs.
    pub(crate) numbers_apart: Option<PathBuf>,
    /// First folder of the guest's search path.
    pub(crate) programs: Option<PathBuf>,
}

/// Returns the start script: the network, then the command if there is one. `boot` counts from 1.
pub(super) fn start_script(
    command: &GuestCommand,
    (host, boot): (u8, u32),
    drivers: Option<&Path>,
    folder: &Path,
    environment: impl Iterator<Item = (OsString, OsString)>,
) -> Result<String> {
    let text = |path: Option<&Path>| quoted(path.unwrap_or(Path::new("")).as_os_str());
    let mut script = format!("DRIVERS={}\n", text(drivers)?);
    let nics = command.nics;
    // Equal numbers matter only if queue pairs are connected.
    let apart = command.numbers_apart.as_deref().filter(|_| nics == WhichNics::Rxe);
    script.push_str(&format!("NUMBERS_APART={}\nNICS={}\n", text(apart)?, nics.driver()));
    script.push_str(&format!("HOSTS={}\nHOST={host}\n", command.hosts));
    script.push_str(&format!("NUMBERS_APART_COUNT={NUMBERS_APART}\n"));
    script.push_str(include_str!("network.sh"));
    for (name, value) in environment {
        let name = name.to_string_lossy().into_owned();
        let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if plain && ENVIRONMENT.iter().any(|prefix| name.starts_with(prefix)) {
            script.push_str(&format!("export {name}={}\n", quoted(&value)?));
        }
    }
    if let Some(programs) = &command.programs {
        script.push_str(&format!("export PATH={}:\"$PATH\"\n", text(Some(programs))?));
    }
    script.push_str(&format!("export HANDFAST_NICS={}\n", nics.driver()));
    script.push_str(&format!("export HANDFAST_GUEST=1 HANDFAST_HOSTS={}\n", command.hosts));
    script.push_str(&format!("export HANDFAST_HOST={host}\n"));
    script.push_str(&format!("export HANDFAST_BOOT={boot}\n"));
    if nics == WhichNics::Siw {
        // The driver counts locked memory of root too.
        script.push_str("ulimit -l unlimited\n");
    }
    script.push_str(&format!("cd {} || exit 125\n: >/run/guest/ready\n", text(Some(folder))?));
    script.push_str("while [ ! -e /run/guest/go ]; do sleep 0.1; done\n");
    let words: Result<Vec<_>> = command.words.iter().map(|word| quoted(word)).collect();
    script.push_str(&format!("{}\n", words?.join(" ")));
    Ok(script)
}

/// Quotes a word for the shell.
fn quoted(word: &std::ffi::OsStr) -> Result<String> {
    let word = word.to_str().context("only text can be handed to the guest")?;
    ensure!(!word.contains('\0'), "a word with a null byte cannot be handed to the guest");
    Ok(format!("'{}'", word.replace('\'', r"'\''")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_shell_gets_back_every_word_as_it_was() {
        let words = ["plain", "two words", "it's", "$HOME `x` \"q\" \\", ""];
        let quoted: Vec<_> = words.iter().map(|word| quoted(word.as_ref()).unwrap()).collect();
        let script = format!("for word in {}; do echo \"[$word]\"; done", quoted.join(" "));
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        let expected: String = words.iter().map(|word| format!("[{word}]\n")).collect();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
    }

    #[test]
    fn only_named_parts_of_the_environment_go_along() {
        let command = GuestCommand {
            words: vec!["echo".into(), "it".into()],
            limit: Duration::from_secs(1),
            numbers_apart: None,
            hosts: 1,
            nics: WhichNics::Siw,
            programs: Some("/c d".into()),
        };
        let environment = [("RUST_BACKTRACE", "1"), ("SECRET_KEY", "k"), ("HANDFAST_A-B", "x")];
        let environment = environment.map(|(name, value)| (name.into(), value.into()));
        let script =
            start_script(&command, (0, 2), None, Path::new("/a b"), environment.into_iter())
                .unwrap();
        assert!(script.contains("export RUST_BACKTRACE='1'\n"));
        assert!(script.contains("NICS=siw\n") && script.contains("ulimit -l unlimited\n"));
        assert!(!script.contains("SECRET") && !script.contains("A-B"));
        assert!(script.contains("export PATH='/c d':\"$PATH\"\n"));
        assert!(script.contains("cd '/a b' || exit 125\n"));
        assert!(script.contains("HANDFAST_HOST=0\nexport HANDFAST_BOOT=2\n"));
        assert!(script.ends_with("'echo' 'it'\n"));
    }
}
