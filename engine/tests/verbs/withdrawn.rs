//! Keys that are removed from the file of a node.

use super::passes;
use handfast::rdma::RdmaOptions;
use handfast::{Access, AuthOptions, Engine, EngineTiming, Memory, TransportChoice};
use handfast_fabric_control::is_scripted;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::time::timeout;

const OLD: &str = "old 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n";
const NEW: &str = "new f00102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n";
const BYTES: usize = 4_096;
const RELOADED_EVERY: Duration = Duration::from_millis(5);
/// Long enough for anything a story waits for.
const PATIENCE: Duration = Duration::from_secs(60);

/// The writes of a peer whose key is removed end with an error, over each kind of lane, of a peer that
/// listens and of one that does not.
#[test]
fn writes_end_after_the_removal_of_their_key() {
    if !is_scripted() {
        return passes("withdrawn::writes_end_after_the_removal_of_their_key");
    }
    use TransportChoice::{Auto, Rdma, Shm, Tcp};
    for choice in [Tcp, Shm, Auto, Rdma] {
        for listens in [false, true] {
            let ended = Runtime::new()
                .unwrap()
                .block_on(async { timeout(PATIENCE, removed(choice, listens)).await });
            assert!(ended.is_ok(), "{choice:?}, listens: {listens}: writes go on");
        }
    }
}

/// Replaces a file at once, readable by its owner alone.
fn put(file: &Path, text: &str) {
    let part = file.with_extension("part");
    std::fs::write(&part, text).unwrap();
    std::fs::set_permissions(&part, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::rename(part, file).unwrap();
}

/// Removes the key of a peer that writes, and returns after the first error.
async fn removed(choice: TransportChoice, listens: bool) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    put(&file, &format!("{OLD}{NEW}"));
    let builder = |device: &str| {
        let devices = vec![device.to_owned()];
        let rdma = RdmaOptions::default().with(|it| it.devices = devices);
        Engine::builder().transport(choice).rdma(rdma)
    };
    let often = EngineTiming::default().with(|it| it.auth_reload_interval = RELOADED_EVERY);
    let auth = AuthOptions::psk_file(&file).unwrap();
    let owner = builder("peer0").name("owner").auth(auth).timing(often);
    let owner = owner.listen("127.0.0.1:0").start().await.unwrap();
    let memory = Memory::shared(BYTES).unwrap();
    let register = owner.register("m").access(Access::READ_WRITE);
    let served = register.serve(memory.whole()).unwrap();
    let user = builder("own0").name("user").auth(AuthOptions::psk(OLD).unwrap());
    let user = if listens { user.listen("127.0.0.1:0") } else { user };
    let user = user.start().await.unwrap();
    let segment = user.open(&format!("{}/m", owner.address())).await.unwrap();
    let block = Memory::zeroed(BYTES).unwrap();
    segment.write(&block.whole(), 0).await.unwrap();
    put(&file, NEW);
    while segment.write(&block.whole(), 0).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    drop(served);
    user.close().await;
    owner.close().await;
}
