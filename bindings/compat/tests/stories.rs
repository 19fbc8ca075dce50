//! Engines of one process that move bytes by raw addresses.

use handfast_compat::{
    BatchState, Cause, Direction, Failure, Notification, Options, Remote, Request, TransferEngine,
};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Bytes that the test owns, and registers by address.
struct Buffer(Box<[u8]>);

impl Buffer {
    fn new(bytes: usize, seed: usize) -> Self {
        Self((0..bytes).map(|place| (place * 7 + place / 251 + seed) as u8).collect())
    }

    fn address(&self) -> u64 {
        self.0.as_ptr().expose_provenance() as u64
    }

    #[allow(unsafe_code)]
    fn register(&self, engine: &TransferEngine) -> Result<(), Failure> {
        // SAFETY: the buffers of each test outlive its engines, and are read only when nothing
        // writes them.
        unsafe { engine.register(self.address(), self.0.len() as u64, "*") }
    }

    /// Bytes as they are now; other engines have written them.
    fn content(&self) -> Vec<u8> {
        let bytes = std::hint::black_box(&self.0);
        bytes.to_vec()
    }
}

fn engine() -> TransferEngine {
    let options = Options::of_mooncake("127.0.0.1", "P2PHANDSHAKE", "tcp", "").unwrap();
    TransferEngine::start(&options).unwrap()
}

fn request(direction: Direction, local: u64, remote: u64, bytes: u64) -> Request {
    Request { direction, local, remote, bytes }
}

fn never() -> impl FnMut() -> bool {
    || false
}

/// Engines with keys reach each other, and no engine without; one that other machines reach says that
/// it has none.
#[test]
fn engines_with_keys_reach_each_other_alone() {
    let file = std::env::temp_dir().join(format!("handfast-keys-{}", std::process::id()));
    let key = "k 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n";
    std::fs::write(&file, key).unwrap();
    let safe = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&file, safe).unwrap();
    let with = |host: &str, auth: Option<String>| {
        let mut options = Options::of_mooncake(host, "P2PHANDSHAKE", "tcp", "").unwrap();
        options.auth = auth;
        TransferEngine::start(&options).unwrap()
    };
    let keyed = || with("127.0.0.1", Some(format!("psk:{}", file.display())));
    let (here, there) = (Buffer::new(1 << 10, 1), Buffer::new(1 << 10, 9));
    let (user, owner, stranger) = (keyed(), keyed(), engine());
    here.register(&user).unwrap();
    there.register(&owner).unwrap();
    let write = request(Direction::Write, here.address(), there.address(), 1 << 10);
    let told = Notification { name: "kv".into(), message: "done".into() };
    user.transfer(owner.address(), &[write], Some(&told), None, &mut never()).unwrap();
    assert!(there.content() == here.content());
    assert_eq!(owner.take_notifications().unwrap().len(), 1);
    let other = Buffer::new(1 << 10, 5);
    other.register(&stranger).unwrap();
    let write = request(Direction::Write, other.address(), there.address(), 1 << 10);
    let refused = stranger.transfer(owner.address(), &[write], None, None, &mut never());
    assert!(refused.unwrap_err().to_string().contains("prove a key"));
    let refused = user.transfer(stranger.address(), &[], Some(&told), None, &mut never());
    assert!(refused.unwrap_err().to_string().contains("no keys"));
    assert!(with("10.9.8.7", Some(format!("psk:{}", file.display()))).warnings().is_empty());
    let open = with("10.9.8.7", None);
    assert_eq!(open.warnings(), [open.openness().expect("it is open")]);
    std::fs::remove_file(&file).unwrap();
}

