//! Choice of a transport without RDMA. With RDMA the program's tests in the guest cover it.

use crate::helpers::{Owner, pattern, skipped, tcp_user};
use handfast::rdma::RdmaUnavailable;
use handfast::{Access, Cause, Engine, Side, Stage, TransportChoice, TransportKind};

/// The reason for missing RDMA, if it is missing.
fn unavailable() -> Option<RdmaUnavailable> {
    let reason = handfast_transport_rdma::availability().err();
    if reason.is_none() {
        skipped("this machine has an RDMA device");
    }
    reason
}

/// Unavailable RDMA is an error that names cause and cure.
#[tokio::test]
async fn unavailable_rdma_names_cause_and_cure() {
    let Some(reason) = unavailable() else { return };
    let builder = Engine::builder().transport(TransportChoice::Rdma);
    let Err(error) = builder.start().await else { panic!("it started") };
    assert_eq!((error.side(), error.stage()), (Side::Local, Stage::Device));
    assert_eq!(*error.cause(), Cause::RdmaUnavailable(reason));
    assert!(error.to_string().contains(error.hint().unwrap()), "{error}");
}

#[tokio::test]
async fn auto_takes_tcp_then_says_why_once_and_moves_bytes() {
    let Some(reason) = unavailable() else { return };
    let owner = Engine::builder().listen("127.0.0.1:0").transport(TransportChoice::Tcp);
    let owner = Owner::start_from(owner, 1 << 20).await;
    let user = Engine::builder().transport(TransportChoice::Auto).start().await.unwrap();
    let fallbacks = user.fallbacks();
    let [fallback] = fallbacks.as_slice() else { panic!("{fallbacks:?}") };
    assert_eq!(
        (fallback.side(), fallback.stage(), fallback.peer()),
        (Side::Local, Stage::Device, None)
    );
    assert_eq!(*fallback.cause(), Cause::RdmaUnavailable(reason));
    assert!(fallback.to_string().contains(fallback.cure()), "{fallback}");

    let segment = user.open(&owner.segment()).await.unwrap();
    assert_eq!(segment.transport_kind(), None, "no lane is up yet");
    let block = pattern(300_000, 1);
    let _prepared = user.prepare(&block.whole()).await.unwrap();
    segment.write(&block.whole(), 7).await.unwrap();
    assert_eq!(segment.transport_kind(), Some(TransportKind::Tcp));
    assert_eq!(user.fallbacks().len(), 1);
    assert_eq!(user.devices().next(), None);
    assert_eq!(
        user.transport_kinds().collect::<Vec<_>>(),
        [TransportKind::Shm, TransportKind::Tcp]
    );
    assert!(fallback.is_expected() && fallback.missed() == TransportKind::Rdma);
}

#[tokio::test]
async fn the_carrier_is_told_for_peers_and_for_oneself() {
    let (owner, user) = (Owner::start(4096).await, tcp_user().await);
    let block = pattern(64, 2);
    let own = owner.engine.open(&owner.segment()).await.unwrap();
    own.write(&block.whole(), 0).await.unwrap();
    assert_eq!(own.transport_kind(), Some(TransportKind::Copy));
    let segment = user.open(&owner.segment()).await.unwrap();
    segment.write(&block.whole(), 0).await.unwrap();
    assert_eq!(segment.transport_kind(), Some(TransportKind::Tcp));
    assert!(user.fallbacks().is_empty(), "TCP was asked for");
    drop(owner.served);
    let memory = pattern(64, 3);
    let again = owner.engine.register("cache").access(Access::READ).serve(memory.whole());
    assert!(again.is_ok(), "a name is free once its registration is gone");
}
