//! The metadata service in a Redis.

use super::metadata::Service;
use crate::doctor::observed::said;
use crate::doctor::{AskFailure, Context, Finding, Observed};
use crate::explain::explain;
use crate::ids;
use crate::problem::Severity;
use percent_encoding::percent_decode_str;
use std::net::SocketAddr;

/// Maximum length of the answers: several times the longest entry.
const ANSWERS_BYTES_MAX: usize = 4 << 20;
/// The words of a Redis before the arguments of a request.
const ARGUMENTS: &str = ", with args beginning with";
const USER: &str = "MC_REDIS_USERNAME";
const PASSWORD: &str = "MC_REDIS_PASSWORD";
const DATABASE: &str = "MC_REDIS_DB_INDEX";

/// Checks the host and the database of a URL.
pub(super) fn check(hosts: &str, database: &str) -> Result<(), Observed> {
    if !database.is_empty() && database.parse::<u8>().is_err() {
        return Err(said!(
            "'{database}' is not a database of a Redis, 0 to 255",
            "“{database}”不是 Redis 的数据库编号(0 到 255)"
        ));
    }
    match hosts.contains([',', ';']) {
        true => Err(said!("a Redis has one endpoint", "Redis 只有一个端点")),
        false => Ok(()),
    }
}

/// The name and the password of a node, or empty ones.
fn user(context: &Context<'_>, service: &Service<'_>) -> (String, String) {
    let decoded = |text| percent_decode_str(text).decode_utf8_lossy().into_owned();
    let of_environment = |name| context.variable(name).unwrap_or("").to_owned();
    match service.user {
        Some((name, password)) => (decoded(name), decoded(password)),
        None => (of_environment(USER), of_environment(PASSWORD)),
    }
}

/// Sends a request, with the user and the database of a node, and returns its answer, or the first
/// error of an earlier request. The text may repeat the password.
pub(super) fn ask(
    context: &Context<'_>,
    service: &Service<'_>,
    address: SocketAddr,
    host: &str,
    request: &[&str],
) -> Result<String, AskFailure> {
    let (name, password) = user(context, service);
    let database = match service.path {
        "" => context.variable(DATABASE).unwrap_or("0"),
        number => number,
    };
    let mut requests: Vec<Vec<&str>> = Vec::new();
    if !password.is_empty() {
        let words = ["AUTH", &name, &password].into_iter().filter(|word| !word.is_empty());
        requests.push(words.collect());
    }
    if database != "0" {
        requests.push(vec!["SELECT", database]);
    }
    let before = requests.len();
    requests.extend([request.to_vec(), vec!["QUIT"]]);
    let bytes: String = requests.iter().map(|words| encoded(words)).collect();
    let encrypted = service.is_encrypted.then_some(host);
    let answer = context.outside.ask(address, encrypted, bytes.as_bytes(), ANSWERS_BYTES_MAX)?;
    let answer = String::from_utf8_lossy(&answer);
    let mut rest = &*answer;
    for _ in 0..before {
        match rest.split_once("\r\n") {
            Some((line, after)) if line.starts_with('+') => rest = after,
            _ => break,
        }
    }
    Ok(rest.to_owned())
}

/// Removes the password from the line of an error wherever it is, then the arguments that a Redis
/// repeats of a request that it does not know, cut where it likes.
fn without_password(error: &str, password: &str) -> String {
    let mut text = match password {
        "" => error.to_owned(),
        password => error.replace(password, "..."),
    };
    text.truncate(text.find(ARGUMENTS).unwrap_or(text.len()));
    text
}

/// A request as an array of texts (RESP 2).
fn encoded(words: &[&str]) -> String {
    let words = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len()));
    format!("*{}\r\n{}", words.len(), words.collect::<String>())
}

/// Returns the text of an answer to GET; `None` if it is no such answer.
pub(super) fn text_of(answer: &str) -> Option<Option<String>> {
    let (length, rest) = answer.strip_prefix('$')?.split_once("\r\n")?;
    match length {
        "-1" => Some(None),
        length => Some(Some(rest.get(..length.parse().ok()?)?.to_owned())),
    }
}

