//! The list of devices, from the environment.

use crate::lies;
use handfast_transport_sim::verbs::{GidKind, Numbers, PROFILES, Profile, TCP_RETRY};
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// The variable with the list.
pub(crate) const VARIABLE: &str = "HANDFAST_FABRIC";
/// Default maximum queue pairs and regions of a device.
pub(crate) const QUEUE_PAIRS_MAX: u32 = 4_096;
pub(crate) const REGIONS_MAX: u32 = 8_192;
/// Time between two tries of a device with a fixed number of retries, in nanoseconds. No driver gives it;
/// 25 tries take a good second.
const FIXED_INTERVAL_NS: u64 = 50_000_000;
const NANOSECONDS_PER_MS: u64 = 1_000_000;
/// Version of the address that `ipv6` adds.
const ROCE_V2: u8 = 2;
/// Devices of iWARP, by the names of the transport's profiles.
const IWARP: [&str; 2] = ["siw", "iwarp"];
/// The default partition of InfiniBand, with full membership.
pub(crate) const PARTITION: u16 = 0xffff;
/// The membership of a partition key, and the partition in it.
const FULL_MEMBER: u16 = 0x8000;
/// Maximum devices.
pub(crate) const DEVICES_MAX: usize = 64;

/// A device of the list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listed {
    pub(crate) name: &'static str,
    pub(crate) profile: &'static Profile,
    pub(crate) is_infiniband: bool,
    /// Packets of its InfiniBand port must carry GIDs.
    pub(crate) requires_gids: bool,
    /// The partition of the interface that has its addresses, on InfiniBand.
    pub(crate) partition: u16,
    /// The driver lets peers write to every registered region.
    pub(crate) grants_remote_write: bool,
    /// The driver registers nothing with relaxed ordering.
    pub(crate) refuses_relaxed_ordering: bool,
    /// The side that accepts a connection breaks a law if it sends before the first frame of the side that has
    /// dialled, as iWARP demands.
    pub(crate) dialler_sends_first: bool,
    /// The name of its second port.
    second_name: Option<&'static str>,
    /// The entry that stands for its second port.
    pub(crate) second: Option<usize>,
    /// The device whose second port it is: a table of its own, with the objects of the first.
    pub(crate) port_of: Option<usize>,
}

impl Listed {
    /// Whether packets pass between its addresses and those of another device: on InfiniBand the interfaces of one
    /// partition hear each other if one of them is a full member.
    pub(crate) fn shares_partition(&self, other: &Self) -> bool {
        let is_member = (self.partition | other.partition) & FULL_MEMBER != 0;
        let is_same = (self.partition ^ other.partition) & !FULL_MEMBER == 0;
        !(self.is_infiniband && other.is_infiniband) || is_member && is_same
    }
}

/// The devices of all lists by their entry: what they name lives as long as the process.
static KNOWN: Mutex<BTreeMap<String, Listed>> = Mutex::new(BTreeMap::new());

/// Parses a list.
pub(crate) fn parse(text: &str) -> Result<Vec<Listed>, String> {
    let mut listed = Vec::new();
    for text in text.split(',').filter(|entry| !entry.is_empty()) {
        let (at, device) = (listed.len(), entry(text)?);
        let second = device.second_name.map(|_| at + 1);
        listed.push(Listed { second, ..device });
        let port = |name| Listed { name, second_name: None, port_of: Some(at), ..device };
        listed.extend(device.second_name.map(port));
    }
    if listed.len() > DEVICES_MAX {
        return Err(format!("{VARIABLE} lists {} devices; at most {DEVICES_MAX}", listed.len()));
    }
    for (at, device) in listed.iter().enumerate() {
        if listed[..at].iter().any(|other| other.name == device.name) {
            return Err(format!("{VARIABLE} lists {} twice", device.name));
        }
    }
    Ok(listed)
}

fn entry(text: &str) -> Result<Listed, String> {
    let mut known = KNOWN.lock();
    if let Some(listed) = known.get(text) {
        return Ok(*listed);
    }
    let listed = new_entry(text)?;
    known.insert(text.to_owned(), listed);
    Ok(listed)
}

