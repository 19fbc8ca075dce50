//! The table: a node and the busiest of its peers.

use crate::progress::rate;
use crate::size;
use crate::terminal::Window;
use serde_json::Value;
use std::time::Duration;

/// Minimum width of the full table.
const WIDE: usize = 96;
/// Columns after a peer's name, in the full table and in the narrow one.
const BEHIND_WIDE: usize = 66;
const BEHIND_NARROW: usize = 37;
/// Minimum width of a name.
const NAME_MIN: usize = 12;
/// The name of the peers that share a row.
const OTHER: &str = "other";
/// The shown rows, and the width of names.
#[derive(Clone, Copy)]
struct Layout {
    wide: bool,
    name: usize,
}

impl Layout {
    /// Names get the remaining width, at most that of the longest.
    fn new(columns: usize, longest: usize) -> Self {
        let wide = columns >= WIDE;
        let behind = if wide { BEHIND_WIDE } else { BEHIND_NARROW };
        Self { wide, name: longest.min(columns.saturating_sub(behind)).max(NAME_MIN) }
    }

    fn title(self) -> String {
        let Self { wide, name } = self;
        match wide {
            true => format!(
                "{:name$} {:>13} {:>13} {:>9} {:>7} {:>8} {:>8}",
                "peer", "written", "read", "batches/s", "failed", "p50", "p99"
            ),
            false => format!("{:name$} {:>13} {:>13} {:>8}", "peer", "written", "read", "p99"),
        }
    }
}

/// The counts of one peer in the interval, and since the start.
struct Peer<'a> {
    name: &'a str,
    write: u64,
    read: u64,
    batches: u64,
    failed: u64,
    p50_ns: u64,
    p99_ns: u64,
    lanes_ended: u64,
    repaired: u64,
    refusals: u64,
    fences_lost: u64,
    /// Traffic by pair of NICs, if there are several.
    pairs: Vec<Pair>,
}

/// The traffic of one rail in the interval.
struct Pair {
    name: String,
    write: u64,
    read: u64,
}

impl Pair {
    /// Returns the pairs of a peer, if there are several.
    fn all(now: &Value, before: &Value) -> Vec<Self> {
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let pair = |(key, pair): (&String, &Value)| {
            let text = |name: &str| pair[name].as_str().unwrap_or_default().to_owned();
            let grown = |name: &str| {
                number(&pair[name]).saturating_sub(number(&before["nics"][key.as_str()][name]))
            };
            let name = format!("  {} - {}", text("own"), text("peer"));
            Self { name, write: grown("written_bytes"), read: grown("read_bytes") }
        };
        let all: Vec<Self> = now["nics"].as_object().into_iter().flatten().map(pair).collect();
        if all.len() > 1 { all } else { Vec::new() }
    }
}

/// The sum of a map of counts.
fn sum(counts: &Value) -> u64 {
    counts.as_object().into_iter().flat_map(|map| map.values()).filter_map(Value::as_u64).sum()
}

