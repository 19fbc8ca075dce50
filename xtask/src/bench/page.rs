//! The result as a page, and in short for the terminal.

use super::figures::{Figures, Row, median};
use super::targets::Target;
use serde_json::Value;
use std::fmt::Write as _;

/// The page in `docs/bench`.
pub(super) fn page(figures: &Figures, targets: &[Target]) -> String {
    let all = &figures.0;
    let text = |value: &Value| value.as_str().unwrap_or("unknown").to_owned();
    let quick = if all["quick"] == true { " (`--quick`: few and short rounds)" } else { "" };
    let mut page = format!(
        "# Speed\n\nMade by `cargo xtask bench`{quick}; not edited. Commit {}; {} processors, {}; Linux \
         {}; loopback TCP; {}; load at the start {:.1}; {} s.\n\nHandfast and the raw limit, one TCP \
         socket between two processes, are measured in turns; a ratio is the median of the rounds' \
         ratios. Ratios hold for other machines better than rates do. What a transfer is made of, call \
         by call: [profile](profile.md).\n\n## Targets\n\n| figure | wanted | found | |\n| --- | --- | \
         --- | --- |\n",
        text(&all["commit"]),
        all["machine"]["processors"],
        text(&all["machine"]["processor"]),
        text(&all["machine"]["kernel"]),
        text(&all["placement"]),
        all["machine"]["load"].as_f64().unwrap_or(0.0),
        all["took_s"],
    );
    for target in targets {
        let (what, wanted) = (&target.what, target.wanted());
        // Writing to a String cannot fail.
        let _ = writeln!(page, "| {what} | {wanted} | {} | {} |", target.found(), target.verdict());
    }
    page.push_str(
        "\n## Rates\n\nGiB/s; processor seconds of both sides per GiB. *Raw* is a stream of blocks of \
         the same size that walks, at both ends, over as much memory as a batch does, at most 256 \
         MiB. *One block* is a stream that sends and receives one and the same block again and \
         again, which stays in the caches: what the wire could do if bytes came from nowhere and \
         went nowhere. Where a batch is one block, both are the same.\n\n| | size | batch | threads \
         | rate | raw | ratio | one block | ratio | processor | raw |\n| --- | --- | --- | --- | --- \
         | --- | --- | --- | --- | --- | --- |\n",
    );
    for row in figures.rows() {
        let _ = writeln!(page, "{}", rate_line(row));
    }
    page.push_str(&waits(figures));
    page.push_str(&others(figures));
    page
}

fn rate_line(row: Row<'_>) -> String {
    let shown = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
    let in_cache = |name| row.number(name).map_or("same".to_owned(), |it| format!("{it:.2}"));
    let Row(workload) = row;
    let cells = [
        workload["operation"].as_str().unwrap_or_default().to_owned(),
        size(workload["size"].as_u64().unwrap_or(0)),
        workload["batch"].to_string(),
        workload["threads"].to_string(),
        shown(median(row.rates())),
        shown(median(row.raw())),
        shown(row.ratio()),
        in_cache("raw_in_cache_gib_per_s"),
        in_cache("ratio_in_cache"),
        shown(row.number("processor_s_per_gib")),
        shown(row.number("raw_processor_s_per_gib")),
    ];
    format!("| {} |", cells.join(" | "))
}

fn waits(figures: &Figures) -> String {
    let mut text = "\n## Single requests\n\nMicroseconds. *Sleeping* and *looking* are raw \
                    ping-pongs of the same bytes: their ends sleep until a message comes, or look \
                    for one for 100 us before they do, as handfast does. The ratio is to the \
                    faster of the two.\n\n| | size | p50 | p99 | sleeping p50 | p99 | looking p50 \
                    | p99 | ratio p50 |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
        .to_owned();
    for one in figures.0["latencies"].as_array().into_iter().flatten() {
        let times = |way: &str| {
            let of = |percentile: &str| match one[way][percentile].as_f64() {
                Some(us) => format!("{us:.1}"),
                None => "-".to_owned(),
            };
            format!("{} | {}", of("p50"), of("p99"))
        };
        let [own, sleeping, looking] = ["us", "raw_blocking_us", "raw_adaptive_us"].map(times);
        let operation = one["operation"].as_str().unwrap_or_default();
        let ratio = one["p50_ratio"].as_f64().map_or("-".to_owned(), |it| format!("{it:.2}"));
        let size = size(one["size"].as_u64().unwrap_or(0));
        let _ =
            writeln!(text, "| {operation} | {size} | {own} | {sleeping} | {looking} | {ratio} |");
    }
    text
}

fn others(figures: &Figures) -> String {
    let (first, peers) = (&figures.0["first_transfer_us"], &figures.0["peers"]);
    let whole = |of: &Value, name: &str| of[name].as_f64().unwrap_or(0.0).round();
    let stage = |name: &str| whole(&first["stages"], name);
    format!(
        "\n## First transfer to a new peer\n\nMedian {} us, slowest {} us; look-up {}, bring-up {}, \
         messages {}, wire {}, the write itself {}. A raw connection with one round trip: {} us.\n\n\
         ## Many peers\n\n{} peers in {} processes: lanes to all of them in {} ms, {} KiB of memory \
         a lane here and {} there; {} calls a second.\n",
        whole(first, "median"),
        whole(first, "slowest"),
        stage("look_up"),
        stage("bring_up"),
        stage("exchange"),
        stage("wire"),
        stage("write"),
        whole(first, "raw"),
        whole(peers, "count"),
        whole(peers, "processes"),
        whole(peers, "warm_ms"),
        (whole(peers, "bytes_per_peer") / 1024.0).round(),
        (whole(peers, "their_bytes_per_peer") / 1024.0).round(),
        whole(peers, "calls_per_s")
    )
}

pub(super) fn size(bytes: u64) -> String {
    if bytes >= 1 << 20 { format!("{} MiB", bytes >> 20) } else { format!("{} KiB", bytes >> 10) }
}

/// The targets for a terminal.
pub(super) fn terminal(targets: &[Target]) -> String {
    let mut text = String::new();
    for target in targets {
        let (verdict, wanted) = (target.verdict(), target.wanted());
        let _ = writeln!(text, "{verdict:12} {:10} {}: {}", wanted, target.what, target.found());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::figures::tests::measured;
    use super::super::targets::judge;
    use super::*;

    #[test]
    fn every_table_of_the_page_has_rows_of_one_width() {
        let figures = measured();
        let page = page(&figures, &judge(&figures));
        let mut columns = None;
        let mut rows = 0;
        for line in page.lines() {
            let here = line.starts_with('|').then(|| line.matches('|').count());
            if let (Some(before), Some(here)) = (columns, here) {
                assert_eq!(before, here, "{line}");
                rows += 1;
            }
            columns = here;
        }
        assert!(rows > 32 + 2 + 10, "{rows} rows");
        assert!(
            page.contains(
                "| read | 4 KiB | 1 | 1 | 1.80 | 2.00 | 0.90 | same | same | 0.50 | 0.50 |"
            )
        );
        assert!(page.contains(
            "| write | 16 MiB | 32 | 4 | 1.80 | 2.00 | 0.90 | 2.50 | 0.72 | 0.50 | 0.50 |"
        ));
        assert!(!page.contains("| - "), "{page}");
    }

    #[test]
    fn the_terminal_sees_one_line_a_target() {
        let targets = judge(&measured());
        let text = terminal(&targets);
        assert_eq!(text.lines().count(), targets.len());
        assert!(text.lines().all(|line| line.starts_with("met")), "{text}");
    }
}