/// A device of iWARP: the steps and the only address of eRDMA in standard mode, the retransmissions of
/// TCP, and whatever else as specified.
fn iwarp(wanted: &str) -> Option<Profile> {
    let name = IWARP.into_iter().find(|name| *name == wanted)?;
    let of = |name| PROFILES.into_iter().find(|profile| profile.name == name);
    let (erdma, strict) = (of("erdma-standard")?, of("strict")?);
    let Profile { transitions, gids, gid_table_length, gid_index, resolves, .. } = *erdma;
    let retry = TCP_RETRY;
    let own = Profile { name, transitions, gids, gid_table_length, gid_index, ..*strict };
    Some(Profile { resolves, retry, ..own })
}

/// The profile of a name, with the limits of a device.
fn profile_of(wanted: &str) -> Result<Profile, String> {
    let known = PROFILES.into_iter().find(|profile| profile.name == wanted);
    let Some(known) = known.copied().or_else(|| iwarp(wanted)) else {
        let names = PROFILES.iter().map(|profile| profile.name);
        let names: Vec<&str> = names.chain(IWARP).collect();
        return Err(format!("no profile '{wanted}'; there are: {}", names.join(", ")));
    };
    let mut profile =
        Profile { queue_pairs_max: QUEUE_PAIRS_MAX, regions_max: REGIONS_MAX, ..known };
    if profile.retry.count_fixed.is_some() && profile.retry.doubled_up_to_ns.is_none() {
        profile.retry.interval_floor_ns = FIXED_INTERVAL_NS;
    }
    Ok(profile)
}

fn new_entry(text: &str) -> Result<Listed, String> {
    let wrong = |why: String| format!("{VARIABLE}: '{text}': {why}");
    let (name, kind) =
        text.split_once('=').ok_or_else(|| wrong("not of the form NAME=PROFILE".to_owned()))?;
    let mut words = kind.split(':');
    let mut profile = profile_of(words.next().unwrap_or_default()).map_err(wrong)?;
    let (mut is_infiniband, mut has_ipv6, mut requires_gids) = (false, false, false);
    let (mut grants_remote_write, mut refuses_relaxed_ordering) = (false, false);
    let (mut second_name, mut dialler_sends_first) = (None, false);
    let mut partition = PARTITION;
    for word in words {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        let number = || value.parse().map_err(|_| wrong(format!("'{word}' needs a number")));
        match key {
            "numbers_from" => profile.numbers = from(profile.numbers, number()?),
            "queue_pairs" => profile.queue_pairs_max = number()?,
            "regions" => profile.regions_max = number()?,
            "retry_ms" => {
                profile.retry.interval_floor_ns = u64::from(number()?) * NANOSECONDS_PER_MS;
            }
            "completes_early" => profile.completes_early = true,
            "ipv6" => has_ipv6 = true,
            "grh" => requires_gids = true,
            "ports" => {
                second_name = match value {
                    "1" => None,
                    "2" => Some(&*format!("{name}:2").leak()),
                    _ => return Err(wrong(format!("'{word}': a device has 1 or 2 ports"))),
                }
            }
            "partition" => {
                let key = u16::from_str_radix(value.trim_start_matches("0x"), 16);
                partition =
                    key.map_err(|_| wrong(format!("'{word}' needs a key such as 0x8001")))?;
            }
            "grants_remote_write" => grants_remote_write = true,
            "dialler_sends_first" => dialler_sends_first = true,
            "refuses_relaxed_ordering" => refuses_relaxed_ordering = true,
            "lies" => profile = lies::lies(&profile, value).map_err(wrong)?,
            "infiniband" => {
                is_infiniband = true;
                // No neighbour is asked for, and the only address is of no RoCE version.
                profile.resolves = false;
                profile.gids = &[(GidKind::LinkLocal, 0)];
                profile.gid_index = Some(0);
            }
            _ => return Err(wrong(format!("no option '{key}'"))),
        }
    }
    if has_ipv6 {
        let gids = profile.gids.iter().copied().chain([(GidKind::Ipv6, ROCE_V2)]);
        profile.gids = gids.collect::<Vec<_>>().leak();
    }
    let profile = Box::leak(Box::new(profile));
    let name = name.to_owned().leak();
    Ok(Listed {
        name,
        profile,
        is_infiniband,
        requires_gids,
        partition,
        grants_remote_write,
        refuses_relaxed_ordering,
        dialler_sends_first,
        second_name,
        second: None,
        port_of: None,
    })
}

