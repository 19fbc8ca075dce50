//! Keys of the program: `--auth`, `HANDFAST_AUTH` and `--open`.

#[cfg(feature = "tls")]
use crate::certificates::Authority;
use crate::helpers::{Folder, PROGRAM, Server, contains, run, until};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

const KEY: &str = "fleet-1 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n";
const OTHER: &str = "fleet-2 f00102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n";

fn keys(folder: &Folder, name: &str, text: &str) -> String {
    let file = folder.join(name);
    fs::write(&file, text).unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    format!("psk:{}", file.display())
}

/// Bytes go to a server with keys from a program with one, and from no other.
#[test]
fn program_with_a_key_moves_bytes_and_no_other() {
    let folder = Folder::new();
    let (key, other) = (keys(&folder, "key", KEY), keys(&folder, "other", OTHER));
    let server = Server::start(&["--memory", "m=1M", "--auth", &key]);
    let file = folder.name("bytes");
    fs::write(&file, vec![7; 100_000]).unwrap();
    let to = format!("{}/m", server.address);
    run(&["put", &file, &to, "--auth", &key]).done();
    let copy = folder.name("copy");
    run(&["get", &format!("{to}:0,100000"), &copy, "--auth", &key]).done();
    assert!(fs::read(&copy).unwrap() == vec![7; 100_000]);
    run(&["put", &file, &to]).failed(3, &["prove a key", "--auth", "[AUTH-REQUIRED]"]);
    run(&["put", &file, &to, "--auth", &other]).failed(3, &["no key with this id", "[AUTH-KEY]"]);
    let plain = Server::start(&["--memory", "m=1M"]);
    let to = format!("{}/m", plain.address);
    run(&["put", &file, &to, "--auth", &key]).failed(3, &["it has no keys", "[AUTH-REQUIRED]"]);
}

/// A server shows refused peers at the default level of its log.
#[test]
fn server_shows_refused_peers() {
    let folder = Folder::new();
    let (key, errors) = (keys(&folder, "key", KEY), folder.join("errors"));
    let mut command = Command::new(PROGRAM);
    command.args(["serve", "--until-stdin-ends", "--listen", "127.0.0.1:0", "--memory", "m=1M"]);
    command.args(["--auth", &key]).stderr(fs::File::create(&errors).unwrap());
    command.env_remove("MC_LOG_LEVEL").env("NO_COLOR", "1");
    let server = Server::spawn(command);
    run(&["get", &server.at("m:0,1"), &folder.name("copy")]).failed(3, &["[AUTH-REQUIRED]"]);
    let is_shown =
        |text: &str| text.contains("WARN handfast::audit: a peer without a valid proof is refused");
    until("a line of the refused peer", || is_shown(&fs::read_to_string(&errors).unwrap()));
}

/// Bytes go between programs with certificates of one authority, and keys are refused with the reason.
#[cfg(feature = "tls")]
#[test]
fn programs_with_certificates_move_bytes() {
    let (folder, fleet) = (Folder::new(), Authority::new("fleet"));
    let file = |name: &str, text: &str| {
        let source = keys(&folder, name, text);
        source.trim_start_matches("psk:").to_owned()
    };
    let own = fleet.issue(&["127.0.0.1", "localhost"]);
    let paths =
        [file("ca", &fleet.pem), file("certificate", &own.certificate), file("key", &own.key)];
    let source = format!("tls:{}", paths.join(","));
    let server = Server::start(&["--memory", "m=1M", "--auth", &source]);
    let bytes = folder.name("bytes");
    fs::write(&bytes, vec![7; 100_000]).unwrap();
    let to = format!("{}/m", server.address);
    run(&["put", &bytes, &to, "--auth", &source]).done();
    run(&["put", &bytes, &to]).failed(3, &["--auth", "[AUTH-REQUIRED]"]);
    let key = keys(&folder, "shared", KEY);
    run(&["put", &bytes, &to, "--auth", &key]).failed(3, &["certificates", "[AUTH-METHOD]"]);
    let expired = fleet.expired(&["localhost"]);
    let paths = [
        paths[0].clone(),
        file("expired", &expired.certificate),
        file("expired.key", &expired.key),
    ];
    let source = format!("tls:{}", paths.join(","));
    run(&["put", &bytes, &to, "--auth", &source]).failed(2, &["expired", "[AUTH-CERT-EXPIRED]"]);
}

