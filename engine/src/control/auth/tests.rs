//! Sealed connections, and bytes that somebody changes on their way.

use super::noise::{CHUNK_BYTES_MAX, TAG_BYTES, accept, noise, open_answer, seal};
use super::*;
use crate::{AuthOptions, Engine};
use handfast_core::auth::{AUTH_VERSION, AnswerSeen, AuthHelloHead};
use handfast_core::wire::{Body, FrameError, Message, Op, RefusalReason};
use handfast_core::{Lifecycle, NicPath, Pair};
use tokio::net::{TcpListener, TcpStream};

#[cfg(feature = "tls")]
pub(super) mod certificates;

const KEY: &str = "k 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const LIMIT: usize = 1 << 20;

fn options() -> AuthOptions {
    AuthOptions::psk(KEY).unwrap()
}

fn keys(name: &str, run: u128) -> Keys {
    Keys::new(NodeName::new(name).unwrap(), Incarnation(run), Some(&options())).unwrap()
}

async fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    (near, listener.accept().await.unwrap().0)
}

/// Both ends of a session, the accepting one with its socket.
async fn session() -> (Channel<TcpStream>, Accepted, TcpStream) {
    let (near, mut far) = sockets().await;
    let accepting = tokio::spawn(async move {
        let mut magic = [0; 8];
        far.read_exact(&mut magic).await.unwrap();
        assert_eq!(magic, AUTH_MAGIC);
        (Accepted::begin(&mut far, &keys("b", 2)).await.unwrap(), far)
    });
    let look = Look::default();
    let channel = Channel::dial(near, &keys("a", 1), Outbound::new(None), &look).await;
    let (accepted, far) = accepting.await.unwrap();
    let Ok(channel) = channel else { panic!("the session opens") };
    (channel, accepted, far)
}

fn state(seal: &mut Option<Seal>) -> &mut TransportState {
    match seal {
        Some(Seal::Noise(state)) => state,
        _ => panic!("it is sealed by a key"),
    }
}

/// The bytes of a sealed frame.
fn sealed(seal: &mut TransportState, text: &str) -> Vec<u8> {
    let frame = encode_frame(FrameKind::Probe, text);
    let mut record = vec![0; 2 + frame.len() + TAG_BYTES];
    let length = seal.write_message(&frame, &mut record[2..]).unwrap();
    record[..2].copy_from_slice(&u16::try_from(length).unwrap().to_le_bytes());
    record
}

/// Frames of any length pass both ways, up to the limit, and both ends name each other.
#[tokio::test]
async fn frames_of_any_length_pass_both_ways() {
    let (mut near, mut accepted, mut far) = session().await;
    let (look, own) = (Look::default(), keys("b", 2));
    for bytes in [0, 1, CHUNK_BYTES_MAX - 9, CHUNK_BYTES_MAX - 8, 3 * CHUNK_BYTES_MAX, LIMIT - 1] {
        let text = "x".repeat(bytes);
        let (sent, frame) = tokio::join!(
            near.send(FrameKind::Metadata, &text),
            accepted.receive(&mut far, &own, &look, LIMIT)
        );
        sent.unwrap();
        assert_eq!(frame.unwrap().text.len(), bytes);
        let (sent, frame) = tokio::join!(
            accepted.send(&mut far, FrameKind::Metadata, &text),
            near.receive(&look, LIMIT)
        );
        sent.unwrap();
        assert_eq!(frame.unwrap().text.len(), bytes);
    }
    assert_eq!(near.peer().map(|peer| peer.name.as_str()), Some("b"));
    assert_eq!(accepted.inbound.peer().map(|peer| peer.name.as_str()), Some("a"));
    let long = "x".repeat(LIMIT);
    near.send(FrameKind::Metadata, &long[..CHUNK_BYTES_MAX]).await.unwrap();
    let refused = accepted.receive(&mut far, &own, &look, CHUNK_BYTES_MAX).await;
    assert!(matches!(refused, Err(ReadError::Frame(FrameError::TooLong { .. }))), "{refused:?}");
}

