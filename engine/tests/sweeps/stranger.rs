//! A host that sends parts of messages to every node, and never a whole one.

use crate::ledger::{Phase, Story};
use crate::plan::Draw;
use crate::world::{name, port};
use handfast_core::wire::{FrameKind, encode_frame};
use handfast_transport_tcp::{HELLO_BYTES, LANE_MAGIC};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::time::{sleep, timeout};
use turmoil::net::TcpStream;

pub(crate) const STRANGER: &str = "stranger";
/// Longest time for which a connection stays open.
const STAY_MS_MAX: u64 = 30;
/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(50);

pub(crate) async fn visit(story: Arc<Story>) -> Result<(), Box<dyn std::error::Error>> {
    let mut draw = Draw::new(story.plan.seed ^ 0x5eed);
    while story.phase() != Phase::Quiet {
        let node = draw.below(story.plan.nodes as u64) as usize;
        let at = (name(&story, node), port(&story, node));
        let connected = timeout(CONNECT_TIMEOUT, TcpStream::connect(at)).await;
        if let Ok(Ok(mut stream)) = connected {
            // A peer that has gone takes nothing.
            let _ = stream.write_all(&part(&mut draw)).await;
            sleep(Duration::from_millis(draw.between(1, STAY_MS_MAX))).await;
        }
        sleep(Duration::from_millis(draw.between(1, STAY_MS_MAX))).await;
    }
    std::future::pending().await
}

/// The first bytes of a hello, a frame or another protocol.
fn part(draw: &mut Draw) -> Vec<u8> {
    let mut bytes = match draw.below(4) {
        0 | 1 => {
            let mut hello = LANE_MAGIC.to_vec();
            hello.resize(HELLO_BYTES, 0);
            hello
        }
        2 => encode_frame(FrameKind::Metadata, "{\"handfast\":{}}"),
        _ => b"GET / HTTP/1.1\r\n".to_vec(),
    };
    bytes.truncate(draw.between(0, bytes.len() as u64 - 1) as usize);
    bytes
}
