//! A page for a browser: one file without scripts, readable on a narrow screen and on a wide one.

use crate::record::{Fate, Passage, Picture, Row};
use std::fmt::Write as _;

/// Height of the lanes of an event, in pixels.
const LANES: u32 = 30;

/// Layout and colours, for a light and a dark screen.
const STYLE: &str = "\
:root{color-scheme:light dark;--line:#8a8f98;--ink:#1c1e21;--paper:#fff;--soft:#f1f3f5;--fault:#b35900;\
--broken:#c0182b;--heals:#1a7f4b;--message:#2557c7}\
@media(prefers-color-scheme:dark){:root{--ink:#e6e8eb;--paper:#16181c;--soft:#22262c;--fault:#ffb066;\
--broken:#ff7b86;--heals:#6fd49c;--message:#8db4ff}}\
*{box-sizing:border-box}body{margin:0 auto;max-width:72rem;padding:1rem;color:var(--ink);background:var(--paper);\
font:16px/1.45 system-ui,sans-serif}h1{font-size:1.25rem;margin:0 0 .5rem}\
code{font:.875rem/1.4 ui-monospace,monospace;overflow-wrap:anywhere}\
.broken-at{color:var(--broken);font-weight:600}.broken-at a{color:inherit}\
ol{list-style:none;margin:1rem 0;padding:0}\
li,.names{display:grid;grid-template-columns:2.5rem minmax(9rem,26%) 1fr;column-gap:.75rem}\
.names{position:sticky;top:0;background:var(--paper);border-bottom:1px solid var(--line);font-weight:600;z-index:1}\
.names div,.lanes{display:block;width:100%}.names span{display:inline-block;text-align:center}\
li>*{padding:.2rem 0}.lanes{padding:0;height:100%;min-height:30px}\
.number{color:var(--line);text-align:right;font-variant-numeric:tabular-nums}\
.what{min-width:0;overflow-wrap:anywhere;border-bottom:1px solid var(--soft)}\
.mark{border:1px solid;border-radius:.6rem;padding:0 .45rem;font-size:.8rem}\
.fault .mark{color:var(--fault)}.heals .mark{color:var(--heals)}li.broken{background:var(--soft)}\
.states{display:flex;flex-wrap:wrap;gap:.15rem .75rem;font-size:.85rem;opacity:.85}\
details{font-size:.85rem}summary{cursor:pointer;color:var(--line)}details ul{margin:.2rem 0;padding-left:1.1rem}\
line{stroke:var(--line);stroke-width:1}.message{stroke:var(--message);stroke-width:2}\
.lost{stroke:var(--fault);stroke-dasharray:4 3}circle{fill:var(--ink)}.fault circle{fill:var(--fault)}\
text{fill:var(--message);font-size:15px}.lost-end{fill:var(--fault)}\
@media(max-width:40rem){body{padding:.5rem}li,.names{grid-template-columns:1.75rem 4.5rem 1fr;column-gap:.4rem}}";

/// A page with a title, facts about the world, and every event with its messages and the lifecycles of each site.
pub fn html(title: &str, facts: &[(&str, String)], picture: &Picture) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n<h1>{title}</h1>\n",
        title = escaped(title)
    );
    for (name, words) in facts {
        let _ = writeln!(page, "<div>{}: <code>{}</code></div>", escaped(name), escaped(words));
    }
    if let Some(violation) = &picture.violation {
        let words = escaped(&format!("broken: {:?}: {}", violation.oracle, violation.detail));
        let words = match picture.broken {
            Some(row) => format!("<a href=\"#event-{}\">{words}</a>", row + 1),
            None => words,
        };
        let _ = writeln!(page, "<p class=\"broken-at\">{words}</p>");
    }
    page.push_str(&names(picture));
    page.push_str("<ol>\n");
    for (number, row) in picture.rows.iter().enumerate() {
        page.push_str(&event(picture, number, row));
    }
    page.push_str("</ol>\n</html>\n");
    page
}

/// The names of the sites above their lanes, which stay while the page scrolls.
fn names(picture: &Picture) -> String {
    let mut text = String::from("<div class=\"names\"><span></span><div>");
    for site in &picture.sites {
        let _ = write!(
            text,
            "<span style=\"width:calc(100%/{})\" title=\"{}\">{}</span>",
            picture.sites.len(),
            escaped(site),
            escaped(short(site))
        );
    }
    text.push_str("</div><span>event</span></div>\n");
    text
}

