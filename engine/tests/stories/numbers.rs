//! A restarted peer announces the queue pairs' numbers of its previous incarnation.

use crate::helpers::Owner;
use crate::log::Log;
use crate::share::exchange;
use handfast::Engine;
use handfast_core::wire::{Body, Message, Op};
use handfast_core::{Incarnation, Lifecycle, NicPath, NodeName, Pair};

async fn announce(engine: &Engine, incarnation: u128, queue_pairs: &[u32]) {
    let name = |text: &str| NodeName::new(text).unwrap();
    let message = Message {
        op: Op::Request,
        from: NicPath { node: name("peer"), nic: name("nic") },
        to: NicPath { node: name(engine.name()), nic: name("tcp") },
        sender: Pair { incarnation: Incarnation(incarnation), lifecycle: Lifecycle(1) },
        echo: None,
        body: Body { queue_pairs: queue_pairs.to_vec(), ..Body::default() },
        refusal: None,
    };
    exchange(engine, &message).await;
}

/// Numbers of the previous incarnation are logged; repeated announcements and other numbers are not.
#[tokio::test]
async fn repeated_queue_pair_numbers_are_logged() {
    let log = Log::default();
    let _kept = log.keep();
    let owner = Owner::start(64).await;
    let logged = || log.text().matches("with identical QP numbers").count();
    for (incarnation, numbers) in [(1, &[17, 18][..]), (1, &[17, 18]), (2, &[17, 19]), (2, &[])] {
        announce(&owner.engine, incarnation, numbers).await;
        assert_eq!(logged(), 0, "{numbers:?} of incarnation {incarnation}");
    }
    announce(&owner.engine, 3, &[17, 19]).await;
    assert_eq!(logged(), 1);
}
