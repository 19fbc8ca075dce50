//! The device profiles of the simulator and of the verbs backend agree.

use handfast_transport_rdma::{Connecting, DEVICE_PROFILES};
use handfast_transport_sim::verbs::{DuplicateRead, PROFILES, PsnSource};

/// Devices that no lane can use are not simulated, except for the mode that users meet.
const NOT_SIMULATED: [&str; 3] = ["siw", "iwarp", "efa"];

/// The profiles of the simulator and of the backend agree.
#[test]
fn simulator_and_backend_profiles_agree() {
    for real in DEVICE_PROFILES {
        let Some(simulated) = PROFILES.iter().find(|profile| profile.name == real.name) else {
            assert!(NOT_SIMULATED.contains(&real.name), "{} is not simulated", real.name);
            continue;
        };
        let name = real.name;
        let connects = real.connecting == Connecting::OutOfBand;
        assert_eq!(connects, simulated.gid_index.is_some(), "{name}");
        assert_eq!(real.retries_infinite, simulated.retry.infinite_count, "{name}");
        assert_eq!(real.retries_fixed, simulated.retry.count_fixed, "{name}");
        assert_eq!(real.honours_psns, simulated.psn_source == PsnSource::Attributes, "{name}");
        let drops = simulated.duplicate_read == DuplicateRead::Dropped;
        assert_eq!(real.drops_stale_reads, drops, "{name}");
        if connects {
            assert_eq!(real.takes_link_local, !simulated.refuses_link_local, "{name}");
            assert_eq!(real.takes_ipv6, !simulated.connects_ipv4_only, "{name}");
        }
    }
    for simulated in PROFILES {
        let known = DEVICE_PROFILES.iter().any(|real| real.name == simulated.name);
        assert!(known, "{} is not known to the backend", simulated.name);
    }
}