/// `auto` on a machine without RDMA loses nothing; a caller of Mooncake that names `rdma` learns of it.
#[test]
fn absent_rdma_is_a_warning_to_those_that_name_it() {
    let native = Options::new("127.0.0.1", "P2PHANDSHAKE", "auto", "").unwrap();
    let native = TransferEngine::start(&native).unwrap();
    assert_eq!(native.warnings(), [""; 0]);
    let named = Options::of_mooncake("127.0.0.1", "P2PHANDSHAKE", "rdma", "").unwrap();
    let named = TransferEngine::start(&named).unwrap();
    let absent = named.devices().next().is_none();
    assert_eq!(named.warnings().len(), usize::from(absent), "{:?}", named.warnings());
}

#[test]
fn two_engines_of_a_process_write_and_read() {
    let (here, there) = (Buffer::new(1 << 20, 1), Buffer::new(1 << 20, 9));
    let (user, owner) = (engine(), engine());
    here.register(&user).unwrap();
    there.register(&owner).unwrap();
    let write = request(Direction::Write, here.address() + 100, there.address() + 5, 300_000);
    let read = request(Direction::Read, here.address() + 500_000, there.address() + 400_000, 77);
    let told = Notification { name: "kv".into(), message: "done".into() };
    user.transfer(owner.address(), &[write, read], Some(&told), None, &mut never()).unwrap();
    assert!(there.content()[5..300_005] == here.content()[100..300_100]);
    assert!(here.content()[500_000..500_077] == there.content()[400_000..400_077]);
    assert_eq!(owner.take_notifications().unwrap(), [told]);
    let served = user.segments(owner.address(), &mut never()).unwrap();
    assert_eq!((served[0].address, served[0].bytes), (there.address(), 1 << 20));
    user.probe(owner.address(), &mut never()).unwrap();
    user.unregister(here.address()).unwrap();
    owner.unregister(there.address()).unwrap();
}

/// A Redis of the unpacked distribution packages, which ends with the test.
#[cfg(feature = "redis")]
struct Redis(std::process::Child);

#[cfg(feature = "redis")]
impl Redis {
    /// Starts one that requires a password, and returns its URL; `None` if there is none.
    fn start(password: &str) -> Option<(Self, String)> {
        let fleet = std::env::var_os("HANDFAST_FLEET")?;
        let usr = std::path::Path::new(&fleet).join("packages/fleet/usr");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let mut command = std::process::Command::new(usr.join("bin/redis-server"));
        command.env("LD_LIBRARY_PATH", usr.join("lib/x86_64-linux-gnu"));
        command.args(["--bind", "127.0.0.1", "--port", &address.port().to_string(), "--save", ""]);
        command.args(["--requirepass", password]).current_dir(std::env::temp_dir());
        let redis = Self(command.stdout(std::process::Stdio::null()).spawn().ok()?);
        while std::net::TcpStream::connect(address).is_err() {
            std::thread::park_timeout(std::time::Duration::from_millis(5));
        }
        Some((redis, format!("redis://:{password}@{address}/3")))
    }
}

