//! Functions that create, place and destroy engines.

use crate::node::{Arguments, Node, find, insert, take};
use crate::outcome::{code, run};
use crate::shutdown;
use handfast::topology::PriorityMatrix;
use handfast_compat::Failure;
use handfast_compat::c::{array, put_text, text};
use std::collections::BTreeSet;
use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

/// Starts an engine.
///
/// # Safety
/// Each text is NULL, or ends with a null byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn createTransferEngine(
    metadata: *const c_char,
    name: *const c_char,
    host: *const c_char,
    port: u64,
    auto_discover: c_int,
) -> *mut c_void {
    let create = || {
        // SAFETY: the caller's promise is passed on.
        let [metadata, name, host] = unsafe {
            [
                text(metadata, "metadata_conn_string")?,
                text(name, "local_server_name")?,
                text(host, "ip_or_host_name")?,
            ]
        }
        .map(str::to_owned);
        let port = u16::try_from(port)
            .map_err(|_| Failure::argument(format!("rpc_port is {port}: a port is below 65536")))?;
        let arguments = Arguments { metadata, name, host, port };
        arguments.options("rdma", "")?;
        let node = Arc::new(Node::new(arguments));
        if auto_discover != 0 {
            node.running()?;
        }
        insert(node)
    };
    run("createTransferEngine", create).unwrap_or(null_mut())
}

/// Closes an engine.
#[unsafe(no_mangle)]
pub extern "C" fn destroyTransferEngine(engine: *mut c_void) {
    code("destroyTransferEngine", || {
        take(engine)?.destroy();
        Ok(())
    });
}

/// Writes the engine's address.
///
/// # Safety
/// `out` is NULL, or has so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getLocalIpAndPort(
    engine: *mut c_void,
    out: *mut c_char,
    bytes: usize,
) -> c_int {
    code("getLocalIpAndPort", || {
        let node = find(engine)?;
        // SAFETY: the caller's promise is passed on.
        unsafe { put_text(out, bytes, node.running()?.engine.address()) }
    })
}

/// Lists the devices of the machine.
#[unsafe(no_mangle)]
pub extern "C" fn discoverTopology(engine: *mut c_void) -> c_int {
    code("discoverTopology", || {
        find(engine)?;
        handfast_compat::topology()?;
        Ok(())
    })
}

/// Chooses the transport.
///
/// # Safety
/// The name is NULL or ends with a null byte; `args` is NULL, or has one entry that is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn installTransport(
    engine: *mut c_void,
    protocol: *const c_char,
    args: *mut *mut c_void,
) -> *mut c_void {
    let install = || {
        let node = find(engine)?;
        // SAFETY: the caller's promise is passed on.
        let protocol = unsafe { text(protocol, "proto")? };
        // SAFETY: as above.
        let args = unsafe { array(args.cast_const(), usize::from(!args.is_null()), 1, "args")? };
        let devices = match args {
            // SAFETY: as above.
            [matrix] if protocol == "rdma" && !matrix.is_null() => unsafe {
                devices(text(matrix.cast_const().cast(), "args[0]")?)?
            },
            _ => String::new(),
        };
        node.start(protocol, &devices)?;
        Ok(engine)
    };
    run("installTransport", install).unwrap_or(null_mut())
}

/// The names in a NIC priority matrix, separated by commas.
fn devices(matrix: &str) -> Result<String, Failure> {
    let matrix = PriorityMatrix::parse(matrix).map_err(|it| Failure::argument(it.to_string()))?;
    let nics =
        matrix.locations().flat_map(|(_, nics)| nics.preferred.iter().chain(&nics.available));
    let names: BTreeSet<&str> = nics.map(String::as_str).collect();
    Ok(names.into_iter().collect::<Vec<_>>().join(","))
}

/// Checks the name of a transport.
///
/// # Safety
/// The name is NULL, or ends with a null byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uninstallTransport(engine: *mut c_void, protocol: *const c_char) -> c_int {
    code("uninstallTransport", || {
        let node = find(engine)?;
        // SAFETY: the caller's promise is passed on.
        node.start(unsafe { text(protocol, "proto")? }, "").map(drop)
    })
}

/// Closes the engine when the process ends.
#[unsafe(no_mangle)]
pub extern "C" fn enableGracefulShutdown(engine: *mut c_void) {
    code("enableGracefulShutdown", || shutdown::enable(&find(engine)?));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_of_a_matrix_are_named_once() {
        let matrix = r#"{"cpu:0": [["mlx5_1"], ["mlx5_0"]], "cpu:1": [["mlx5_0"], []]}"#;
        assert_eq!(devices(matrix).unwrap(), "mlx5_0,mlx5_1");
        assert!(devices("[]").is_err());
    }
}
