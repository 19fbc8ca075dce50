//! An etcd of one member on a host of the simulation.

use crate::grpc::{Inlet, Outgoing, Outlet, Refusal, response};
use crate::messages::{
    AuthenticateRequest, AuthenticateResponse, DeleteRangeResponse, KeyRequest, LeaseGrantRequest,
    LeaseKeepAliveRequest, LeaseResponse, RangeResponse, TxnRequest, TxnResponse, WatchRequest,
    WatchResponse,
};
use crate::table::Table;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use turmoil::net::TcpListener;

pub(crate) const ETCD: &str = "etcd";
pub(crate) const ETCD_PORT: u16 = 2379;
/// The user that it knows.
pub(crate) const USER: (&str, &str) = ("root", "secret");
/// Codes of gRPC.
const INVALID_ARGUMENT: i32 = 3;
const NOT_FOUND: i32 = 5;
const UNIMPLEMENTED: i32 = 12;
const UNAUTHENTICATED: i32 = 16;
/// Reason of a refused watch, for a token that is unknown.
const UNKNOWN_TOKEN: &str =
    "rpc error: code = Unauthenticated desc = etcdserver: invalid auth token";
/// The same of an etcd before 3.5.
const UNKNOWN_TOKEN_EARLIER: &str =
    "rpc error: code = PermissionDenied desc = etcdserver: permission denied";

/// Serves the table until the process dies.
pub(crate) async fn serve(table: Arc<Mutex<Table>>) -> Result<(), Box<dyn std::error::Error>> {
    table.lock().unwrap().restart();
    let listener = TcpListener::bind(("0.0.0.0", ETCD_PORT)).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        let table = table.clone();
        let service = service_fn(move |request| answer(table.clone(), request));
        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
    }
}

async fn answer(
    table: Arc<Mutex<Table>>,
    request: Request<Incoming>,
) -> Result<Response<Outgoing>, Infallible> {
    let (outlet, response) = response();
    tokio::spawn(async move {
        let status = perform(&table, request, &outlet).await;
        outlet.end(status);
    });
    Ok(response)
}

async fn perform(
    table: &Mutex<Table>,
    request: Request<Incoming>,
    outlet: &Outlet,
) -> Result<(), Refusal> {
    let path = request.uri().path().to_owned();
    let token = request.headers().get("token").and_then(|it| it.to_str().ok()).map(str::to_owned);
    let method = path.rsplit('/').next().unwrap_or_default();
    // An etcd looks at the token of a watch in its request, and refuses it in an answer.
    let is_open = ["Authenticate", "Watch"].contains(&method);
    if !is_open && !table.lock().unwrap().knows_token(token.as_deref()) {
        return Err(Refusal(UNAUTHENTICATED, "etcdserver: invalid auth token"));
    }
    let mut inlet = Inlet::new(request.into_body());
    let cut = Refusal(INVALID_ARGUMENT, "the request ends early");
    match method {
        "Authenticate" => {
            let asked: AuthenticateRequest = inlet.next().await.ok_or(cut)?;
            if (&*asked.name, &*asked.password) != USER {
                return Err(Refusal(INVALID_ARGUMENT, "authentication failed"));
            }
            let mut table = table.lock().unwrap();
            let token = table.give_token();
            outlet.send(&AuthenticateResponse { header: table.header(), token });
        }
        "Range" => {
            let asked: KeyRequest = inlet.next().await.ok_or(cut)?;
            let table = table.lock().unwrap();
            let kvs: Vec<_> = table.get(&asked.key).cloned().into_iter().collect();
            let count = kvs.len() as i64;
            outlet.send(&RangeResponse { header: table.header(), kvs, count });
        }
        "DeleteRange" => {
            let asked: KeyRequest = inlet.next().await.ok_or(cut)?;
            let mut table = table.lock().unwrap();
            let deleted = i64::from(table.remove(&asked.key));
            outlet.send(&DeleteRangeResponse { header: table.header(), deleted });
        }
        "Txn" => {
            let asked: TxnRequest = inlet.next().await.ok_or(cut)?;
            outlet.send(&transact(&mut table.lock().unwrap(), asked)?);
        }
        "LeaseGrant" => {
            let asked: LeaseGrantRequest = inlet.next().await.ok_or(cut)?;
            let mut table = table.lock().unwrap();
            let id = table.grant(asked.seconds as u64);
            outlet.send(&LeaseResponse { header: table.header(), id, seconds: asked.seconds });
        }
        "LeaseKeepAlive" => {
            while let Some(LeaseKeepAliveRequest { id }) = inlet.next().await {
                let mut table = table.lock().unwrap();
                let seconds = table.keep_alive(id) as i64;
                outlet.send(&LeaseResponse { header: table.header(), id, seconds });
            }
        }
        "Watch" => {
            while let Some(WatchRequest { create }) = inlet.next().await {
                let Some(create) = create else { continue };
                let mut table = table.lock().unwrap();
                match table.knows_token(token.as_deref()) {
                    true => table.watch(create.key, create.end, outlet.clone()),
                    false => refuse(&table, outlet),
                }
            }
        }
        _ => return Err(Refusal(UNIMPLEMENTED, "unknown method")),
    }
    Ok(())
}

/// Refuses a watch for its token. The stream stays.
fn refuse(table: &Table, outlet: &Outlet) {
    let reason = if table.is_earlier { UNKNOWN_TOKEN_EARLIER } else { UNKNOWN_TOKEN };
    outlet.send(&WatchResponse {
        header: table.header(),
        created: true,
        canceled: true,
        cancel_reason: reason.to_owned(),
        events: Vec::new(),
    });
}

fn transact(table: &mut Table, asked: TxnRequest) -> Result<TxnResponse, Refusal> {
    let succeeded = asked.compare.iter().all(|compare| table.holds(compare));
    if !succeeded {
        for put in asked.failure.into_iter().filter_map(|operation| operation.put) {
            if !table.put(put) {
                return Err(Refusal(NOT_FOUND, "etcdserver: requested lease not found"));
            }
        }
    }
    Ok(TxnResponse { header: table.header(), succeeded })
}