#[cfg(feature = "redis")]
impl Drop for Redis {
    fn drop(&mut self) {
        // Either fails only when it is gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(feature = "redis")]
#[test]
fn engines_find_each_other_by_name_through_a_redis() {
    let Some((_redis, url)) = Redis::start("secret") else {
        // The macros that print would print into the capture.
        let why = b"skipped: no redis-server; `cargo xtask test --stage fleet` unpacks one\n";
        return std::io::Write::write_all(&mut std::io::stderr(), why).unwrap();
    };
    let named = |name: &str, url: &str| {
        let options = Options::of_mooncake(name, url, "tcp", "")?;
        TransferEngine::start(&options)
    };
    let (here, there) = (Buffer::new(1 << 16, 1), Buffer::new(1 << 16, 9));
    let user = named("127.0.0.1:12347", &url).unwrap();
    let owner = named("127.0.0.1:12345", &url).unwrap();
    here.register(&user).unwrap();
    there.register(&owner).unwrap();
    let write = request(Direction::Write, here.address(), there.address(), 1 << 16);
    user.transfer("127.0.0.1:12345", &[write], None, None, &mut never()).unwrap();
    assert!(there.content() == here.content());
    let error = named("127.0.0.1:12349", &url.replace("secret", "guess")).err().unwrap();
    let told = error.to_string();
    assert!(told.contains("WRONGPASS") && !told.contains("guess"), "{told}");
}

/// More requests than the engine takes at once, among them empty ones.
#[test]
fn batch_of_two_hundred_thousand_requests_is_one_batch() {
    const REQUESTS: usize = 200_000;
    let (here, there) = (Buffer::new(REQUESTS * 4, 1), Buffer::new(REQUESTS * 4, 2));
    let (user, owner) = (engine(), engine());
    here.register(&user).unwrap();
    there.register(&owner).unwrap();
    let piece = |place: usize| {
        let offset = (place * 4) as u64;
        let bytes = if place % 1_000 == 7 { 0 } else { 4 };
        request(Direction::Write, here.address() + offset, there.address() + offset, bytes)
    };
    let requests: Vec<_> = (0..REQUESTS).map(piece).collect();
    let id = user.submit(owner.address(), &requests, None, &mut never()).unwrap();
    let state = user.wait(id, &mut never()).unwrap();
    let moved = (REQUESTS - REQUESTS / 1_000) as u64 * 4;
    assert!(matches!(state, BatchState::Done { bytes } if bytes == moved), "{state:?}");
    for (place, bytes) in [(0, 4), (7, 0), (8, 4), (REQUESTS - 1, 4)] {
        let state = user.request_state(id, place).unwrap();
        assert!(matches!(state, BatchState::Done { bytes: done } if done == bytes), "{state:?}");
    }
    assert!(user.request_state(id, REQUESTS).is_err());
    user.free(id).unwrap();
    assert!(matches!(user.state(id).unwrap_err().cause(), Cause::NoSuchBatch(_)));
    let skipped = |place: usize| (place / 4) % 1_000 == 7;
    let (here, there) = (here.content(), there.content());
    let old = Buffer::new(REQUESTS * 4, 2).0;
    let wrong =
        (0..REQUESTS * 4).find(|&it| there[it] != if skipped(it) { old[it] } else { here[it] });
    assert_eq!(wrong, None);
}

/// A peer reaches each of them, and one more is refused.
#[test]
#[allow(unsafe_code)]
fn hundred_thousand_regions_are_served() {
    const REGIONS: usize = 100_000;
    const STEP: usize = 16;
    const WRITTEN: usize = 10_000;
    let (here, there) = (Buffer::new(WRITTEN * 8, 1), Buffer::new(REGIONS * STEP, 2));
    let user = engine();
    let mut options = Options::of_mooncake("127.0.0.1", "P2PHANDSHAKE", "tcp", "").unwrap();
    options.regions_max = REGIONS;
    let owner = TransferEngine::start(&options).unwrap();
    here.register(&user).unwrap();
    let place = |region| (there.address() + (region * STEP) as u64, 8);
    let places: Vec<_> = (0..REGIONS).map(place).collect();
    // SAFETY: the buffers outlive the engines, and are read only when nothing writes them.
    unsafe { owner.register_all(&places, "*") }.unwrap();
    // SAFETY: as above.
    let error = unsafe { owner.register(there.address() + 8, 8, "*") }.unwrap_err();
    let limit = matches!(error.cause(), Cause::Limit { name: "regions_max", max: REGIONS, .. });
    assert!(limit && error.code() == -2, "{error}");
    // Neighbours of one side lie far apart on the other; the last region is among them.
    let region = |piece: usize| REGIONS - 1 - piece * 7_919 % REGIONS;
    let piece = |piece: usize| {
        let (local, (remote, bytes)) = (here.address() + (piece * 8) as u64, places[region(piece)]);
        request(Direction::Write, local, remote, bytes)
    };
    let requests: Vec<_> = (0..WRITTEN).map(piece).collect();
    user.transfer(owner.address(), &requests, None, None, &mut never()).unwrap();
    let mut expected = Buffer::new(REGIONS * STEP, 2).0;
    for (piece, sent) in here.content().chunks(8).enumerate() {
        expected[region(piece) * STEP..][..8].copy_from_slice(sent);
    }
    assert!(there.content() == *expected);
    owner.unregister(requests[0].remote).unwrap();
    user.transfer(owner.address(), &requests[..1], None, None, &mut never()).unwrap_err();
    user.transfer(owner.address(), &requests[1..3], None, None, &mut never()).unwrap();
}

#[test]
fn what_is_not_registered_is_refused_on_both_sides() {
    let (here, there) = (Buffer::new(4_096, 1), Buffer::new(4_096, 2));
    let (user, owner) = (engine(), engine());
    here.register(&user).unwrap();
    there.register(&owner).unwrap();
    let (ours, theirs) = (here.address(), there.address());
    let write = |local, remote, bytes| {
        let requests = [request(Direction::Write, local, remote, bytes)];
        user.transfer(owner.address(), &requests, None, None, &mut never()).unwrap_err()
    };
    for (local, bytes) in [(ours + 1, 4_096), (ours - 1, 4), (8, 4), (ours, u64::MAX)] {
        let error = write(local, theirs, bytes);
        assert_eq!((error.code(), error.remote()), (-3, Remote::Untouched), "{error}");
    }
    for (remote, bytes) in [(theirs + 1, 4_096), (theirs - 1, 4), (u64::MAX, 4), (0, 4)] {
        let error = write(ours, remote, bytes);
        assert_eq!((error.code(), error.remote()), (-1, Remote::Untouched), "{error}");
    }
    assert_eq!(there.content(), *Buffer::new(4_096, 2).0);
    let overlap = here.register(&user).unwrap_err();
    assert_eq!(overlap.code(), -7, "{overlap}");
    assert_eq!(user.unregister(ours + 1).unwrap_err().code(), -3);
    user.unregister(ours).unwrap();
    assert_eq!(user.unregister(ours).unwrap_err().code(), -3);
    assert_eq!(write(ours, theirs, 1).code(), -3);
}

/// Nothing to move: the peer is opened, and an absent one is an error.
#[test]
fn empty_call_opens_the_peer() {
    let (user, owner) = (engine(), engine());
    user.transfer(owner.address(), &[], None, None, &mut never()).unwrap();
    let id = user.submit(owner.address(), &[], None, &mut never()).unwrap();
    assert!(
        matches!(user.state(id).unwrap(), BatchState::Done { bytes: 0 }),
        "nothing to wait for"
    );
    let state = user.wait(id, &mut never()).unwrap();
    assert!(matches!(state, BatchState::Done { bytes: 0 }));
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let error = user.transfer(&nobody, &[], None, None, &mut never()).unwrap_err();
    assert_eq!(error.code(), -200, "{error}");
    assert!(user.submit(&nobody, &[], None, &mut never()).is_err());
}

/// An interruption ends a call to a peer that never answers, at the first question.
#[test]
fn interrupted_call_ends() {
    let user = engine();
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let asked = AtomicUsize::new(0);
    let mut interrupt = || asked.fetch_add(1, Ordering::Relaxed) == 0;
    let mute = mute.local_addr().unwrap().to_string();
    let error = user.transfer(&mute, &[], None, None, &mut interrupt).unwrap_err();
    assert!(matches!(error.cause(), Cause::Interrupted), "{error}");
    assert_eq!(asked.load(Ordering::Relaxed), 1);
}

#[test]
fn managed_buffers_are_registered() {
    let (user, owner) = (engine(), engine());
    let here = user.allocate_managed(100).unwrap();
    let there = owner.allocate_managed(1 << 20).unwrap();
    user.copy_in(here, b"sixteen tokens").unwrap();
    let write = request(Direction::Write, here, there + 7, 14);
    user.transfer(owner.address(), &[write], None, None, &mut never()).unwrap();
    assert_eq!(owner.copy_out(there + 7, 14).unwrap(), b"sixteen tokens");
    assert!(user.copy_in(1 << 20, b"x").is_err());
    assert!(user.free_managed(here, 1 << 20).is_err());
    user.free_managed(here, 100).unwrap();
    assert!(user.free_managed(here, 100).is_err());
}

/// Threads share an engine; each moves its own part.
#[test]
fn many_threads_share_an_engine() {
    const THREADS: usize = 64;
    const PART: usize = 8_192;
    let (here, there) = (Buffer::new(THREADS * PART, 1), Buffer::new(THREADS * PART, 2));
    let (user, owner) = (engine(), engine());
    here.register(&user).unwrap();
    there.register(&owner).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (user, owner, here, there) = (&user, &owner, &here, &there);
            scope.spawn(move || {
                for round in 0..8 {
                    let offset = (thread * PART + round * PART / 8) as u64;
                    let (from, to) = (here.address() + offset, there.address() + offset);
                    let part = [request(Direction::Write, from, to, (PART / 8) as u64)];
                    user.transfer(owner.address(), &part, None, None, &mut never()).unwrap();
                }
            });
        }
    });
    assert!(here.content() == there.content());
}

