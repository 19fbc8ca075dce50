//! Answers of metadata stores, of an HTTP server and of a Redis, in parts of any length.

use crate::check_error;
use handfast_metadata::{
    HttpStore, RedisOptions, RedisStore, Store, StoreCause, StoreError, VALUE_BYTES_MAX,
};
use hyper::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};
use tokio::runtime::Builder;
use tower_service::Service;

const KEY: &str = "mooncake/rpc_meta/a:1";
const VALUE: &str = r#"{"ip_or_host_name":"a","rpc_port":1}"#;
/// Bytes that a pipe holds.
const PIPE_BYTES: usize = 16 << 10;
/// Limit of an operation: more than the stores' own.
const END_MAX: Duration = Duration::from_secs(60);

/// The form of a store's answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// The input.
    Raw,
    /// The input as a value, as long as it says.
    Whole,
    /// The input as a value, in chunks.
    Chunks,
}

#[derive(Clone, Copy)]
enum Operation {
    Get,
    Put,
    Remove,
}

/// Operation and form of an input's first byte; the second half is of a Redis.
const CASES: [(Operation, Form); 5] = [
    (Operation::Get, Form::Raw),
    (Operation::Put, Form::Raw),
    (Operation::Remove, Form::Raw),
    (Operation::Get, Form::Whole),
    (Operation::Get, Form::Chunks),
];

/// Panics unless an operation ends in time, with a text within the limit, the value that a whole answer has,
/// or an error of few words.
///
/// The first byte chooses the case, the second the bytes that are sent at once, and the rest is the
/// answer.
pub fn check(bytes: &[u8]) {
    let Some(([case, step], answer)) = bytes.split_first_chunk::<2>() else { return };
    let case = usize::from(*case) % (2 * CASES.len());
    let (is_redis, (operation, form)) = (case >= CASES.len(), CASES[case % CASES.len()]);
    let step = 1 + 16 * usize::from(*step);
    let said = if is_redis { redis_answer(form, answer) } else { http_answer(form, answer) };
    let server = Server(Arc::new((said, step)));
    // Connections go with their runtime. Its limits end only when every task is idle.
    let mut runtime = Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().expect("a runtime");
    let ended = runtime.block_on(async {
        let ended = tokio::time::timeout(END_MAX, ask(server, is_redis, operation));
        ended.await.expect("an operation ends in time")
    });
    check_result(ended, form, answer);
}

fn check_result(ended: Result<Option<String>, StoreError>, form: Form, answer: &[u8]) {
    if form != Form::Raw {
        match (str::from_utf8(answer), &ended) {
            (Ok(text), Ok(Some(value))) => assert_eq!(value, text, "the value changed"),
            (Err(_), Err(error)) => assert_eq!(error.cause, StoreCause::NotText),
            (_, ended) => panic!("a value is lost: {ended:?}"),
        }
    }
    match ended {
        Ok(value) => assert!(value.is_none_or(|value| value.len() <= VALUE_BYTES_MAX)),
        Err(error) => check_error(&error.to_string()),
    }
}

async fn ask(
    server: Server,
    is_redis: bool,
    operation: Operation,
) -> Result<Option<String>, StoreError> {
    let store: Box<dyn Store> = match is_redis {
        true => {
            let connect = move |_: String, _: u16| {
                let stream = server.connect();
                async move { Ok::<_, io::Error>(stream) }
            };
            let options = RedisOptions::default();
            Box::new(RedisStore::with_connector("store", 6379, options, connect))
        }
        false => {
            let store = HttpStore::with_connector("http://store:8080/metadata", server);
            Box::new(store.expect("it is a URL"))
        }
    };
    match operation {
        Operation::Get => store.get(KEY).await,
        Operation::Put => store.put(KEY, VALUE).await.map(|()| None),
        Operation::Remove => store.remove(KEY).await.map(|()| None),
    }
}

fn http_answer(form: Form, body: &[u8]) -> Vec<u8> {
    let head = "HTTP/1.1 200 OK\r\n";
    match form {
        Form::Raw => body.to_vec(),
        Form::Whole => {
            let head = format!("{head}Content-Length: {}\r\n\r\n", body.len());
            [head.as_bytes(), body].concat()
        }
        Form::Chunks => {
            let mut answer = format!("{head}Transfer-Encoding: chunked\r\n\r\n").into_bytes();
            for chunk in body.chunks(7) {
                answer.extend(format!("{:x}\r\n", chunk.len()).into_bytes());
                answer.extend(chunk);
                answer.extend(b"\r\n");
            }
            answer.extend(b"0\r\n\r\n");
            answer
        }
    }
}

fn redis_answer(form: Form, value: &[u8]) -> Vec<u8> {
    match form {
        Form::Raw => value.to_vec(),
        // A Redis does not send values in chunks.
        Form::Whole | Form::Chunks => {
            let head = format!("${}\r\n", value.len());
            [head.as_bytes(), value, b"\r\n"].concat()
        }
    }
}

/// A store that sends its answer behind the first bytes of a request, so many bytes at once, and ends
/// the connection.
#[derive(Clone)]
struct Server(Arc<(Vec<u8>, usize)>);

impl Server {
    fn connect(&self) -> DuplexStream {
        let (near, far) = tokio::io::duplex(PIPE_BYTES);
        tokio::spawn(self.clone().serve(far));
        near
    }

    async fn serve(self, mut stream: DuplexStream) {
        let (answer, step) = &*self.0;
        if !matches!(stream.read(&mut [0; 1024]).await, Ok(1..)) {
            return;
        }
        for part in answer.chunks(*step) {
            if stream.write_all(part).await.is_err() {
                return;
            }
            tokio::task::yield_now().await;
        }
        // The client may have ended the connection.
        let _ = stream.shutdown().await;
    }
}

impl Service<Uri> for Server {
    type Response = TokioIo<Dialled>;
    type Error = io::Error;
    type Future = std::future::Ready<io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        std::future::ready(Ok(TokioIo::new(Dialled(self.connect()))))
    }
}

/// A connection to the store.
struct Dialled(DuplexStream);

impl Connection for Dialled {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for Dialled {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Dialled {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
