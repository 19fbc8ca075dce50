//! Lanes inside a simulated network, with its time.

use crate::support::*;
use handfast_core::wire::Body;
use handfast_core::{Incarnation, Lifecycle, Pair};
use handfast_transport::{Access, Completion, Sent};
use handfast_transport_tcp::{Bounced, Net};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use turmoil::net::{TcpListener, TcpStream};

#[derive(Clone)]
struct SimulatedNet;

impl Net for SimulatedNet {
    type Stream = Bounced<TcpStream>;
    type Listener = TcpListener;

    async fn bind(&self, address: &str) -> io::Result<TcpListener> {
        TcpListener::bind(address).await
    }

    async fn accept(&self, listener: &TcpListener) -> io::Result<(Self::Stream, SocketAddr)> {
        let (stream, from) = listener.accept().await?;
        Ok((Bounced(stream), from))
    }

    async fn connect(&self, address: &str) -> io::Result<Self::Stream> {
        Ok(Bounced(TcpStream::connect(address).await?))
    }

    fn local_address(&self, listener: &TcpListener) -> io::Result<SocketAddr> {
        listener.local_addr()
    }
}

fn low() -> Pair {
    Pair { incarnation: Incarnation(1), lifecycle: LANE }
}

fn high() -> Pair {
    Pair { incarnation: Incarnation(2), lifecycle: LANE }
}

fn simulation() -> turmoil::Sim<'static> {
    let mut builder = turmoil::Builder::new();
    builder.rng_seed(7).simulation_duration(Duration::from_secs(60));
    builder.build()
}

/// The accepting host's announcement to the dialling one, in place of a control channel.
type Notice = Arc<Mutex<Option<(Body, handfast_transport::Region)>>>;

/// A host that raises a lane for the dialler and keeps it.
fn serve(simulation: &mut turmoil::Sim<'static>, notice: &Notice) {
    let notice = Arc::clone(notice);
    simulation.host("server", move || {
        let notice = Arc::clone(&notice);
        async move {
            let node = node_at(SimulatedNet, "0.0.0.0:900", 2, Setup::default()).await;
            let (memory, region) = node.region(100_000, Access::READ_WRITE);
            memory.copy_in(0, &bytes_of(&patterned(100_000, 5)))?;
            let body = node.transport.create(LANE, 42)?;
            node.transport.connect(high(), low(), Body::default()).await?;
            let body = Body { address: "server:900".into(), ..body };
            *notice.lock().unwrap() = Some((body, region));
            std::future::pending().await
        }
    });
}

async fn told(notice: &Notice) -> (Body, handfast_transport::Region) {
    loop {
        if let Some(told) = notice.lock().unwrap().clone() {
            return told;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn a_lane_works_until_its_peer_crashes() {
    let mut simulation = simulation();
    let notice = Notice::default();
    serve(&mut simulation, &notice);
    let crash = Arc::new(tokio::sync::Notify::new());
    let wanted = Arc::clone(&crash);
    simulation.client("client", async move {
        let node = node_at(SimulatedNet, "0.0.0.0:900", 1, Setup::default()).await;
        let (body, region) = told(&notice).await;
        node.transport.create(LANE, 1)?;
        node.transport.connect(low(), high(), body).await?;
        let local = patterned(100_000, 0);
        let slice = node.read(local.whole(), &region, 0);
        assert_eq!(node.sink.ended(1).await, [Completion::done(slice)]);
        assert_eq!(bytes_of(&local), bytes_of(&patterned(100_000, 5)));
        wanted.notify_one();
        let error = node.sink.failure().await;
        assert!(error.detail.contains("closed"), "{error}");
        let slice = node.read(local.whole(), &region, 0);
        let released = Completion::released(slice, Sent::None);
        assert_eq!(node.sink.ended_now(), [released]);
        node.retire().await;
        Ok(())
    });
    let mut crashed = false;
    while !simulation.step().unwrap() {
        let asked = std::pin::pin!(crash.notified()).as_mut().enable();
        if asked && !crashed {
            simulation.crash("server");
            crashed = true;
        }
    }
    assert!(crashed);
}

#[test]
fn a_peer_that_cannot_be_reached_costs_the_time_of_a_dial() {
    let mut simulation = simulation();
    let notice = Notice::default();
    serve(&mut simulation, &notice);
    simulation.client("client", async move {
        let node = node_at(SimulatedNet, "0.0.0.0:900", 1, Setup::default()).await;
        let (body, _) = told(&notice).await;
        turmoil::partition("client", "server");
        for lifecycle in [7, 8] {
            node.transport.create(Lifecycle(lifecycle), 1)?;
            let begin = tokio::time::Instant::now();
            let local = Pair { lifecycle: Lifecycle(lifecycle), ..low() };
            let error = node.transport.connect(local, high(), body.clone()).await.unwrap_err();
            assert_eq!(error.call, "connect");
            assert!(error.detail.contains("server:900"), "{error}");
            assert!(begin.elapsed() <= Duration::from_millis(3100));
        }
        Ok(())
    });
    simulation.run().unwrap();
}
