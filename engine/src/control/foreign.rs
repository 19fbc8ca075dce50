//! Recognition of foreign protocols by their first bytes.

/// Returns the name of the well-known protocol that begins with these bytes.
pub(super) fn recognise(first: &[u8]) -> Option<&'static str> {
    const HTTP: [&[u8]; 8] =
        [b"GET ", b"POST ", b"PUT ", b"HEAD ", b"OPTIONS ", b"DELETE ", b"PRI * H", b"HTTP/"];
    match first {
        _ if HTTP.iter().any(|start| first.starts_with(start)) => Some("HTTP"),
        // Content type handshake (22) or alert (21), a version 3.x, and a length: RFC 8446, section 5.1. The length of
        // a frame below 16 MiB has zeros there.
        [0x15 | 0x16, 0x03, 0..=4, high, low, ..] if (*high, *low) != (0, 0) => Some("TLS"),
        [b'S', b'S', b'H', b'-', ..] => Some("SSH"),
        [b'<', b'!' | b'h' | b'H' | b'?', ..] => Some("HTML or XML, as of an HTTP server"),
        [b'-', b'E', b'R', b'R', ..] => Some("Redis"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::recognise;

    #[test]
    fn well_known_protocols_are_named_and_a_frame_is_not() {
        assert_eq!(recognise(b"GET / HT"), Some("HTTP"));
        assert_eq!(recognise(b"HTTP/1.1"), Some("HTTP"));
        assert_eq!(recognise(b"\x16\x03\x01\x02\x00\x01\x00\x01"), Some("TLS"));
        assert_eq!(recognise(b"\x15\x03\x01\x00\x02\x02\x46"), Some("TLS"));
        assert_eq!(recognise(b"SSH-2.0-"), Some("SSH"));
        assert_eq!(recognise(b""), None);
        for length in [260u64, 0x0315, 0x0316, 0x1_0316] {
            assert_eq!(recognise(&length.to_le_bytes()), None, "{length}");
        }
    }
}