/// Judges the answer to PING.
pub(super) fn judge(
    context: &Context<'_>,
    service: &Service<'_>,
    answer: &str,
    address: SocketAddr,
    host: &str,
) -> Option<Finding> {
    judge_without(&user(context, service).1, answer, address, host)
}

/// Judges the text as it came, and shows it without the password.
fn judge_without(password: &str, answer: &str, address: SocketAddr, host: &str) -> Option<Finding> {
    let line = answer.lines().next().unwrap_or_default();
    let fatal = |id, observed| Some(Finding::new(id, Severity::Fatal, observed).with("host", host));
    let Some(error) = line.strip_prefix('-') else {
        let observed =
            said!("{address} does not answer as a Redis", "{address} 的应答不是 Redis 的应答");
        let url = format!("redis://{address}");
        let captive = || fatal(ids::META_CAPTIVE, observed).map(|it| it.with("url", url));
        return if line == "+PONG" { None } else { captive() };
    };
    // A user who may only read and write entries may not PING.
    if error.starts_with("NOPERM") {
        return None;
    }
    let known = explain(error).first.map(|first| first.id);
    let known = known.filter(|id| id.as_str().starts_with("REDIS-"));
    let shown = without_password(error, password);
    fatal(known.unwrap_or(ids::REDIS_DOWN), format!("{address}: {shown}").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server without users, or another service, answers the password back.
    #[test]
    fn errors_have_neither_arguments_nor_the_password() {
        let unknown = "ERR unknown command 'AUTH', with args beginning with: 'ann' 'secr";
        assert_eq!(without_password(unknown, "secret"), "ERR unknown command 'AUTH'");
        let repeated = "ERR no user with secret here";
        assert_eq!(without_password(repeated, "secret"), "ERR no user with ... here");
        assert_eq!(without_password(repeated, ""), repeated);
        for (error, shown) in
            [("ERR ERR", "... ..."), ("secret", "..."), ("secret here", "... here"), ("", "")]
        {
            let password = if error.starts_with("ERR") { "ERR" } else { "secret" };
            assert_eq!(without_password(error, password), shown);
        }
        let both = "a, with args beginning with";
        assert_eq!(without_password("ERR a, with args beginning with: x", both), "ERR ...: x");
    }

    /// A password may be a word of the Redis's own text, and the first line is the answer.
    #[test]
    fn errors_are_judged_with_the_password_and_shown_without() {
        let address = SocketAddr::from(([10, 0, 0, 9], 6379));
        let judged = |password, answer: &str| {
            let finding = judge_without(password, answer, address, "h").unwrap();
            (finding.id, format!("{:?}", finding.observed))
        };
        let refused = "-WRONGPASS invalid username-password pair or user is disabled.\r\n+OK\r\n";
        for password in ["password", "WRONGPASS", "pair", ""] {
            let (id, observed) = judged(password, refused);
            assert_eq!(id, ids::REDIS_AUTH, "{observed}");
            assert!(password.is_empty() || !observed.contains(password), "{observed}");
        }
        let (id, observed) = judged("secret", "-secret\r\n-ERR x\r\n");
        assert_eq!(id, ids::REDIS_DOWN);
        assert!(observed.contains("10.0.0.9:6379: ...") && !observed.contains("ERR"), "{observed}");
    }

    #[test]
    fn redis_requests_and_answers_have_lengths() {
        assert_eq!(encoded(&["GET", "k"]), "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n");
        assert_eq!(text_of("$2\r\n{}\r\n+OK\r\n"), Some(Some("{}".to_owned())));
        assert_eq!(text_of("$-1\r\n+OK\r\n"), Some(None));
        for wrong in ["", "$", "$5\r\n{}\r\n", "$x\r\n", "-NOAUTH\r\n", ":1\r\n"] {
            assert_eq!(text_of(wrong), None, "{wrong}");
        }
    }
}