/// A call past the capacity of a batch moves nothing, and the batch goes on.
#[test]
fn call_past_the_capacity_moves_nothing() {
    let (here, there) = (Buffer::new(4_096, 1), Buffer::new(4_096, 2));
    let (user, owner) = (engine(), engine());
    here.register(&user).unwrap();
    there.register(&owner).unwrap();
    let write = |offset| {
        let (from, to) = (here.address() + offset, there.address() + offset);
        (owner.address(), request(Direction::Write, from, to, 64))
    };
    let submit = |id, targets: &[_]| user.submit_to(id, targets, None, None, &mut never());
    let id = user.allocate(2).unwrap();
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let unasked = (&*nobody, write(0).1);
    for targets in [[write(0), write(64), write(128)], [unasked; 3]] {
        let error = submit(id, &targets).unwrap_err();
        assert!(matches!(error.cause(), Cause::Limit { name: "batch capacity", .. }), "{error}");
    }
    assert!(user.request_state(id, 0).is_err(), "no request was added");
    let nowhere = (owner.address(), request(Direction::Write, here.address(), 8, 64));
    assert!(submit(id, &[nowhere]).is_err());
    user.wait(id, &mut never()).unwrap();
    assert_eq!(there.content(), *Buffer::new(4_096, 2).0);
    submit(id, &[write(0), write(64)]).unwrap();
    user.wait(id, &mut never()).unwrap();
    assert_eq!(there.content()[..128], here.content()[..128]);
}

