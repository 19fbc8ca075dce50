//! `handfast explain`.

use crate::failure::{Failure, Outcome};
use crate::{help, output, terminal};
use clap::Args;
use handfast_diagnosis::explain::{Explainer, Explanation};
use handfast_diagnosis::{Id, Language, page, page_json, problem, problems};
use std::fmt::Write;
use std::io::{IsTerminal, Read};

/// Bytes read from standard input at a time.
const CHUNK_BYTES: usize = 64 << 10;

/// Explain an error: its meaning, the side at fault and the remedy
///
/// Takes one message, a whole log on standard input, or the name of a problem such as NET-REFUSED.
#[derive(Args)]
#[command(after_long_help = help::EXPLAIN)]
pub(crate) struct Explain {
    /// A message, or the name of a problem [default: standard input]
    #[arg(value_name = "TEXT")]
    text: Vec<String>,
    /// List all problems of the catalogue
    #[arg(long, conflicts_with = "text")]
    list: bool,
    /// Language, en or zh [default: that of LANG]
    #[arg(long, value_name = "LANGUAGE")]
    lang: Option<Language>,
    /// Print the result as one line of JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: Explain) -> Outcome {
    let style = terminal::style(arguments.lang);
    if arguments.list {
        return list(arguments.json, style.language);
    }
    let text = arguments.text.join(" ");
    if let Some(id) = Id::parse(text.trim_matches(['[', ']'])) {
        return match arguments.json {
            true => output::say_json(&page_json(problem(id), style.language)),
            false => output::say(format_args!("{}", page(problem(id), &style).trim_end())),
        };
    }
    let explanation = if arguments.text.is_empty() { standard_input()? } else { of(&text) };
    if arguments.json {
        output::say_json(&explanation.json(style.language))?;
    } else {
        output::say(format_args!("{}", explanation.words(&style).trim_end()))?;
    }
    if explanation.first.is_none() && std::fs::exists(&text).unwrap_or(false) {
        output::note(format_args!("to explain a file: handfast explain < {text}"));
    }
    explanation.first.map_or(Err(Failure::NotRecognised), |_| Ok(()))
}

fn of(text: &str) -> Explanation {
    let mut explainer = Explainer::default();
    explainer.feed(text.as_bytes());
    explainer.finish()
}

fn standard_input() -> Result<Explanation, Failure> {
    let mut input = std::io::stdin().lock();
    if input.is_terminal() {
        output::note(format_args!("paste the log, then Ctrl-D"));
    }
    let mut explainer = Explainer::default();
    let mut chunk = vec![0; CHUNK_BYTES];
    while explainer.wants_more() {
        match input.read(&mut chunk) {
            Ok(0) => break,
            Ok(bytes) => explainer.feed(&chunk[..bytes]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Failure::System { what: "reading standard input", error }),
        }
    }
    Ok(explainer.finish())
}

fn list(json: bool, language: Language) -> Outcome {
    if json {
        let pages: Vec<_> = problems().iter().map(|entry| page_json(entry, language)).collect();
        return output::say_json(&pages);
    }
    let mut text = String::new();
    for entry in problems() {
        let _ = writeln!(text, "{:<20} {}", entry.id, entry.title.get(language));
    }
    output::say(format_args!("{}", text.trim_end()))
}