/// A server with keys and certificates serves programs with either; a certificate on its list is refused,
/// and a second file of keys as well.
#[cfg(feature = "tls")]
#[test]
fn server_with_keys_and_certificates_serves_both() {
    let (folder, fleet) = (Folder::new(), Authority::new("fleet"));
    let key = keys(&folder, "key", KEY);
    let file =
        |name: &str, text: &str| keys(&folder, name, text).trim_start_matches("psk:").to_owned();
    let ca = file("ca", &fleet.pem);
    let tls = |name: &str| {
        let own = fleet.issue(&["127.0.0.1", "localhost"]);
        let certificate = file(&format!("{name}.crt"), &own.certificate);
        let source = format!("tls:{ca},{certificate},{}", file(&format!("{name}.key"), &own.key));
        (own, source)
    };
    let ((_, server_own), (_, own), (lost, lost_own)) = (tls("server"), tls("own"), tls("lost"));
    let listed = format!("{server_own},{}", file("ca.crl", &fleet.revoke(&[&lost])));
    let server = Server::start(&["--memory", "m=1M", "--auth", &key, "--auth", &listed]);
    let bytes = folder.name("bytes");
    fs::write(&bytes, vec![7; 100_000]).unwrap();
    let to = format!("{}/m", server.address);
    run(&["put", &bytes, &to, "--auth", &key]).done();
    run(&["put", &bytes, &to, "--auth", &own]).done();
    run(&["put", &bytes, &to, "--auth", &own, "--auth", &key]).done();
    let revoked = run(&["put", &bytes, &to, "--auth", &lost_own, "--auth", &key]);
    revoked.failed(3, &["revoked", "[AUTH-CERT-REVOKED]"]);
    run(&["put", &bytes, &to]).failed(3, &["--auth", "[AUTH-REQUIRED]"]);
    run(&["put", &bytes, &to, "--auth", &key, "--auth", &key]).failed(2, &["one file of keys"]);
}

