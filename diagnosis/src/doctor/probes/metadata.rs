//! The metadata service: its address, its availability, and its kind.

use super::names::addresses_of;
use super::redis;
use super::settings::without_user;
use crate::doctor::finding::seen;
use crate::doctor::observed::said;
use crate::doctor::{AskFailure, Context, Finding, Observed};
use crate::ids;
use crate::problem::Severity;
use handfast_core::address::host_and_port;
use serde_json::Value;
use std::net::SocketAddr;

/// Maximum length of an answer.
const ANSWER_BYTES_MAX: usize = 256 << 10;
/// Maximum endpoints queried.
const ENDPOINTS_MAX: usize = 16;
/// Port of a Redis whose URL names none.
const REDIS_PORT: u16 = 6_379;
/// Prefix of an etcd endpoint with TLS.
const ENCRYPTED: &str = "https://";
/// The answer of a Go server with TLS to a plain request (`net/http`, server.go).
const WANTS_TLS: &str = "Client sent an HTTP request to an HTTPS server";
/// Start of TLS records: an alert, a handshake (RFC 5246, section 6.2.1).
const TLS_RECORDS: [&[u8]; 2] = [&[21, 3], &[22, 3]];
/// A minimal ClientHello, with one cipher suite and zeros as random numbers (RFC 5246, section
/// 7.4.1.2): every TLS server answers it, at least with an alert.
const CLIENT_HELLO: [&[u8]; 3] =
    [&[22, 3, 1, 0, 45, 1, 0, 0, 41, 3, 3], &[0; 32], &[0, 0, 2, 0xc0, 0x2f, 1, 0]];

/// The kind of service, by its address.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Etcd,
    Http,
    Redis,
}

pub(super) struct Service<'a> {
    kind: Kind,
    pub(super) is_encrypted: bool,
    /// Host and port of each endpoint.
    pub(super) endpoints: Vec<(&'a str, u16)>,
    /// The path of a URL, or the number of the database of a Redis.
    pub(super) path: &'a str,
    /// Name and password of a Redis in its URL, with escapes.
    pub(super) user: Option<(&'a str, &'a str)>,
}

impl Service<'_> {
    pub(super) fn is_etcd(&self) -> bool {
        self.kind == Kind::Etcd
    }

    pub(super) fn is_redis(&self) -> bool {
        self.kind == Kind::Redis
    }

    fn wants_tls(&self, address: SocketAddr, host: &str) -> Finding {
        let port = address.port();
        let scheme = match self.kind {
            Kind::Etcd => "etcd://https://",
            Kind::Http => "https://",
            Kind::Redis => "rediss://",
        };
        let observed = said!(
            "{address} uses TLS: write {scheme}{host}:{port}",
            "{address} 使用 TLS:请写成 {scheme}{host}:{port}"
        );
        let finding = Finding::new(ids::ETCD_TLS, Severity::Fatal, observed);
        finding.with("host", host).with("port", port.to_string())
    }

    /// The path that is asked first.
    fn first_path(&self) -> &str {
        if self.is_etcd() { "version" } else { self.path }
    }

    fn scheme(&self) -> &'static str {
        if self.is_encrypted { "https" } else { "http" }
    }

    /// Sends a request to one endpoint over HTTP.
    pub(super) fn ask(
        &self,
        context: &Context<'_>,
        address: SocketAddr,
        host: &str,
        method: &str,
        path: &str,
        body: &str,
    ) -> Result<String, AskFailure> {
        let (port, length) = (address.port(), body.len());
        let request = format!(
            "{method} /{path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        let (encrypted, request) = (self.is_encrypted.then_some(host), request.as_bytes());
        let answer = context.outside.ask(address, encrypted, request, ANSWER_BYTES_MAX)?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }
}

/// Returns the status and the body of an answer.
pub(super) fn body_of(answer: &str) -> Option<(u16, String)> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let is_chunked = head.to_lowercase().contains("transfer-encoding: chunked");
    Some((status, if is_chunked { unchunked(body) } else { body.to_owned() }))
}