/// One call writes to two peers by turns; each request has its own state.
#[test]
fn one_batch_moves_bytes_to_several_peers() {
    const PIECE: u64 = 512;
    let here = Buffer::new(8 * PIECE as usize, 1);
    let there = [2, 3].map(|seed| Buffer::new(8 * PIECE as usize, seed));
    let user = engine();
    let owners = [engine(), engine()];
    here.register(&user).unwrap();
    for (memory, owner) in there.iter().zip(&owners) {
        memory.register(owner).unwrap();
    }
    let piece = |place: u64| {
        let (owner, at) = (usize::from(place % 2 == 1), place * PIECE);
        let (from, to) = (here.address() + at, there[owner].address() + at);
        (owners[owner].address(), request(Direction::Write, from, to, PIECE - place))
    };
    let targets: Vec<_> = (0..8).map(piece).collect();
    let told = Notification { name: "kv".into(), message: "all".into() };
    let id = user.allocate(8).unwrap();
    user.submit_to(id, &targets, Some(told.clone()), None, &mut never()).unwrap();
    user.wait(id, &mut never()).unwrap();
    for place in 0..8 {
        let state = user.request_state(id, place).unwrap();
        let moved = PIECE - place as u64;
        assert!(matches!(state, BatchState::Done { bytes } if bytes == moved), "{state:?}");
        let (first, end) = (place * PIECE as usize, place * PIECE as usize + moved as usize);
        assert_eq!(there[place % 2].content()[first..end], here.content()[first..end]);
    }
    assert_eq!(owners[0].take_notifications().unwrap(), [told]);
    assert_eq!(owners[1].take_notifications().unwrap(), []);
}

