//! gRPC over HTTP/2: messages behind five bytes, and the status in the trailers.

use bytes::{BufMut, Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{HeaderMap, Response};
use prost::Message;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Bytes before a message: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;

/// A status that is not OK.
pub(crate) struct Refusal(pub(crate) i32, pub(crate) &'static str);

/// The messages of a request.
pub(crate) struct Inlet {
    body: Incoming,
    bytes: BytesMut,
}

impl Inlet {
    pub(crate) fn new(body: Incoming) -> Self {
        Self { body, bytes: BytesMut::new() }
    }

    /// The next message; `None` at the end of the request, or of its connection.
    pub(crate) async fn next<M: Message + Default>(&mut self) -> Option<M> {
        loop {
            if let Some(prefix) = self.bytes.first_chunk::<PREFIX_BYTES>() {
                let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]);
                let end = PREFIX_BYTES + length as usize;
                if self.bytes.len() >= end {
                    let message = self.bytes.split_to(end).split_off(PREFIX_BYTES);
                    return M::decode(message).ok();
                }
            }
            let frame = self.body.frame().await?.ok()?;
            if let Ok(data) = frame.into_data() {
                self.bytes.extend_from_slice(&data);
            }
        }
    }
}

/// Sends the messages of a response.
#[derive(Clone)]
pub(crate) struct Outlet(UnboundedSender<Frame<Bytes>>);

impl Outlet {
    /// Returns whether the response is still read.
    pub(crate) fn send(&self, message: &impl Message) -> bool {
        let mut bytes = BytesMut::new();
        bytes.put_u8(0);
        bytes.put_u32(message.encoded_len() as u32);
        message.encode(&mut bytes).expect("it has room");
        self.0.send(Frame::data(bytes.freeze())).is_ok()
    }

    /// Returns whether nobody reads the response any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    /// Ends the response.
    pub(crate) fn end(&self, status: Result<(), Refusal>) {
        let Refusal(code, text) = status.err().unwrap_or(Refusal(0, ""));
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from(code));
        trailers.insert("grpc-message", HeaderValue::from_static(text));
        // A connection that has ended needs no trailers.
        let _ = self.0.send(Frame::trailers(trailers));
    }
}

/// The body of a response.
pub(crate) struct Outgoing(UnboundedReceiver<Frame<Bytes>>);

impl Body for Outgoing {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|frame| frame.map(Ok))
    }
}

/// A response, and what fills it.
pub(crate) fn response() -> (Outlet, Response<Outgoing>) {
    let (sender, receiver) = unbounded_channel();
    let mut response = Response::new(Outgoing(receiver));
    let kind = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    (Outlet(sender), response)
}