/// Decodes a body in chunks, each preceded by its length.
fn unchunked(body: &str) -> String {
    let mut out = String::new();
    let mut rest = body;
    while let Some((length, after)) = rest.split_once("\r\n") {
        let Some(piece) = usize::from_str_radix(length.trim(), 16)
            .ok()
            .and_then(|length| after.get(..length).filter(|piece| !piece.is_empty()))
        else {
            break;
        };
        out.push_str(piece);
        rest = after[piece.len()..].trim_start_matches("\r\n");
    }
    out
}

pub(super) fn metadata(context: &mut Context<'_>) -> Vec<Finding> {
    let url = context.request.metadata.clone().unwrap_or_default();
    let service = match parse(&url) {
        Ok(service) => service,
        Err(why) => {
            let url = without_user(&url);
            let observed = why.after(&format!("{url}: "), &format!("{url}:"));
            let host =
                url.split([':', '/', ',', ' ']).find(|part| part.contains('.')).unwrap_or("HOST");
            return vec![Finding::new(ids::ETCD_URL, Severity::Fatal, observed).with("host", host)];
        }
    };
    let mut findings = Vec::new();
    for (host, port) in &service.endpoints {
        findings.extend(endpoint(context, &service, host, *port));
    }
    // One working endpoint of several suffices.
    if findings.len() < service.endpoints.len() {
        for finding in &mut findings {
            finding.severity = finding.severity.max(Severity::Degraded);
        }
    }
    findings
}

pub(super) fn parse(url: &str) -> Result<Service<'_>, Observed> {
    let (scheme, rest) = url.split_once("://").unwrap_or(("etcd", url));
    let (kind, is_encrypted) = match scheme {
        "etcd" => (Kind::Etcd, rest.starts_with(ENCRYPTED)),
        "http" => (Kind::Http, false),
        "https" => (Kind::Http, true),
        "redis" => (Kind::Redis, false),
        "rediss" => (Kind::Redis, true),
        _ => {
            return Err(said!(
                "the scheme '{scheme}' is not etcd, http, https, redis or rediss",
                "协议“{scheme}”不是 etcd、http、https、redis 或 rediss"
            ));
        }
    };
    let (user, rest) = match rest.rsplit_once('@').filter(|_| kind == Kind::Redis) {
        Some((user, rest)) => (Some(user.split_once(':').unwrap_or((user, ""))), rest),
        None => (None, rest),
    };
    let (hosts, path) = match kind {
        Kind::Http | Kind::Redis => rest.split_once('/').unwrap_or((rest, "")),
        Kind::Etcd => (rest.trim_end_matches('/'), ""),
    };
    if kind == Kind::Redis {
        redis::check(hosts, path)?;
    }
    if hosts.contains('@') {
        return Err(said!(
            "a name and a password in the address are ignored",
            "不从地址中读取用户名和密码"
        ));
    }
    if hosts.contains(char::is_whitespace) {
        return Err(said!(
            "endpoints are separated by commas, not blanks",
            "多个端点用逗号分隔,不能用空格"
        ));
    }
    let endpoints = endpoints(hosts, kind, is_encrypted)?;
    Ok(Service { kind, is_encrypted, endpoints, path, user })
}

/// Returns host and port of each endpoint.
fn endpoints(hosts: &str, kind: Kind, is_encrypted: bool) -> Result<Vec<(&str, u16)>, Observed> {
    let mut endpoints = Vec::new();
    for text in hosts.split([',', ';']).take(ENDPOINTS_MAX) {
        let encrypted = text.strip_prefix(ENCRYPTED).filter(|_| kind == Kind::Etcd);
        if kind == Kind::Etcd && encrypted.is_some() != is_encrypted {
            return Err(said!(
                "https:// precedes only some endpoints; write it before all or none",
                "只有部分端点带 https://,必须全部带或全部不带"
            ));
        }
        let text = encrypted.unwrap_or(text);
        if text.contains("://") {
            return Err(said!(
                "the scheme must appear once, before the first endpoint",
                "协议只写一次,在第一个端点之前"
            ));
        }
        if text.is_empty() {
            return Err(said!("an endpoint is empty", "有一个端点为空"));
        }
        let wrong =
            |_| said!("'{text}' is no HOST:PORT of a service", "“{text}”不是服务的 HOST:PORT");
        match host_and_port(text).map_err(wrong)? {
            (host, Some(port)) => endpoints.push((host, port)),
            (host, None) if kind == Kind::Http && !host.contains(':') => {
                endpoints.push((host, if is_encrypted { 443 } else { 80 }));
            }
            (host, None) if kind == Kind::Redis => endpoints.push((host, REDIS_PORT)),
            (host, None) => {
                return Err(said!("the endpoint '{host}' has no port", "端点“{host}”没有端口"));
            }
        }
    }
    Ok(endpoints)
}

