//! Questions for the grants of a node's segments and changes of them, in metadata frames.

use super::message::{DETAIL_BYTES_MAX, from_object, truncated};
use super::segment::REGION_NAME_BYTES_MAX;
use crate::policy::{Access, GRANTS_MAX, Grant};
use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// Maximum grants of one answer, over all segments.
pub const GRANTS_LISTED_MAX: usize = 1_024;

/// A question for the grants of segments, or a change of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrantsRequest {
    /// The grants of a segment, or of all.
    List {
        /// Name of the segment; `None` for all.
        segment: Option<String>,
    },
    /// Another grant.
    Add {
        /// Name of the segment.
        segment: String,
        /// The grant.
        grant: Grant,
    },
    /// One grant less.
    Revoke {
        /// Name of the segment.
        segment: String,
        /// The grant.
        grant: Grant,
    },
}

/// The grants of segments, by name.
pub type SegmentGrants = BTreeMap<String, Vec<Grant>>;

/// Reasons of refused questions and changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantsRefusalReason {
    /// The sender is no administrator.
    NoAdministrator,
    /// The node serves no segment of that name.
    NoSegment,
    /// A limit is reached.
    Limit,
    /// Anything else, and the reasons of other versions.
    Other,
}

impl GrantsRefusalReason {
    const NAMED: [(Self, &str); 3] = [
        (Self::NoAdministrator, "no_administrator"),
        (Self::NoSegment, "no_segment"),
        (Self::Limit, "limit"),
    ];
}

/// A refused question or change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct GrantsRefusal {
    /// The reason.
    pub reason: GrantsRefusalReason,
    /// The text for people.
    pub detail: String,
}

/// The answer: the grants of the segments that were asked for, after the change, or the refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantsAnswer(pub Result<SegmentGrants, GrantsRefusal>);

/// The frame is malformed or exceeds a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the request for grants, or its answer, is malformed")]
pub struct GrantsMessageError;

#[derive(Serialize, Deserialize)]
struct WireGrant {
    peers: String,
    read: bool,
    write: bool,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Op {
    List,
    Add,
    Revoke,
}

#[derive(Serialize, Deserialize)]
struct WireRequest {
    op: Op,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    segment: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    grant: Option<WireGrant>,
}

#[derive(Serialize, Deserialize)]
struct Asked {
    handfast_grants: WireRequest,
}

#[derive(Serialize, Deserialize)]
struct WireAnswer {
    #[serde(default)]
    segments: BTreeMap<String, Vec<WireGrant>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    refusal: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct Answered {
    handfast_grants: WireAnswer,
}

fn wire(grant: &Grant) -> WireGrant {
    let Access { remote_read: read, remote_write: write } = grant.access();
    WireGrant { peers: grant.peers().to_string(), read, write }
}

fn grant(wire: &WireGrant) -> Result<Grant, GrantsMessageError> {
    let access = Access { remote_read: wire.read, remote_write: wire.write };
    Grant::new(access, &wire.peers).map_err(|_| GrantsMessageError)
}

fn text(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("it has string keys and no fallible serializer")
}

impl GrantsRequest {
    /// Encodes to the JSON text of a metadata frame. An earlier version answers it as a question for its
    /// descriptor.
    pub fn encode(&self) -> String {
        let (op, segment, grant) = match self {
            Self::List { segment } => (Op::List, segment.clone(), None),
            Self::Add { segment, grant } => (Op::Add, Some(segment.clone()), Some(wire(grant))),
            Self::Revoke { segment, grant } => {
                (Op::Revoke, Some(segment.clone()), Some(wire(grant)))
            }
        };
        text(&Asked { handfast_grants: WireRequest { op, segment, grant } })
    }

    /// Decodes a metadata frame; `None` if it asks for something else.
    ///
    /// # Errors
    /// [`GrantsMessageError`].
    pub fn decode(frame: &str) -> Option<Result<Self, GrantsMessageError>> {
        let Asked { handfast_grants: WireRequest { op, segment, grant: given } } =
            from_object(frame).ok()?;
        let is_long = segment.as_ref().is_some_and(|name| name.len() > REGION_NAME_BYTES_MAX);
        if is_long {
            return Some(Err(GrantsMessageError));
        }
        Some(match (op, segment, given) {
            (Op::List, segment, None) => Ok(Self::List { segment }),
            (Op::Add, Some(segment), Some(given)) => {
                grant(&given).map(|grant| Self::Add { segment, grant })
            }
            (Op::Revoke, Some(segment), Some(given)) => {
                grant(&given).map(|grant| Self::Revoke { segment, grant })
            }
            _ => Err(GrantsMessageError),
        })
    }
}

impl GrantsAnswer {
    /// Encodes to the JSON text of a metadata frame.
    pub fn encode(&self) -> String {
        let answer = match &self.0 {
            Ok(segments) => {
                let of = |(name, grants): (&String, &Vec<Grant>)| {
                    (name.clone(), grants.iter().map(wire).collect())
                };
                WireAnswer {
                    segments: segments.iter().map(of).collect(),
                    refusal: None,
                    reason: None,
                }
            }
            Err(refusal) => {
                let mut named = GrantsRefusalReason::NAMED.into_iter();
                WireAnswer {
                    segments: BTreeMap::new(),
                    refusal: Some(truncated(refusal.detail.clone(), DETAIL_BYTES_MAX)),
                    reason: named.find(|it| it.0 == refusal.reason).map(|it| it.1.to_string()),
                }
            }
        };
        text(&Answered { handfast_grants: answer })
    }