fn event(picture: &Picture, number: usize, row: &Row) -> String {
    let broken = picture.broken == Some(number);
    let (class, mark) = match (broken, row.fault, row.healing) {
        (true, ..) => ("broken", "broken"),
        (_, true, _) => ("fault", "fault"),
        (_, _, true) => ("heals", "heals"),
        _ => ("", ""),
    };
    let mark = if mark.is_empty() {
        String::new()
    } else {
        format!(" <span class=\"mark\">{mark}</span>")
    };
    let mut text = format!(
        "<li id=\"event-{0}\" class=\"{class}\"><span class=\"number\">{0}</span>{1}<div class=\"what\">{2}{mark}",
        number + 1,
        lanes(picture, number, row),
        escaped(&row.words)
    );
    if broken && let Some(violation) = &picture.violation {
        let words = format!("{:?}: {}", violation.oracle, violation.detail);
        let _ = write!(text, "<div class=\"broken-at\">{}</div>", escaped(&words));
    }
    text.push_str("<div class=\"states\">");
    for (site, state) in picture.sites.iter().zip(&row.states) {
        let states =
            if state.lifecycles.is_empty() { "-".to_owned() } else { state.lifecycles.join(", ") };
        let _ = write!(text, "<span><b>{}</b> {}</span>", escaped(short(site)), escaped(&states));
    }
    text.push_str("</div>");
    if !row.notes.is_empty() {
        let (count, plural) = (row.notes.len(), if row.notes.len() == 1 { "" } else { "s" });
        let _ = write!(text, "<details><summary>{count} output{plural}</summary><ul>");
        row.notes.iter().for_each(|note| {
            let _ = write!(text, "<li style=\"display:list-item\">{}</li>", escaped(note));
        });
        text.push_str("</ul></details>");
    }
    text.push_str("</div></li>\n");
    text
}

/// The lanes of the sites at an event, with the messages that end there; without one, a dot at its site.
fn lanes(picture: &Picture, number: usize, row: &Row) -> String {
    let count = picture.sites.len().max(1);
    let mut text = format!("<svg class=\"lanes\" height=\"{LANES}\" role=\"img\">");
    for site in 0..count {
        let at = place(site, count);
        let _ = write!(text, "<line x1=\"{at}%\" x2=\"{at}%\" y1=\"0\" y2=\"100%\"/>");
    }
    let shown = |passage: &&Passage| passage.ended == number && passage.fate != Fate::Dropped;
    let mut any = false;
    for passage in picture.passages.iter().filter(shown) {
        any = true;
        let (from, to) = (place(passage.from, count), place(passage.to, count));
        let lost = passage.fate == Fate::Lost;
        let class = if lost { "message lost" } else { "message" };
        let _ = write!(
            text,
            "<g><title>{}</title><line class=\"{class}\" x1=\"{from}%\" x2=\"{to}%\" y1=\"15\" y2=\"15\"/>",
            escaped(&passage.words)
        );
        let (sign, class) = match (lost, passage.to >= passage.from) {
            (true, _) => ("\u{2715}", "lost-end"),
            (_, true) => ("\u{25b6}", ""),
            _ => ("\u{25c0}", ""),
        };
        let anchor = if passage.to >= passage.from { "end" } else { "start" };
        let _ = write!(
            text,
            "<text class=\"{class}\" x=\"{to}%\" y=\"20\" text-anchor=\"{anchor}\">{sign}</text></g>"
        );
    }
    if !any {
        let _ = write!(text, "<circle cx=\"{}%\" cy=\"15\" r=\"4\"/>", place(row.site, count));
    }
    text.push_str("</svg>");
    text
}

/// The middle of a site's lane, in hundredths of the width.
fn place(site: usize, count: usize) -> usize {
    (2 * site + 1) * 100 / (2 * count)
}

fn short(site: &str) -> &str {
    site.split(' ').next().unwrap_or_default()
}

fn escaped(words: &str) -> String {
    let mut text = String::new();
    for letter in words.chars() {
        match letter {
            '&' => text.push_str("&amp;"),
            '<' => text.push_str("&lt;"),
            '>' => text.push_str("&gt;"),
            '"' => text.push_str("&quot;"),
            letter => text.push(letter),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No text of a world becomes markup.
    #[test]
    fn words_are_escaped() {
        let row = Row {
            site: 0,
            words: "<b> & \"c\"".into(),
            fault: true,
            healing: false,
            notes: vec!["<i>".into()],
            violations: Vec::new(),
            states: Vec::new(),
        };
        let picture =
            Picture { sites: vec!["<A> (a)".into()], rows: vec![row], ..Picture::default() };
        let page = html("<t>", &[("<f>", "<x>".into())], &picture);
        for raw in ["<b> &", "<i>", "<A>", "<t>", "<f>", "<x>"] {
            assert!(!page.contains(raw), "{raw} in {page}");
        }
        assert!(page.contains("&lt;b&gt; &amp; &quot;c&quot;") && page.contains("class=\"fault\""));
    }
}