fn from(numbers: Numbers, first: u32) -> Numbers {
    match numbers {
        Numbers::SmallestFree { .. } => Numbers::SmallestFree { first },
        Numbers::Cycling { count, .. } => Numbers::Cycling { first, count },
        Numbers::Fresh { .. } => Numbers::Fresh { first },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Soft-iWARP and other devices of iWARP have one address, and no step to RTS.
    #[test]
    fn iwarp_devices_have_one_address() {
        for name in IWARP {
            let listed = parse(&format!("rxe0={name}")).unwrap();
            assert_eq!((listed[0].profile.name, listed[0].profile.gids.len()), (name, 1));
        }
    }

    /// A list names devices, profiles and options.
    #[test]
    fn list_names_devices_profiles_and_options() {
        let listed = parse("a=rxe,b=mlx5:numbers_from=100:queue_pairs=5:infiniband").unwrap();
        assert_eq!((listed[0].name, listed[0].profile.name), ("a", "rxe"));
        assert_eq!(listed[1].profile.numbers, Numbers::Fresh { first: 100 });
        assert_eq!(listed[1].profile.queue_pairs_max, 5);
        assert!(listed[1].is_infiniband && !listed[0].is_infiniband);
    }

    /// Full members of a partition hear all of it, limited ones its full members, and devices of Ethernet have none.
    #[test]
    fn partitions_separate_infiniband_devices() {
        let of = |key: &str| format!("mlx5:infiniband:partition={key}");
        for (one, other, is_shared) in [
            ("0x8001", "0x8001", true),
            ("0x8001", "0x0001", true),
            ("0x0001", "0x0001", false),
            ("0x8001", "0x8002", false),
            ("0x8001", "0xffff", false),
        ] {
            let listed = parse(&format!("a={},b={}", of(one), of(other))).unwrap();
            assert_eq!(listed[0].shares_partition(&listed[1]), is_shared, "{one} {other}");
        }
        let listed = parse("a=rxe:partition=0x8001,b=rxe").unwrap();
        assert!(listed[0].shares_partition(&listed[1]));
    }

    /// An IPv6 address is added behind the profile's own ones.
    #[test]
    fn ipv6_address_is_added_behind_others() {
        let listed = parse("a=mlx5:ipv6").unwrap();
        assert_eq!(listed[0].profile.gids.len(), 5);
        assert_eq!(listed[0].profile.gids[4], (GidKind::Ipv6, 2));
    }

    /// A wrong list is refused with the word that is wrong.
    #[test]
    fn wrong_list_is_refused_by_its_word() {
        for (text, word) in [
            ("rxe0", "NAME=PROFILE"),
            ("rxe0=rxx", "no profile 'rxx'"),
            ("rxe0=rxe:regions=x", "needs a number"),
            ("rxe0=erdma-compat:retry_ms=-1", "needs a number"),
            ("rxe0=rxe:ports=3", "1 or 2 ports"),
            ("rxe0=rxe:ports=2,rxe0:2=rxe", "lists rxe0:2 twice"),
            ("rxe0=mlx5:infiniband:partition=x", "needs a key such as 0x8001"),
            ("rxe0=rxe:color=red", "no option 'color'"),
            ("rxe0=rxe:lies=colour", "no lie 'colour'; there are: connects, reset"),
            ("rxe0=rxe:lies=larger_mtu", "'rxe' does so without the lie 'larger_mtu'"),
            ("rxe0=rxe,rxe0=mlx5", "twice"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(word) && error.contains(VARIABLE), "{error}");
        }
        let many: Vec<String> = (0..64).map(|n| format!("d{n}=rxe")).collect();
        assert_eq!(parse(&many.join(",")).unwrap().len(), DEVICES_MAX);
        let many: Vec<String> = (0..65).map(|n| format!("d{n}=rxe")).collect();
        assert!(parse(&many.join(",")).unwrap_err().contains("at most 64"));
    }
}
