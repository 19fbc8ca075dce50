//! Requests a node's state over HTTP.

use crate::failure::Failure;
use handfast_diagnosis::doctor::Timed;
use serde_json::Value;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Timeout of the connection, and of the answer after it.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum length of an answer: a thousand peers and four thousand lifecycles need a tenth of it.
const ANSWER_BYTES_MAX: u64 = 32 << 20;

/// Returns the state of the node whose metrics are at `address`.
pub(super) fn state(address: &str) -> std::result::Result<Value, Failure> {
    let failed = |error| Failure::NoState { address: address.to_owned(), error };
    let answer = ask(address).map_err(failed)?;
    parse(&answer).map_err(|what| failed(Error::new(ErrorKind::InvalidData, what)))
}

fn ask(address: &str) -> Result<Vec<u8>> {
    // One deadline for the whole answer, not for each piece.
    let mut stream = Timed::new(connect(address, TIMEOUT)?, TIMEOUT);
    let request = format!("GET /state HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    if stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)? as u64 == ANSWER_BYTES_MAX {
        return Err(Error::other("the answer is longer than any state"));
    }
    Ok(answer)
}

fn connect(address: &str, timeout: Duration) -> Result<TcpStream> {
    let mut last = Error::new(ErrorKind::NotFound, "the name has no address");
    for candidate in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&candidate, timeout) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn parse(answer: &[u8]) -> std::result::Result<Value, String> {
    let text = String::from_utf8_lossy(answer);
    let (head, body) = text.split_once("\r\n\r\n").ok_or("the answer is not HTTP")?;
    let status = head.split(' ').nth(1).unwrap_or_default();
    if status != "200" {
        return Err(format!("it answered with status {status}"));
    }
    let state: Value = serde_json::from_str(body).map_err(|error| error.to_string())?;
    match state["schema"].as_u64() {
        Some(1) => Ok(state),
        Some(other) => Err(format!("its state has version {other}, and only 1 is supported")),
        None => Err("it is not a handfast node".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn only_a_state_of_a_known_version_is_taken() {
        let answer = |body: &str| format!("HTTP/1.1 200 OK\r\nA: b\r\n\r\n{body}").into_bytes();
        assert_eq!(parse(&answer(r#"{"schema":1,"lanes":3}"#)).unwrap()["lanes"], 3);
        for (body, words) in [
            (r#"{"schema":2}"#, "version 2"),
            ("{}", "not a handfast node"),
            ("<html>", "expected"),
        ] {
            let error = parse(&answer(body)).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        assert!(parse(b"HTTP/1.1 404 Not Found\r\n\r\n").unwrap_err().contains("404"));
        assert!(parse(b"\x00\x01").is_err());
    }
}
