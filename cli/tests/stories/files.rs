//! Problems with a local file or folder.

use crate::helpers::{
    Client, Folder, MIB, PROGRAM, Server, descriptors, interrupted, run, skipped, succeed, until,
};
use rustix::process::Signal;
use std::fs::File;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

fn pipe(folder: &Folder, name: &str) -> String {
    let made = Command::new("mkfifo").arg(folder.join(name)).status().unwrap();
    assert!(made.success());
    folder.name(name)
}

#[test]
fn what_is_no_regular_file_is_not_put() {
    let folder = Folder::new();
    let server = Server::start(&[]);
    let place = server.at("memory");
    run(&["put", &folder.name("missing"), &place]).failed(5, &["missing", "No such file"]);
    let directory = folder.path().to_str().unwrap();
    run(&["put", directory, &place]).failed(5, &["is a directory", "name a regular file"]);
    // Opening it would wait for a writer.
    run(&["put", &pipe(&folder, "pipe"), &place]).failed(5, &["is a pipe"]);
    let file = folder.patterned("file", 10_000, 0);
    succeed(&["put", &file, &place]);
}

#[test]
fn a_file_that_shrinks_while_it_is_put_ends_the_put() {
    let folder = Folder::new();
    let file = folder.sparse("file", 32 * MIB);
    let server = Server::start(&[]);
    // The client has taken the file's length and waits for the server's answer.
    server.process.stop();
    let client = Client::start(&["put", &file, &server.at("memory")]);
    let fds = format!("/proc/{}/fd", client.process.pid());
    until("the client has opened its file and called", || {
        let links = std::fs::read_dir(&fds).unwrap();
        let links: Vec<_> =
            links.filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok()).collect();
        let socket = |link: &std::path::PathBuf| link.to_string_lossy().starts_with("socket:");
        // The runtime holds a pair of sockets for signals.
        links.contains(&folder.join("file")) && links.iter().filter(|link| socket(link)).count() > 2
    });
    File::options().write(true).open(&file).unwrap().set_len(10 * MIB).unwrap();
    server.process.signal(Signal::CONT);
    client.end().failed(5, &[&file, "became shorter than", "while it was copied"]);
    let small = folder.patterned("small", 10_000, 0);
    succeed(&["put", &small, &server.at("memory")]);
}

#[test]
fn a_get_makes_files_only_where_it_can_and_replaces_only_files() {
    let folder = Folder::new();
    let server = Server::start(&["--memory", "100K"]);
    let place = server.at("memory");
    let directory = folder.path().to_str().unwrap();
    run(&["get", &place, directory]).failed(5, &["is a directory"]);
    let missing = folder.name("missing/copy");
    let ended = run(&["get", &place, &missing]).failed(5, &["missing", "does not exist"]);
    assert!(!ended.errors.contains(".part"), "{}", ended.errors);
    run(&["get", &place, &folder.name("new/")]).failed(5, &["is a directory"]);
    let file = folder.patterned("file", 10, 0);
    run(&["get", &place, &format!("{file}/copy")]).failed(5, &["ot a directory"]);
    // Renaming over a pipe or a device would destroy it.
    let pipe = pipe(&folder, "pipe");
    run(&["get", &place, &pipe]).failed(5, &["is a pipe"]);
    symlink(&pipe, folder.join("link to pipe")).unwrap();
    run(&["get", &place, &folder.name("link to pipe")]).failed(5, &["is a pipe"]);
    symlink(folder.join("gone"), folder.join("dangling link")).unwrap();
    run(&["get", &place, &folder.name("dangling link")]).failed(5, &["a dangling link"]);
    let names = ["dangling link", "file", "link to pipe", "pipe"];
    assert_eq!(folder.names(), names, "nothing else was made");
}

