//! The name by which programs find the library. It is never unloaded, since its threads run until
//! the process exits.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libtransfer_engine.so");
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    }
}
