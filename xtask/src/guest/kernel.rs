//! The kernel of the guest, and its initial file system.

use super::packages::files_of;
use crate::command;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Modules loaded by the guest, with their dependencies. Without the checksum, soft-RoCE refuses to
/// add a link with a misleading "No such file or directory".
const MODULES: [&str; 12] = [
    "crc32_generic",
    "rdma_rxe",
    "rdma_ucm",
    "veth",
    "virtio_pci",
    "virtio_net",
    "9p",
    "9pnet_virtio",
    "overlay",
    // Losses and delays, for scenarios that need them.
    "sch_netem",
    // Only in the built source tree; no distribution kernel has it. Without it the checksum fails
    // to load.
    // checksum fails to load.
    "crc32c_generic",
    "siw",
];
/// Precedes the names of a module's dependencies in its file.
const DEPENDS: &[u8] = b"\0depends=";
/// Suffix of a compressed module.
const PACKED: &str = ".xz";
/// Maximum depth of folders searched for modules.
const DEPTH_MAX: usize = 16;

/// A kernel, unpacked from its package.
pub(super) struct Kernel {
    pub(super) image: PathBuf,
    /// Modules by name, with `_` for `-`.
    pub(super) modules: BTreeMap<String, PathBuf>,
}

impl Kernel {
    pub(super) fn find(packages: &Path) -> Result<Self> {
        let images = fs::read_dir(packages.join("boot"))
            .with_context(|| format!("{} holds no kernel", packages.display()))?;
        let images = images.filter_map(|entry| Some(entry.ok()?.path()));
        let image = images.filter(|path| path.to_string_lossy().contains("/vmlinuz-")).max();
        let image = image.with_context(|| format!("{} holds no kernel", packages.display()))?;
        let mut modules = BTreeMap::new();
        collect(&packages.join("lib/modules"), DEPTH_MAX, &mut modules)?;
        Ok(Self { image, modules })
    }

    /// Returns its release, which is also in the names of its headers.
    pub(super) fn release(&self) -> String {
        let name = self.image.file_name().unwrap_or_default().to_string_lossy();
        name.trim_start_matches("vmlinuz-").to_owned()
    }

    /// Adds a module that the package lacks.
    pub(super) fn add(&mut self, name: &str, module: PathBuf) {
        self.modules.insert(name.to_owned(), module);
    }