    /// Decodes a metadata frame. That of an earlier version, its descriptor, is none.
    ///
    /// # Errors
    /// [`GrantsMessageError`].
    pub fn decode(frame: &str) -> Result<Self, GrantsMessageError> {
        let Answered { handfast_grants: WireAnswer { segments, refusal, reason } } =
            from_object(frame).map_err(|_| GrantsMessageError)?;
        if let Some(refusal) = refusal {
            let mut named = GrantsRefusalReason::NAMED.into_iter();
            let known = named.find(|it| reason.as_deref() == Some(it.1));
            return Ok(Self(Err(GrantsRefusal {
                reason: known.map_or(GrantsRefusalReason::Other, |it| it.0),
                detail: truncated(refusal, DETAIL_BYTES_MAX),
            })));
        }
        let listed: usize = segments.values().map(Vec::len).sum();
        let is_long = |name: &String| name.len() > REGION_NAME_BYTES_MAX;
        let is_full = |grants: &Vec<WireGrant>| grants.len() > GRANTS_MAX;
        if listed > GRANTS_LISTED_MAX
            || segments.keys().any(is_long)
            || segments.values().any(is_full)
        {
            return Err(GrantsMessageError);
        }
        let of = |(name, grants): (String, Vec<WireGrant>)| {
            Ok((name, grants.iter().map(grant).collect::<Result<_, _>>()?))
        };
        segments.into_iter().map(of).collect::<Result<_, _>>().map(|all| Self(Ok(all)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::vec;

    fn given() -> Grant {
        Grant::read("decode-*").expect("it is a pattern")
    }

    #[test]
    fn requests_and_answers_keep_their_content() {
        let segment = || "cache".to_string();
        for request in [
            GrantsRequest::List { segment: None },
            GrantsRequest::List { segment: Some(segment()) },
            GrantsRequest::Add { segment: segment(), grant: given() },
            GrantsRequest::Revoke { segment: segment(), grant: given() },
        ] {
            assert_eq!(GrantsRequest::decode(&request.encode()), Some(Ok(request)));
        }
        let listed = SegmentGrants::from([(segment(), vec![given()]), ("w".into(), Vec::new())]);
        let reasons = GrantsRefusalReason::NAMED.map(|it| it.0);
        let refused = reasons
            .into_iter()
            .chain([GrantsRefusalReason::Other])
            .map(|reason| GrantsAnswer(Err(GrantsRefusal { reason, detail: "no".into() })));
        for answer in refused.chain([GrantsAnswer(Ok(listed))]) {
            assert_eq!(GrantsAnswer::decode(&answer.encode()), Ok(answer));
        }
        let later = r#"{"handfast_grants": {"refusal": "no", "reason": "later"}}"#;
        let other = GrantsRefusal { reason: GrantsRefusalReason::Other, detail: "no".into() };
        assert_eq!(GrantsAnswer::decode(later), Ok(GrantsAnswer(Err(other))));
    }

    /// Frames with another content are none, and those past a bound are refused.
    #[test]
    fn other_frames_and_long_ones_are_refused() {
        for other in [
            "",
            "null",
            "{}",
            r#"[{"op": "list"}]"#,
            r#"{"handfast": {}}"#,
            r#"{"handfast_grants": 7}"#,
        ] {
            assert_eq!(GrantsRequest::decode(other), None, "{other}");
            assert_eq!(GrantsAnswer::decode(other), Err(GrantsMessageError), "{other}");
        }
        let named = |bytes| GrantsRequest::List { segment: Some("x".repeat(bytes)) }.encode();
        assert!(matches!(GrantsRequest::decode(&named(REGION_NAME_BYTES_MAX)), Some(Ok(_))));
        for wrong in [
            named(REGION_NAME_BYTES_MAX + 1),
            r#"{"handfast_grants": {"op": "add", "segment": "a"}}"#.into(),
            r#"{"handfast_grants": {"op": "add", "grant": {"peers": "a", "read": true, "write": false}}}"#
                .into(),
            r#"{"handfast_grants": {"op": "add", "segment": "a", "grant": {"peers": "a@b", "read": true, "write": false}}}"#
                .into(),
        ] {
            assert_eq!(GrantsRequest::decode(&wrong), Some(Err(GrantsMessageError)), "{wrong}");
        }
        let answered = |bytes| {
            let of_name = SegmentGrants::from([("x".repeat(bytes), vec![given()])]);
            GrantsAnswer::decode(&GrantsAnswer(Ok(of_name)).encode())
        };
        assert!(answered(REGION_NAME_BYTES_MAX).is_ok());
        assert_eq!(answered(REGION_NAME_BYTES_MAX + 1), Err(GrantsMessageError));
        let full = |segments: usize, each: usize| {
            let of = |at: usize| (format!("s{at}"), vec![given(); each]);
            GrantsAnswer(Ok((0..segments).map(of).collect())).encode()
        };
        assert!(GrantsAnswer::decode(&full(GRANTS_LISTED_MAX / GRANTS_MAX, GRANTS_MAX)).is_ok());
        let past = full(GRANTS_LISTED_MAX / GRANTS_MAX + 1, GRANTS_MAX);
        assert_eq!(GrantsAnswer::decode(&past), Err(GrantsMessageError));
        assert_eq!(GrantsAnswer::decode(&full(1, GRANTS_MAX + 1)), Err(GrantsMessageError));
    }
}