impl<'a> Peer<'a> {
    fn new(name: &'a str, now: &Value, before: &Value) -> Self {
        let ways = |state: &Value, of: &dyn Fn(&Value) -> u64| -> u64 {
            let rails = state["rails"].as_object();
            rails.into_iter().flat_map(|rails| rails.values()).map(of).sum()
        };
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let both = |name: &'static str| {
            move |rail: &Value| number(&rail["write"][name]) + number(&rail["read"][name])
        };
        let grown = |of: &dyn Fn(&Value) -> u64| ways(now, of).saturating_sub(ways(before, of));
        let slowest = |percentile: &'static str| -> u64 {
            let rails = now["rails"].as_object();
            let rails = rails.into_iter().flat_map(|rails| rails.values());
            let ways = rails.flat_map(|rail| [&rail["write"], &rail["read"]]);
            ways.map(|way| number(&way["latency"][percentile])).max().unwrap_or(0)
        };
        Self {
            name,
            write: grown(&|rail: &Value| number(&rail["write"]["bytes"])),
            read: grown(&|rail: &Value| number(&rail["read"]["bytes"])),
            batches: grown(&both("batches")),
            failed: grown(&both("failed")),
            p50_ns: slowest("p50_ns"),
            p99_ns: slowest("p99_ns"),
            lanes_ended: sum(&now["lanes_ended"]),
            repaired: sum(&now["repaired"]),
            refusals: sum(&now["refusals_sent"]) + sum(&now["refusals_received"]),
            fences_lost: number(&now["fences_lost"]),
            pairs: Pair::all(now, before),
        }
    }

    /// Whether all its counts are zero.
    fn is_nobody(&self) -> bool {
        self.batches + self.failed + self.p99_ns == 0 && self.trouble().is_none()
    }

    fn line(&self, elapsed: Duration, Layout { wide, name: columns }: Layout) -> String {
        let (write, read) = (rate(self.write, elapsed), rate(self.read, elapsed));
        let p99 = time(self.p99_ns);
        let name = cut(self.name, columns);
        if !wide {
            return format!("{name:columns$} {write:>13} {read:>13} {p99:>8}");
        }
        let batches = size::per_second(self.batches, elapsed);
        format!(
            "{name:columns$} {write:>13} {read:>13} {batches:>9} {:>7} {:>8} {p99:>8}",
            self.failed,
            time(self.p50_ns),
        )
    }

    /// Adds the traffic of each rail below the peer.
    fn pairs(
        &self,
        elapsed: Duration,
        Layout { name: columns, .. }: Layout,
    ) -> impl Iterator<Item = String> {
        self.pairs.iter().map(move |pair| {
            let (write, read) = (rate(pair.write, elapsed), rate(pair.read, elapsed));
            format!("{:columns$} {write:>13} {read:>13}", cut(&pair.name, columns))
        })
    }

    /// Returns the failures of its lanes worth a line.
    fn trouble(&self) -> Option<String> {
        let parts = [
            (self.lanes_ended, "lane ended", "lanes ended"),
            (self.repaired, "re-pair", "re-pairs"),
            (self.refusals, "refusal", "refusals"),
            (self.fences_lost, "fence lost", "fences lost"),
        ];
        let some = parts.iter().filter(|(count, ..)| *count > 0);
        let words: Vec<String> =
            some.map(|(count, one, many)| several(*count, one, many)).collect();
        (!words.is_empty()).then(|| format!("  {}", words.join(", ")))
    }
}

