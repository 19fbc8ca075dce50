//! Lines of logs: colours, records, and records split over several lines.

use anstream::adapter::strip_str;

/// Maximum length of an excerpt, in characters.
pub const EXCERPT_CHARS_MAX: usize = 300;
/// Number of leading characters that may mark the start of a record.
const MARK_CHARS_MAX: usize = 64;

/// Returns a line without colours and other terminal sequences.
pub(super) fn plain(raw: &[u8]) -> String {
    let text = String::from_utf8_lossy(raw);
    let text = strip_str(&text).to_string().replace('\t', " ");
    text.chars().filter(|c| !c.is_control()).collect()
}

/// Returns the beginning of a line, for people.
pub(super) fn excerpt(plain: &str) -> String {
    let plain = plain.trim();
    match plain.char_indices().nth(EXCERPT_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &plain[..end]),
        None => plain.to_owned(),
    }
}

/// Whether a record starts here rather than continues: there is a time of day, a kernel time, a
/// level, or a JSON object.
pub(super) fn begins_record(plain: &str) -> bool {
    const LEVELS: [&str; 9] =
        ["[ERROR", "[WARN", "[INFO", "[DEBUG", "ERROR", "WARN", "INFO", "error:", "Error:"];
    let start: String = plain.chars().take(MARK_CHARS_MAX).collect();
    let start = start.trim_start();
    let is_record = LEVELS.iter().any(|level| start.starts_with(level));
    is_record || start.starts_with('{') || start.contains("NCCL ") || has_time(start)
}

/// Whether a record is informational, so that its content is not necessarily a failure.
pub(super) fn is_news(plain: &str) -> bool {
    const LEVELS: [&str; 9] = [
        " INFO ",
        "[INFO",
        "INFO:",
        " DEBUG ",
        "[DEBUG",
        "\"level\":\"info\"",
        "\"level\":\"debug\"",
        "level=info",
        "level=debug",
    ];
    let start: String = plain.chars().take(MARK_CHARS_MAX).collect();
    let start = start.trim_start();
    // In the format of glog: the level, the month and the day.
    let glog = start.strip_prefix('I').and_then(|rest| rest.split_once(' '));
    let is_date = |date: &str| date.len() == 4 && date.bytes().all(|byte| byte.is_ascii_digit());
    glog.is_some_and(|(date, _)| is_date(date))
        || start.starts_with("INFO ")
        || LEVELS.iter().any(|level| start.contains(level))
}

/// Whether the text contains `12:34:56` or `[ 1234.567890]`.
fn has_time(text: &str) -> bool {
    let bytes = text.as_bytes();
    let digits = |at: &[usize]| at.iter().all(|at| bytes.get(*at).is_some_and(u8::is_ascii_digit));
    let of_day = (0..bytes.len()).any(|at| {
        bytes[at] == b':'
            && bytes.get(at + 3) == Some(&b':')
            && digits(&[at + 1, at + 2, at + 4, at + 5])
    });
    let kernels =
        text.strip_prefix('[').and_then(|rest| rest.split_once(']')).is_some_and(|(time, _)| {
            let time = time.trim();
            time.contains('.') && time.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
        });
    of_day || kernels
}

/// Returns the connection of a line: the peer, or the queue pair.
pub(super) fn connection(plain: &str) -> Option<String> {
    const KEYS: [&str; 8] =
        ["peer_nic", "peer nic path", "from peer", "endpoint", "peer", "qp_num", "qpn", "qp "];
    const VALUE_CHARS_MAX: usize = 96;
    let lower = plain.to_ascii_lowercase();
    KEYS.iter().find_map(|key| {
        let at = lower.find(key)? + key.len();
        let rest = plain[at..].trim_start_matches([' ', ':', '=', '"', '\'']);
        let is_value = |c: char| c.is_ascii_alphanumeric() || ".:@_<>-".contains(c);
        let value: String =
            rest.chars().take_while(|c| is_value(*c)).take(VALUE_CHARS_MAX).collect();
        let value = value.trim_end_matches([':', '.', '-']);
        value.contains(|c: char| c.is_ascii_digit()).then(|| value.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_titles_and_control_characters_are_taken_away() {
        let raw = b"\x1b[1;31mE0101\x1b[0m \x1b]0;title\x07failed\r\t!";
        assert_eq!(plain(raw), "E0101 failed !");
        assert_eq!(plain(b"\x1b"), "");
        assert_eq!(plain(b"\x1b[12"), "");
        assert_eq!(plain(b"\xff\xfe"), "\u{fffd}\u{fffd}");
    }

    #[test]
    fn records_are_told_from_lines_that_go_on() {
        for record in [
            "E1121 16:00:00.123456  4242 worker_pool.cpp:321] x",
            "2026-11-21T16:00:00Z stderr F x",
            "[   12.345678] mlx5_core",
            "node-1:42:57 [0] NCCL WARN x",
            "{\"level\":\"warn\"}",
            "Nov 21 16:00:00 host kernel: x",
            "[ERROR] x",
        ] {
            assert!(begins_record(record), "{record}");
        }
        for goes_on in [
            "  gid, peer lid, peer qp num: Connection timed out [110]",
            "",
            "[22]",
            "10.0.0.1:2379",
        ] {
            assert!(!begins_record(goes_on), "{goes_on}");
        }
    }

    #[test]
    fn news_are_told_from_what_failed() {
        for news in [
            "I1121 16:00:00.123456  4242 transfer_engine.cpp:1] x",
            "node-1:42:57 [0] NCCL INFO x",
            "2026-11-21 16:00:00,123 INFO x",
            "{\"level\":\"info\",\"msg\":\"x\"}",
            "[INFO] x",
        ] {
            assert!(is_news(news), "{news}");
        }
        for failed in
            ["E1121 16:00:00.1 x", "IB device x", "node-1:42:57 [0] NCCL WARN x", "I 12 x"]
        {
            assert!(!is_news(failed), "{failed}");
        }
    }

    #[test]
    fn the_connection_is_the_peer_or_the_queue_pair() {
        let of = |text: &str| connection(text);
        assert_eq!(
            of("local_nic: mlx5_0, peer_nic: 10.0.0.2:12001@mlx5_1, x").as_deref(),
            Some("10.0.0.2:12001@mlx5_1")
        );
        assert_eq!(
            of("Got completion from peer 10.0.0.1<41000> with").as_deref(),
            Some("10.0.0.1<41000>")
        );
        assert_eq!(of("qp_num=4711 flushed").as_deref(), Some("4711"));
        assert_eq!(of("the peer did not answer"), None);
    }

    #[test]
    fn an_excerpt_is_bounded() {
        assert_eq!(excerpt(&"错".repeat(EXCERPT_CHARS_MAX)).chars().count(), EXCERPT_CHARS_MAX);
        assert_eq!(
            excerpt(&"错".repeat(EXCERPT_CHARS_MAX + 1)).chars().count(),
            EXCERPT_CHARS_MAX + 1
        );
        assert!(excerpt(&"x".repeat(EXCERPT_CHARS_MAX + 1)).ends_with('…'));
    }
}
