//! The metadata service: its address, whether it answers, and whether it is one.

use super::names::{addresses_of, split};
use crate::doctor::{AskFailure, Context, Finding};
use crate::ids;
use crate::problem::Severity;
use serde_json::Value;
use std::net::SocketAddr;

/// Longest answer that is looked at.
const ANSWER_BYTES_MAX: usize = 256 << 10;
/// Endpoints that are asked.
const ENDPOINTS_MAX: usize = 16;
const ECONNREFUSED: i32 = 111;

/// What kind of service an address names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Etcd,
    Http,
}

struct Service<'a> {
    kind: Kind,
    /// Host and port of each endpoint.
    endpoints: Vec<(&'a str, u16)>,
    path: &'a str,
}

pub(super) fn metadata(context: &mut Context<'_>) -> Vec<Finding> {
    let url = context.request.metadata.clone().unwrap_or_default();
    let service = match parse(&url) {
        Ok(service) => service,
        Err(why) => {
            let observed = format!("{url}: {why}");
            let host =
                url.split([':', '/', ',', ' ']).find(|part| part.contains('.')).unwrap_or("HOST");
            return vec![Finding::new(ids::ETCD_URL, Severity::Fatal, observed).with("host", host)];
        }
    };
    let mut findings = Vec::new();
    for (host, port) in &service.endpoints {
        findings.extend(endpoint(context, &service, host, *port));
    }
    // One of several is enough to work.
    if findings.len() < service.endpoints.len() {
        for finding in &mut findings {
            finding.severity = finding.severity.max(Severity::Degraded);
        }
    }
    findings
}

fn parse(url: &str) -> Result<Service<'_>, String> {
    let (scheme, rest) = url.split_once("://").unwrap_or(("etcd", url));
    let kind = match scheme {
        "etcd" => Kind::Etcd,
        "http" => Kind::Http,
        "https" => return Err("https is not spoken here; use http or etcd".to_owned()),
        _ => return Err(format!("the scheme '{scheme}' is none of etcd, http")),
    };
    let (hosts, path) = match kind {
        Kind::Http => rest.split_once('/').unwrap_or((rest, "")),
        Kind::Etcd => (rest.trim_end_matches('/'), ""),
    };
    if hosts.contains(char::is_whitespace) {
        return Err("endpoints are separated by commas, not blanks".to_owned());
    }
    let mut endpoints = Vec::new();
    for text in hosts.split([',', ';']).take(ENDPOINTS_MAX) {
        if text.contains("://") {
            return Err("the scheme stands once, before the first endpoint".to_owned());
        }
        match split(text) {
            ("", _) => return Err("an endpoint is empty".to_owned()),
            (host, Some(port)) => endpoints.push((host, port)),
            (host, None) if kind == Kind::Http && !host.contains(':') => endpoints.push((host, 80)),
            (host, None) => return Err(format!("the endpoint '{host}' has no port")),
        }
    }
    Ok(Service { kind, endpoints, path })
}

