//! The report of the doctor, for people and for programs.

use super::PacketClass;
use super::compare;
use super::exchange::Halves;
use super::facts::Device;
use super::finding::Finding;
use crate::language::Language;
use crate::page::Style;
use crate::problem::{Id, Severity, Side, Text, problem};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Version of the JSON form.
const SCHEMA: u32 = 1;

/// The outcome of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It found nothing.
    Passed,
    /// It found problems.
    Found(Vec<Finding>),
    /// An earlier probe found a problem that explains its findings.
    Skipped {
        /// That problem.
        because: Id,
    },
}

impl Outcome {
    pub(super) fn of(findings: Vec<Finding>) -> Self {
        if findings.is_empty() { Self::Passed } else { Self::Found(findings) }
    }
}

/// A probe and its outcome.
#[derive(Clone, Debug)]
pub struct Check {
    /// Its name, which is stable.
    pub name: &'static str,
    /// The subject of the probe.
    pub title: Text,
    /// Outcome of the check.
    pub outcome: Outcome,
}

/// The outcomes of all probes.
#[derive(Clone, Debug)]
pub struct Report {
    /// This host's name.
    pub host: String,
    /// This program's version.
    pub version: &'static str,
    /// The kernel's release.
    pub kernel: String,
    /// The two hosts, if the other answered.
    pub halves: Option<Box<Halves>>,
    /// RDMA devices.
    pub devices: Vec<Device>,
    /// The class of the node's RDMA packets.
    pub packets: PacketClass,
    /// The probes and their outcomes.
    pub checks: Vec<Check>,
}

impl Report {
    /// Returns the other host's name, if it answered.
    pub fn peer(&self) -> Option<&str> {
        self.halves.as_ref().map(|halves| halves.there.host.as_str())
    }

    /// Returns all findings, in order.
    pub fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.checks.iter().flat_map(|check| match &check.outcome {
            Outcome::Found(findings) => findings.as_slice(),
            _ => &[],
        })
    }

    /// Whether any finding is fatal.
    pub fn is_fatal(&self) -> bool {
        self.findings().any(|finding| finding.severity == Severity::Fatal)
    }

    /// Returns the report as JSON, described by `docs/schema/doctor.json`.
    pub fn json(&self, language: Language) -> Value {
        let checks = self.checks.iter().map(|check| {
            let (outcome, because) = match &check.outcome {
                Outcome::Passed => ("passed", None),
                Outcome::Found(_) => ("found", None),
                Outcome::Skipped { because } => ("skipped", Some(because)),
            };
            let findings: Vec<_> = match &check.outcome {
                Outcome::Found(findings) => {
                    findings.iter().map(|finding| self.finding_json(finding, language)).collect()
                }
                _ => Vec::new(),
            };
            json!({
                "name": check.name,
                "title": check.title.get(language),
                "outcome": outcome,
                "because": because,
                "findings": findings,
            })
        });
        json!({
            "schema": SCHEMA,
            "host": self.host,
            "version": self.version,
            "kernel": self.kernel,
            "peer": self.peer(),
            "fatal": self.is_fatal(),
            "checks": checks.collect::<Vec<_>>(),
            "devices": self.devices,
            "packets": self.packets,
            "halves": self.halves.as_ref().map(|halves| {
                json!({ "here": halves.here, "there": halves.there })
            }),
        })
    }

    /// Formats the report for people.
    pub fn words(&self, style: &Style) -> String {
        let language = style.language;
        let mut out = String::new();
        match &self.halves {
            Some(halves) => out.push_str(&compare::words(halves, style)),
            None => self.devices.iter().for_each(|device| {
                out.push_str(&device_words(device, style));
            }),
        }
        if !self.devices.is_empty() {
            out.push_str(&style.lines("", &packet_words(self.packets, language)));
        }
        for check in &self.checks {
            let title = format!("{}{}", check.title.get(language), language.pick(": ", ":"));
            match &check.outcome {
                Outcome::Passed => {
                    let _ = writeln!(out, "{title}{}", style.good(language.pick("ok", "正常")));
                }
                Outcome::Found(findings) => {
                    let worst = findings.iter().map(|finding| finding.severity).min();
                    let worst = worst.unwrap_or(Severity::Info);
                    let word = style.of_severity(worst, worst.word(language));
                    let _ = writeln!(out, "{title}{word}");
                    findings
                        .iter()
                        .for_each(|finding| out.push_str(&self.finding_words(finding, style)));
                }
                Outcome::Skipped { .. } => {}
            }
        }
        out.push_str(&self.skipped(style));
        out.push('\n');
        out + &style.lines("", &self.summary(language))
    }

    /// Lists skipped probes, by the problem that explains their findings.
    fn skipped(&self, style: &Style) -> String {
        let language = style.language;
        let mut by_cause: BTreeMap<Id, Vec<&str>> = BTreeMap::new();
        for check in &self.checks {
            if let Outcome::Skipped { because } = check.outcome {
                by_cause.entry(because).or_default().push(check.title.get(language));
            }
        }
        let mut out = String::new();
        for (because, titles) in by_cause {
            let before = language.pick("Skipped because of", "已跳过,因为");
            let colon = language.pick(": ", ":");
            let text =
                format!("{before} {because}{colon}{}", titles.join(language.pick(", ", "、")));
            out.push_str(&style.lines("", &text));
        }
        out
    }

    fn summary(&self, language: Language) -> String {
        let count =
            |severity| self.findings().filter(|finding| finding.severity == severity).count();
        let severities = [
            Severity::Fatal,
            Severity::Degraded,
            Severity::Risk,
            Severity::CannotTell,
            Severity::Info,
        ];
        let counts = severities.map(|severity| (severity, count(severity)));
        let found: Vec<_> = counts
            .iter()
            .filter(|(_, count)| *count > 0)
            .map(|(severity, count)| format!("{count} {}", severity.word(language)))
            .collect();
        if found.is_empty() {
            return language.pick("Nothing was found.", "没有发现问题。").to_owned();
        }
        let hint = language.pick(
            "`handfast explain ID` explains each.",
            "`handfast explain ID` 可查看每一项的详细说明。",
        );
        let (comma, stop) = (language.pick(", ", ","), language.pick(". ", "。"));
        format!("{}{stop}{hint}", found.join(comma))
    }
}