/// Two gigabytes are under way, more than can be moved before the close begins.
#[test]
fn transfer_of_an_engine_that_closes_fails_as_closed() {
    let (here, there) = (Buffer::new(1 << 20, 1), Buffer::new(1 << 20, 2));
    let (user, owner) = (engine(), engine());
    here.register(&user).unwrap();
    there.register(&owner).unwrap();
    let write = request(Direction::Write, here.address(), there.address(), 1 << 20);
    user.transfer(owner.address(), &[write], None, None, &mut never()).unwrap();
    let id = user.allocate(16_384).unwrap();
    user.submit_to(id, &vec![(owner.address(), write); 16_384], None, None, &mut never()).unwrap();
    user.close().unwrap();
    let state = user.wait(id, &mut never()).unwrap();
    let BatchState::Failed { failure, .. } = state else { panic!("{state:?}") };
    assert_eq!((failure.kind(), &*failure.side()), ("closed", "local"), "{failure}");
}

/// A batch writes to a peer that is there and to one that has closed. It fails, and the memory of its
/// peers is not untouched: the first one has the bytes.
#[test]
fn failed_batch_with_bytes_at_a_peer_is_fenced() {
    let here = Buffer::new(4_096, 1);
    let there = [2, 3].map(|seed| Buffer::new(4_096, seed));
    let user = engine();
    let owners = [engine(), engine()];
    here.register(&user).unwrap();
    for (memory, owner) in there.iter().zip(&owners) {
        memory.register(owner).unwrap();
        user.open(owner.address(), &mut never()).unwrap();
    }
    owners[1].close().unwrap();
    let write = |owner: usize| {
        let (from, to) = (here.address(), there[owner].address());
        (owners[owner].address(), request(Direction::Write, from, to, 512))
    };
    let id = user.allocate(2).unwrap();
    user.submit_to(id, &[write(0), write(1)], None, None, &mut never()).unwrap();
    let state = user.wait(id, &mut never()).unwrap();
    let BatchState::Failed { bytes: 512, failure } = state else { panic!("{state:?}") };
    assert_eq!(failure.remote(), Remote::Fenced, "{failure}");
    assert_eq!(there[0].content()[..512], here.content()[..512]);
    assert_eq!(there[1].content(), *Buffer::new(4_096, 3).0);
}

/// A call to a peer that accepts connections and never answers ends at its deadline, also the first.
#[test]
fn deadline_holds_while_a_peer_is_opened() {
    let (user, here) = (engine(), Buffer::new(64, 1));
    here.register(&user).unwrap();
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let mute = mute.local_addr().unwrap().to_string();
    let write = [request(Direction::Write, here.address(), 8, 64)];
    let timeout = Some(Duration::from_millis(20));
    let started = Instant::now();
    let error = user.transfer(&mute, &write, None, timeout, &mut never()).unwrap_err();
    assert!(matches!(error.cause(), Cause::NotOpened { .. }), "{error}");
    assert!(error.is_timeout() && error.remote() == Remote::Untouched);
    assert_eq!((error.side(), error.code()), ("peer".to_owned(), -200));
    // The peer's own limit is 5 s.
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
}