fn endpoint(
    context: &Context<'_>,
    service: &Service<'_>,
    host: &str,
    port: u16,
) -> Option<Finding> {
    let fatal =
        |id, observed: Observed| Finding::new(id, Severity::Fatal, observed).with("host", host);
    let ip = match addresses_of(context, host) {
        Ok(found) => *found.first()?,
        Err(error) => {
            let observed = format!("{host}: {error}").into();
            return Some(fatal(ids::NET_UNRESOLVED, observed).with("name", host));
        }
    };
    let address = SocketAddr::new(ip, port);
    let answer = match service.kind {
        Kind::Redis => redis::ask(context, service, address, host, &["PING"]),
        Kind::Etcd | Kind::Http => {
            service.ask(context, address, host, "GET", service.first_path(), "")
        }
    };
    let answer = match answer {
        Ok(answer) => answer,
        Err(AskFailure::Broken | AskFailure::Silent)
            if !service.is_encrypted && speaks_tls(context, address) =>
        {
            return Some(service.wants_tls(address, host));
        }
        Err(failure) => return Some(silent(context, service, address, host, &failure)),
    };
    if service.is_redis() {
        let is_tls = TLS_RECORDS.iter().any(|record| answer.as_bytes().starts_with(record));
        return if is_tls {
            Some(service.wants_tls(address, host))
        } else {
            redis::judge(context, service, &answer, address, host)
        };
    }
    of_http(context, service, (address, host), &answer)
}

/// Judges an answer over HTTP, and asks an etcd for more.
fn of_http(
    context: &Context<'_>,
    service: &Service<'_>,
    (address, host): (SocketAddr, &str),
    answer: &str,
) -> Option<Finding> {
    let fatal =
        |id, observed: Observed| Finding::new(id, Severity::Fatal, observed).with("host", host);
    let ask = |method: &str, path: &str, body: &str| {
        service.ask(context, address, host, method, path, body)
    };
    let path = service.first_path();
    if answer.contains(WANTS_TLS) && !service.is_encrypted {
        return Some(service.wants_tls(address, host));
    }
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((answer, ""));
    let status = head.lines().next().unwrap_or_default();
    if !status.starts_with("HTTP/") {
        if TLS_RECORDS.iter().any(|record| answer.as_bytes().starts_with(record)) {
            return Some(service.wants_tls(address, host));
        }
        let observed = said!("{address} answers without HTTP", "{address} 的应答不是 HTTP");
        return Some(fatal(ids::NET_RESET, observed).with("peer", address.to_string()));
    }
    let url = format!("{}://{address}/{path}", service.scheme());
    let captive = |observed| Some(fatal(ids::META_CAPTIVE, observed).with("url", &*url));
    let start = body.trim_start().to_lowercase();
    if start.starts_with("<!doctype") || start.starts_with("<html") {
        return captive(said!("{url}: {status}, a web page", "{url}:{status},是一个网页"));
    }
    if service.kind == Kind::Http {
        return None;
    }
    if !body.contains("etcdserver") {
        return captive(said!(
            "{url}: {status}, not etcd's answer",
            "{url}:{status},不是 etcd 的应答"
        ));
    }
    let body = |answer: Result<String, AskFailure>| Some(body_of(&answer.ok()?)?.1);
    if let Some(health) = body(ask("GET", "health", "")).filter(|health| health.contains("false")) {
        return Some(fatal(ids::ETCD_DOWN, format!("{address}: {}", health.trim()).into()));
    }
    let members = body(ask("POST", "v3/cluster/member/list", "{}")).unwrap_or_default();
    let useless = useless_address(&members)?;
    Some(seen!(ETCD_ADVERTISE, Severity::Degraded, address, useless, host))
}

