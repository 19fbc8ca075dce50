//! Sizes in bytes and durations in their usual notation.

use std::time::Duration;

/// Parses `4096`, `64K`, `1M`, `2GiB`: powers of 1024.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        _ => return Err(format!("'{text}' is not a size; write 4096, 64K, 1M or 2G")),
    };
    let number: u64 =
        number.parse().map_err(|_| format!("'{text}' is not a size; write 4096, 64K, 1M or 2G"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("'{text}' is more than 16 EiB"))
}

/// Parses a size of at least one byte.
pub(crate) fn parse_positive(text: &str) -> Result<u64, String> {
    match parse(text)? {
        0 => Err("0 bytes are too few; give at least 1".into()),
        bytes => Ok(bytes),
    }
}

/// Parses a positive duration: `250ms`, `2s`, `1.5s`, `3m`; without a unit, seconds.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("'{text}' is not a duration; write 250ms, 2s or 3m");
    let (number, scale) = match text {
        _ if text.ends_with("ms") => (&text[..text.len() - 2], 0.001),
        _ if text.ends_with('s') => (&text[..text.len() - 1], 1.0),
        _ if text.ends_with('m') => (&text[..text.len() - 1], 60.0),
        _ => (text, 1.0),
    };
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let span = Duration::try_from_secs_f64(number * scale).map_err(|_| wrong())?;
    if span.is_zero() { Err(format!("'{text}' is not a positive duration")) } else { Ok(span) }
}

/// Formats bytes with a unit, such as `1.5 MiB`.
pub(crate) fn show(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} bytes") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// Returns the rate per second; 0 for an empty duration.
pub(crate) fn per_second(count: u64, took: Duration) -> u64 {
    let seconds = took.as_secs_f64();
    if seconds > 0.0 { (count as f64 / seconds) as u64 } else { 0 }
}

/// Formats a size in the notation of the command line: `64K`, `1M`, `100`.
pub(crate) fn short(bytes: u64) -> String {
    for (shift, unit) in [(30, "G"), (20, "M"), (10, "K")] {
        if bytes != 0 && bytes.is_multiple_of(1 << shift) {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

#[cfg(test)]
mod tests {
    use super::{parse, parse_duration, parse_positive, short, show};

    #[test]
    fn sizes_are_read_with_their_units_and_nonsense_is_refused() {
        assert_eq!(parse("4096"), Ok(4096));
        assert_eq!(parse("64K"), Ok(65_536));
        assert_eq!(parse("2GiB"), Ok(2 << 30));
        assert!(parse("").is_err() && parse("K").is_err() && parse("1x").is_err());
        assert!(parse("20000000T").is_err(), "more than fits");
        assert!(parse_positive("0").is_err());
        assert_eq!(parse_duration("250ms").unwrap().as_millis(), 250);
        assert_eq!(parse_duration("1.5").unwrap().as_millis(), 1500);
        assert!(parse_duration("-1s").is_err() && parse_duration("soon").is_err());
        assert!(parse_duration("0").is_err() && parse_duration("0.0ms").is_err());
    }

    #[test]
    fn sizes_are_shown_as_people_write_them() {
        assert_eq!((show(100).as_str(), show(1536).as_str()), ("100 bytes", "1.5 KiB"));
        assert_eq!((short(65_536).as_str(), short(100).as_str()), ("64K", "100"));
    }
}
