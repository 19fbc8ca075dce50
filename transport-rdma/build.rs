//! Names what the feature `verbs` lacks in one line. Without it the build script of `rdma-sys` panics
//! some twenty seconds later.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "verbs")]
    verbs::check();
}

#[cfg(feature = "verbs")]
mod verbs {
    use clang_sys::Version;

    const CURE: &str = "run `cargo xtask setup --verbs` in a checkout of handfast and build with the \
                        command that it prints, or see docs/hardware.md";

    pub(crate) fn check() {
        for name in ["LIBCLANG_PATH", "LLVM_CONFIG_PATH", "PATH"] {
            println!("cargo::rerun-if-env-changed={name}");
        }
        if let Some(missing) = headers().or_else(libclang) {
            println!("cargo::error=the feature `verbs` cannot be built: {missing}; {CURE}");
        }
    }

    /// The versions are those that `rdma-sys` asks for.
    fn headers() -> Option<String> {
        for (library, version) in [("libibverbs", "1.8.28"), ("librdmacm", "1.2.28")] {
            let mut config = pkg_config::Config::new();
            let found = config.atleast_version(version).cargo_metadata(false).probe(library);
            if found.is_err() {
                return Some(format!("pkg-config finds no {library} {version} or newer"));
            }
        }
        None
    }

    fn libclang() -> Option<String> {
        if clang_sys::load().is_err() {
            return Some("there is no libclang".to_owned());
        }
        let version = clang_sys::get_library()?.version()?;
        let newer = version >= Version::V16_0;
        newer.then(|| "libclang is 16 or newer, of which rdma-sys makes no bindings".to_owned())
    }
}
