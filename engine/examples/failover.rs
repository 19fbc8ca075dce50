//! Reads from a replica while the primary is down, and from the primary once it is back.
//!
//! ```sh
//! cargo run --example failover
//! ```

use handfast::{Access, Engine, Error, Memory, Registration, Segment};
use std::time::Duration;

const BYTES: usize = 1 << 20;

/// A node that serves `weights`, filled with one byte.
struct Replica {
    engine: Engine,
    _weights: Registration,
}

impl Replica {
    async fn start(address: &str, fill: u8) -> Result<Self, Error> {
        let engine = Engine::builder().listen(address).start().await?;
        let memory = Memory::zeroed(BYTES)?;
        memory.copy_in(0, &[fill; BYTES])?;
        let weights = engine.register("weights").access(Access::READ).serve(memory.whole())?;
        Ok(Self { engine, _weights: weights })
    }

    fn segment(&self) -> String {
        format!("{}/weights", self.engine.address())
    }
}

/// Reads from the first of `replicas` that answers and returns the first byte.
async fn read_any(replicas: &[Segment]) -> Result<u8, Error> {
    let mut last = None;
    for segment in replicas {
        let copy = Memory::zeroed(BYTES)?;
        match segment.read(&copy.whole(), 0).timeout(Duration::from_secs(10)).await {
            Ok(_) => {
                let mut first = [0];
                copy.copy_out(0, &mut first)?;
                return Ok(first[0]);
            }
            // The error names the peer, the stage and the cause; `Error::class` says whether to
            // try again, and where. A read leaves nothing behind, so any other replica will do.
            Err(error) => {
                println!("{error}");
                last = Some(error);
            }
        }
    }
    Err(last.expect("at least one replica"))
}

/// Returns the bytes read with both replicas up, with the primary down, and after its restart.
pub(crate) async fn run() -> Result<[u8; 3], Error> {
    let primary = Replica::start("127.0.0.1:0", 1).await?;
    let standby = Replica::start("127.0.0.1:0", 2).await?;
    let reader = Engine::builder().start().await?;
    let replicas = [reader.open(&primary.segment()).await?, reader.open(&standby.segment()).await?];
    let healthy = read_any(&replicas).await?;

    let address = primary.engine.address().to_owned();
    primary.engine.close().await;
    drop(primary);
    let failed_over = read_any(&replicas).await?;

    // A new incarnation under the same name. The reader keeps its segment: the next transfer
    // connects again and reads the new descriptor.
    let primary = Replica::start(&address, 3).await?;
    let recovered = read_any(&replicas).await?;
    for engine in [reader, primary.engine, standby.engine] {
        engine.close().await;
    }
    Ok([healthy, failed_over, recovered])
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let [healthy, failed_over, recovered] = run().await?;
    println!("read {healthy} from the primary, {failed_over} from the standby");
    println!("read {recovered} from the primary after its restart");
    Ok(())
}
