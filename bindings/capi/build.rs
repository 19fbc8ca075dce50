//! The name by which programs find the library, as `cargo cbuild` sets it. It is never unloaded,
//! since its threads run until the process exits.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        let part = |name: &str| std::env::var(name).unwrap_or_default();
        // Before version 1 the interface changes with the minor version.
        let version = match (part("CARGO_PKG_VERSION_MAJOR"), part("CARGO_PKG_VERSION_MINOR")) {
            (major, minor) if major == "0" => format!("0.{minor}"),
            (major, _) => major,
        };
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libhandfast.so.{version}");
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    }
}