impl Report {
    /// Returns the host at fault, if two were compared and one of them is.
    fn host_at_fault(&self, side: Side) -> Option<&str> {
        let halves = self.halves.as_ref()?;
        match side {
            Side::Local => Some(&halves.here.host),
            Side::Remote => Some(&halves.there.host),
            Side::Both | Side::Unknown => None,
        }
    }

    fn finding_json(&self, finding: &Finding, language: Language) -> Value {
        let entry = problem(finding.id);
        json!({
            "id": finding.id,
            "severity": finding.severity,
            "side": finding.side,
            "host": self.host_at_fault(finding.side),
            "device": finding.device,
            "title": entry.title.get(language),
            "observed": finding.observed.get(language),
            "why": entry.what.get(language),
            "remedy": finding.remedy(language),
            "command": finding.command(),
            "verify": entry.verify.get(language),
        })
    }

    fn finding_words(&self, finding: &Finding, style: &Style) -> String {
        let language = style.language;
        let entry = problem(finding.id);
        let mut out = format!("\n{}", style.head(entry, finding.severity));
        for (english, chinese, text) in [
            ("Seen", "观察到", finding.observed.get(language)),
            ("Why", "影响", entry.what.get(language)),
            ("Remedy", "处理", finding.remedy(language)),
        ] {
            out.push_str(&style.entry(language.pick(english, chinese), text));
        }
        let command = finding.command();
        if !command.is_empty() {
            out.push_str(&style.command(&command));
        }
        out.push_str(&style.entry(language.pick("Check", "验证"), entry.verify.get(language)));
        let host = self.host_at_fault(finding.side);
        if finding.side != Side::Local || host.is_some() {
            let mut side = side_words(finding.side, language).to_owned();
            if let Some(host) = host {
                side.push_str(language.pick(", ", ","));
                side.push_str(host);
            }
            out.push_str(&style.entry(language.pick("Side", "哪一侧"), &side));
        }
        out.push('\n');
        out
    }
}

fn side_words(side: Side, language: Language) -> &'static str {
    match side {
        Side::Local => language.pick("this host", "本机"),
        Side::Remote => language.pick("the other host", "对端主机"),
        Side::Both => language.pick("both: the combination of the two", "双方:两侧的配置是否匹配"),
        Side::Unknown => language.pick("one of the two, or the path between", "两侧之一或中间网络"),
    }
}

/// The class of packets. Fabrics with priority flow control keep the default one lossy as a rule.
fn packet_words(packets: PacketClass, language: Language) -> String {
    let PacketClass { traffic_class, service_level } = packets;
    let (dscp, default) = (traffic_class >> 2, packets == PacketClass::default());
    let note = match language {
        Language::English if default => "; a fabric with priority flow control may drop these",
        Language::Chinese if default => ";启用优先级流控的网络可能丢弃这类报文",
        _ => "",
    };
    match language {
        Language::English => format!(
            "RDMA packets: traffic class {traffic_class} (DSCP {dscp}), service level \
             {service_level}{note}"
        ),
        Language::Chinese => format!(
            "RDMA 报文:流量类别 {traffic_class}(DSCP {dscp}),服务等级 {service_level}{note}"
        ),
    }
}

fn device_words(device: &Device, style: &Style) -> String {
    let mut out = format!("{} ({})\n", style.bold(&device.name), device.profile);
    for port in &device.ports {
        let gids: Vec<_> = port
            .gids
            .iter()
            .map(|gid| format!("{} {} {}", gid.index, gid.ip(), gid.kind))
            .collect();
        let text = format!(
            "port {} {} {}, {}, MTU {}; {}",
            port.number,
            port.link_layer,
            port.state,
            if port.interface.is_empty() { "-" } else { &port.interface },
            port.mtu,
            gids.join(", ")
        );
        out.push_str(&style.lines("  ", &text));
    }
    out
}
