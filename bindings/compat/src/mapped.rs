//! Memory that this process has mapped, as the kernel reports it.

use crate::failure::Failure;
use std::ops::Range;

/// The mapped memory at one moment.
pub(crate) struct Mapped {
    /// Readable memory, in the order of addresses, and whether it is writable.
    parts: Vec<(Range<u64>, bool)>,
}

impl Mapped {
    /// Reads `/proc/self/maps`.
    pub(crate) fn read() -> Result<Self, Failure> {
        let text = std::fs::read_to_string("/proc/self/maps")
            .map_err(|error| Failure::argument(format!("/proc/self/maps: {error}")))?;
        Ok(Self::parse(&text))
    }

    fn parse(text: &str) -> Self {
        let part = |line: &str| {
            let (range, rest) = line.split_once(' ')?;
            let (first, end) = range.split_once('-')?;
            let [first, end] = [first, end].map(|it| u64::from_str_radix(it, 16).ok());
            let (readable, writable) = (rest.starts_with('r'), rest.as_bytes().get(1)? == &b'w');
            readable.then_some((first?..end?, writable))
        };
        Self { parts: text.lines().filter_map(part).collect() }
    }

    /// Checks that peers could write the bytes.
    ///
    /// # Errors
    /// They are not all mapped, or not all writable.
    pub(crate) fn check(&self, address: u64, bytes: u64) -> Result<(), Failure> {
        let refused = |why: &str| {
            Failure::argument(format!("{bytes} bytes at {address:#x} cannot be registered: {why}"))
        };
        if bytes == 0 {
            return Err(refused("memory has at least one byte"));
        }
        let past = || refused("they run past the end of the address space");
        let end = address.checked_add(bytes).filter(|end| *end < 1 << 63).ok_or_else(past)?;
        let mut next = address;
        let first = self.parts.partition_point(|(range, _)| range.end <= address);
        for (range, writable) in &self.parts[first..] {
            if next >= end || range.start > next {
                break;
            }
            if !writable {
                return Err(refused("they are mapped read-only"));
            }
            next = range.end;
        }
        match next >= end {
            true => Ok(()),
            false => Err(refused(
                "they are not memory of this process that a CPU can read, nor memory of a CUDA device",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_memory_that_is_mapped_and_writable_passes() {
        let mapped = Mapped::parse(
            "1000-3000 rw-p 00000000 00:00 0\n3000-4000 rw-s 00000000 00:01 7 /dev/shm/a\n\
             4000-5000 r--p 00000000 00:00 0 /lib/b\n8000-9000 ---p 00000000 00:00 0\n\
             9000-a000 rw-p 00000000 00:00 0\nnot a line\n",
        );
        for (address, bytes) in [(0x1000, 0x3000), (0x2fff, 2), (0x9000, 1), (0x9fff, 1)] {
            mapped.check(address, bytes).unwrap();
        }
        for (address, bytes, why) in [
            (0x1000, 0, "at least one byte"),
            (0x3fff, 2, "read-only"),
            (0xfff, 2, "not memory"),
            (0x8000, 0x1001, "not memory"),
            (0x9fff, 2, "not memory"),
            (0, 1, "not memory"),
            (u64::MAX, 1, "address space"),
            (0x1000, u64::MAX, "address space"),
            (1 << 62, 1 << 62, "address space"),
        ] {
            let error = mapped.check(address, bytes).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
