//! Variables that affect other programs, or libraries of this one.

use crate::doctor::{Context, Finding};
use crate::ids;
use crate::problem::Severity;

const FOREIGN: [&str; 7] = ["MC_", "NCCL_IB_", "UCX_", "FI_", "RDMAV_", "IBV_", "MLX5_"];
/// Parts of the names of variables with secret values.
const SECRETS: [&str; 6] = ["PASS", "SECRET", "TOKEN", "CREDENTIAL", "AUTH", "PRIVATE"];
/// Maximum variables shown.
const SHOWN_MAX: usize = 16;
const PROXIES: [&str; 6] =
    ["http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"];

pub(super) fn environment(context: &mut Context<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let environment = &context.request.environment;
    let foreign = environment
        .iter()
        .filter(|(name, _)| FOREIGN.iter().any(|prefix| name.starts_with(prefix)));
    for (name, value) in foreign.clone() {
        if allowed(name).is_some_and(|allowed| !allowed(value)) {
            let finding = Finding::new(
                ids::ENV_VALUE,
                Severity::Risk,
                format!("{name}={}", without_secrets(name, value)),
            );
            findings.push(finding.with("variable", &**name));
        }
    }
    let shown: Vec<_> = foreign
        .map(|(name, value)| format!("{name}={}", without_secrets(name, value)))
        .take(SHOWN_MAX)
        .collect();
    if !shown.is_empty() {
        findings.push(Finding::new(ids::ENV_FOREIGN, Severity::Info, shown.join(", ")));
    }
    findings.extend(proxies(context));
    findings
}

/// Returns the check of a variable's value, if its form is known.
fn allowed(name: &str) -> Option<fn(&str) -> bool> {
    match name {
        "MC_MTU" => Some(|value| ["512", "1024", "2048", "4096"].contains(&value)),
        "MC_GID_INDEX" | "NCCL_IB_GID_INDEX" => Some(|value| value.parse::<i32>().is_ok()),
        "UCX_IB_GID_INDEX" => Some(|value| value == "auto" || value.parse::<u32>().is_ok()),
        _ => None,
    }
}

/// Returns the beginning of a value without its secrets.
pub(in crate::doctor) fn without_secrets(name: &str, value: &str) -> String {
    let name = name.to_uppercase();
    if SECRETS.iter().any(|word| name.contains(word)) {
        return "(left out)".to_owned();
    }
    short(&without_user(value))
}

/// Whether other engines or libraries use the variable.
pub(in crate::doctor) fn is_foreign(name: &str) -> bool {
    FOREIGN.iter().any(|prefix| name.starts_with(prefix)) || PROXIES.contains(&name)
}

fn short(value: &str) -> String {
    value.chars().filter(|c| !c.is_control()).take(40).collect()
}

fn proxies(context: &Context<'_>) -> Option<Finding> {
    let set: Vec<_> =
        PROXIES.iter().filter_map(|name| Some((*name, context.variable(name)?))).collect();
    if set.is_empty() {
        return None;
    }
    let host = context.request.metadata.as_deref().map(host_of);
    let exceptions = context.variable("no_proxy").or(context.variable("NO_PROXY")).unwrap_or("");
    let covered = |host: &str| {
        let named = |exception: &str| {
            let exception = exception.trim();
            exception == "*"
                || (!exception.is_empty() && host.ends_with(exception.trim_start_matches('.')))
        };
        exceptions.split(',').any(named)
    };
    if host.is_some_and(covered) {
        return None;
    }
    let values: Vec<_> =
        set.iter().map(|(name, value)| format!("{name}={}", short(&without_user(value)))).collect();
    // Without a metadata service no node here uses HTTP.
    let severity = if host.is_some() { Severity::Risk } else { Severity::Info };
    Some(Finding::new(
        ids::PROXY_SET,
        severity,
        format!("{}; no_proxy={}", values.join(", "), short(exceptions)),
    ))
}

/// Removes name and password from an address.
pub(in crate::doctor) fn without_user(value: &str) -> String {
    let (scheme, rest) =
        value.split_once("://").map_or(("", value), |(scheme, rest)| (scheme, rest));
    let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
    let separator = if scheme.is_empty() { "" } else { "://" };
    format!("{scheme}{separator}{rest}")
}

/// Returns the first host of a metadata service's address.
fn host_of(url: &str) -> &str {
    let first = url.split([',', ';']).next().unwrap_or(url);
    let rest = first.rsplit_once("://").map_or(first, |(_, rest)| rest);
    let first = rest.split('/').next().unwrap_or(rest);
    first.rsplit_once(':').map_or(first, |(host, _)| host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxys_password_is_not_shown() {
        assert_eq!(without_user("http://user:secret@proxy:3128"), "http://proxy:3128");
        assert_eq!(without_user("proxy:3128"), "proxy:3128");
        assert_eq!(host_of("etcd://10.0.0.9:2379,10.0.0.8:2379"), "10.0.0.9");
        assert_eq!(host_of("etcd://https://10.0.0.9:2379"), "10.0.0.9");
    }
}