/// A record that was altered, repeated, reordered, left out or reflected does not open, and nothing
/// after it does.
#[tokio::test]
async fn changed_records_end_the_session() {
    type Change = fn(&mut Vec<Vec<u8>>);
    let changes: [Change; 5] = [
        |records| records[0][7] ^= 1,
        |records| records[1] = records[0].clone(),
        |records| records.swap(0, 1),
        |records| drop(records.remove(0)),
        |records| records[0][0] ^= 1,
    ];
    for (at, change) in changes.into_iter().enumerate() {
        let (mut near, mut accepted, mut far) = session().await;
        let seal = state(&mut near.seal);
        let mut records = vec![sealed(seal, "first"), sealed(seal, "second")];
        change(&mut records);
        near.stream.write_all(&records.concat()).await.unwrap();
        near.stream.shutdown().await.unwrap();
        let look = Look::default();
        let mut opened = 0;
        let ended = loop {
            match accepted.receive(&mut far, &keys("b", 2), &look, LIMIT).await {
                Ok(_) => opened += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(opened, usize::from(at == 1), "{at}");
        assert!(matches!(ended, ReadError::Unsealed | ReadError::Io(_)), "{at}: {ended}");
        assert!(
            !accepted.inbound.handle_record(&accepted.material.policy, true)
                || matches!(ended, ReadError::Io(_)),
            "{at}"
        );
    }
    let (mut near, mut accepted, mut far) = session().await;
    let Seal::Noise(own) = &mut accepted.seal else { panic!("it is sealed by a key") };
    let own = sealed(own, "reflected");
    near.stream.write_all(&own).await.unwrap();
    let reflected = accepted.receive(&mut far, &keys("b", 2), &Look::default(), LIMIT).await;
    assert!(matches!(reflected, Err(ReadError::Unsealed)), "{reflected:?}");
}

/// Every truncation and every altered byte of a hello is refused, and of an answer gives no session.
#[tokio::test]
async fn changed_hellos_and_answers_open_nothing() {
    let (a, b) = (keys("a", 1).current(), keys("b", 2).current());
    let (key, hello) = Outbound::new(None).hello(&a.policy).unwrap();
    let key = key.unwrap();
    let head = AuthHelloHead { version: AUTH_VERSION, key: "k".into() }.encode();
    let mut state = noise(&a, key, &head).unwrap().build_initiator().unwrap();
    let sealed = seal(&mut state, &hello.encode()).unwrap();
    let message = [&head[..], &sealed].concat();
    let accepted = |bytes: &[u8]| accept(&b, &mut Inbound::default(), bytes);
    let (_, _, answer) = accepted(&message).unwrap();
    for at in 0..message.len() {
        assert!(accepted(&message[..at]).is_err(), "{at}");
        let mut altered = message.clone();
        altered[at] ^= 1;
        assert!(accepted(&altered).is_err(), "{at}");
    }
    for at in 0..answer.len() {
        let mut altered = [&[ACCEPTED], &answer[..]].concat();
        altered[at + 1] ^= 1;
        let head = head.clone();
        let mut state = noise(&a, key, &head).unwrap().build_initiator().unwrap();
        seal(&mut state, &hello.encode()).unwrap();
        assert_eq!(open_answer(&mut state, &altered), AnswerSeen::Unopened, "{at}");
    }
    let refused = open_answer(&mut state, &[AuthRefusal::UnknownKey as u8]);
    assert_eq!(refused, AnswerSeen::Refused(AuthRefusal::UnknownKey));
    assert_eq!(open_answer(&mut state, &[200]), AnswerSeen::Nothing);
    let opened = open_answer(&mut state, &[&[ACCEPTED], &answer[..]].concat());
    assert_eq!(opened, AnswerSeen::Opened(b.policy.own().clone()));
}

/// A member with a valid key that asks in the name of another, or of another run, is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn member_that_lies_about_its_name_is_refused() {
    let engine = Engine::builder().listen("127.0.0.1:0").auth(options()).start().await.unwrap();
    let request = |name: &str, run: u128| {
        let path = |name: &str| NicPath::parse(&format!("{name}@tcp")).unwrap();
        let message = Message {
            op: Op::Request,
            from: path(name),
            to: path(engine.address()),
            sender: Pair { incarnation: Incarnation(run), lifecycle: Lifecycle(1) },
            echo: None,
            body: Body { token: "00".repeat(32), address: "a:1".into(), ..Body::default() },
            refusal: None,
        };
        let address = engine.address().to_owned();
        async move {
            let look = Look::default();
            let stream = TcpStream::connect(&address).await.unwrap();
            let channel = Channel::dial(stream, &keys("liar", 9), Outbound::new(None), &look).await;
            let Ok(mut channel) = channel else { panic!("it has the key") };
            channel.send(FrameKind::Connection, &message.encode()).await.unwrap();
            let answer = channel.receive(&look, LIMIT).await.unwrap();
            Message::decode(&answer.text).unwrap()
        }
    };
    for (name, run) in [("honest", 9), ("liar", 8)] {
        let refusal = request(name, run).await.refusal.expect(name);
        assert_eq!(refusal.reason, RefusalReason::Protection, "{name}");
        assert!(refusal.detail.contains("proved its key"), "{name}");
    }
    assert_eq!(engine.counters().life_cycle.published, 0, "no lane was begun");
    assert_eq!(request("liar", 9).await.op, Op::Reply, "in its own name");
    engine.close().await;
}
