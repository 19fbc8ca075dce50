//! The readable head of an authenticated connection, its sealed content, a file of keys, a revocation
//! list, and the decisions of both ends in any order.

use crate::check_error;
use handfast::AuthOptions;
use handfast::fuzzing::revocation_list;
use handfast_core::auth::{
    AUTH_VERSION, AnswerSeen, AuthHello, AuthHelloHead, AuthPolicy, Identity, Inbound, KeyRule,
    Outbound,
};
use handfast_core::{Incarnation, NodeName};

/// An authority whose private key is lost, and the one list that it has signed.
const AUTHORITY: &str = include_str!("auth/authority.pem");
const SIGNED_LIST: &[u8] = include_bytes!("../../corpus/auth/list");

/// Panics unless what decodes encodes to the same again, no list counts that its authority has not signed,
/// and an end serves nobody who has not proven a key.
pub fn check(bytes: &[u8]) {
    match AuthHelloHead::decode(bytes) {
        Ok((head, sealed)) => {
            assert_eq!([&head.encode(), sealed].concat(), bytes, "the head changed");
        }
        Err(error) => check_error(&error.to_string()),
    }
    match AuthHello::decode(bytes) {
        Ok(hello) => assert_eq!(hello.encode(), bytes, "the hello changed"),
        Err(error) => check_error(&error.to_string()),
    }
    if let Ok(text) = str::from_utf8(bytes)
        && let Err(error) = AuthOptions::psk(text)
    {
        check_error(&error.to_string());
    }
    check_list(bytes);
    check_ends(bytes);
}

/// A list that is taken has its parts, within its bytes, and the signed ones are those of the authority if
/// they are said to be.
fn check_list(bytes: &[u8]) {
    let read = revocation_list(AUTHORITY, bytes).expect("the authority is one");
    assert_eq!(read.is_list, read.checked.is_some());
    if let Some([data, algorithm, signature]) = read.signed {
        let parts = data.len() + algorithm.len() + signature.len();
        assert!(parts < bytes.len(), "{parts} bytes of {}", bytes.len());
    }
    if let Some([algorithm, key]) = read.key {
        assert!(algorithm.len() + key.len() < bytes.len(), "a key beyond its bytes");
    }
    match read.checked {
        Some(Ok(true)) => {
            let genuine = revocation_list(AUTHORITY, SIGNED_LIST).expect("the authority is one");
            let data = |signed: Option<[&[u8]; 3]>| signed.map(|[data, ..]| data.to_vec());
            assert_eq!(data(read.signed), data(genuine.signed), "a list that nobody has signed");
        }
        Some(Ok(false)) => assert!(read.signed.is_some(), "no part of it is signed"),
        // A list that webpki parses has the form that is read here.
        Some(Err(refusal)) => assert!(read.signed.is_some(), "{refusal}"),
        None => {}
    }
}

/// One step per byte, at an end of either kind.
fn check_ends(steps: &[u8]) {
    let own = identity("own", 1);
    let rule = |id| KeyRule::new(id, Vec::new()).expect("it is an id");
    let policy = AuthPolicy::new(own, vec![rule("a"), rule("b")]).expect("two keys");
    let (mut inbound, mut outbound) = (Inbound::default(), Outbound::new(None));
    // The order in which a peer proves a key: its key, its hello, a record.
    let mut proven = 0;
    for step in steps {
        let peer = identity("peer", 2 + u128::from(step >> 4));
        let hello = AuthHello { from: peer.clone(), to: None };
        proven = match step & 7 {
            0 => {
                assert!(inbound.handle_plain(&policy).is_err(), "a plain peer is served");
                9
            }
            1 => match inbound.handle_head(&policy, AUTH_VERSION, "a") {
                Ok(key) => {
                    assert_eq!((key, proven), (0, 0), "a second hello");
                    1
                }
                Err(_) => 9,
            },
            2 => match inbound.handle_hello(&policy, Some(hello)) {
                Ok(()) => {
                    assert_eq!(proven, 1, "a hello without a key");
                    2
                }
                Err(_) => 9,
            },
            3 => {
                assert!(inbound.handle_hello(&policy, None).is_err(), "a sealed hello counts");
                9
            }
            4 => match inbound.handle_record(&policy, true) {
                true => {
                    assert!(proven == 2 || proven == 3, "a record is served before a hello");
                    3
                }
                false => 9,
            },
            5 => {
                assert!(
                    !inbound.handle_record(&policy, false),
                    "a record that does not open is served"
                );
                9
            }
            6 => {
                let answered = outbound.handle_answer(&policy, AnswerSeen::Opened(peer.clone()));
                assert!(answered.is_ok() && outbound.peer() == Some(&peer));
                proven
            }
            _ => {
                assert!(outbound.handle_answer(&policy, AnswerSeen::Nothing).is_err());
                proven
            }
        };
        assert_eq!(inbound.peer().is_some(), proven == 3, "who is proven");
    }
}

fn identity(name: &str, run: u128) -> Identity {
    let name = NodeName::new(name).expect("it is a name");
    Identity { name, incarnation: Incarnation(run) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The corpus has the list that counts, and one that another key has signed.
    #[test]
    fn list_of_the_authority_alone_counts() {
        let checked = |list: &'static [u8]| revocation_list(AUTHORITY, list).unwrap().checked;
        assert_eq!(checked(SIGNED_LIST), Some(Ok(true)));
        let other = include_bytes!("../../corpus/auth/list-other-key");
        assert!(matches!(checked(other), Some(Err(_))));
        let unknown = include_bytes!("../../corpus/auth/list-unknown-issuer");
        assert_eq!(checked(unknown), Some(Ok(false)));
        let key = include_bytes!("../../corpus/auth/list-key");
        assert!(revocation_list(AUTHORITY, key).unwrap().key.is_some());
    }
}
