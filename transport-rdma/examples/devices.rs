//! Lists the RDMA devices of this machine, what each is recognised as, and whether lanes can be had.

use handfast_transport_rdma::{Connecting, DiscoveryError, availability, discover};
use std::path::Path;

fn main() -> Result<(), DiscoveryError> {
    for device in discover(Path::new("/"))? {
        let recognised = device.recognise();
        println!("{}: {recognised}", device.name);
        if let Connecting::Never(why) = recognised.profile.connecting {
            println!("  no lanes: {why}");
        }
        for port in device.ports {
            println!("  port {}: {} {}", port.number, port.link_layer, port.state);
            for gid in port.gids {
                println!("    GID {}: {} {}", gid.index, gid.text, gid.kind);
            }
        }
    }
    match availability() {
        Ok(names) => println!("lanes can be had over {}", names.join(", ")),
        Err(why) => println!("no lanes: {why}"),
    }
    Ok(())
}