fn several(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// Formats a time in its most readable unit.
fn time(nanos: u64) -> String {
    match nanos {
        0 => "-".to_owned(),
        1..1_000_000 => format!("{:.1} us", nanos as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", nanos as f64 / 1e6),
        _ => format!("{:.1} s", nanos as f64 / 1e9),
    }
}

/// Shortens a long name in its middle: hosts differ at the beginning, ports at the end.
fn cut(name: &str, columns: usize) -> String {
    let letters: Vec<char> = name.chars().collect();
    if letters.len() <= columns {
        return name.to_owned();
    }
    let head = (columns - 1) / 2;
    let tail = columns - 1 - head;
    let text = |part: &[char]| part.iter().collect::<String>();
    format!("{}…{}", text(&letters[..head]), text(&letters[letters.len() - tail..]))
}

/// Draws the changes between two states of a node.
pub(super) fn draw(before: &Value, now: &Value, elapsed: Duration, window: Window) -> String {
    let mut lines = head(now);
    let peers = now["peers"].as_object();
    let all = peers
        .into_iter()
        .flatten()
        .map(|(name, peer)| (name.as_str(), peer, &before["peers"][name.as_str()]));
    let other = [(OTHER, &now["other"], &before["other"])];
    let of = |(name, now, before)| Peer::new(name, now, before);
    let mut peers: Vec<Peer<'_>> = all.chain(other).map(of).collect();
    // On most nodes no peer shares a row.
    peers.retain(|peer| peer.name != OTHER || !peer.is_nobody());
    let names = peers.iter().flat_map(|peer| {
        let pairs = peer.pairs.iter().map(|pair| pair.name.as_str());
        pairs.chain([peer.name]).map(|name| name.chars().count())
    });
    let layout = Layout::new(window.columns, names.max().unwrap_or(0));
    lines.push(layout.title());
    peers.sort_by_key(|peer| std::cmp::Reverse((peer.write + peer.read, peer.batches)));
    let idle = peers.iter().filter(|peer| peer.batches + peer.failed == 0).count();
    let (known, mut hidden) = (peers.len(), 0);
    for peer in &peers {
        let quiet = peer.batches + peer.failed == 0 && known - idle > 0;
        // The last line is reserved.
        if lines.len() + 2 >= window.rows || quiet && peer.trouble().is_none() {
            hidden += 1;
            continue;
        }
        lines.push(peer.line(elapsed, layout));
        for pair in peer.pairs(elapsed, layout) {
            if lines.len() + 1 < window.rows {
                lines.push(pair);
            }
        }
        lines.extend(peer.trouble().filter(|_| lines.len() + 1 < window.rows));
    }
    let nothing = peers.iter().all(|peer| peer.batches + peer.failed == 0);
    if hidden > 0 {
        lines.push(format!("{hidden} more"));
    } else if nothing && !peers.is_empty() && lines.len() < window.rows {
        lines.push("transfers of peers are counted at their end".to_owned());
    }
    for line in &mut lines {
        *line = cut_end(line, window.columns);
    }
    lines.join("\n")
}

/// Shortens a line to the width, without control characters: names come from other nodes.
fn cut_end(line: &str, columns: usize) -> String {
    let plain = |letter: char| if letter.is_control() { '?' } else { letter };
    line.trim_end().chars().take(columns).map(plain).collect()
}

/// The node's identity, and the state of its lanes.
fn head(now: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let count = |value: &Value| value.as_u64().unwrap_or(0);
    let node = &now["node"];
    let transport_kinds = node["carriers"].as_array().into_iter().flatten();
    let transport_kinds: Vec<&str> = transport_kinds.filter_map(Value::as_str).collect();
    let states = now["lifecycles"]["by_state"].as_object();
    let states: Vec<String> =
        states.into_iter().flatten().map(|(state, count)| format!("{count} {state}")).collect();
    let states = if states.is_empty() { "none".to_owned() } else { states.join(", ") };
    let mut lines = vec![
        format!(
            "{} at {}, over {}",
            text(&node["name"]),
            text(&node["address"]),
            transport_kinds.join(", ")
        ),
        format!(
            "{}; lifecycles: {states}; {}",
            several(count(&now["lanes"]), "lane", "lanes"),
            several(count(&node["segments"]), "segment", "segments"),
        ),
    ];
    lines.extend(trouble(&now["counters"]));
    lines
}

/// The failures of the node's RDMA devices since its start, and their effect on transfers.
fn trouble(counters: &Value) -> Option<String> {
    let sum =
        |names: &[&str]| -> u64 { names.iter().filter_map(|name| counters[*name].as_u64()).sum() };
    let parts: [(&[&str], &str, &str); 5] = [
        (&["rdma_ports_down"], "port failure", "port failures"),
        (&["rdma_devices_lost"], "device lost", "devices lost"),
        (&["rdma_devices_reopened"], "device reopened", "devices reopened"),
        (
            &["rdma_slices_flushed", "rdma_slices_abandoned"],
            "slice sent again",
            "slices sent again",
        ),
        (&["keys_refused"], "key refused", "keys refused"),
    ];
    let counts = parts.iter().map(|(names, one, many)| (sum(names), one, many));
    let words: Vec<String> = counts
        .filter(|(count, ..)| *count > 0)
        .map(|(count, one, many)| several(count, one, many))
        .collect();
    (!words.is_empty()).then(|| format!("rdma: {}", words.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn way(bytes: u64, batches: u64, failed: u64) -> Value {
        let latency = json!({ "p50_ns": 12_000, "p99_ns": 3_400_000 });
        json!({ "bytes": bytes, "batches": batches, "failed": failed, "latency": latency })
    }

    fn peer(bytes: u64, batches: u64) -> Value {
        json!({
            "rails": { "tcp": { "write": way(bytes, batches, 1), "read": way(0, 0, 0) } },
            "lanes_ended": { "transport": 2 }, "repaired": { "peer_restarted": 1 },
            "refusals_sent": {}, "refusals_received": { "busy": 4 },
        })
    }

    fn state(bytes: u64, batches: u64) -> Value {
        let long = "a-very-long-name-of-a-host.example.org:17411@tcp";
        let quiet = json!({ "rails": {}, "lanes_ended": {}, "repaired": {} });
        json!({
            "schema": 1,
            "node": {
                "name": "cache", "address": "10.0.0.7:7411", "carriers": ["rdma", "tcp"],
                "segments": 2,
            },
            "lanes": 3,
            "lifecycles": { "by_state": { "established": 3, "retiring": 1 } },
            "peers": { long: peer(bytes, batches), "quiet@tcp": quiet },
            "other": quiet,
        })
    }

    fn drawn(columns: usize, rows: usize) -> String {
        let (before, now) = (state(1 << 20, 10), state(11 << 20, 110));
        draw(&before, &now, Duration::from_secs(2), Window { columns, rows })
    }

    #[test]
    fn a_wide_terminal_sees_everything_and_a_narrow_one_what_fits() {
        let wide = drawn(120, 40);
        assert!(wide.contains("5.0 MiB/s") && wide.contains(" 50 "), "{wide}");
        assert!(wide.contains("12.0 us") && wide.contains("3.4 ms"), "{wide}");
        assert!(wide.contains("2 lanes ended, 1 re-pair, 4 refusals"), "{wide}");
        assert!(wide.contains("3 established, 1 retiring"), "{wide}");
        assert!(!wide.contains("quiet@tcp") && wide.ends_with("1 more"), "{wide}");
        assert!(wide.contains("a-very-long-name-of-a-host.example.org:17411@tcp"), "{wide}");
        for columns in [20, 60, 80, 96, 120] {
            let table = drawn(columns, 40);
            assert!(table.lines().all(|line| line.chars().count() <= columns), "{table}");
        }
        let narrow = drawn(60, 40);
        assert!(narrow.contains("5.0 MiB/s") && !narrow.contains("batches/s"), "{narrow}");
        assert!(narrow.contains("…") && narrow.contains("11@tcp"), "{narrow}");
    }

    #[test]
    fn several_pairs_of_nics_have_a_line_each_and_one_has_none() {
        let with = |pairs: &[(&str, u64)]| {
            let mut state = state(5, 5);
            let name = "a-very-long-name-of-a-host.example.org:17411@tcp";
            let pair = |(nic, bytes): &(&str, u64)| {
                let pair = json!({ "own": nic, "peer": "mlx5_9", "written_bytes": bytes,
                    "read_bytes": 0, "lanes": 1 });
                (format!("{nic}-mlx5_9"), pair)
            };
            state["peers"][name]["nics"] = pairs.iter().map(pair).collect();
            state
        };
        let before = with(&[("mlx5_0", 1 << 20), ("mlx5_1", 0)]);
        let now = with(&[("mlx5_0", 3 << 20), ("mlx5_1", 0)]);
        for columns in [80, 160] {
            let window = Window { columns, rows: 40 };
            let table = draw(&before, &now, Duration::from_secs(2), window);
            let line =
                |nic: &str| table.lines().find(|line| line.starts_with(&format!("  {nic} -")));
            let (first, second) = (line("mlx5_0").unwrap(), line("mlx5_1").unwrap());
            assert!(first.contains("mlx5_0 - mlx5_9") && first.contains("1.0 MiB/s"), "{table}");
            assert!(second.contains("0 bytes/s"), "{table}");
        }
        let window = Window { columns: 80, rows: 40 };
        let one = with(&[("mlx5_0", 5)]);
        assert!(!draw(&one, &one, Duration::from_secs(2), window).contains("mlx5_0"));
    }

    #[test]
    fn failures_of_rdma_devices_have_a_line_where_there_are_some() {
        let window = Window { columns: 120, rows: 40 };
        let table = |state: &Value| draw(state, state, Duration::from_secs(1), window);
        assert!(!table(&state(5, 5)).contains("rdma:"));
        let mut now = state(5, 5);
        now["counters"] = json!({
            "rdma_ports_down": 0, "rdma_devices_lost": 2, "rdma_devices_reopened": 1,
            "rdma_slices_flushed": 30, "rdma_slices_abandoned": 4, "keys_refused": 1,
        });
        let expected =
            "\nrdma: 2 devices lost, 1 device reopened, 34 slices sent again, 1 key refused\n";
        assert!(table(&now).contains(expected), "{}", table(&now));
    }

    #[test]
    fn names_cannot_move_the_cursor() {
        let mut now = state(5, 5);
        now["node"]["name"] = "a\u{1b}[2J\nb".into();
        let window = Window { columns: 100, rows: 40 };
        let table = draw(&now, &now, Duration::from_secs(1), window);
        assert!(table.starts_with("a?[2J?b at "), "{table:?}");
    }

    #[test]
    fn a_low_terminal_is_not_overrun() {
        for rows in 4..10 {
            assert!(drawn(100, rows).lines().count() <= rows, "{rows}");
        }
    }

    #[test]
    fn where_nothing_moves_every_peer_is_shown() {
        let still = state(5, 5);
        let table = draw(&still, &still, Duration::from_secs(1), Window { columns: 100, rows: 40 });
        assert!(table.contains("quiet@tcp") && !table.contains("other"), "{table}");
        assert!(table.ends_with("counted at their end"), "{table}");
        let mut crowded = state(5, 5);
        crowded["other"] = peer(0, 0);
        let window = Window { columns: 100, rows: 40 };
        let table = draw(&crowded, &crowded, Duration::from_secs(1), window);
        assert!(table.contains("other"), "{table}");
        assert!(table.contains("0 bytes/s"), "{table}");
    }
}
