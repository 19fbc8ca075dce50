//! Serves one segment of memory until standard input ends.
//!
//! ```sh
//! cargo run --example serve                     # 64 MiB at 127.0.0.1:7411/notes
//! cargo run --example serve -- 127.0.0.1:0      # at a free port
//! ```
//!
//! Then, in another terminal: `cargo run --example put -- 127.0.0.1:7411/notes hello`.

use handfast::{Access, Engine, Error, Memory, Registration};
use std::env;
use std::io::{self, Read};

/// A node with one segment. Dropping the registration ends the remote access to the memory.
pub(crate) struct Server {
    pub(crate) engine: Engine,
    pub(crate) memory: Memory,
    pub(crate) notes: Registration,
}

/// Listens at `address` and registers `bytes` of zeroed memory as `notes`.
pub(crate) async fn serve(address: &str, bytes: usize) -> Result<Server, Error> {
    let engine = Engine::builder().listen(address).start().await?;
    let memory = Memory::zeroed(bytes)?;
    let notes = engine.register("notes").access(Access::READ_WRITE).serve(memory.whole())?;
    Ok(Server { engine, memory, notes })
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7411".to_owned());
    let server = serve(&address, 64 << 20).await?;
    println!("serving {}/{}; press Ctrl-D to stop", server.engine.address(), server.notes.name());

    // Peers read and write the memory without this task.
    tokio::task::spawn_blocking(|| io::stdin().read_to_end(&mut Vec::new())).await??;

    let mut start = [0; 64];
    server.memory.copy_out(0, &mut start)?;
    println!("the segment begins with {:?}", String::from_utf8_lossy(&start));
    server.engine.close().await;
    Ok(())
}
