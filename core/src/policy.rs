//! Decisions without I/O: which lanes to open, probe, evict or distrust, for how long, and what
//! peers may do.
//!
//! Each machine owns one decision. `handle_*` takes what happened and `poll_*` yields what to do; every
//! instant comes from the caller, and outputs depend on nothing but the inputs and their order. All
//! machines are `Clone` and `Hash`, so that an explorer can branch over them.

mod audit;
mod eviction;
mod fallback;
mod fence;
mod grants;
mod lone_poll;
mod look_ups;
mod pace;
mod places;
mod qpn_reuse;
mod quota;
mod rails;
mod trust;
mod watchdog;

pub use audit::{AUDIT_REPORTS_PER_SECOND, AuditPace};
pub use eviction::{
    EvictionChoice, HOLD_MAX, HOLD_MIN, LOOK_AGAIN, LaneEviction, LaneUsage, RETURN_MAX,
};
pub use fallback::{FAILED_LANES_MAX, FALLBACK_TIME, RdmaFallback};
pub use fence::FenceLedger;
pub use grants::{
    Access, AccessMemo, Administrators, GRANTS_MAX, Grant, GrantError, Grants, KEY_GROUPS_MAX,
    KEY_RETRY_INTERVAL, KeyGroup, KeyGroupId, KeyGroups, Requester,
};
pub use lone_poll::{ALONE_MIN, IN_PLACE_MAX, LonePoll};
pub use look_ups::{AfterRefusal, Doubt, LookUp, LookUps};
pub use pace::{DENSE_MAX, Pace};
pub use places::{Placed, Room, network_of, room};
pub use qpn_reuse::QpnReuseDetector;
pub use quota::{PeerQuota, QuotaExceeded, QuotaSide};
pub use rails::{
    FailureClass, RAIL_FAILURES_MAX, RAIL_PAUSE_MAX, RAIL_PAUSE_MIN, RAIL_STEADY, RAILS_MAX,
    RailOutput, RailPlan, RailStance, RailVerdict, Rails, plan_rails,
};
pub use trust::{
    TRUST_GROUP_NAME_BYTES_MAX, TRUST_GROUPS_MAX, TRUST_PATTERNS_MAX, TrustGroup, TrustGroupError,
    TrustGroups,
};
pub use watchdog::LaneWatchdog;
