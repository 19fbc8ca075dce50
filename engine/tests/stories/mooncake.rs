//! Mooncake nodes as peers, played by the tests: their TCP data protocol, both ways.

mod asked;
mod asking;

use handfast::mooncake::MooncakeOptions;
use handfast::{Access, Engine, Memory, Registration};
use handfast_core::mooncake::{DataRequest, DataStatus, ProtocolVersion};
use handfast_core::transfer::Direction;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

/// A node that Mooncake nodes reach, with one open segment.
struct Open {
    engine: Engine,
    memory: Memory,
    served: Registration,
}

impl Open {
    async fn start(options: MooncakeOptions, bytes: usize) -> Self {
        let builder = Engine::builder().listen("127.0.0.1:0").mooncake(options);
        let engine = builder.start().await.unwrap();
        let memory = Memory::zeroed(bytes).unwrap();
        let access = Access::READ_WRITE;
        let served =
            engine.register("open").access(access).mooncake().serve(memory.whole()).unwrap();
        Self { engine, memory, served }
    }

    async fn connect(&self) -> Peer {
        let address = self.engine.data_address().expect("a data port");
        Peer(TcpStream::connect(address).await.unwrap())
    }

    /// Connects from an address of this machine.
    async fn connect_from(&self, from: &str) -> Peer {
        let address = self.engine.data_address().expect("a data port");
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(from.parse().unwrap()).unwrap();
        Peer(socket.connect(address.parse().unwrap()).await.unwrap())
    }
}

/// The address of a crowd; peers are at 127.0.0.1.
const CROWD: &str = "127.0.0.66:0";

/// The other end of a data connection.
struct Peer(TcpStream);

impl Peer {
    async fn ask(&mut self, request: DataRequest) {
        self.0.write_all(&request.encode()).await.unwrap();
    }

    async fn take<const BYTES: usize>(&mut self) -> [u8; BYTES] {
        let mut taken = [0; BYTES];
        self.0.read_exact(&mut taken).await.unwrap();
        taken
    }

    async fn status(&mut self) -> DataStatus {
        DataStatus::decode(self.take().await).unwrap()
    }

    /// All bytes until the connection ends.
    async fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        // A reset is an end as well.
        let _ = self.0.read_to_end(&mut rest).await;
        rest
    }
}

fn request(direction: Direction, address: u64, bytes: u64) -> DataRequest {
    DataRequest { direction, version: ProtocolVersion::Two, bytes, address }
}