fn speaks_tls(context: &Context<'_>, address: SocketAddr) -> bool {
    let answer = context.outside.ask(address, None, &CLIENT_HELLO.concat(), 2);
    answer.is_ok_and(|answer| TLS_RECORDS.iter().any(|record| answer.starts_with(record)))
}

/// Returns an address among those of etcd's members that refers to the client's own host.
fn useless_address(members: &str) -> Option<String> {
    let members: Value = serde_json::from_str(members).ok()?;
    let members = members["members"].as_array()?;
    let urls = members.iter().filter_map(|member| member["clientURLs"].as_array()).flatten();
    let mut urls = urls.filter_map(Value::as_str);
    let useless = ["//localhost", "//127.", "//0.0.0.0", "//[::1]", "//[::]"];
    urls.find(|url| useless.iter().any(|part| url.contains(part))).map(str::to_owned)
}

/// Explains a silent endpoint; on this host by the table of sockets.
fn silent(
    context: &Context<'_>,
    service: &Service<'_>,
    address: SocketAddr,
    host: &str,
    failure: &AskFailure,
) -> Finding {
    let facts = context.facts;
    let is_here = facts.addresses.contains(&address.ip()) && !address.ip().is_loopback();
    let on_loopback = facts.listeners.iter().any(|listener| {
        listener.address.port() == address.port() && listener.address.ip().is_loopback()
    });
    let refused = *failure == AskFailure::Connect(libc::ECONNREFUSED);
    let finding =
        |id, observed: Observed| Finding::new(id, Severity::Fatal, observed).with("host", host);
    if refused && is_here && on_loopback {
        let port = address.port();
        let finding = match service.kind {
            Kind::Redis => seen!(REDIS_LOOPBACK, Severity::Fatal, address, port, host),
            Kind::Etcd | Kind::Http => seen!(ETCD_LOOPBACK, Severity::Fatal, address, port, host),
        };
        return finding.at(crate::Side::Local);
    }
    let words = match failure {
        AskFailure::Connect(0) | AskFailure::Silent => {
            said!("no answer in time", "在时限内没有应答")
        }
        AskFailure::Connect(code) => std::io::Error::from_raw_os_error(*code).to_string().into(),
        AskFailure::Broken => {
            said!("the connection ended without an answer", "连接没有应答就结束了")
        }
        AskFailure::Encryption(text) => {
            let port = address.port().to_string();
            return finding(ids::ETCD_TLS, format!("{address}: {text}").into()).with("port", port);
        }
        AskFailure::NotBuilt => {
            let observed = said!(
                "{address} accepts connections; this program was built without TLS (cargo feature 'tls') and sent no request",
                "{address} 接受连接;本程序构建时没有包含 TLS(cargo 特性 tls),没有进行查询"
            );
            let unknown = Finding::new(ids::ETCD_TLS, Severity::CannotTell, observed);
            return unknown.with("host", host).with("port", address.port().to_string());
        }
    };
    let id = if service.is_redis() { ids::REDIS_DOWN } else { ids::ETCD_DOWN };
    finding(id, words.after(&format!("{address}: "), &format!("{address}:")))
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
        assert_eq!(endpoints("etcd://https://a:1,https://b:2"), Ok(vec![("a", 1), ("b", 2)]));
        assert_eq!(endpoints("https://h/metadata"), Ok(vec![("h", 443)]));
        assert_eq!(endpoints("redis://h"), Ok(vec![("h", 6_379)]));
        let redis = parse("rediss://ann:a%40b@[::1]:7/3").unwrap();
        assert_eq!((redis.user, redis.path), (Some(("ann", "a%40b")), "3"));
        assert_eq!((redis.endpoints, redis.is_encrypted), (vec![("::1", 7)], true));
        for wrong in [
            "etc://a:1",
            "etcd://u:p@a:1",
            "a",
            "etcd://a:1 b:2",
            "etcd://a:1,http://b:2",
            "etcd://",
            "etcd://https://a:1,b:2",
            "etcd://a:1,https://b:2",
            "http://h:99999/metadata",
            "etcd://h:x",
            "redis://h/256",
            "redis://a:1,b:2",
            "redis://u:p@",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
