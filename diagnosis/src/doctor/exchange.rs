//! The exchange between two doctors: one frame each way, over TCP.
//!
//! A frame is eight bytes of [`MAGIC`], four of length (big endian) and that many of JSON. The
//! connecting side sends first.

use super::bulk::{self, BULK_MAGIC, BULK_TIME};
use super::facts::{Device, Facts, Interface, Route};
use super::finding::Finding;
use super::observed::{Observed, said};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::io::{self, Read, Write};
use std::net::IpAddr;

/// Magic at the start of a frame. No control frame of a node starts with it.
pub const MAGIC: &[u8; 8] = b"HFDOCTR1";
/// Maximum length of a frame's JSON, in bytes.
pub const FRAME_BYTES_MAX: usize = 1 << 20;
/// Magic and length.
pub const HEADER_BYTES: usize = MAGIC.len() + 4;

/// The report that one side sends to the other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Half {
    /// The host's name.
    pub host: String,
    /// The program's version.
    pub version: String,
    /// The kernel's release.
    pub kernel: String,
    /// Seconds since 1970.
    pub unix_s: u64,
    /// RDMA devices.
    pub devices: Vec<Device>,
    /// Network interfaces.
    pub interfaces: Vec<Interface>,
    /// Addresses.
    pub addresses: Vec<IpAddr>,
    /// Routes of the main table.
    pub routes: Vec<Route>,
    /// The doctor's findings, by id and observation.
    pub findings: Vec<Told>,
    /// UDP ports at which it answers datagrams.
    pub datagram_ports: Vec<u16>,
    /// The address at which it accepts lanes over RDMA, if it does.
    #[serde(default)]
    pub lane_port: Option<u16>,
    /// Last measured rate over loopback TCP, in megabits per second; 0 if unknown.
    #[serde(default)]
    pub loopback_mbps: u32,
}

impl Half {
    /// Creates the report of a host, without findings.
    pub(super) fn of(facts: &Facts, host: &str, unix_s: u64) -> Self {
        Self {
            host: host.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            kernel: facts.kernel.clone(),
            unix_s,
            devices: facts.devices.clone(),
            interfaces: facts.interfaces.clone(),
            addresses: facts.addresses.clone(),
            routes: facts.routes.clone(),
            ..Self::default()
        }
    }
}

/// Two hosts, for a comparison.
#[derive(Clone, Debug)]
pub struct Halves {
    /// This one.
    pub here: Half,
    /// The other.
    pub there: Half,
}

/// A finding as the other side reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// The problem's name; a name of another version may be unknown here.
    pub id: String,
    /// Whether it is fatal there.
    pub is_fatal: bool,
    /// The observation.
    pub observed: Observed,
}

impl ExchangeError {
    /// Returns the observation in both languages.
    pub(super) fn told(&self) -> Observed {
        match self {
            Self::Io(error) => said!("the connection ended: {error}", "连接中断:{error}"),
            Self::Foreign => said!("the answering process is not a doctor", "应答的不是 doctor"),
            Self::TooLong(bytes) => said!(
                "a report of {bytes} bytes is longer than {FRAME_BYTES_MAX}",
                "报告有 {bytes} 字节,超过 {FRAME_BYTES_MAX}"
            ),
            Self::Malformed(error) => {
                said!("the report cannot be read: {error}", "报告无法读取:{error}")
            }
        }
    }
}

impl Told {
    pub(super) fn of(finding: &Finding) -> Self {
        Self {
            id: finding.id.to_string(),
            is_fatal: finding.severity == crate::Severity::Fatal,
            observed: finding.observed.clone(),
        }
    }
}

