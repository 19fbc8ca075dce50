//! Engines on loopback, and memory with a pattern.

use handfast::{Access, Engine, Memory, Registration};

/// A node that serves one segment, `cache`, of `bytes`.
pub(crate) struct Owner {
    pub(crate) engine: Engine,
    pub(crate) memory: Memory,
    pub(crate) served: Registration,
}

impl Owner {
    pub(crate) async fn start(bytes: usize) -> Self {
        Self::start_at("127.0.0.1:0", bytes).await
    }

    pub(crate) async fn start_at(address: &str, bytes: usize) -> Self {
        let engine = Engine::builder().listen(address).start().await.unwrap();
        let memory = Memory::zeroed(bytes).unwrap();
        let served = engine.register("cache", memory.whole(), Access::READ_WRITE).unwrap();
        Self { engine, memory, served }
    }

    pub(crate) fn segment(&self) -> String {
        format!("{}/{}", self.engine.address(), self.served.name())
    }
}

pub(crate) async fn user() -> Engine {
    Engine::builder().start().await.unwrap()
}

/// Memory whose bytes differ from place to place.
pub(crate) fn pattern(bytes: usize, seed: u8) -> Memory {
    let memory = Memory::zeroed(bytes).unwrap();
    let content: Vec<u8> = (0..bytes).map(|i| (i * 7 + i / 251) as u8 ^ seed).collect();
    memory.copy_in(0, &content).unwrap();
    memory
}

pub(crate) fn content(memory: &Memory, offset: usize, bytes: usize) -> Vec<u8> {
    let mut out = vec![0; bytes];
    memory.copy_out(offset, &mut out).unwrap();
    out
}