/// Forwards connections to an engine, and nothing while the test holds the lock. Returns its address, the
/// lock, and the number of parts that came.
fn forwarded(to: &str) -> (String, Arc<Mutex<()>>, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (held, to) = (Arc::new(Mutex::new(())), to.to_owned());
    let parts = Arc::new(AtomicUsize::new(0));
    let (gate, came) = (held.clone(), parts.clone());
    let copy = move |mut from: TcpStream, mut to: TcpStream| {
        let (gate, came) = (gate.clone(), came.clone());
        std::thread::spawn(move || {
            let mut bytes = [0; 4_096];
            while let Ok(count @ 1..) = from.read(&mut bytes) {
                came.fetch_add(1, Ordering::AcqRel);
                drop(gate.lock());
                if to.write_all(&bytes[..count]).is_err() {
                    break;
                }
            }
            // The other side may have ended it.
            let _ = to.shutdown(Shutdown::Write);
        });
    };
    std::thread::spawn(move || {
        for here in listener.incoming() {
            let (here, there) = (here.unwrap(), TcpStream::connect(&to).unwrap());
            copy(here.try_clone().unwrap(), there.try_clone().unwrap());
            copy(there, here);
        }
    });
    (address, held, parts)
}

/// The timeout of a call bounds its notification too, and so does a cancel. The peer's calls are held once
/// its lane carries bytes.
#[test]
fn deadline_holds_while_a_peer_is_notified() {
    let (user, owner) = (engine(), engine());
    let (here, there) = (Buffer::new(64, 1), Buffer::new(64, 9));
    here.register(&user).unwrap();
    there.register(&owner).unwrap();
    let (peer, gate, parts) = forwarded(owner.address());
    let write = [request(Direction::Write, here.address(), there.address(), 64)];
    let told = Notification { name: "kv".into(), message: "done".into() };
    user.transfer(&peer, &write, Some(&told), None, &mut never()).unwrap();
    let held = gate.lock();
    let before = parts.load(Ordering::Acquire);
    let id = user.allocate(1).unwrap();
    let targets = [(&*peer, write[0])];
    user.submit_to(id, &targets, Some(told.clone()), None, &mut never()).unwrap();
    // The notification, after the bytes.
    while parts.load(Ordering::Acquire) == before {
        let asked = user.wait_for(id, Duration::from_millis(1)).unwrap();
        assert!(matches!(asked, BatchState::Pending), "{asked:?}");
    }
    user.cancel(id).unwrap();
    let state = user.wait(id, &mut never()).unwrap();
    let BatchState::Failed { bytes: 64, failure } = state else { panic!("{state:?}") };
    assert!(matches!(failure.cause(), Cause::Interrupted), "{failure}");
    // The limit of the notification alone, 5 s, has another cause.
    let timeout = Some(Duration::from_secs(2));
    let error = user.transfer(&peer, &write, Some(&told), timeout, &mut never()).unwrap_err();
    assert!(matches!(error.cause(), Cause::NotNotified { .. }), "{error}");
    assert!(error.is_timeout() && error.remote() == Remote::Fenced);
    drop(held);
    assert_eq!(there.content(), here.content());
}

/// Private memory is a source and a destination of its engine, and out of reach of peers.
#[test]
#[allow(unsafe_code)]
fn private_memory_is_out_of_reach_of_peers() {
    let (here, there) = (Buffer::new(4_096, 1), Buffer::new(4_096, 2));
    let (user, owner) = (engine(), engine());
    // SAFETY: the buffers outlive the engines, and are read only when nothing writes them.
    unsafe { user.register_private(here.address(), 4_096) }.unwrap();
    there.register(&owner).unwrap();
    let write = [request(Direction::Write, here.address(), there.address(), 4_096)];
    user.transfer(owner.address(), &write, None, None, &mut never()).unwrap();
    assert_eq!(there.content(), here.content());
    let back = [request(Direction::Write, there.address(), here.address(), 4_096)];
    let error = owner.transfer(user.address(), &back, None, None, &mut never()).unwrap_err();
    assert_eq!(error.remote(), Remote::Untouched, "{error}");
    // SAFETY: as above.
    let overlap = unsafe { user.register_private(here.address() + 1, 4) }.unwrap_err();
    assert_eq!(overlap.code(), -7);
    user.unregister(here.address()).unwrap();
    let error = user.transfer(owner.address(), &write, None, None, &mut never()).unwrap_err();
    assert_eq!(error.code(), -3, "{error}");
}

