//! Variables of the Mooncake Transfer Engine without an effect here, and the reasons.

use std::sync::LazyLock;

/// Variables that share a replacement, or a reason for having none.
#[derive(Default)]
pub(super) struct Known {
    pub(super) names: Vec<&'static str>,
    pub(super) why: &'static str,
}

/// Lines of names, each followed by an indented line with the reason.
pub(super) static WITHOUT_EFFECT: LazyLock<Vec<Known>> = LazyLock::new(|| {
    let (mut all, mut names) = (Vec::new(), Vec::new());
    let lines = include_str!("without_effect.txt").lines();
    for line in lines.filter(|line| !line.starts_with('#')) {
        match line.strip_prefix("    ") {
            Some(why) => all.push(Known { names: std::mem::take(&mut names), why }),
            None => names.extend(line.split(' ')),
        }
    }
    all
});

/// The reason for variables of Mooncake Store, which handfast does not implement.
const OF_STORE: &str = "part of Mooncake Store, which is built on the transfer engine";
/// Further prefixes of Mooncake Store's variables.
const STORE: [&str; 2] = ["MC_STORE_", "MC_NOF_"];

/// Returns the reason why a variable of Mooncake's has no effect here; `None` for other variables.
pub(super) fn why_without_effect(name: &str) -> Option<&'static str> {
    let known = WITHOUT_EFFECT.iter().find(|known| known.names.contains(&name));
    let of_store = STORE.iter().any(|prefix| name.starts_with(prefix)).then_some(OF_STORE);
    known.map(|known| known.why).or(of_store)
}
