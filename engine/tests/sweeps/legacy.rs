//! A Mooncake node of a simulation: it answers with its descriptor, and serves its memory over the TCP
//! data protocol.

use crate::ledger::{Story, segment_bytes};
use crate::plan::Draw;
use handfast::Memory;
use handfast_core::mooncake::{
    BufferDescriptor, DataRequest, DataStatus, Protocols, REQUEST_BYTES, SegmentDescriptor,
};
use handfast_core::transfer::Direction;
use handfast_core::wire::{FRAME_HEADER_BYTES, FrameKind, encode_frame};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::sleep;
use turmoil::net::{TcpListener, TcpStream};

pub(crate) const LEGACY: &str = "legacy";
pub(crate) const LEGACY_PORT: u16 = 12_001;
const DATA_PORT: u16 = 12_002;
/// Address of the first byte.
const BASE: u64 = 0x7f00_0000_0000;
/// Longest time before the answer to a request.
const ANSWER_MS_MAX: u64 = 15;

pub(crate) async fn serve(story: Arc<Story>) -> Result<(), Box<dyn std::error::Error>> {
    let process = &story.processes[story.plan.nodes];
    process.run.store(1, Ordering::Relaxed);
    let memory = Memory::zeroed(segment_bytes(story.plan.nodes))?;
    *process.memory.lock().unwrap() = Some(memory.clone());
    let calls = TcpListener::bind(("0.0.0.0", LEGACY_PORT)).await?;
    let data = TcpListener::bind(("0.0.0.0", DATA_PORT)).await?;
    let descriptor = descriptor(memory.len() as u64).encode();
    let mut draw = Draw::new(story.plan.seed ^ 0x1e6);
    loop {
        tokio::select! {
            called = calls.accept() => {
                tokio::spawn(answer(called?.0, descriptor.clone()));
            }
            opened = data.accept() => {
                let draw = Draw::new(draw.below(u64::MAX));
                tokio::spawn(move_bytes(opened?.0, memory.clone(), draw));
            }
        }
    }
}

fn descriptor(bytes: u64) -> SegmentDescriptor {
    let buffer = BufferDescriptor {
        addr: BASE,
        length: bytes,
        lkey: Vec::new(),
        name: LEGACY.to_owned(),
        protocol: None,
        rkey: Vec::new(),
    };
    SegmentDescriptor {
        buffers: vec![buffer],
        devices: Vec::new(),
        name: format!("{LEGACY}:{LEGACY_PORT}"),
        priority_matrix: None,
        protocol: Protocols::One("tcp".to_owned()),
        rdma_server_name: None,
        tcp_data_host: None,
        tcp_data_port: DATA_PORT,
        tcp_proto_version: Some(2),
        timestamp: None,
    }
}

/// Answers one call with the descriptor.
async fn answer(mut stream: TcpStream, descriptor: String) -> io::Result<()> {
    let mut header = [0; FRAME_HEADER_BYTES];
    stream.read_exact(&mut header).await?;
    let length = usize::try_from(u64::from_le_bytes(header)).unwrap_or(0);
    stream.read_exact(&mut vec![0; length.min(1 << 20)]).await?;
    stream.write_all(&encode_frame(FrameKind::Metadata, &descriptor)).await?;
    stream.shutdown().await
}

/// Serves the requests of a connection, one after the other, each after a while.
async fn move_bytes(mut stream: TcpStream, memory: Memory, mut draw: Draw) -> io::Result<()> {
    loop {
        let mut header = [0; REQUEST_BYTES];
        stream.read_exact(&mut header).await?;
        let DataRequest { direction, bytes, address, .. } = DataRequest::decode(header);
        let offset = address.wrapping_sub(BASE) as usize;
        let mut body = vec![0; bytes as usize];
        if direction == Direction::Write {
            stream.read_exact(&mut body).await?;
            memory.copy_in(offset, &body).map_err(io::Error::other)?;
        }
        sleep(Duration::from_millis(draw.below(ANSWER_MS_MAX))).await;
        stream.write_all(&DataStatus::Done.encode()).await?;
        if direction == Direction::Read {
            memory.copy_out(offset, &mut body).map_err(io::Error::other)?;
            stream.write_all(&body).await?;
        }
    }
}
