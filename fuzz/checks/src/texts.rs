//! Short texts of options, stores and messages: addresses, NIC paths, matrices, locations, sources,
//! announcements of queue pairs, replay lines.

use crate::check_error;
use handfast::SegmentAddr;
use handfast::topology::Location;
use handfast_core::NicPath;
use handfast_core::address::{host_and_port, with_port};
use handfast_core::connection::Announcement;
use handfast_core::mooncake::{Keys, PriorityMatrix};
use handfast_metadata::Source;
use handfast_sim::Line;
use std::fmt::Display;
use std::str::FromStr;
use xxhash_rust::xxh3::xxh3_64;

/// Panics unless each text that is accepted prints to the same value again, and each refusal is short.
pub fn check(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    addresses(text);
    same_matrix(text);
    same::<NicPath, _>(text, NicPath::parse);
    same::<SegmentAddr, _>(text, str::parse);
    same::<Location, _>(text, str::parse);
    same::<Announcement, _>(text, str::parse);
    refused(Keys::new(text).err());
    refused(Source::from_str(text).err());
    line(text);
    // Mutation does not keep a checksum in step.
    let body = text.trim().rsplit_once(':').map_or(text, |(body, _)| body).trim_start();
    line(&format!("{body}:{:08x}", xxh3_64(body.as_bytes()) as u32));
}

fn refused(error: Option<impl Display>) {
    if let Some(error) = error {
        check_error(&error.to_string());
    }
}

/// A host is a part of its text, and an address with a port has both parts.
fn addresses(text: &str) {
    match host_and_port(text) {
        Ok((host, port)) => {
            assert!(text.contains(host), "'{host}' is no part of '{text}'");
            assert_eq!(with_port(text).is_ok(), port.is_some(), "{text}");
        }
        Err(error) => {
            check_error(&error.to_string());
            assert!(with_port(text).is_err(), "{text}");
        }
    }
}

fn same_matrix(text: &str) {
    match PriorityMatrix::parse(text) {
        Ok(matrix) => {
            assert_eq!(PriorityMatrix::parse(&matrix.to_json()).as_ref(), Ok(&matrix), "{text}");
        }
        Err(error) => check_error(&error.to_string()),
    }
}

fn same<T: PartialEq + Display + std::fmt::Debug, E: Display + std::fmt::Debug>(
    text: &str,
    parse: impl Fn(&str) -> Result<T, E>,
) {
    match parse(text) {
        Ok(value) => assert_eq!(parse(&value.to_string()).expect("it prints"), value, "{text}"),
        Err(error) => check_error(&error.to_string()),
    }
}

/// A line that is read prints to itself, up to the white space around it.
fn line(text: &str) {
    match text.parse::<Line>() {
        Ok(line) => {
            let printed = line.to_string();
            let again: Line = printed.parse().expect("a printed line is one");
            assert_eq!(again.to_string(), printed, "{text}");
        }
        Err(error) => check_error(&error.to_string()),
    }
}
