//! Devices that differ from their profile in single fields: what a measurement of a device must
//! find.

use handfast_transport_sim::verbs::{
    DuplicateRead, ERDMA_STANDARD, IRDMA, LatePost, Numbers, Profile, PsnSource, Status,
};

/// The only number that a device with reused numbers needs.
const NUMBER: u32 = 17;
/// Retries of a device that ignores the count it is given.
const RETRIES: u8 = 24;
/// A retry count that is unlimited on some devices.
const UNLIMITED: u8 = 7;

type Lie = (&'static str, fn(&mut Profile));

/// The lies by name, each with its field of the table.
const LIES: [Lie; 17] = [
    ("connects", |it| it.transitions = ERDMA_STANDARD.transitions),
    ("reset", |it| it.transitions = IRDMA.transitions),
    ("read_sink", |it| it.sink_needs_remote_write = true),
    ("empty_read", |it| it.refuses_empty_read = true),
    ("byte_read", |it| it.refuses_byte_read = true),
    ("late_post", |it| it.late_post = LatePost::Lost),
    ("wrong_key", |it| it.statuses.remote_access = Status::General),
    ("local_key", |it| it.statuses.local_key = Status::General),
    ("psn", |it| it.psn_source = PsnSource::Constant),
    ("stale_read", |it| it.duplicate_read = DuplicateRead::Dropped),
    ("link_local", |it| it.refuses_link_local = true),
    ("ipv6", |it| it.connects_ipv4_only = false),
    ("silent_peer", |it| it.retry.count_fixed = Some(RETRIES)),
    ("seven_retries", |it| it.retry.infinite_count = Some(UNLIMITED)),
    ("larger_mtu", |it| it.checks_path_mtu = false),
    ("error_event", |it| it.error_event = false),
    ("numbers", |it| it.numbers = Numbers::SmallestFree { first: NUMBER }),
];

/// Returns the profile with lies, whose names are joined by `+`.
pub(crate) fn lies(profile: &Profile, words: &str) -> Result<Profile, String> {
    words.split('+').try_fold(*profile, |lying, word| lie(&lying, word))
}

fn lie(profile: &Profile, word: &str) -> Result<Profile, String> {
    let Some((_, tell)) = LIES.iter().find(|(name, _)| *name == word) else {
        let names: Vec<&str> = LIES.iter().map(|(name, _)| *name).collect();
        return Err(format!("no lie '{word}'; there are: {}", names.join(", ")));
    };
    let mut lying = *profile;
    tell(&mut lying);
    if lying == *profile {
        return Err(format!("'{}' does so without the lie '{word}'", profile.name));
    }
    Ok(lying)
}

#[cfg(test)]
mod tests {
    use super::*;
    use handfast_transport_sim::verbs::PROFILES;

    /// Each lie changes at least one profile, and a profile keeps its name.
    #[test]
    fn each_lie_changes_a_profile() {
        for (word, _) in LIES {
            let lying = |profile: &&&Profile| lie(profile, word).is_ok();
            let profile = PROFILES.iter().find(lying).unwrap();
            assert_eq!(lie(profile, word).unwrap().name, profile.name, "{word}");
        }
    }
}
