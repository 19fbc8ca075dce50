//! A node's entries in the metadata service: their presence and validity.

use super::metadata::{Service, body_of, parse};
use super::names::addresses_of;
use super::redis;
use super::settings::without_user;
use crate::doctor::observed::said;
use crate::doctor::{AskFailure, Context, Finding};
use crate::ids;
use crate::problem::{Severity, Side};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use handfast_core::address::with_port;
use handfast_core::mooncake::{Keys, RpcMeta};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use std::net::SocketAddr;

/// Maximum names listed if the requested one is missing.
const SHOWN_MAX: usize = 8;
/// Maximum names compared to find the nearest.
const NAMES_MAX: usize = 4_096;
/// Bytes of a key that a query contains unescaped.
const PLAIN: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');
const CLUSTER: &str = "MC_METADATA_CLUSTER_ID";

pub(super) fn segment(context: &mut Context<'_>) -> Vec<Finding> {
    let url = context.request.metadata.clone().unwrap_or_default();
    let name = context.request.segment.clone().unwrap_or_default();
    let Ok(service) = parse(&url) else { return Vec::new() };
    let cluster = context.variable(CLUSTER).unwrap_or("");
    let keys = match Keys::new(cluster) {
        Ok(keys) => keys,
        Err(error) => {
            let observed = format!("{CLUSTER}: {error}");
            return vec![Finding::new(ids::CONFIG_INVALID, Severity::Fatal, observed)];
        }
    };
    let key = keys.rpc_meta(&name);
    let Some(found) = get(context, &service, &key) else {
        let url = without_user(&url);
        let observed = said!(
            "no endpoint of {url} returned the value of {key}",
            "{url} 的任何端点都没有给出 {key} 的内容"
        );
        return vec![Finding::new(ids::META_STALE, Severity::CannotTell, observed)];
    };
    match found {
        None => vec![missing(context, &service, &keys, &name)],
        Some(text) => stale(context, &key, &text).into_iter().collect(),
    }
}

/// Returns the value of a key; `None` if no endpoint answers.
fn get(context: &Context<'_>, service: &Service<'_>, key: &str) -> Option<Option<String>> {
    service.endpoints.iter().find_map(|(host, port)| {
        let ip = *addresses_of(context, host).ok()?.first()?;
        let address = SocketAddr::new(ip, *port);
        if service.is_etcd() {
            let body = json!({ "key": STANDARD.encode(key) }).to_string();
            let answer = service.ask(context, address, host, "POST", "v3/kv/range", &body).ok()?;
            let answer: Value = serde_json::from_str(&body_of(&answer)?.1).ok()?;
            // A client without permission gets an error without the header.
            answer.get("header")?;
            let value = answer["kvs"][0]["value"].as_str();
            return Some(value.map(|value| text_of(value).unwrap_or_default()));
        }
        if service.is_redis() {
            let answer = redis::ask(context, service, address, host, &["GET", key]).ok()?;
            return redis::text_of(&answer);
        }
        let path = format!("{}?key={}", service.path, utf8_percent_encode(key, PLAIN));
        let answer = service.ask(context, address, host, "GET", &path, "").ok()?;
        let (status, body) = body_of(&answer)?;
        match status {
            200 => Some(Some(body)),
            404 => Some(None),
            _ => None,
        }
    })
}

fn text_of(base64: &str) -> Option<String> {
    String::from_utf8(STANDARD.decode(base64).ok()?).ok()
}

/// Returns the names of all nodes, if the service lists its keys, as an etcd does.
fn names(context: &Context<'_>, service: &Service<'_>, keys: &Keys) -> Vec<String> {
    let prefix = keys.rpc_meta("");
    let Some((host, port)) = service.endpoints.first().filter(|_| service.is_etcd()) else {
        return Vec::new();
    };
    let mut end = prefix.clone().into_bytes();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    let body = json!({
        "key": STANDARD.encode(&prefix),
        "range_end": STANDARD.encode(end),
        "keys_only": true,
        "limit": NAMES_MAX,
    });
    let ip = addresses_of(context, host).ok().and_then(|found| found.first().copied());
    let answer = ip.and_then(|ip| {
        let address = SocketAddr::new(ip, *port);
        service.ask(context, address, host, "POST", "v3/kv/range", &body.to_string()).ok()
    });
    let body = answer.and_then(|answer| body_of(&answer)).map_or(String::new(), |(_, body)| body);
    let answer: Value = serde_json::from_str(&body).unwrap_or_default();
    let listed = answer["kvs"].as_array().map_or(&[][..], Vec::as_slice);
    let key = |entry: &Value| text_of(entry["key"].as_str()?);
    let name = |key: String| key.strip_prefix(&prefix).map(str::to_owned);
    listed.iter().filter_map(key).filter_map(name).collect()
}

fn missing(context: &Context<'_>, service: &Service<'_>, keys: &Keys, name: &str) -> Finding {
    let known = names(context, service, keys);
    let distance =
        |known: &&String| strsim::damerau_levenshtein(&known.to_lowercase(), &name.to_lowercase());
    let nearest = known.iter().min_by_key(distance);
    let shown: Vec<&str> = known.iter().map(String::as_str).take(SHOWN_MAX).collect();
    let shown = if shown.is_empty() { "-".to_owned() } else { shown.join(", ") };
    let observed = match nearest {
        Some(nearest) => said!(
            "{name} does not exist; the nearest is {nearest}; existing names: {shown}",
            "没有 {name};最接近的是 {nearest};现有:{shown}"
        ),
        None => said!("{name} does not exist", "没有 {name}"),
    };
    Finding::new(ids::SEG_NAME, Severity::Fatal, observed)
}

/// Checks that the address of the entry accepts calls.
fn stale(context: &Context<'_>, key: &str, text: &str) -> Option<Finding> {
    let finding = |id, observed: crate::doctor::Observed| {
        let finding = Finding::new(id, Severity::Fatal, observed).at(Side::Remote);
        Some(finding.with("key", key.strip_prefix("mooncake/").unwrap_or(key)))
    };
    let meta = match RpcMeta::decode(text) {
        Ok(meta) => meta.address(),
        Err(error) => return finding(ids::META_VERSION, format!("{key}: {error}").into()),
    };
    let Ok((host, port)) = with_port(&meta) else {
        return finding(ids::META_VERSION, format!("{key}: {meta}").into());
    };
    let Ok(found) = addresses_of(context, host) else {
        let observed = said!(
            "{key} has the host {host}, which does not resolve",
            "{key} 写的是 {host},无法解析"
        );
        return finding(ids::META_STALE, observed);
    };
    let address = SocketAddr::new(*found.first()?, port);
    // An empty request: a node waits for more, and another service closes or answers.
    match context.outside.ask(address, None, b"", 0) {
        Err(AskFailure::Connect(code)) => {
            let words = match code {
                0 => said!("no answer in time", "在时限内没有应答"),
                code => std::io::Error::from_raw_os_error(code).to_string().into(),
            };
            let before = format!("{key} has the address {address}: ");
            finding(ids::META_STALE, words.after(&before, &format!("{key} 写的是 {address}:")))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_in_a_query_has_nothing_that_ends_it() {
        assert_eq!(
            utf8_percent_encode("mooncake/ram/a:1&b c", PLAIN).to_string(),
            "mooncake/ram/a%3A1%26b%20c"
        );
    }
}
