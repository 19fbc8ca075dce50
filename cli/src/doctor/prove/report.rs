//! The measurements as a table and as JSON.

use handfast_diagnosis::{Severity, Style, wrapped};
use handfast_transport_rdma::{Measured, Observed, Proof, ProvenDevice, Verdict};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::Path;

/// Version of the form of the JSON. Keys are added without a new version.
const FORMAT: u32 = 1;
/// Minimum width of a table whose rows are one line each.
const COLUMNS_WIDE: usize = 76;
/// Widths of the columns.
const VERDICT_COLUMNS: usize = 15;
const KEY_COLUMNS: usize = 15;
const SEEN_COLUMNS: usize = 25;

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Agrees => "agrees",
        Verdict::Differs => "DIFFERS",
        Verdict::NoAssumption => "no assumption",
        Verdict::NotMeasured => "not measured",
    }
}

/// Formats the measurements for people.
pub(super) fn words(proof: &Proof, style: &Style) -> String {
    let mut out = String::new();
    let [first, second] = &proof.devices;
    out.push_str(&device_words(first, style));
    if first != second {
        out.push_str(&device_words(second, style));
    }
    out.push('\n');
    let is_wide = style.columns >= COLUMNS_WIDE;
    if is_wide {
        out.push_str(&row(style, None, "assumption", "observed", "assumed"));
    }
    for measured in &proof.measured {
        let seen = seen(measured);
        let assumed = measured.expected.map_or_else(|| "nothing".to_owned(), |it| it.to_string());
        let key = measured.assumption.key();
        out.push_str(&match is_wide {
            true => row(style, Some(measured.verdict()), key, &seen, &assumed),
            false => block(style, measured.verdict(), key, &seen, &assumed),
        });
        if measured.verdict() == Verdict::Differs {
            let mut why = format!("measured: {}", measured.assumption.method());
            if !measured.detail.is_empty() {
                let _ = write!(why, " ({})", measured.detail);
            }
            out.push_str(&lines(style, "    ", &why));
        }
    }
    let count = |verdict| proof.count(verdict);
    let summary = format!(
        "{} agree, {} differ, {} without an assumption, {} not measured, in {} ms",
        count(Verdict::Agrees),
        count(Verdict::Differs),
        count(Verdict::NoAssumption),
        count(Verdict::NotMeasured),
        proof.took.as_millis(),
    );
    out + "\n" + &lines(style, "", &summary)
}

fn device_words(device: &ProvenDevice, style: &Style) -> String {
    let link = if device.is_ethernet { "Ethernet" } else { "InfiniBand" };
    let head = format!("{}: {}", device.name, device.recognised);
    let facts = format!("{link}, {}, firmware {}", device.address, device.firmware);
    lines(style, "", &head) + &lines(style, "  ", &facts)
}

fn seen(measured: &Measured) -> String {
    match &measured.outcome {
        Ok(observed) => observed.to_string(),
        Err(why) => why.clone(),
    }
}

fn coloured(style: &Style, verdict: Verdict, text: &str) -> String {
    match verdict {
        Verdict::Agrees => style.good(text),
        Verdict::Differs => style.of_severity(Severity::Fatal, text),
        Verdict::NoAssumption => style.of_severity(Severity::Info, text),
        Verdict::NotMeasured => style.of_severity(Severity::CannotTell, text),
    }
}

/// A row of the table; without a verdict, its head.
fn row(style: &Style, verdict: Option<Verdict>, key: &str, seen: &str, assumed: &str) -> String {
    let text = format!("{:<VERDICT_COLUMNS$}", verdict.map_or("", word));
    let text = verdict.map_or_else(|| text.clone(), |verdict| coloured(style, verdict, &text));
    let head = format!("{text}{key:<KEY_COLUMNS$}");
    let indent = " ".repeat(VERDICT_COLUMNS + KEY_COLUMNS);
    if seen.len() < SEEN_COLUMNS {
        return format!("{head}{seen:<SEEN_COLUMNS$}{assumed}\n");
    }
    // A reason is longer than its column.
    let room = style.columns.saturating_sub(indent.len());
    head + wrapped(seen, room).join(&format!("\n{indent}")).as_str() + "\n"
}

