//! Comparison of two hosts, row by row.

use super::exchange::{Half, Halves};
use super::facts::{Device, Port};
use crate::language::Language;
use crate::page::{Style, wrapped};
use crate::problem::Text;
use std::fmt::Write;
use unicode_width::UnicodeWidthStr;

/// Minimum width to place the two hosts next to each other.
const SIDE_BY_SIDE_COLUMNS: usize = 72;
/// Width of a row's label.
const LABEL_COLUMNS: usize = 14;
/// Marks a row whose two values should be alike and are not.
const UNLIKE: &str = "\u{2260} ";

/// A row: its label, the values of both sides, and whether they should be alike.
struct Row {
    title: Text,
    here: String,
    there: String,
    should_be_alike: bool,
}

/// Returns the value of a row for one side.
type Cell = fn(&Half) -> String;
/// Returns the value of a row for a device and its first port.
type DeviceCell = fn(&Device, &Port) -> String;

const ROWS: [(Text, Cell, bool); 6] = [
    (text("host", "主机"), |half| half.host.clone(), false),
    (text("handfast", "handfast"), |half| half.version.clone(), true),
    (text("kernel", "内核"), |half| half.kernel.clone(), false),
    (text("interfaces", "网络接口"), interfaces, false),
    (text("addresses", "地址"), addresses, false),
    (text("findings", "发现的问题"), findings, false),
];

const DEVICE_ROWS: [(Text, DeviceCell, bool); 5] = [
    (text("device", "设备"), |device, _| format!("{} ({})", device.name, device.profile), false),
    (text("link", "链路"), |_, port| port.link_layer.clone(), true),
    (text("port", "端口"), |_, port| format!("{} {}", port.number, port.state), true),
    (text("path MTU", "路径 MTU"), |_, port| format!("{} ({})", port.mtu, port.interface), true),
    (text("GIDs", "GID"), |_, port| gids(port), false),
];

const fn text(en: &'static str, zh: &'static str) -> Text {
    Text { en, zh }
}

fn interfaces(half: &Half) -> String {
    let named = half.interfaces.iter().filter(|interface| interface.name != "lo");
    let words = named.map(|interface| {
        let down = if interface.is_up { "" } else { " (down)" };
        format!("{} {}{down}", interface.name, interface.mtu)
    });
    words.collect::<Vec<_>>().join(", ")
}

fn addresses(half: &Half) -> String {
    let reachable = half.addresses.iter().filter(|address| !address.is_loopback());
    reachable.map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn findings(half: &Half) -> String {
    half.findings.iter().map(|told| told.id.as_str()).collect::<Vec<_>>().join(", ")
}

fn gids(port: &Port) -> String {
    let usable = port.gids.iter().filter(|gid| gid.is_usable());
    usable.map(|gid| format!("{} {}", gid.index, gid.ip())).collect::<Vec<_>>().join(", ")
}

/// Whether two values of a port are alike up to the first bracket.
fn is_alike(here: &str, there: &str) -> bool {
    let value = |text: &str| text.split(" (").next().unwrap_or("").to_owned();
    here.is_empty() || there.is_empty() || value(here) == value(there)
}

fn rows(halves: &Halves) -> Vec<Row> {
    let (here, there) = (&halves.here, &halves.there);
    let row = |(title, cell, should_be_alike): &(Text, Cell, bool)| Row {
        title: *title,
        here: cell(here),
        there: cell(there),
        should_be_alike: *should_be_alike,
    };
    let mut rows: Vec<_> = ROWS.iter().map(row).collect();
    for number in 0..here.devices.len().max(there.devices.len()) {
        for (title, cell, should_be_alike) in DEVICE_ROWS {
            let of = |half: &Half| {
                let device = half.devices.get(number)?;
                Some(cell(device, device.ports.first()?))
            };
            let (here, there) = (of(here).unwrap_or_default(), of(there).unwrap_or_default());
            rows.push(Row { title, here, there, should_be_alike });
        }
    }
    rows
}

/// Formats the two hosts for people.
pub(super) fn words(halves: &Halves, style: &Style) -> String {
    let mut out = String::new();
    let language = style.language;
    let heads = [language.pick("this host", "本机"), language.pick("the other host", "对端主机")];
    let is_side_by_side = style.columns >= SIDE_BY_SIDE_COLUMNS;
    if is_side_by_side {
        let width = (style.columns - LABEL_COLUMNS) / 2;
        let _ = writeln!(
            out,
            "{}{}{}{}",
            " ".repeat(LABEL_COLUMNS),
            style.bold(heads[0]),
            " ".repeat(width.saturating_sub(heads[0].width())),
            style.bold(heads[1])
        );
    }
    for row in rows(halves) {
        let unlike = row.should_be_alike && !is_alike(&row.here, &row.there);
        let mark = if unlike { UNLIKE } else { "" };
        let title = format!("{mark}{}", row.title.get(language));
        match is_side_by_side {
            true => out.push_str(&side_by_side(&title, &row, style)),
            false => out.push_str(&below(&title, &row, heads, style)),
        }
    }
    out.push('\n');
    out
}

fn or_none(text: &str, language: Language) -> &str {
    if text.is_empty() { language.pick("none", "无") } else { text }
}

fn side_by_side(title: &str, row: &Row, style: &Style) -> String {
    let width = (style.columns - LABEL_COLUMNS) / 2;
    let lines = |text: &str| wrapped(or_none(text, style.language), width - 2);
    let (here, there) = (lines(&row.here), lines(&row.there));
    let mut out = String::new();
    for number in 0..here.len().max(there.len()) {
        let label = if number == 0 { title } else { "" };
        let left = here.get(number).map_or("", String::as_str);
        let right = there.get(number).map_or("", String::as_str);
        let gap = |text: &str, width: usize| " ".repeat(width.saturating_sub(text.width()).max(1));
        let line = format!(
            "{}{}{left}{}{right}",
            style.bold(label),
            gap(label, LABEL_COLUMNS),
            gap(left, width)
        );
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out
}

fn below(title: &str, row: &Row, heads: [&str; 2], style: &Style) -> String {
    let mut out = format!("{}\n", style.bold(title));
    for (head, text) in heads.into_iter().zip([&row.here, &row.there]) {
        let separator = style.language.pick(": ", ":");
        let line = format!("{head}{separator}{}", or_none(text, style.language));
        out.push_str(&style.lines("  ", &line));
    }
    out
}
