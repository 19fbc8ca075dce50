//! Formats an explanation.

use super::{Connection, Explanation, Seen};
use crate::doctor::said;
use crate::language::Language;
use crate::page::{Style, body, page_json};
use crate::problem::{Role, problem};
use std::fmt::Write;

/// Version of the JSON form.
const SCHEMA: u32 = 1;
/// Maximum connections listed.
const CONNECTIONS_SHOWN: usize = 8;

impl Explanation {
    /// Formats the explanation for people.
    pub fn words(&self, style: &Style) -> String {
        let mut out = String::new();
        match &self.first {
            Some(first) => out.push_str(&self.recognised(first, style)),
            None => out.push_str(&self.unknown(style)),
        }
        if self.truncated {
            let text = style.language.pick(
                "The input exceeds the limit; its rest was ignored.",
                "输入超过处理上限,其余部分没有查看。",
            );
            let _ = writeln!(out, "\n{text}");
        }
        out
    }

    fn recognised(&self, first: &Seen, style: &Style) -> String {
        let language = style.language;
        let entry = problem(first.id);
        let mut out = format!("{}\n", style.head(entry, entry.severity));
        if self.lines > 1 {
            let label = said!("Line {line}", "第 {line} 行", line = first.line);
            out.push_str(&style.entry(label.get(language), &first.text));
        }
        if let Some(from) = self.refined_from {
            let text = language.pick(
                "by itself; the log names the kind of device, which is more specific",
                "是仅凭该行的判断;日志中的设备类型给出了更准确的结论",
            );
            out.push_str(&style.entry(language.pick("Also", "另见"), &format!("{from}: {text}")));
        }
        let page = body(entry, style);
        let own = entry.side.words(language);
        // The line itself may name the side at fault.
        out.push_str(&page.replace(own, first.side.words(language)));
        out.push_str(&self.rest(first, style));
        out
    }

    /// Lists the other problems, and the reasons for their order.
    fn rest(&self, first: &Seen, style: &Style) -> String {
        let language = style.language;
        let mut out = String::new();
        let others: Vec<_> = self
            .seen
            .iter()
            .filter(|seen| seen.line != first.line || Some(seen.id) != self.own(first))
            .collect();
        if self.flushed > 1 || (self.flushed > 0 && first.role != Role::Consequence) {
            let text = said!(
                "{count} requests failed as a consequence: the first error of a queue pair ends it, and what is \
                 queued on it is flushed untried.",
                "另有 {count} 个请求随之失败:队列对的第一个错误会使其终止,排队的请求未经执行就被冲刷。",
                count = self.flushed
            );
            out.push_str(&style.entry(language.pick("Flushes", "冲刷"), text.get(language)));
        }
        if !others.is_empty() {
            let _ = writeln!(out, "\n{}", style.bold(language.pick("Also seen", "其他记录")));
        }
        for seen in others {
            let role = match seen.role {
                Role::Cause => "",
                Role::Dispatcher => language.pick(", reports only the failure", ",只说明失败"),
                Role::Consequence => language.pick(", a consequence", ",属于后果"),
            };
            let title = problem(seen.id).title.get(language);
            let Seen { line, count, .. } = seen;
            let text = said!(
                "line {line}, {count}x{role}: {title}",
                "第 {line} 行,{count} 次{role}:{title}"
            );
            let _ = writeln!(out, "  {}", style.bold(seen.id.as_str()));
            out.push_str(&style.lines("    ", text.get(language)));
        }
        out + &self.by_connection(style)
    }

    /// Returns the id of the first problem in the list of all.
    fn own(&self, first: &Seen) -> Option<crate::Id> {
        self.refined_from.or(Some(first.id))
    }

    fn by_connection(&self, style: &Style) -> String {
        let language = style.language;
        let mut out = String::new();
        if self.connections.len() < 2 {
            return out;
        }
        let head = language.pick("First error of each connection", "各连接的第一个错误");
        let _ = writeln!(out, "\n{}", style.bold(head));
        for Connection { name, first, line, flushed } in
            self.connections.iter().take(CONNECTIONS_SHOWN)
        {
            let first = first.map_or(language.pick("only flushes", "只有冲刷"), crate::Id::as_str);
            let text = said!(
                "{name}: {first}, line {line}; then {flushed} flushed",
                "{name}:{first},第 {line} 行;随后冲刷 {flushed} 个"
            );
            let _ = writeln!(out, "  {}", text.get(language));
        }
        let more = self.connections.len().saturating_sub(CONNECTIONS_SHOWN);
        if more > 0 {
            let text = said!("and {more} more", "还有 {more} 个");
            let _ = writeln!(out, "  {}", text.get(language));
        }
        out
    }

    fn unknown(&self, style: &Style) -> String {
        let language = style.language;
        let text = language.pick(
            "No message is in the catalogue. It may be an error nevertheless.",
            "目录中没有与之对应的条目。这并不说明它是不是错误。",
        );
        let mut out = style.lines("", text);
        if !self.nearest.is_empty() {
            let _ = writeln!(out, "\n{}", language.pick("Nearest:", "最接近的条目:"));
        }
        for near in &self.nearest {
            let _ = writeln!(out, "  {}", style.bold(near.id.as_str()));
            out.push_str(&style.lines("    ", problem(near.id).title.get(language)));
        }
        out
    }
}

impl Explanation {
    /// Returns [`Explanation`] and the page of its first problem as JSON.
    pub fn json(&self, language: Language) -> serde_json::Value {
        let page = self.first.as_ref().map(|first| page_json(problem(first.id), language));
        let mut value = serde_json::to_value(self).unwrap_or_default();
        if let Some(object) = value.as_object_mut() {
            object.insert("schema".to_owned(), SCHEMA.into());
            object.insert("page".to_owned(), page.unwrap_or_default());
        }
        value
    }
}
