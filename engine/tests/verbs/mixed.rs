//! Grants where lanes and descriptors of several kinds meet on a node with devices.

use super::passes;
use handfast::mooncake::MooncakeOptions;
use handfast::rdma::RdmaOptions;
use handfast::{
    Access, AuthOptions, Builder, Engine, Grant, Memory, TransportChoice, TransportKind,
};
use handfast_core::wire::{FrameKind, encode_frame};
use handfast_fabric_control::{Fabric, is_scripted};
use std::io::{Read, Write};
use std::net::TcpStream;
use tokio::runtime::Runtime;

const KEY: &str = "fleet 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const BYTES: usize = 4_096;

fn on_peer0(choice: TransportChoice) -> Builder {
    let rdma = RdmaOptions::default().with(|it| it.devices = vec!["peer0".to_owned()]);
    Engine::builder().transport(choice).rdma(rdma)
}

/// The owner has a device and falls back to TCP for a peer without one. The grant names the peer, and
/// holds on that lane.
#[test]
fn named_grant_holds_on_the_tcp_lane_of_a_device() {
    if !is_scripted() {
        return passes("mixed::named_grant_holds_on_the_tcp_lane_of_a_device");
    }
    Runtime::new().unwrap().block_on(async {
        let keys = || AuthOptions::psk(KEY).unwrap();
        let owner = on_peer0(TransportChoice::Auto).name("owner").auth(keys());
        let owner = owner.listen("127.0.0.1:0").start().await.unwrap();
        let memory = Memory::zeroed(BYTES).unwrap();
        memory.copy_in(0, &[7; BYTES]).unwrap();
        let register = owner.register("m").grant(Grant::read("decode-*").unwrap());
        let _served = register.serve(memory.whole()).unwrap();
        let sink = Memory::zeroed(BYTES).unwrap();
        for (name, may) in [("decode-1", true), ("trainer-1", false)] {
            let user = Engine::builder().transport(TransportChoice::Tcp);
            let user = user.name(name).auth(keys()).start().await.unwrap();
            let read = match user.open(&format!("{}/m", owner.address())).await {
                Ok(segment) => segment.read(&sink.whole(), 0).await,
                Err(error) => Err(error),
            };
            assert_eq!(read.is_ok(), may, "{name}: {read:?}");
            user.close().await;
        }
        let mut bytes = vec![0; BYTES];
        sink.copy_out(0, &mut bytes).unwrap();
        assert_eq!(bytes, [7; BYTES]);
        owner.close().await;
    });
}

/// A change of permissions ends the registration with the device. The next descriptor for Mooncake
/// nodes has a key again: they index keys by device, and have no other way to ask for one.
#[test]
fn changed_grants_leave_mooncake_nodes_a_key() {
    if !is_scripted() {
        return passes("mixed::changed_grants_leave_mooncake_nodes_a_key");
    }
    Runtime::new().unwrap().block_on(async {
        let owner = on_peer0(TransportChoice::Rdma).mooncake(MooncakeOptions::default());
        let owner = owner.listen("127.0.0.1:0").start().await.unwrap();
        let memory = Memory::zeroed(BYTES).unwrap();
        let register = owner.register("m").access(Access::READ).mooncake();
        let served = register.serve(memory.whole()).unwrap();
        let has_key = || {
            let address = owner.address().to_string();
            tokio::task::block_in_place(|| !plain_descriptor(&address).contains("\"rkey\":[]"))
        };
        assert!(has_key(), "at first");
        served.grant(Grant::write("*").unwrap()).unwrap();
        assert!(has_key(), "after a grant");
        served.revoke(&Grant::write("*").unwrap()).unwrap();
        assert!(has_key(), "after a revocation");
        owner.close().await;
    });
}

/// The device refuses the memory of the very first write. A lane opens all the same, and shares memory;
/// so does the next one, after another peer took its place.
#[test]
fn first_write_of_refused_memory_is_copied() {
    if !is_scripted() {
        return passes("mixed::first_write_of_refused_memory_is_copied");
    }
    let fabric = Fabric::find().unwrap();
    Runtime::new().unwrap().block_on(async {
        let rdma = RdmaOptions::default().with(|it| it.devices = vec!["own0".to_owned()]);
        let user = Engine::builder().transport(TransportChoice::Auto).rdma(rdma);
        let user = user.adjust(|limits, _| limits.lanes_max = 1).start().await.unwrap();
        let mut owners = Vec::new();
        for _ in 0..2 {
            let builder = on_peer0(TransportChoice::Auto).listen("127.0.0.1:0");
            let owner = builder.start().await.unwrap();
            let memory = Memory::shared(BYTES).unwrap();
            let register = owner.register("m").access(Access::READ_WRITE);
            let served = register.serve(memory.whole()).unwrap();
            let segment = user.open(&format!("{}/m", owner.address())).await.unwrap();
            owners.push((owner, memory, served, segment));
        }
        fabric.run("fail call own0 ibv_reg_mr 12 times 100");
        let block = Memory::zeroed(BYTES).unwrap();
        for (seed, place) in [(1, 0), (2, 1), (3, 0)] {
            let (_, memory, _, segment) = &owners[place];
            block.copy_in(0, &[seed; BYTES]).unwrap();
            segment.write(&block.whole(), 0).await.unwrap();
            let mut bytes = vec![0; BYTES];
            memory.copy_out(0, &mut bytes).unwrap();
            assert_eq!(bytes, [seed; BYTES]);
            assert_eq!(segment.transport_kind(), Some(TransportKind::Shm));
        }
        fabric.run("pass");
        user.close().await;
        for (owner, ..) in owners {
            owner.close().await;
        }
    });
}

/// Nodes with devices that encrypt their lanes open none of them: bytes over RDMA would be plain.
#[test]
fn encrypted_lanes_use_no_device() {
    if !is_scripted() {
        return passes("mixed::encrypted_lanes_use_no_device");
    }
    Runtime::new().unwrap().block_on(async {
        for encrypts in [false, true] {
            let on = |device: &str| {
                let rdma = RdmaOptions::default().with(|it| it.devices = vec![device.to_owned()]);
                let builder = Engine::builder().transport(TransportChoice::Auto).rdma(rdma);
                builder.auth(AuthOptions::psk(KEY).unwrap()).encrypt_lanes(encrypts)
            };
            let owner = on("peer0").listen("127.0.0.1:0").start().await.unwrap();
            let user = on("own0").start().await.unwrap();
            for engine in [&owner, &user] {
                assert_eq!(
                    engine.devices().count(),
                    usize::from(!encrypts),
                    "encrypts: {encrypts}"
                );
                let kinds: Vec<_> = engine.transport_kinds().collect();
                assert_eq!(kinds.contains(&TransportKind::Rdma), !encrypts, "{kinds:?}");
            }
            user.close().await;
            owner.close().await;
        }
    });
}

/// The descriptor that a node without the handfast key receives.
fn plain_descriptor(address: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(&encode_frame(FrameKind::Metadata, "x")).unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    assert!(text.contains("\"rkey\":["), "{text}");
    text
}
