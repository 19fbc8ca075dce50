//! Engines by handle.

use crate::outcome::{log, say};
use crate::segments::Segments;
use handfast::TransportChoice;
use handfast_compat::{Engines, Failure, Options, TransferEngine};
use parking_lot::Mutex;
use std::ffi::c_void;
use std::sync::{Arc, OnceLock};

/// Arguments of an engine that may not have started.
pub(crate) struct Arguments {
    pub(crate) metadata: String,
    pub(crate) name: String,
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Arguments {
    /// Options for a transport, on devices whose names are separated by commas.
    pub(crate) fn options(&self, protocol: &str, devices: &str) -> Result<Options, Failure> {
        let of = |name: &str| Options::of_mooncake(name, &self.metadata, protocol, devices);
        let by_name = of(&self.name);
        let is_in_store = !matches!(&by_name, Ok(options) if options.name.is_none());
        if !is_in_store || self.host.is_empty() {
            return Ok(by_name?).map(|options| self.at_port(options));
        }
        let mut options = of(&self.host)?.at_host(&self.host)?;
        options.name = Some(self.name.clone());
        Ok(self.at_port(options))
    }

    /// Peers ask a store for the port; without one the address has it, so that any will do.
    fn at_port(&self, mut options: Options) -> Options {
        if let (Some(host), true) = (options.listen.strip_suffix(":0"), options.name.is_some()) {
            options.listen = format!("{host}:{}", self.port);
        }
        options
    }
}

/// An engine that runs.
pub(crate) struct Running {
    pub(crate) engine: TransferEngine,
    pub(crate) segments: Mutex<Segments>,
    transport: TransportChoice,
}

/// An engine of the program.
pub(crate) struct Node {
    arguments: Arguments,
    running: OnceLock<Running>,
    /// Held while the engine starts; true once it is destroyed.
    destroyed: Mutex<bool>,
}

impl Node {
    pub(crate) fn new(arguments: Arguments) -> Self {
        Self { arguments, running: OnceLock::new(), destroyed: Mutex::new(false) }
    }

    /// Returns the engine; its first use starts it.
    pub(crate) fn running(&self) -> Result<&Running, Failure> {
        match self.running.get() {
            Some(running) => Ok(running),
            None => self.start("rdma", ""),
        }
    }

    /// Starts the engine, or checks that it can use the transport.
    pub(crate) fn start(&self, protocol: &str, devices: &str) -> Result<&Running, Failure> {
        let options = self.arguments.options(protocol, devices)?;
        let destroyed = self.destroyed.lock();
        if *destroyed {
            return Err(Failure::argument("the engine is destroyed"));
        }
        if let Some(running) = self.running.get() {
            return match (running.transport, options.transport) {
                (TransportChoice::Auto, _) => Ok(running),
                (has, wanted) if has == wanted => Ok(running),
                _ => Err(Failure::argument(format!(
                    "the engine runs without {protocol}: install the transport first"
                ))),
            };
        }
        let engine = TransferEngine::start(&options)?;
        let openness = engine.openness();
        openness.iter().for_each(|it| say(format_args!("warning: {it}")));
        for warning in engine.warnings().iter().filter(|it| Some(it.as_str()) != openness) {
            log(format_args!("warning: {warning}"));
        }
        let address = engine.address().to_owned();
        let name = options.name.unwrap_or_else(|| address.clone());
        let segments = Mutex::new(Segments::new(name, address));
        let running = Running { engine, segments, transport: options.transport };
        Ok(self.running.get_or_init(|| running))
    }

    /// Closes the engine, and waits until nothing touches memory any more.
    pub(crate) fn destroy(&self) {
        let mut destroyed = self.destroyed.lock();
        *destroyed = true;
        if let Some(running) = self.running.get()
            && let Err(failure) = running.engine.close()
        {
            log(format_args!("warning: {failure}"));
        }
    }
}

static ENGINES: Engines<Node> = Engines::new();

/// Gives an engine a handle.
///
/// # Errors
/// [`ENGINES_MAX`](handfast_compat::ENGINES_MAX).
pub(crate) fn insert(node: Arc<Node>) -> Result<*mut c_void, Failure> {
    Ok(std::ptr::without_provenance_mut(ENGINES.insert(node)? as usize))
}

/// Returns the engine of a handle.
///
/// # Errors
/// [`Cause::NoSuchEngine`](handfast_compat::Cause::NoSuchEngine), or the parent has the engine.
pub(crate) fn find(handle: *mut c_void) -> Result<Arc<Node>, Failure> {
    ENGINES.find(handle.addr() as u64)
}

/// Takes the engine of a handle, which is unknown from then on.
///
/// # Errors
/// As of [`find`].
pub(crate) fn take(handle: *mut c_void) -> Result<Arc<Node>, Failure> {
    ENGINES.take(handle.addr() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(metadata: &str, name: &str, host: &str, port: u16) -> Arguments {
        let [metadata, name, host] = [metadata, name, host].map(str::to_owned);
        Arguments { metadata, name, host, port }
    }

    /// Without a store the name has the address, and any port will do; with one the host and port
    /// are those of the call, and the name is only a name.
    #[test]
    fn arguments_place_an_engine_with_and_without_a_store() {
        let store = "http://127.0.0.1:1/metadata";
        for (arguments, listen, advertise, name) in [
            (
                arguments("P2PHANDSHAKE", "127.0.0.1:7", "10.0.0.1", 9),
                "127.0.0.1:0",
                "127.0.0.1",
                None,
            ),
            (
                arguments(store, "127.0.0.1:7", "", 9),
                "127.0.0.1:9",
                "127.0.0.1",
                Some("127.0.0.1:7"),
            ),
            (arguments(store, "a b", "127.0.0.1", 9), "127.0.0.1:9", "127.0.0.1", Some("a b")),
            (arguments(store, "node", "10.0.0.1", 0), "0.0.0.0:0", "10.0.0.1", Some("node")),
            (arguments(store, "node", "host", 7), "0.0.0.0:7", "host", Some("node")),
        ] {
            let options = arguments.options("tcp", "").unwrap();
            assert_eq!((&*options.listen, &*options.advertise), (listen, advertise));
            assert_eq!(options.name.as_deref(), name);
        }
        assert!(arguments("P2PHANDSHAKE", "a b", "", 0).options("tcp", "").is_err());
        assert!(arguments(store, "a b", "", 0).options("tcp", "").is_err());
    }
}