/// The error of reading a frame.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// The connection failed or ended.
    #[error("the connection ended: {0}")]
    Io(#[from] io::Error),
    /// The other side is not a doctor.
    #[error("the answering process is not a doctor")]
    Foreign,
    /// The other side's report is too long.
    #[error("a report of {0} bytes is longer than {FRAME_BYTES_MAX}")]
    TooLong(usize),
    /// The JSON is malformed.
    #[error("the report cannot be read: {0}")]
    Malformed(#[from] serde_json::Error),
}

/// Encodes the report as a frame.
///
/// # Errors
/// [`ExchangeError::TooLong`] for a machine with more devices than fit into a frame.
pub fn encode(half: &Half) -> Result<Vec<u8>, ExchangeError> {
    let json = serde_json::to_vec(half)?;
    let length = u32::try_from(json.len()).ok().filter(|_| json.len() <= FRAME_BYTES_MAX);
    let length = length.ok_or(ExchangeError::TooLong(json.len()))?;
    Ok([&MAGIC[..], &length.to_be_bytes(), &json].concat())
}

/// Reads a frame, at most [`FRAME_BYTES_MAX`].
///
/// # Errors
/// The error of the frame.
pub fn read_half(from: &mut impl Read) -> Result<Half, ExchangeError> {
    let mut header = [0; HEADER_BYTES];
    from.read_exact(&mut header)?;
    let (magic, length) = header.split_at(MAGIC.len());
    if magic != MAGIC {
        return Err(ExchangeError::Foreign);
    }
    let length = length.iter().fold(0_usize, |length, byte| length << 8 | usize::from(*byte));
    if length > FRAME_BYTES_MAX {
        return Err(ExchangeError::TooLong(length));
    }
    let mut json = vec![0; length];
    from.read_exact(&mut json)?;
    let mut half: Value = serde_json::from_slice(&json)?;
    keep_printable(&mut half);
    Ok(serde_json::from_value(half)?)
}

/// Removes control characters, since the value is printed unescaped.
fn keep_printable(value: &mut Value) {
    match value {
        Value::String(text) => text.retain(|c| !c.is_control()),
        Value::Array(items) => items.iter_mut().for_each(keep_printable),
        Value::Object(entries) => entries.values_mut().for_each(keep_printable),
        _ => {}
    }
}

/// A request of another doctor.
#[derive(Debug)]
pub enum Question {
    /// A comparison; contains the other side's report.
    Half(Box<Half>),
    /// A bulk transfer, to measure the rate.
    Bytes,
}

/// Reads the request of another doctor.
///
/// # Errors
/// The error of the connection or of the other half.
pub fn read_question(from: &mut impl Read) -> Result<Question, ExchangeError> {
    let mut header = [0; HEADER_BYTES];
    from.read_exact(&mut header)?;
    if header.starts_with(BULK_MAGIC) {
        return Ok(Question::Bytes);
    }
    Ok(Question::Half(Box::new(read_half(&mut header.chain(from))?)))
}

/// Answers [`Question::Half`].
///
/// # Errors
/// The error of the connection, or of a half that is too long.
pub fn tell_half(to: &mut impl Write, own: &Half) -> Result<(), ExchangeError> {
    to.write_all(&encode(own)?)?;
    Ok(to.flush()?)
}

/// Answers [`Question::Bytes`].
///
/// # Errors
/// The error of the connection.
pub fn tell_bytes(to: &mut impl Write) -> Result<(), ExchangeError> {
    Ok(bulk::send(to, BULK_TIME)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_half_comes_back_as_it_was() {
        let half = Half { host: "a".into(), unix_s: 7, ..Half::default() };
        let frame = encode(&half).unwrap();
        assert_eq!(read_half(&mut &frame[..]).unwrap(), half);
        for cut in 0..frame.len() {
            assert!(matches!(read_half(&mut &frame[..cut]), Err(ExchangeError::Io(_))));
        }
    }

    #[test]
    fn what_a_terminal_would_obey_is_taken_out_of_what_others_tell() {
        let half = Half { host: "a\u{1b}[2J\nb".into(), ..Half::default() };
        assert_eq!(read_half(&mut &encode(&half).unwrap()[..]).unwrap().host, "a[2Jb");
    }

    /// Counts the written bytes.
    struct Counting(u64);

    impl Write for Counting {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len() as u64;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn who_asks_for_bytes_gets_no_more_than_there_are_at_most() {
        let question = [&BULK_MAGIC[..], &[0; 4]].concat();
        assert!(matches!(read_question(&mut &question[..]), Ok(Question::Bytes)));
        let mut counting = Counting(0);
        tell_bytes(&mut counting).unwrap();
        assert!((1..=bulk::BULK_BYTES_MAX).contains(&counting.0), "{}", counting.0);
    }

    #[test]
    fn who_asks_to_compare_is_heard_with_its_half() {
        let half = Half { host: "a".into(), ..Half::default() };
        let frame = encode(&half).unwrap();
        let Ok(Question::Half(heard)) = read_question(&mut &frame[..]) else { panic!() };
        assert_eq!(*heard, half);
    }

    #[test]
    fn foreign_and_long_frames_are_refused_unread() {
        let http = b"HTTP/1.1 400 Bad Request\r\n\r\n";
        assert!(matches!(read_half(&mut &http[..]), Err(ExchangeError::Foreign)));
        let header = |length: usize| {
            let length = u32::try_from(length).unwrap();
            [&MAGIC[..], &length.to_be_bytes()].concat()
        };
        let at_limit = read_half(&mut &header(FRAME_BYTES_MAX)[..]);
        assert!(matches!(at_limit, Err(ExchangeError::Io(_))));
        let past = read_half(&mut &header(FRAME_BYTES_MAX + 1)[..]);
        assert!(matches!(past, Err(ExchangeError::TooLong(_))));
        let nonsense = [&header(2)[..], b"{]"].concat();
        assert!(matches!(read_half(&mut &nonsense[..]), Err(ExchangeError::Malformed(_))));
        let long = Half { host: "x".repeat(FRAME_BYTES_MAX), ..Half::default() };
        assert!(matches!(encode(&long), Err(ExchangeError::TooLong(_))));
    }
}