fn endpoint(
    context: &Context<'_>,
    service: &Service<'_>,
    host: &str,
    port: u16,
) -> Option<Finding> {
    let fatal =
        |id, observed: String| Some(Finding::new(id, Severity::Fatal, observed).with("host", host));
    let ip = match addresses_of(context, host) {
        Ok(found) => *found.first()?,
        Err(error) => {
            return fatal(ids::NET_UNRESOLVED, format!("{host}: {error}"))
                .map(|f| f.with("name", host));
        }
    };
    let address = SocketAddr::new(ip, port);
    let ask = |method: &str, path: &str, body: &str| {
        let length = body.len();
        let request = format!(
            "{method} /{path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        context.outside.ask(address, request.as_bytes(), ANSWER_BYTES_MAX)
    };
    let path = if service.kind == Kind::Etcd { "version" } else { service.path };
    let answer = match ask("GET", path, "") {
        Ok(answer) => String::from_utf8_lossy(&answer).into_owned(),
        Err(failure) => return Some(silent(context, address, host, &failure)),
    };
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.lines().next().unwrap_or_default();
    if !status.starts_with("HTTP/") {
        return fatal(ids::NET_RESET, format!("{address} answers without HTTP"))
            .map(|f| f.with("peer", address.to_string()));
    }
    if body.trim_start().to_lowercase().starts_with("<!doctype")
        || body.trim_start().starts_with("<html")
    {
        let url = format!("http://{address}/{path}");
        return fatal(ids::META_CAPTIVE, format!("{url}: {status}, a web page"))
            .map(|f| f.with("url", url));
    }
    if service.kind == Kind::Http {
        return None;
    }
    if !body.contains("etcdserver") {
        let url = format!("http://{address}/version");
        return fatal(ids::META_CAPTIVE, format!("{url}: {status}, not etcd's answer"))
            .map(|f| f.with("url", url));
    }
    let body_of = |answer: Result<Vec<u8>, AskFailure>| {
        let answer = String::from_utf8_lossy(&answer.ok()?).into_owned();
        answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned())
    };
    if let Some(health) =
        body_of(ask("GET", "health", "")).filter(|health| health.contains("false"))
    {
        return fatal(ids::ETCD_DOWN, format!("{address}: {}", health.trim()));
    }
    let members = body_of(ask("POST", "v3/cluster/member/list", "{}")).unwrap_or_default();
    let useless = useless_address(&members)?;
    let observed = format!("{address} tells clients {useless}");
    Some(Finding::new(ids::ETCD_ADVERTISE, Severity::Degraded, observed).with("host", host))
}

/// An address among those of etcd's members that means whoever uses it.
fn useless_address(members: &str) -> Option<String> {
    let members: Value = serde_json::from_str(members).ok()?;
    let members = members["members"].as_array()?;
    let urls = members.iter().filter_map(|member| member["clientURLs"].as_array()).flatten();
    let mut urls = urls.filter_map(Value::as_str);
    let useless = ["//localhost", "//127.", "//0.0.0.0", "//[::1]", "//[::]"];
    urls.find(|url| useless.iter().any(|part| url.contains(part))).map(str::to_owned)
}

/// Why nothing answered: on this host the table of sockets says more.
fn silent(context: &Context<'_>, address: SocketAddr, host: &str, failure: &AskFailure) -> Finding {
    let facts = context.facts;
    let is_here = facts.addresses.contains(&address.ip()) && !address.ip().is_loopback();
    let on_loopback = facts.listeners.iter().any(|listener| {
        listener.address.port() == address.port() && listener.address.ip().is_loopback()
    });
    let refused = *failure == AskFailure::Connect(ECONNREFUSED);
    let finding =
        |id, observed: String| Finding::new(id, Severity::Fatal, observed).with("host", host);
    if refused && is_here && on_loopback {
        let observed =
            format!("{address} refuses, and 127.0.0.1:{} is listened at", address.port());
        return finding(ids::ETCD_LOOPBACK, observed).at(crate::Side::Local);
    }
    let words = match failure {
        AskFailure::Connect(0) => "no answer in time".to_owned(),
        AskFailure::Connect(code) => std::io::Error::from_raw_os_error(*code).to_string(),
        AskFailure::Broken => "the connection ended without an answer".to_owned(),
    };
    finding(ids::ETCD_DOWN, format!("{address}: {words}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_services_are_read_and_mistakes_are_named() {
        let endpoints = |url| parse(url).map(|service| service.endpoints);
        assert_eq!(endpoints("etcd://a:1,b:2;c:3"), Ok(vec![("a", 1), ("b", 2), ("c", 3)]));
        assert_eq!(endpoints("10.0.0.9:2379"), Ok(vec![("10.0.0.9", 2379)]));
        assert_eq!(endpoints("http://h/metadata"), Ok(vec![("h", 80)]));
        for wrong in
            ["etc://a:1", "a", "etcd://a:1 b:2", "etcd://a:1,http://b:2", "etcd://", "https://a:1"]
        {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
