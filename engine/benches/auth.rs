//! The cost of keys, certificates and encrypted lanes: a first transfer to a new peer over TCP, its
//! steps, and slices of a lane. Nodes of each kind take turns, so that the load of the machine is the
//! same for all.

#![allow(clippy::disallowed_types, clippy::float_arithmetic, reason = "it measures time")]

use handfast::{
    Access, AuthOptions, Builder, CertificateFiles, Engine, Memory, Registration, Segment,
    TransportChoice,
};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const KEY: &str = "k 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
/// First transfers of each kind.
const FIRSTS: usize = 300;
/// Rounds of slices of each kind, and writes in a round.
const ROUNDS: usize = 200;
const WRITES: u32 = 50;
const SIZES: [usize; 3] = [4 << 10, 64 << 10, 1 << 20];
/// Steps of a first transfer: the look-up of the peer, the lane, its parts, and the write.
const STEPS: [&str; 5] = ["look_up", "create", "connect", "exchange", "write"];

/// The proofs of the nodes of a pair.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    Psk,
    Tls,
    Encrypted,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Plain, Self::Psk, Self::Tls, Self::Encrypted];

    fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Psk => "psk",
            Self::Tls => "tls",
            Self::Encrypted => "encrypted",
        }
    }

    fn builder(self, files: &TempDir) -> Builder {
        let builder = Engine::builder().transport(TransportChoice::Tcp);
        let psk = || AuthOptions::psk(KEY).expect("it is a key");
        match self {
            Self::Plain => builder,
            Self::Psk => builder.auth(psk()),
            Self::Encrypted => builder.auth(psk()).encrypt_lanes(true),
            Self::Tls => {
                let files = CertificateFiles::in_directory(files.path());
                builder
                    .name("127.0.0.1:user")
                    .auth(AuthOptions::tls(files).expect("they are valid"))
            }
        }
    }
}

/// Files of one certificate for every node of this host.
fn certificate() -> TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    let authority = params.self_signed(&key).expect("a certificate").pem();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().expect("a key");
    let own = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("parameters");
    let own = own.signed_by(&key, &issuer).expect("a certificate").pem();
    for (name, text) in [("ca.crt", authority), ("tls.crt", own), ("tls.key", key.serialize_pem())]
    {
        let path = directory.path().join(name);
        fs::write(&path, text).expect("a file");
        fs::set_permissions(path, Permissions::from_mode(0o600)).expect("permissions");
    }
    directory
}

struct Pair {
    kind: Kind,
    owner: Engine,
    _served: Registration,
}

impl Pair {
    async fn start(kind: Kind, files: &TempDir) -> Self {
        let builder = kind.builder(files).listen("127.0.0.1:0");
        let builder = if kind == Kind::Tls { builder.name("127.0.0.1:owner") } else { builder };
        let owner = builder.start().await.expect("it starts");
        let memory = Memory::zeroed(1 << 20).expect("there is memory");
        let served = owner.register("m").access(Access::READ_WRITE).serve(memory.whole());
        Self { kind, owner, _served: served.expect("it is served") }
    }

    async fn open(&self, files: &TempDir) -> (Engine, Segment, Duration) {
        let user = self.kind.builder(files).start().await.expect("it starts");
        let address = format!("{}/m", self.owner.address());
        let begun = Instant::now();
        let segment = user.open(&address).await.expect("it opens");
        (user, segment, begun.elapsed())
    }

    /// The time of a first transfer, and of its steps.
    async fn first(&self, files: &TempDir) -> (f64, [f64; STEPS.len()]) {
        let (user, segment, look_up) = self.open(files).await;
        let block = Memory::zeroed(4096).expect("there is memory");
        let begun = Instant::now();
        segment.write(&block.whole(), 0).await.expect("it is written");
        let write = begun.elapsed();
        let lane = segment.opening().expect("there is a lane");
        user.close().await;
        let lanes = lane.create + lane.connect + lane.exchange;
        let steps =
            [look_up, lane.create, lane.connect, lane.exchange, write.saturating_sub(lanes)];
        (us(look_up + write), steps.map(us))
    }
}

fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The time of a write.
async fn round(segment: &Segment, block: &Memory) -> f64 {
    let begun = Instant::now();
    for _ in 0..WRITES {
        segment.write(&block.whole(), 0).await.expect("it is written");
    }
    us(begun.elapsed() / WRITES)
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let files = certificate();
    let mut pairs = Vec::new();
    for kind in Kind::ALL {
        pairs.push(Pair::start(kind, &files).await);
    }
    let mut firsts = Kind::ALL.map(|_| Vec::new());
    let mut steps = Kind::ALL.map(|_| STEPS.map(|_| Vec::new()));
    for number in 0..FIRSTS {
        for at in in_turn(number) {
            let (took, of_steps) = pairs[at].first(&files).await;
            firsts[at].push(took);
            steps[at].iter_mut().zip(of_steps).for_each(|(all, one)| all.push(one));
        }
    }
    let mut slices: [Vec<f64>; 4] = Kind::ALL.map(|_| Vec::new());
    let mut to_plain: [Vec<f64>; 4] = Kind::ALL.map(|_| Vec::new());
    for bytes in SIZES {
        let block = Memory::zeroed(bytes).expect("there is memory");
        let mut open = Vec::new();
        for pair in &pairs {
            let (user, segment, _) = pair.open(&files).await;
            open.push((user, segment));
        }
        let mut rounds = Kind::ALL.map(|_| Vec::new());
        for number in 0..ROUNDS {
            for at in in_turn(number) {
                rounds[at].push(round(&open[at].1, &block).await);
            }
        }
        for (all, one) in to_plain.iter_mut().zip(&rounds) {
            let ratios = one.iter().zip(&rounds[0]).map(|(one, plain)| one / plain);
            all.push(median(ratios.collect()));
        }
        slices.iter_mut().zip(rounds).for_each(|(all, one)| all.push(median(one)));
    }
    let mut line = String::from("{\"auth\": {");
    for (at, kind) in Kind::ALL.into_iter().enumerate() {
        let first = median(std::mem::take(&mut firsts[at]));
        let _ = write!(line, "{}\"{}\": {{\"first_us\": {first:.1}", separator(at), kind.name());
        for (step, all) in STEPS.into_iter().zip(std::mem::take(&mut steps[at])) {
            let _ = write!(line, ", \"{step}_us\": {:.1}", median(all));
        }
        let _ = write!(line, ", \"slices_us\": {:?}", slices[at]);
        let _ = write!(line, ", \"slices_to_plain\": {:?}}}", to_plain[at]);
    }
    println!("{line}}}}}");
}

/// The order of a round: each kind is as often in each place, and as often before another one as after it.
fn in_turn(round: usize) -> [usize; Kind::ALL.len()] {
    let mut order = [0, 1, 2, 3];
    order.rotate_left(round / 2 % Kind::ALL.len());
    if !round.is_multiple_of(2) {
        order.reverse();
    }
    order
}

fn separator(at: usize) -> &'static str {
    if at == 0 { "" } else { ", " }
}
