//! Grants over RDMA: each trust group has a registration with its rights.

use super::{BLOCK, passes};
use handfast::rdma::RdmaOptions;
use handfast::{AuthOptions, Cause, Direction, Engine, Grant, Memory, TransportChoice};
use handfast_fabric_control::is_scripted;
use tokio::runtime::Runtime;

const KEY: &str = "fleet 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

/// The key of a revoked grant is dead when the revocation returns: the device refuses a write with it,
/// and the peer learns its permissions. The key and the lane of another group stay.
#[test]
fn revoked_key_is_refused_by_the_device() {
    if !is_scripted() {
        return passes("grants::revoked_key_is_refused_by_the_device");
    }
    let builder = |name: &str, device: &str| {
        let devices = vec![device.to_owned()];
        let rdma = RdmaOptions::default().with(|it| it.devices = devices);
        let builder = Engine::builder().transport(TransportChoice::Rdma).rdma(rdma);
        builder.name(name).auth(AuthOptions::psk(KEY).unwrap())
    };
    Runtime::new().unwrap().block_on(async {
        let owner = builder("owner", "peer0").listen("127.0.0.1:0").start().await.unwrap();
        let memory = Memory::zeroed(BLOCK).unwrap();
        let register = owner.register("m").grant(Grant::read("decode-*").unwrap());
        let register = register.grant(Grant::read_write("trainer-1").unwrap());
        let served = register.serve(memory.whole()).unwrap();
        let decoder = builder("decode-1", "own0").start().await.unwrap();
        let trainer = builder("trainer-1", "own1").start().await.unwrap();
        let block = Memory::zeroed(BLOCK).unwrap();
        let written = |seed| block.copy_in(0, &[seed; BLOCK]).unwrap();
        let reading = decoder.open(owner.address()).await.unwrap();
        let writing = trainer.open(owner.address()).await.unwrap();
        assert_eq!(owner.counters().memory.registrations, 2, "one for each group");
        written(1);
        writing.write(&block.whole(), 0).await.unwrap();
        let sink = Memory::zeroed(BLOCK).unwrap();
        let read = async || {
            reading.read(&sink.whole(), 0).await.unwrap();
            let mut bytes = vec![0; BLOCK];
            sink.copy_out(0, &mut bytes).unwrap();
            bytes
        };
        assert_eq!(read().await, [1; BLOCK]);

        served.revoke(&Grant::write("trainer-1").unwrap()).unwrap();
        written(2);
        let error = writing.write(&block.whole(), 0).await.unwrap_err();
        assert_eq!(*error.cause(), Cause::Permission(Direction::Write), "{error}");
        assert_eq!(trainer.counters().keys_refused, 1, "the device has refused the old key");
        assert_eq!(read().await, [1; BLOCK], "nothing was written");
        assert_eq!(owner.counters().memory.registrations, 3, "the group has another key");
        writing.read(&block.whole(), 0).await.expect("it may read still");
        served.grant(Grant::write("trainer-1").unwrap()).unwrap();
        written(3);
        writing.write(&block.whole(), 0).await.unwrap();
        assert_eq!(read().await, [3; BLOCK]);
        assert_eq!(decoder.counters().rdma.lanes_failed, 0, "the other group is not disturbed");
        for engine in [trainer, decoder, owner] {
            engine.close().await;
        }
    });
}
