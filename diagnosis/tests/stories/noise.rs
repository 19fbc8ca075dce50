//! Whatever comes in, it ends in an explanation.

use handfast_diagnosis::explain::{CONNECTIONS_MAX, EXCERPT_CHARS_MAX, Explainer, explain};
use handfast_diagnosis::{Language, Style, problems};
use proptest::prelude::*;

proptest! {
    #[test]
    fn any_bytes_are_explained_alike_however_they_are_cut(
        bytes in proptest::collection::vec(any::<u8>(), 0..4096),
        cut in 1_usize..64,
    ) {
        let mut whole = Explainer::default();
        whole.feed(&bytes);
        let mut cuts = Explainer::default();
        bytes.chunks(cut).for_each(|piece| cuts.feed(piece));
        prop_assert_eq!(whole.finish(), cuts.finish());
    }

    #[test]
    fn messages_among_noise_give_bounded_answers(
        picks in proptest::collection::vec((0_usize..10_000, "\\PC{0,40}", any::<bool>()), 0..60),
        columns in 1_usize..200,
    ) {
        let messages: Vec<&str> = problems().iter().flat_map(|problem| problem.messages).copied().collect();
        let mut text = String::new();
        for (pick, noise, newline) in &picks {
            text += noise;
            text += &messages[pick % messages.len()].replace(['*', '{', '}'], " ");
            text += if *newline { "\n" } else { "\u{1b}[3" };
        }
        let explained = explain(&text);
        prop_assert!(explained.seen.iter().all(|seen| seen.text.chars().count() <= EXCERPT_CHARS_MAX + 1));
        prop_assert!(explained.connections.len() <= CONNECTIONS_MAX);
        prop_assert_eq!(explained.first.is_some(), !explained.seen.is_empty());
        for language in [Language::English, Language::Chinese] {
            let words = explained.words(&Style { language, columns, colour: columns % 2 == 0 });
            prop_assert!(!words.is_empty());
        }
    }
}

/// Every message of the catalogue leads to its own page, or to one that says more.
#[test]
fn every_message_is_recognised_as_its_own_problem() {
    let mut wrong = Vec::new();
    for problem in problems() {
        for message in problem.messages {
            let text = example(message);
            let Some(first) = explain(&text).first else {
                wrong.push(format!("{}: {text}: nothing", problem.id));
                continue;
            };
            let refined = problem.refine.iter().any(|(_, id)| *id == first.id);
            if first.id != problem.id && !refined {
                wrong.push(format!("{}: {text}: {}", problem.id, first.id));
            }
        }
    }
    assert!(wrong.is_empty(), "{} messages lead elsewhere:\n{}", wrong.len(), wrong.join("\n"));
}

/// A message with something in its gaps, and an error number in words.
fn example(message: &str) -> String {
    const WORDS: [(&str, &str); 21] = [
        ("{EPERM}", "Operation not permitted [1]"),
        ("{ENOENT}", "No such file or directory"),
        ("{EIO}", "Input/output error [5]"),
        ("{EAGAIN}", "Resource temporarily unavailable [11]"),
        ("{ENOMEM}", "无法分配内存"),
        ("{EACCES}", "Permission denied"),
        ("{EFAULT}", "Bad address [14]"),
        ("{ENODEV}", "No such device"),
        ("{EINVAL}", "Invalid argument [22]"),
        ("{EMFILE}", "Too many open files"),
        ("{ENOSPC}", "No space left on device"),
        ("{EOPNOTSUPP}", "Operation not supported"),
        ("{EADDRINUSE}", "Address already in use"),
        ("{EADDRNOTAVAIL}", "Cannot assign requested address"),
        ("{ENETUNREACH}", "Network is unreachable"),
        ("{ECONNRESET}", "Connection reset by peer"),
        ("{ETIMEDOUT}", "Connection timed out [110]"),
        ("{ECONNREFUSED}", "拒绝连接"),
        ("{EHOSTUNREACH}", "No route to host"),
        ("{ERDMAPORT}", "30610"),
        ("{EAFNOSUPPORT}", "Address family not supported by protocol"),
    ];
    let text = message.replace('*', " x ");
    WORDS.iter().fold(text, |text, (name, words)| text.replace(name, words))
}