    /// Writes the initial archive, whose `/init` the kernel starts, as `folder`.cpio.
    pub(super) fn first_files(
        &self,
        busybox: &Path,
        folder: &Path,
        deadline: Instant,
    ) -> Result<PathBuf> {
        for name in ["bin", "modules"] {
            fs::create_dir_all(folder.join(name))?;
        }
        fs::copy(busybox, folder.join("bin/busybox")).context("copying busybox")?;
        fs::write(folder.join("init"), include_str!("init.sh"))?;
        fs::set_permissions(folder.join("init"), fs::Permissions::from_mode(0o755))?;
        let mut order = Vec::new();
        for module in MODULES {
            self.with_needed(module, &mut order)?;
        }
        let mut list = String::new();
        for (name, bytes) in order {
            // Programs search modules by the suffix of the name.
            let name = format!("{name}.ko");
            fs::write(folder.join("modules").join(&name), bytes)?;
            list.push_str(&name);
            list.push('\n');
        }
        fs::write(folder.join("modules/order"), list)?;
        let archive = folder.with_extension("cpio");
        let mut names = String::from(".\n./bin\n./bin/busybox\n./init\n./modules\n");
        for file in files_of(&folder.join("modules"), "")? {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            names.push_str(&format!("./modules/{name}\n"));
        }
        let listing = folder.with_extension("files");
        fs::write(&listing, names)?;
        let mut pack = Command::new("sh");
        pack.current_dir(folder).args(["-c", r#""$1" cpio -o -H newc <"$2" >"$3""#, "sh"]);
        pack.arg(busybox).arg(&listing).arg(&archive);
        command::run(pack, &folder.with_extension("log"), deadline)
            .context("packing the guest's first files")?;
        ensure!(File::open(&archive)?.metadata()?.len() > 0, "{} is empty", archive.display());
        Ok(archive)
    }

    /// Adds a module after its dependencies. A built-in module has no file.
    fn with_needed(&self, name: &str, order: &mut Vec<(String, Vec<u8>)>) -> Result<()> {
        let name = name.replace('-', "_");
        if order.iter().any(|(known, _)| *known == name) {
            return Ok(());
        }
        let Some(path) = self.modules.get(&name) else {
            ensure!(name != "rdma_rxe", "the kernel's package has no rdma_rxe.ko");
            return Ok(());
        };
        let bytes = module_bytes(path)?;
        for needed in needed_by(&bytes) {
            self.with_needed(&needed, order)?;
        }
        order.push((name, bytes));
        Ok(())
    }
}

fn collect(folder: &Path, depth: usize, into: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    for path in files_of(folder, "")? {
        if path.is_dir() && !path.is_symlink() {
            ensure!(depth > 0, "{} is too deep", path.display());
            collect(&path, depth - 1, into)?;
        } else if let Some(name) = module_name(&path) {
            into.insert(name, path);
        }
    }
    Ok(())
}

/// Returns the name of the module in a file, compressed or not.
fn module_name(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let name = name.strip_suffix(PACKED).unwrap_or(name).strip_suffix(".ko")?;
    Some(name.replace('-', "_"))
}

/// Returns a module, uncompressed.
fn module_bytes(path: &Path) -> Result<Vec<u8>> {
    if !path.to_string_lossy().ends_with(PACKED) {
        return fs::read(path).with_context(|| format!("reading {}", path.display()));
    }
    let mut unpack = Command::new("xz");
    let unpacked = unpack.args(["--decompress", "--stdout"]).arg(path).output().context("xz")?;
    ensure!(unpacked.status.success(), "xz does not unpack {}", path.display());
    Ok(unpacked.stdout)
}

/// Returns the names of the dependencies of the module in `file`.
fn needed_by(file: &[u8]) -> Vec<String> {
    let Some(start) = file.windows(DEPENDS.len()).position(|window| window == DEPENDS) else {
        return Vec::new();
    };
    let rest = &file[start + DEPENDS.len()..];
    let end = rest.iter().position(|byte| *byte == 0).unwrap_or(rest.len());
    let names = String::from_utf8_lossy(&rest[..end]).into_owned();
    names.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn module_comes_after_those_it_needs() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path().join("lib/modules/6/kernel/drivers");
        fs::create_dir_all(&folder).unwrap();
        let module = |name: &str, needs: &str| {
            fs::write(folder.join(name), format!("ELF\0license=GPL\0depends={needs}\0rest"))
        };
        module("rdma_rxe.ko", "ib_core,udp-tunnel,built_in").unwrap();
        module("ib-core.ko", "").unwrap();
        module("udp_tunnel.ko", "ib_core").unwrap();
        fs::create_dir_all(scratch.path().join("boot")).unwrap();
        fs::write(scratch.path().join("boot/vmlinuz-6"), "").unwrap();
        let kernel = Kernel::find(scratch.path()).unwrap();
        let mut order = Vec::new();
        kernel.with_needed("rdma_rxe", &mut order).unwrap();
        let names: Vec<_> = order.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["ib_core", "udp_tunnel", "rdma_rxe"]);
        assert_eq!(module_name(Path::new("/x/ib-core.ko.xz")).as_deref(), Some("ib_core"));
        assert_eq!(module_name(Path::new("/x/ib-core.txt")), None);
    }

    #[test]
    fn kernel_without_soft_roce_is_named() {
        let kernel = Kernel { image: PathBuf::new(), modules: BTreeMap::new() };
        let error = kernel.with_needed("rdma_rxe", &mut Vec::new()).unwrap_err();
        assert!(error.to_string().contains("rdma_rxe.ko"), "{error}");
        assert_eq!(needed_by(b"depends=but not at the start of a string"), [""; 0]);
    }
}