#[test]
fn get_keeps_permissions_and_follows_links() {
    let folder = Folder::new();
    let server = Server::start(&["--memory", "100K"]);
    let secret = folder.patterned("secret", 10, 0);
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
    symlink(&secret, folder.join("link")).unwrap();
    succeed(&["get", &server.at("memory"), &folder.name("link")]);
    assert!(folder.join("link").is_symlink());
    let metadata = std::fs::metadata(&secret).unwrap();
    assert_eq!((metadata.len(), metadata.permissions().mode() & 0o777), (100 << 10, 0o600));
    assert_eq!(folder.names(), ["link", "secret"]);
}

/// Runs `script` with a small file system mounted at `$1`, in a mount name space of its own, so
/// that the mount ends with it. `None` where that is not allowed.
fn with_small_disk(folder: &Folder, options: &str, script: &str, place: &str) -> Option<Client> {
    let disk = folder.join("disk");
    std::fs::create_dir(&disk).unwrap();
    let mount = format!("mount -t tmpfs -o {options} none \"$1\"");
    let shell = |script: String| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", &script, "sh"]);
        command.arg(&disk).args([PROGRAM, place]);
        command
    };
    let allowed = shell(mount.clone()).output().is_ok_and(|output| output.status.success());
    if !allowed {
        skipped("a file system cannot be mounted here (it takes root)");
        return None;
    }
    Some(Client::spawn(shell(format!("{mount} && {script}"))))
}

#[test]
fn a_full_disk_ends_a_get_and_leaves_nothing_behind() {
    let folder = Folder::new();
    let server = Server::start(&["--memory", "8M"]);
    let script = r#""$2" get "$3" "$1/copy"; code=$?; ls -A "$1"; exit $code"#;
    let place = server.at("memory");
    let Some(client) = with_small_disk(&folder, "size=2m", script, &place) else { return };
    let ended = client.end().failed(5, &["copy", "writing failed", "No space left"]);
    assert_eq!(ended.output, "", "the disk is empty again");
    succeed(&["get", &place, &folder.name("copy")]);
}

#[test]
fn unwritable_folder_ends_get_before_any_transfer() {
    let folder = Folder::new();
    let server = Server::start(&["--memory", "8M"]);
    let script = r#""$2" get "$3" "$1/copy""#;
    let place = server.at("memory");
    let Some(client) = with_small_disk(&folder, "ro", script, &place) else { return };
    client.end().failed(5, &["disk", "creating a file in it failed", "read-only"]);
}

#[test]
fn an_interrupted_or_terminated_get_leaves_no_file() {
    let server = Server::start(&["--memory", "256M"]);
    for (signal, code, word) in
        [(Signal::INT, 130, "error: interrupted"), (Signal::TERM, 143, "error: terminated")]
    {
        let mut names = Vec::new();
        let ended = interrupted(|| {
            let folder = Folder::new();
            let mut client = Client::start(&["get", &server.at("memory"), &folder.name("copy")]);
            client.until("a part is there", || !folder.names().is_empty());
            client.process.signal(signal);
            let ended = client.end();
            names = folder.names();
            ended
        });
        ended.failed(code, &[word]);
        assert!(names.is_empty(), "{names:?}");
    }
}

#[test]
fn truncated_file_fails_the_client_only() {
    let folder = Folder::new();
    let file = folder.patterned("file", 8 * MIB, 0);
    let mut server = Server::start(&["--file", &file, "--memory", "1M"]);
    let place = server.at("file");
    succeed(&["get", &place, &folder.name("copy")]);
    File::options().write(true).open(&file).unwrap().set_len(MIB).unwrap();
    let ended = run(&["get", &place, &folder.name("late")]).failed(1, &[&server.address]);
    assert!(!folder.join("late").exists(), "{ended:?}");
    assert!(server.process.is_running());
    succeed(&["get", &server.at("file:0,1M"), &folder.name("start")]);
    let before = descriptors(server.pid());
    let small = folder.patterned("small", 10_000, 0);
    succeed(&["put", &small, &server.at("memory")]);
    until("its descriptors are closed again", || descriptors(server.pid()) <= before);
}
