//! The dialling side of an encrypted lane: its session, and records of chosen lengths.

use super::{DEPTH, HELLO_BYTES, NODE, PEER};
use blake2::Blake2sMac256;
use blake2::digest::{KeyInit, Mac};
use handfast_core::auth::{LANE_NONCE_BYTES, LANE_SECRET_BYTES, LaneEnd, LaneProofs};
use handfast_transport_tcp::ACK_BYTES;
use snow::{Builder, StatelessTransportState};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

const NOISE: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
const EXCHANGE_BYTES: usize = 48;
const PROOF_BYTES: usize = 32;
const TAG_BYTES: usize = 16;
const LENGTH_BYTES: usize = 2;
/// Longest plain part of a record.
pub(super) const PLAIN_BYTES_MAX: usize = u16::MAX as usize - TAG_BYTES;
const DIALLING_NONCE: [u8; LANE_NONCE_BYTES] = [9; LANE_NONCE_BYTES];

pub(super) struct Session(StatelessTransportState);

impl Session {
    /// Opens the session of a lane by its announced secret.
    pub(super) async fn open(
        (reader, writer): (&mut (impl AsyncRead + Unpin), &mut (impl AsyncWrite + Unpin)),
        hello: &[u8; HELLO_BYTES],
        announced: &str,
    ) -> Self {
        let secret = secret(announced);
        let prologue = [&hello[..], &DIALLING_NONCE].concat();
        let builder = Builder::new(NOISE.parse().expect("a pattern")).prologue(&prologue);
        let builder = builder.and_then(|it| it.psk(0, &secret)).expect("a secret");
        let mut exchange = builder.build_initiator().expect("a handshake");
        let mut message = [0; EXCHANGE_BYTES];
        assert_eq!(exchange.write_message(&[], &mut message).ok(), Some(EXCHANGE_BYTES));
        let said = [&hello[8..], &DIALLING_NONCE, &message].concat();
        writer.write_all(&said).await.expect("the hello is read");
        let mut answer = [0; ACK_BYTES + LANE_NONCE_BYTES + PROOF_BYTES + EXCHANGE_BYTES];
        reader.read_exact(&mut answer).await.expect("the hello is answered");
        let (head, message) = answer.split_at(answer.len() - EXCHANGE_BYTES);
        exchange.read_message(message, &mut []).expect("the message of the session opens");
        let listening_nonce = head[ACK_BYTES..].first_chunk().expect("it has a number");
        let proofs = LaneProofs {
            dialling: PEER,
            listening: NODE,
            depth: DEPTH,
            dialling_nonce: DIALLING_NONCE,
            listening_nonce: *listening_nonce,
        };
        let mut mac = <Blake2sMac256 as KeyInit>::new((&secret).into());
        mac.update(&proofs.text(LaneEnd::Dialling));
        let proof = mac.finalize().into_bytes();
        writer.write_all(&proof).await.expect("the proof is read");
        Self(exchange.into_stateless_transport_mode().expect("a session"))
    }

    /// The records of some pieces.
    pub(super) fn seal(&self, pieces: &[Vec<u8>]) -> Vec<u8> {
        let mut records = Vec::new();
        for (number, plain) in (0..).zip(pieces) {
            let mut record = vec![0; plain.len() + TAG_BYTES];
            let sealed = self.0.write_message(number, plain, &mut record);
            assert_eq!(sealed.ok(), Some(record.len()));
            let length = u16::try_from(record.len()).expect("a piece fits into a record");
            records.extend(length.to_le_bytes());
            records.extend(record);
        }
        records
    }

    /// Panics unless every whole record of the other side opens in its place.
    pub(super) fn check(&self, mut answers: &[u8]) {
        for number in 0.. {
            let Some((length, rest)) = answers.split_first_chunk::<LENGTH_BYTES>() else { return };
            let length = usize::from(u16::from_le_bytes(*length));
            let Some((record, rest)) = rest.split_at_checked(length) else { return };
            let opened = self.0.read_message(number, record, &mut vec![0; length]);
            assert!(opened.is_ok_and(|plain| plain > 0), "record {number} of the node");
            answers = rest;
        }
    }
}

fn secret(announced: &str) -> [u8; LANE_SECRET_BYTES] {
    let digits = announced.strip_suffix("+sealed").expect("the node encrypts");
    let mut secret = [0; LANE_SECRET_BYTES];
    for (at, byte) in secret.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).expect("digits");
    }
    secret
}