/// An administrator lists, adds and revokes grants of a running server, each in force at the end of the
/// command. A holder of a key that is bound to other names cannot call itself one, and nobody is one
/// without a key.
#[test]
fn administrator_changes_grants_of_a_running_server() {
    let folder = Folder::new();
    let (key, ops) = (keys(&folder, "key", KEY), keys(&folder, "ops", OTHER));
    let bound = format!("{} client-*\n{} admin-*\n", KEY.trim_end(), OTHER.trim_end());
    let bound = keys(&folder, "bound", &bound);
    let own = ["--memory", "m=1M,write=nobody", "--administrators", "admin-1", "--auth", &bound];
    let server = Server::start(&own);
    let (node, to) = (server.address.to_string(), format!("{}/m", server.address));
    let file = folder.name("bytes");
    fs::write(&file, vec![7; 1_000]).unwrap();
    let grants_by = |key: &str, words: &[&str], name: &str| {
        let words = [&["grants"], words, &["--auth", key, "--name", name]].concat();
        run(&words)
    };
    let grants = |words: &[&str], name: &str| grants_by(&ops, words, name);
    let refused = &["serves no segment 'm'"];
    run(&["put", &file, &to, "--auth", &key]).failed(4, refused);
    let listed = grants(&["list", &node], "admin-1").done();
    contains(&listed.output, &["m: write for nobody"]);
    let add = ["add", &to, "write", "client-*"];
    grants(&add, "admin-2").failed(4, &["'admin-2' is no administrator of", "--administrators"]);
    grants_by(&key, &add, "client-1").failed(4, &["'client-1' is no administrator"]);
    grants_by(&key, &add, "admin-1").failed(3, &["[AUTH-NAME]"]);
    let added = grants(&["add", &to, "read-write", "client-*"], "admin-1").done();
    contains(&added.output, &["m: read-write for client-*, write for nobody"]);
    run(&["put", &file, &to, "--auth", &key]).done();
    // A pattern that covers the same peers is another one, and its access would stay.
    for (peers, left) in [("client-1", "read-write for client-*"), ("*", "for")] {
        let words = ["revoke", &to, "write", peers];
        let unchanged = format!("'{peers}' has no write, and ");
        grants(&words, "admin-1").failed(4, &[&unchanged, left, " stays"]);
    }
    run(&["put", &file, &to, "--auth", &key]).done();
    let json = grants(&["revoke", &to, "read-write", "client-*", "--json"], "admin-1").done();
    contains(&json.output, &[r#"{"m":[{"access":"write","peers":"nobody"}]}"#]);
    run(&["put", &file, &to, "--auth", &key]).failed(4, refused);
    for words in
        [&["list", &format!("{node}/none")][..], &["add", &format!("{node}/none"), "read", "x"]]
    {
        grants(words, "admin-1").failed(4, &["no segment 'none'"]);
    }
    run(&["grants", "list", &node]).failed(3, &["[AUTH-REQUIRED]"]);
    let open = ["serve", "--memory", "m=1M", "--administrators", "admin-1"];
    run(&open).failed(2, &["administrators need keys"]);
    run(&[&open[..], &["--read-only"]].concat()).failed(2, &["cannot be used with"]);
}

/// A server with administrators warns of a key whose holders may have the name of one and others, and of no
/// other.
#[test]
fn server_warns_of_a_key_that_makes_administrators() {
    let folder = Folder::new();
    let bound = format!("{} client-*\n", KEY.trim_end());
    let single = format!("{} decode-7 admin-1\n", KEY.trim_end());
    for (text, administrators, is_warned) in [
        (KEY, "admin-1", true),
        (&single, "admin-1", true),
        (&bound, "admin-1", false),
        (KEY, "", false),
    ] {
        let key = keys(&folder, "key", text);
        let mut words = vec!["serve", "--listen", "127.0.0.1:0", "--memory", "m=1M"];
        words.extend(["--until-stdin-ends", "--auth", &key]);
        if !administrators.is_empty() {
            words.extend(["--administrators", administrators]);
        }
        let ended = run(&words).done();
        assert_eq!(ended.errors.contains("each holder of the key fleet-1"), is_warned, "{ended:?}");
    }
}

/// Trust groups are checked before anything is served, and rest on proven names.
#[test]
fn trust_groups_are_checked_and_need_keys() {
    let folder = Folder::new();
    let key = keys(&folder, "key", KEY);
    let serve = |group: &str, auth: &[&str]| {
        let words = ["serve", "--listen", "127.0.0.1:0", "--memory", "m=1M", "--until-stdin-ends"];
        run(&[&words, auth, &["--trust-group", group]].concat())
    };
    let auth = ["--auth", &*key];
    // The key has no names: its holders choose among the groups.
    let ended = serve("train=trainer-*", &auth).done();
    assert!(ended.errors.contains("can choose its trust group"), "{ended:?}");
    serve("train=trainer-*", &[]).failed(2, &["trust groups need keys or certificates"]);
    serve("train", &auth).failed(2, &["--trust-group train: write GROUP=PEERS"]);
    serve("a b=c", &auth).failed(2, &["'a b' names no trust group"]);
    serve("train=a@b", &auth).failed(2, &["'a@b' names no peers"]);
}

/// The variable has the effect of the option.
#[test]
fn variable_names_the_keys() {
    let folder = Folder::new();
    let key = keys(&folder, "key", KEY);
    let mut command = Command::new(PROGRAM);
    command.args(["serve", "--until-stdin-ends", "--listen", "127.0.0.1:0", "--memory", "m=1M"]);
    command.env("HANDFAST_AUTH", &key);
    let server = Server::spawn(command);
    let file = folder.name("bytes");
    fs::write(&file, vec![7; 1_000]).unwrap();
    let to = format!("{}/m", server.address);
    run(&["put", &file, &to]).failed(3, &["[AUTH-REQUIRED]"]);
    run(&["put", &file, &to, "--auth", &key]).done();
}

/// Beyond this machine the program wants keys, or consent.
#[test]
fn server_beyond_this_machine_wants_keys_or_consent() {
    for listen in ["0.0.0.0:0", "10.9.8.7:0", "[::]:0", "somewhere:0"] {
        let refused = run(&["serve", "--listen", listen, "--advertise", "10.9.8.7"]);
        refused.failed(2, &[listen, "--auth psk:FILE", "--auth tls:DIRECTORY", "--open"]);
    }
    for listen in ["127.0.0.1:0", "127.1.2.3:0", "localhost:0"] {
        drop(Server::start_at(listen, &["--memory", "m=1M"]));
    }
    drop(Server::start_at(
        "0.0.0.0:0",
        &["--memory", "m=1M", "--advertise", "127.0.0.1", "--open"],
    ));
    let folder = Folder::new();
    let key = keys(&folder, "key", KEY);
    let keyed = ["--memory", "m=1M", "--advertise", "127.0.0.1", "--auth", &key];
    drop(Server::start_at("0.0.0.0:0", &keyed));
    let both = ["serve", "--open", "--auth", &key];
    run(&both).failed(2, &["cannot be used with"]);
}

/// Ports without keys of their own warn once where other machines reach them, and not on loopback.
#[test]
fn open_ports_beyond_this_machine_are_warned_of() {
    let serve = ["serve", "--listen", "127.0.0.1:0", "--memory", "m=1M", "--metrics"];
    for (words, warning) in [
        (&serve[..], "warning: metrics: every host that reaches 0.0.0.0:"),
        (&["metadata", "--listen"][..], "warning: every host that reaches 0.0.0.0:"),
    ] {
        // Without standard input it ends at once.
        let errors = |at: &str| run(&[words, &[at, "--until-stdin-ends"]].concat()).done().errors;
        let beyond = errors("0.0.0.0:0");
        assert_eq!(beyond.matches(warning).count(), 1, "{beyond}");
        let own = errors("127.0.0.1:0");
        assert!(!own.contains("every host"), "{own}");
    }
}

/// A file of keys that others can read, another source, and keys with Mooncake nodes are refused.
#[test]
fn unsafe_and_contradictory_keys_are_refused() {
    let folder = Folder::new();
    let key = keys(&folder, "key", KEY);
    let serve = |options: &[&str]| run(&[&["serve", "--listen", "127.0.0.1:0"], options].concat());
    serve(&["--auth", &key, "--compat", "mooncake"]).failed(2, &["exclude each other"]);
    serve(&["--auth", "ssh:x"]).failed(2, &["psk:FILE", "tls:DIRECTORY", "[CONFIG-INVALID]"]);
    serve(&["--auth", "tls:/nowhere"]).failed(2, &["/nowhere/ca.crt", "No such file"]);
    serve(&["--auth", "psk:/nowhere/keys"]).failed(2, &["/nowhere/keys", "No such file"]);
    let file = folder.join("key");
    fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
    serve(&["--auth", &key]).failed(2, &["644", "chmod 600"]);
}
