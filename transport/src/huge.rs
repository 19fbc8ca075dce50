//! Huge pages below memory, as the kernel reports them.

use std::ops::Range;

/// Bytes of a huge page, and the least block that asks for them.
pub(crate) const PAGE_BYTES: usize = 2 << 20;
/// Lines of `smaps` that count bytes on huge pages.
const COUNTED: [&str; 5] =
    ["AnonHugePages:", "ShmemPmdMapped:", "FilePmdMapped:", "Shared_Hugetlb:", "Private_Hugetlb:"];

/// Returns the number of `bytes` on huge pages, from the text of `/proc/self/smaps`. The kernel
/// counts by mapping: of one that extends past `bytes` the count is the most that can be theirs.
pub(crate) fn bytes_in(smaps: &str, bytes: &Range<u64>) -> u64 {
    let (mut sum, mut overlap) = (0, 0);
    let mut left = 0;
    for line in smaps.lines() {
        if let Some(mapped) = range_of(line) {
            let (first, end) = (mapped.start.max(bytes.start), mapped.end.min(bytes.end));
            overlap = end.saturating_sub(first);
            left = overlap;
        } else if overlap > 0
            && let Some(huge) = counted(line)
        {
            let huge = huge.min(left);
            left -= huge;
            sum += huge;
        }
    }
    sum
}

/// Returns the addresses of a mapping's first line.
fn range_of(line: &str) -> Option<Range<u64>> {
    let (first, end) = line.split_whitespace().next()?.split_once('-')?;
    let address = |text| u64::from_str_radix(text, 16).ok();
    Some(address(first)?..address(end)?)
}

fn counted(line: &str) -> Option<u64> {
    let rest = COUNTED.iter().find_map(|name| line.strip_prefix(name))?;
    let kilobytes: u64 = rest.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1 << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
7f0000000000-7f0000800000 rw-p 00000000 00:00 0
Size:               8192 kB
AnonHugePages:      6144 kB
ShmemPmdMapped:        0 kB
VmFlags: rd wr mr mw me ac hg
7f0000800000-7f0000900000 r--s 00000000 08:01 12                 /srv/AnonHugePages: 9 kB
FilePmdMapped:         0 kB
Private_Hugetlb:    1024 kB
";

    /// Each mapping counts for the bytes within it alone, and at most for as many as those.
    #[test]
    fn huge_bytes_count_within_the_block_alone() {
        let start = 0x7f00_0000_0000_u64;
        let (whole, other) = (start..start + (8 << 20), start + (8 << 20)..start + (9 << 20));
        assert_eq!(bytes_in(SMAPS, &whole), 6 << 20);
        assert_eq!(bytes_in(SMAPS, &other), 1 << 20);
        assert_eq!(bytes_in(SMAPS, &(start..start + (9 << 20))), 7 << 20);
        assert_eq!(bytes_in(SMAPS, &(start..start + (2 << 20))), 2 << 20, "the most there can be");
        assert_eq!(bytes_in(SMAPS, &(start - 4096..start)), 0);
        assert_eq!(bytes_in("", &whole), 0);
    }
}