/// The same on a narrow terminal.
fn block(style: &Style, verdict: Verdict, key: &str, seen: &str, assumed: &str) -> String {
    let mut out = format!("{key}: {}\n", coloured(style, verdict, word(verdict)));
    out.push_str(&lines(style, "  ", &format!("observed: {seen}")));
    if verdict != Verdict::NoAssumption {
        out.push_str(&lines(style, "  ", &format!("assumed: {assumed}")));
    }
    out
}

fn lines(style: &Style, indent: &str, text: &str) -> String {
    let lines = wrapped(text, style.columns.saturating_sub(indent.len()));
    lines.iter().map(|line| format!("{indent}{line}\n")).collect()
}

/// The measurements for programs, and for the tables of profiles to cite.
pub(super) fn json(proof: &Proof, root: &Path) -> Value {
    let devices: Vec<Value> =
        proof.devices.iter().map(|device| device_json(device, root)).collect();
    let measured: Vec<Value> = proof.measured.iter().map(measured_json).collect();
    json!({
        "format": FORMAT,
        "handfast": env!("CARGO_PKG_VERSION"),
        "kernel": line(&root.join("proc/sys/kernel/osrelease")),
        "devices": { "requester": devices[0], "responder": devices[1] },
        "agree": proof.count(Verdict::Agrees),
        "differ": proof.count(Verdict::Differs),
        "without_assumption": proof.count(Verdict::NoAssumption),
        "not_measured": proof.count(Verdict::NotMeasured),
        "took_ms": millis(proof.took),
        "assumptions": measured,
    })
}

fn device_json(device: &ProvenDevice, root: &Path) -> Value {
    let identity = &device.identity;
    let module = root.join("sys/module").join(module(&identity.driver));
    json!({
        "name": device.name,
        "profile": device.recognised.profile.name,
        "recognised_by": device.recognised.why,
        "driver": identity.driver,
        "driver_version": line(&module.join("version")),
        "driver_source": line(&module.join("srcversion")),
        "vendor": identity.vendor,
        "part": identity.part,
        "node_type": identity.node_type,
        "parent": identity.parent,
        "firmware": device.firmware,
        "link_layer": if device.is_ethernet { "Ethernet" } else { "InfiniBand" },
        "address": device.address,
    })
}

/// The module of a driver, whose name may have a suffix.
fn module(driver: &str) -> &str {
    driver.split('.').next().filter(|name| !name.is_empty()).unwrap_or("rdma_rxe")
}

fn measured_json(measured: &Measured) -> Value {
    let verdict = match measured.verdict() {
        Verdict::Agrees => "agrees",
        Verdict::Differs => "differs",
        Verdict::NoAssumption => "no_assumption",
        Verdict::NotMeasured => "not_measured",
    };
    let figure = match measured.outcome {
        Ok(
            Observed::Milliseconds(figure)
            | Observed::Bytes(figure)
            | Observed::RequestsPerSecond(figure)
            | Observed::MibPerSecond(figure),
        ) => Some(figure),
        _ => None,
    };
    let status = match measured.outcome {
        Ok(Observed::Status(error)) => json!({ "status": error.status, "vendor": error.vendor }),
        _ => Value::Null,
    };
    json!({
        "key": measured.assumption.key(),
        "verdict": verdict,
        "observed": measured.outcome.as_ref().ok().map(ToString::to_string),
        "figure": figure,
        "completion": status,
        "expected": measured.expected.map(|expected| expected.to_string()),
        "why_not": measured.outcome.as_ref().err(),
        "detail": measured.detail,
        "method": measured.assumption.method(),
        "limit_ms": millis(measured.assumption.limit()),
        "took_ms": millis(measured.took),
    })
}

fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Reads one line; `None` if there is none.
fn line(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}