/// Names the part of a test in another process, whose environment is its own.
const ROLE: &str = "HANDFAST_COMPAT_TEST_ROLE";

/// Starts an engine in a process with these variables. Returns its port, or why it did not start.
fn started_with(test: &str, variables: &[(&str, &str)]) -> Result<u16, String> {
    let mut process = std::process::Command::new(std::env::current_exe().unwrap());
    process.args(["--exact", test, "--nocapture"]).env(ROLE, "");
    let output = process.envs(variables.iter().copied()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let told = text.lines().find_map(|line| line.split_once("> ")).expect(&text).1;
    told.parse().map_err(|_| told.to_owned())
}

fn start_and_tell() {
    let options = Options::of_mooncake("127.0.0.1", "P2PHANDSHAKE", "rdma", "");
    match options.and_then(|options| TransferEngine::start(&options)) {
        Ok(engine) => println!("> {}", engine.port()),
        Err(failure) => println!("> {failure}"),
    }
}

/// `MC_MIN_RPC_PORT` and `MC_MAX_RPC_PORT` bound the ports of an engine.
#[test]
fn ports_are_those_of_the_environment() {
    if std::env::var_os(ROLE).is_some() {
        return start_and_tell();
    }
    let start = |min: u16, max: u16| {
        let (min, max) = (min.to_string(), max.to_string());
        let ports = [("MC_MIN_RPC_PORT", &*min), ("MC_MAX_RPC_PORT", &*max)];
        started_with("ports_are_those_of_the_environment", &ports)
    };
    // Below the ports that the system gives to others.
    let first = 18_000 + (std::process::id() % 400) as u16 * 20;
    let port = start(first, first + 19).unwrap();
    assert!((first..first + 20).contains(&port), "{port}");
    assert_eq!(start(port, port).unwrap(), port, "one port is enough");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let held = taken.local_addr().unwrap().port();
    let refused = start(held, held).unwrap_err();
    assert!(refused.contains(&format!("no port from {held} to {held}")), "{refused}");
    let refused = start(first + 1, first).unwrap_err();
    assert!(refused.contains("the first must not exceed the last"), "{refused}");
}

/// Variables of Mooncake are those of the command line: malformed ones are refused by name, and
/// empty ones are not set, but for those without which an engine is open.
#[test]
fn malformed_variables_are_refused() {
    if std::env::var_os(ROLE).is_some() {
        return start_and_tell();
    }
    let start = |name, value| started_with("malformed_variables_are_refused", &[(name, value)]);
    for (name, value) in [("MC_MTU", "7"), ("MC_TRANSFER_TIMEOUT", "soon"), ("MC_GID_INDEX", "-1")]
    {
        let refused = start(name, value).unwrap_err();
        assert!(refused.contains(name) && refused.contains(value), "{refused}");
        start(name, "").unwrap();
    }
    for name in ["HANDFAST_AUTH", "HANDFAST_ENCRYPT_LANES"] {
        let refused = start(name, "").unwrap_err();
        assert!(refused.contains(&format!("{name} is ''; it must be")), "{refused}");
    }
    let refused = start("MC_CUSTOM_TOPO_JSON", "/").unwrap_err();
    assert!(refused.contains("MC_CUSTOM_TOPO_JSON: it is not a regular file"), "{refused}");
}
