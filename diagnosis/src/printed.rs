//! The catalogue as Markdown: a list of all problems, and a file for each part.

use crate::language::Language;
use crate::page::filled;
use crate::problem::{Problem, problems};
use std::fmt::Write;

/// A file of the printed catalogue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrintedPage {
    /// Its path from the folder of the printed catalogue.
    pub path: String,
    /// Markdown.
    pub text: String,
}

/// Returns the whole catalogue: first the list, then each part.
pub fn printed_catalogue(language: Language) -> Vec<PrintedPage> {
    let parts = problems().chunk_by(|one, next| one.file == next.file);
    let mut pages =
        vec![PrintedPage { path: extended("diagnosis", language), text: list(language) }];
    pages.extend(parts.map(|problems| part(problems, language)));
    pages
}

fn extended(file: &str, language: Language) -> String {
    format!("{file}{}.md", language.pick("", ".zh"))
}

fn list(language: Language) -> String {
    let mut out = language
        .pick(
            "# Problems and their remedies\n\n\
             Generated from `diagnosis/catalogue`: edit it there. `handfast explain ID` prints one entry, \
             `handfast explain \"TEXT\"` finds the entry of a message, `handfast explain < LOG` the first \
             error of a log, `handfast doctor` checks this machine for them.\n",
            "# 常见问题与处理方法\n\n\
             本页由 `diagnosis/catalogue` 生成,请在那里修改。`handfast explain ID` 显示单个条目,\
             `handfast explain \"文字\"` 根据消息查找条目,`handfast explain < 日志` 找出日志中的第一个错误,\
             `handfast doctor` 在本机上逐项检查。\n",
        )
        .to_owned();
    for problems in problems().chunk_by(|one, next| one.file == next.file) {
        let file = format!("diagnosis/{}", extended(problems[0].file, language));
        let _ = write!(out, "\n## [{}]({file})\n\n", problems[0].section.get(language));
        for problem in problems {
            let _ = writeln!(out, "- {}: {}", problem.id, problem.title.get(language));
        }
    }
    out
}

fn part(problems: &[Problem], language: Language) -> PrintedPage {
    let first = &problems[0];
    let mut text = format!(
        "# {}\n\n[{}](../{})\n",
        first.section.get(language),
        language.pick("All problems", "全部问题"),
        extended("diagnosis", language),
    );
    for problem in problems {
        let _ = write!(
            text,
            "\n## {}: {}\n\n{}\n\n- {} {}\n- {} {}\n",
            problem.id,
            problem.title.get(language),
            problem.what.get(language),
            language.pick("**Why:**", "**原因:**"),
            problem.cause.get(language),
            language.pick("**Remedy:**", "**处理:**"),
            problem.remedy.get(language),
        );
        if !problem.command.is_empty() {
            let _ = writeln!(text, "- `{}`", filled(problem.command, |_| None));
        }
        let _ = writeln!(
            text,
            "- {} {}\n- {} {}, {}",
            language.pick("**Check:**", "**验证:**"),
            problem.verify.get(language),
            language.pick("**Severity, side:**", "**级别与位置:**"),
            problem.severity.word(language),
            problem.side.words(language),
        );
    }
    PrintedPage { path: format!("diagnosis/{}", extended(first.file, language)), text }
}
