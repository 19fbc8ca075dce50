//! Converts the files of `catalogue/` to tables.

#[path = "src/normal.rs"]
mod normal;

use serde::Deserialize;
use std::collections::BTreeSet;
use std::error::Error;
use std::fmt::Write;
use std::{env, fs, path::Path};

/// Ordered as in the printed catalogue.
const FILES: [&str; 13] = [
    "devices",
    "fabric",
    "addresses",
    "limits",
    "network",
    "metadata",
    "containers",
    "erdma",
    "gpu",
    "settings",
    "connections",
    "completions",
    "engine",
];

/// The notations of an error number: the number, and its texts in English and Chinese.
const ERRORS: [(&str, u32, &[&str]); 21] = [
    ("EPERM", 1, &["operation not permitted", "不允许的操作"]),
    ("ENOENT", 2, &["no such file or directory", "没有那个文件或目录"]),
    ("EIO", 5, &["input/output error", "输入/输出错误"]),
    ("EAGAIN", 11, &["resource temporarily unavailable", "资源暂时不可用"]),
    ("ENOMEM", 12, &["cannot allocate memory", "无法分配内存"]),
    ("EACCES", 13, &["permission denied", "权限不够"]),
    ("EFAULT", 14, &["bad address", "错误的地址"]),
    ("ENODEV", 19, &["no such device", "没有那个设备"]),
    ("EINVAL", 22, &["invalid argument", "无效的参数", "参数无效", "无效参数"]),
    ("EMFILE", 24, &["too many open files", "打开的文件过多"]),
    ("ENOSPC", 28, &["no space left on device", "设备上没有空间"]),
    ("EOPNOTSUPP", 95, &["operation not supported", "不支持的操作"]),
    ("EADDRINUSE", 98, &["address already in use", "地址已在使用", "地址已被使用"]),
    ("EADDRNOTAVAIL", 99, &["cannot assign requested address", "无法指定被请求的地址"]),
    ("ENETUNREACH", 101, &["network is unreachable", "网络不可达"]),
    ("ECONNRESET", 104, &["connection reset by peer", "连接被对方重置", "连接被对方重设"]),
    ("ETIMEDOUT", 110, &["connection timed out", "连接超时"]),
    ("ECONNREFUSED", 111, &["connection refused", "拒绝连接"]),
    ("EHOSTUNREACH", 113, &["no route to host", "没有到主机的路由"]),
    // Ports that the module erdma holds in compat mode.
    ("ERDMAPORT", 0, &[]),
    ("EAFNOSUPPORT", 97, &["address family not supported by protocol"]),
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Section {
    section: String,
    section_zh: String,
    problem: Vec<Problem>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Problem {
    id: String,
    severity: String,
    #[serde(default = "cause")]
    role: String,
    #[serde(default = "local")]
    side: String,
    title: String,
    title_zh: String,
    what: String,
    what_zh: String,
    cause: String,
    cause_zh: String,
    remedy: String,
    remedy_zh: String,
    #[serde(default)]
    command: String,
    verify: String,
    verify_zh: String,
    #[serde(default)]
    seen: String,
    #[serde(default)]
    seen_zh: String,
    #[serde(default)]
    refine: Vec<[String; 2]>,
    messages: Vec<String>,
}

fn cause() -> String {
    "cause".to_owned()
}

fn local() -> String {
    "local".to_owned()
}

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=catalogue");
    println!("cargo::rerun-if-changed=src/normal.rs");
    let mut sections = Vec::new();
    for file in FILES {
        let text = fs::read_to_string(format!("catalogue/{file}.toml"))?;
        let section: Section = toml::from_str(&text).map_err(|error| format!("{file}: {error}"))?;
        sections.push((file, section));
    }
    let known: BTreeSet<&str> =
        sections.iter().flat_map(|(_, section)| &section.problem).map(|p| p.id.as_str()).collect();
    let mut ids = String::new();
    let mut out = String::from("pub(crate) static PROBLEMS: &[Problem] = &[\n");
    for (file, section) in &sections {
        for problem in &section.problem {
            write_problem(&mut out, file, section, problem, &known)?;
            let name = problem.id.replace('-', "_");
            writeln!(ids, "/// {}.\npub const {name}: Id = Id({:?});", problem.title, problem.id)?;
        }
    }
    out.push_str("];\n");
    let folder = env::var("OUT_DIR")?;
    fs::write(Path::new(&folder).join("problems.rs"), out)?;
    fs::write(Path::new(&folder).join("ids.rs"), ids)?;
    Ok(())
}

fn write_problem(
    out: &mut String,
    file: &str,
    section: &Section,
    problem: &Problem,
    known: &BTreeSet<&str>,
) -> Result<(), Box<dyn Error>> {
    let text = |en: &str, zh: &str| format!("Text {{ en: {en:?}, zh: {zh:?} }}");
    writeln!(out, "Problem {{ id: Id({:?}),", problem.id)?;
    writeln!(out, "severity: Severity::{},", variant(&problem.severity))?;
    writeln!(out, "role: Role::{},", variant(&problem.role))?;
    writeln!(out, "side: Side::{},", variant(&problem.side))?;
    writeln!(out, "file: {file:?},")?;
    for (name, en, zh) in [
        ("section", &section.section, &section.section_zh),
        ("title", &problem.title, &problem.title_zh),
        ("what", &problem.what, &problem.what_zh),
        ("cause", &problem.cause, &problem.cause_zh),
        ("remedy", &problem.remedy, &problem.remedy_zh),
        ("verify", &problem.verify, &problem.verify_zh),
        ("seen", &problem.seen, &problem.seen_zh),
    ] {
        writeln!(out, "{name}: {},", text(en, zh))?;
    }
    writeln!(out, "command: {:?},", problem.command)?;
    let mut refine = Vec::new();
    for [word, id] in &problem.refine {
        if !known.contains(id.as_str()) {
            return Err(format!("{}: refines to {id}, which is none", problem.id).into());
        }
        refine.push(format!("({word:?}, Id({id:?}))"));
    }
    writeln!(out, "refine: &[{}],", refine.join(", "))?;
    writeln!(out, "messages: &{:?},", problem.messages)?;
    let patterns: Vec<_> = problem.messages.iter().flat_map(|text| expanded(text)).collect();
    writeln!(out, "patterns: &[")?;
    for pattern in patterns {
        let fragments: Vec<String> = pattern
            .split('*')
            .map(normal::normal)
            .filter(|fragment| !fragment.is_empty())
            .collect();
        if fragments.is_empty() {
            return Err(format!("{}: '{pattern}' matches everything", problem.id).into());
        }
        writeln!(out, "&{fragments:?},")?;
    }
    writeln!(out, "] }},")?;
    Ok(())
}

/// Converts `fatal` to the name of a variant.
fn variant(word: &str) -> String {
    let (first, rest) = word.split_at(word.len().min(1));
    first.to_uppercase() + rest
}

/// Returns one pattern for each notation of the error number that `message` names in braces.
fn expanded(message: &str) -> Vec<String> {
    for (name, number, words) in ERRORS {
        let brace = format!("{{{name}}}");
        if !message.contains(&brace) {
            continue;
        }
        let mut ways: Vec<String> = words.iter().map(|&words| words.to_owned()).collect();
        if name == "ERDMAPORT" {
            ways.extend((30_608..=30_623).map(|port: u32| port.to_string()));
        } else {
            let styles =
                ["[#]", "(#)", "errno #", "errno=#", "error #", "error=#", "errno: #", "ret=#"];
            ways.extend(styles.map(|style| style.replace('#', &number.to_string())));
        }
        return ways.iter().map(|way| message.replace(&brace, way)).collect();
    }
    vec![message.to_owned()]
}
