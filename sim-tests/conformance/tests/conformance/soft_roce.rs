//! Soft-RoCE in a guest (`cargo xtask guest`), connected through the connection manager.

use crate::managed::kernel_connections_equal_simulated_ones;

/// The connection manager over soft-RoCE has the observations of the simulated one.
#[test]
fn connections_over_soft_roce_equal_simulated_ones() {
    if std::env::var("HANDFAST_NICS").is_ok_and(|nics| nics == "rxe") {
        kernel_connections_equal_simulated_ones("rxe");
    } else {
        println!("skipped: it needs a guest with rxe0 and rxe1");
    }
}
