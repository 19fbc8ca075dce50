//! `handfast serve`.

use crate::failure::{Failure, Outcome};
use crate::grants::{self, BySegment, GrantsFile};
use crate::lanes::{LaneOptions, TransportName, Warnings};
use crate::record::{RecordArguments, warn_if_incomplete};
use crate::runtime::Stop;
use crate::{files, help, output, size};
use clap::Args;
use handfast::auth::Administrators;
use handfast::{Access, Engine, Grant, Memory, MemoryError, Registration};
use handfast_core::address::{PORTS_OF_ERDMA, with_port};
use handfast_environment::{Environment, Ports, is_of_machine};
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;
use tracing::info;

/// Serve memory, or files mapped into memory, until interrupted
///
/// With --auth, peers that prove a key may read and write the served memory; without, every host that
/// reaches the address.
#[derive(Args)]
#[command(after_long_help = help::SERVE)]
pub(crate) struct Serve {
    /// Address to listen on; port 0 selects a free one
    #[arg(long, default_value = "127.0.0.1:7411", value_name = "HOST:PORT")]
    pub(crate) listen: String,
    /// Host, or HOST:PORT, under which peers reach this node; required when listening on all
    /// addresses, such as 0.0.0.0 [default: the listening address]
    #[arg(long, value_name = "HOST")]
    pub(crate) advertise: Option<String>,
    /// Name of this node; no two live nodes may share one [default: the advertised address]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Serve SIZE bytes of zeroed memory as segment NAME [default: memory=64M, if no file is
    /// served]. With grants, such as cache=2G,read=decode-*,write=trainer-1, only the peers that
    /// they name may read or write; names other than * need --auth
    #[arg(long, value_name = "[NAME=]SIZE[,GRANT]...")]
    pub(crate) memory: Vec<String>,
    /// Serve a file, mapped into memory, as segment NAME [default name: the file's name], with
    /// grants as above
    #[arg(long, value_name = "[NAME=]PATH[,GRANT]...")]
    pub(crate) file: Vec<String>,
    /// Permit get only, not put
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Grants of all segments, a line for each: NAME read|write|read-write PEERS... Read again when
    /// the file changes; a segment without a line is for nobody
    #[arg(long, value_name = "FILE", conflicts_with = "read_only")]
    pub(crate) grants: Option<PathBuf>,
    /// Names of peers that may list and change the grants with `handfast grants`, with * for any
    /// characters; needs --auth, whose keys should be bound to names
    #[arg(long, value_name = "NAMES", value_delimiter = ',', conflicts_with = "read_only")]
    pub(crate) administrators: Vec<String>,
    #[command(flatten)]
    pub(crate) lanes: LaneOptions,
    #[command(flatten)]
    pub(crate) record: RecordArguments,
    /// Serve every host that reaches the address, without keys. Needed beyond this machine where no
    /// --auth is given
    #[arg(long, conflicts_with = "auth")]
    pub(crate) open: bool,
    /// Serve metrics over HTTP at this address, to every host that reaches it: /metrics for
    /// Prometheus and /state in JSON
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) metrics: Option<String>,
    /// Run only on these processors, such as 0 or 0,1
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) cores: Vec<usize>,
    /// End with standard input, so that no server outlives the script that started it
    #[arg(long, hide = true)]
    pub(crate) until_stdin_ends: bool,
}

/// Served if neither memory nor files are given.
const DEFAULT_MEMORY: &str = "memory=64M";
/// Pause between two looks at the file of grants.
const GRANTS_LOOK: Duration = Duration::from_secs(1);

pub(crate) async fn run(mut arguments: Serve) -> Outcome {
    let mut stop = Stop::listen()?;
    raise_descriptor_limit();
    let allocate = |len| arguments.lanes.allocate(len);
    let sources = sources(&arguments.memory, &arguments.file, arguments.read_only, allocate)?;
    let granted = granted(&arguments, &sources)?;
    let environment = Environment::read()?;
    choose_ports(&mut arguments, &environment)?;
    let is_keyed = !arguments.lanes.auth.is_empty() || environment.auth_source().is_some();
    check_open(&arguments, is_keyed)?;
    // Early callers wait for the segments to be registered.
    let mut builder = Engine::builder().listen(&arguments.listen).paused();
    if let Some(advertise) = arguments.advertise.as_deref().or(environment.advertise()) {
        builder = builder.advertise(advertise);
    }
    if let Some(name) = &arguments.name {
        builder = builder.name(name);
    }
    if let Some(metrics) = &arguments.metrics {
        builder = builder.metrics(metrics);
    }
    let administrators = arguments.administrators.iter().map(|names| &**names);
    let administrators = Administrators::new(administrators)
        .map_err(|error| Failure::Usage(format!("--administrators: {error}")))?;
    let builder = builder.administrators(administrators);
    let builder = arguments.record.apply(arguments.lanes.apply(builder)?);
    let engine = builder.start().await?;
    let mut fallbacks = engine.fallback_events();
    let mut warnings = Warnings::default();
    warnings.print_new(&engine);
    let mut lines = format!("serving at {} as {}\n", engine.address(), engine.name());
    let mut served = Vec::new();
    for source in sources {
        let (registration, text) = serve_one(&engine, &arguments, &granted, &source)?;
        lines += &text;
        served.push((registration, source.path));
    }
    let served = Arc::new(served);
    if let Some(metrics) = engine.metrics_address() {
        lines += &format!("metrics at http://{metrics}/metrics, state at http://{metrics}/state\n");
    }
    lines += &line_of_devices(&engine, arguments.lanes.transport == TransportName::Tcp);
    engine.resume();
    engine.publish().await?;
    warn_of_exposure(&engine);
    warn_of_port(&arguments.listen);
    output::say(format_args!("{lines}ready"))?;
    let warn = async {
        // The next event covers a missed one.
        while !matches!(fallbacks.recv().await, Err(RecvError::Closed)) {
            warnings.print_new(&engine);
        }
    };
    tokio::select! {
        signal = stop.wait() => info!("{signal}: closing"),
        () = stdin_ends(), if arguments.until_stdin_ends => info!("standard input ended: closing"),
        () = warn => {}
        () = follow_grants(granted.map(|granted| granted.0), &served) => {}
    }
    engine.close().await;
    warn_if_incomplete(&engine);
    for (registration, path) in &*served {
        let Some(path) = path else { continue };
        let span = registration.span();
        let synced = span.memory().sync_file(span.offset(), span.len());
        synced.map_err(|error| Failure::state(path, &format!("may be incomplete: {error}")))?;
    }
    Ok(())
}

fn warn_of_exposure(engine: &Engine) {
    if let Some(exposure) = engine.exposure() {
        output::note(format_args!("warning: {exposure}"));
    }
    for warning in engine.trust_warnings() {
        output::note(format_args!("warning: {warning}"));
    }
}

fn warn_of_port(listen: &str) {
    let (first, last) = (PORTS_OF_ERDMA.start(), PORTS_OF_ERDMA.end());
    if with_port(listen).is_ok_and(|(_, port)| PORTS_OF_ERDMA.contains(&port)) {
        output::note(format_args!(
            "warning: {listen}: the driver erdma takes ports {first} to {last} in compat mode; choose \
             another one"
        ));
    }
}

/// Reads the file of grants, if there is one.
fn granted(
    arguments: &Serve,
    sources: &[Source],
) -> Result<Option<(GrantsFile, BySegment)>, Failure> {
    let Some(path) = &arguments.grants else { return Ok(None) };
    if let Some(Source { name, .. }) = sources.iter().find(|source| !source.grants.is_empty()) {
        let text = format!("the grants of '{name}' are in its option and in --grants: use one");
        return Err(Failure::Usage(text));
    }
    let names: Vec<_> = sources.iter().map(|source| source.name.clone()).collect();
    GrantsFile::open(path, &names).map(Some).map_err(Failure::Usage)
}

/// Serves a segment; returns its lines for the user.
fn serve_one(
    engine: &Engine,
    arguments: &Serve,
    granted: &Option<(GrantsFile, BySegment)>,
    source: &Source,
) -> Result<(Registration, String), Failure> {
    let Source { name, memory, path, grants } = source;
    let bytes = size::show(memory.len() as u64);
    let origin = path.as_ref().map(|path| format!(", the file {}", path.display()));
    let origin = origin.unwrap_or_default();
    let of_file = granted.as_ref().map(|(_, all)| all.get(name).cloned().unwrap_or_default());
    let grants = of_file.or_else(|| (!grants.is_empty()).then(|| grants.clone()));
    let shown = grants.as_deref().map(grants::show).unwrap_or_default();
    let mut text = format!("segment {name} of {bytes}{origin}{shown}\n");
    let mut register = engine.register(name);
    register = match (grants, arguments.read_only) {
        (Some(grants), _) => {
            let nobody = register.access(Access::default());
            grants.into_iter().fold(nobody, handfast::Register::grant)
        }
        (None, true) => register.access(Access::READ),
        (None, false) => register.access(Access::READ_WRITE),
    };
    if engine.serves_mooncake() {
        let at = engine.data_address().map(|at| format!(" at {at}")).unwrap_or_default();
        text += &format!("  for Mooncake nodes{at}, address {}\n", memory.address());
        register = register.mooncake();
    }
    let registration = register.serve(memory.whole())?;
    if path.is_none() && engine.devices().next().is_some() {
        text += &line_of_pages(memory);
    }
    Ok((registration, text))
}

/// Returns a line with the bytes on huge pages, of which a device needs fewer entries. The kernel gives
/// pages at the registration with a device.
fn line_of_pages(memory: &Memory) -> String {
    match memory.huge_page_bytes() {
        Ok(bytes) => {
            let (huge, all) = (size::show(bytes), size::show(memory.len() as u64));
            format!("  on huge pages: {huge} of {all}\n")
        }
        Err(error) => {
            info!(%error, "the bytes on huge pages are unknown");
            String::new()
        }
    }
}

/// Puts the grants of a file in force when it changes. A file with a mistake changes nothing.
async fn follow_grants(
    file: Option<GrantsFile>,
    served: &Arc<Vec<(Registration, Option<PathBuf>)>>,
) {
    let Some(mut file) = file else { return std::future::pending().await };
    let names: Vec<_> = served.iter().map(|(served, _)| served.name().to_owned()).collect();
    loop {
        tokio::time::sleep(GRANTS_LOOK).await;
        // A network file system may take its time.
        let names = names.clone();
        let reading = tokio::task::spawn_blocking(move || {
            let read = file.read_again(&names);
            (file, read)
        });
        let Ok((same, read)) = reading.await else {
            output::note(format_args!("warning: the file of grants is read no more"));
            return std::future::pending().await;
        };
        file = same;
        let grants = match read {
            None => continue,
            Some(Ok(grants)) => grants,
            Some(Err(error)) => {
                output::note(format_args!("warning: {error}; the earlier ones stay"));
                continue;
            }
        };
        let served = Arc::clone(served);
        let applying = tokio::task::spawn_blocking(move || apply(&served, grants));
        for line in applying.await.unwrap_or_default() {
            output::note(format_args!("{line}"));
        }
    }
}

/// Sets the grants of each segment that has others in `grants`; returns a line for each.
fn apply(served: &[(Registration, Option<PathBuf>)], mut grants: BySegment) -> Vec<String> {
    let mut lines = Vec::new();
    for (registration, _) in served {
        let name = registration.name();
        let Some(changed) = grants.remove(name) else { continue };
        let before = registration.grants();
        let set = registration.set_grants(changed);
        let after = registration.grants();
        match set {
            Err(error) => lines.push(format!("warning: the grants of {name} stay: {error}")),
            Ok(()) if after != before => {
                lines.push(format!("segment {name}{}", grants::show(&after)));
            }
            Ok(()) => {}
        }
    }
    lines
}

/// Requires keys, or consent, for an address that other machines reach; says what the latter means.
fn check_open(arguments: &Serve, is_keyed: bool) -> Outcome {
    let listen = &arguments.listen;
    if is_keyed || is_of_machine(listen) {
        return Ok(());
    }
    if !arguments.open {
        return Err(Failure::Usage(format!(
            "other machines reach {listen}: name the keys or certificates of peers (--auth psk:FILE, \
             --auth tls:DIRECTORY), or let every host read and write the served memory (--open)"
        )));
    }
    output::note(format_args!(
        "warning: --open: every host that reaches {listen} can read and write the served memory, \
         within its permissions; no peer is authenticated and nothing is encrypted"
    ));
    Ok(())
}

/// Returns a line with the devices of RDMA lanes; with `--transport tcp` logs the unused devices.
fn line_of_devices(engine: &Engine, is_tcp_wanted: bool) -> String {
    let devices: Vec<&str> = engine.devices().collect();
    if !devices.is_empty() {
        return format!("lanes over {} by {}\n", over(engine), devices.join(" and "));
    }
    if is_tcp_wanted {
        tell_of_rdma();
    }
    String::new()
}

/// Selects ports of the range set in the environment for options that accept any port.
fn choose_ports(arguments: &mut Serve, environment: &Environment) -> Outcome {
    let Some(range) = environment.ports()? else { return Ok(()) };
    let Some((host, port)) = arguments.listen.rsplit_once(':') else { return Ok(()) };
    let (is_single, first) = (range.len() == 1, *range.start());
    let mut ports = Ports::new(host, range).beside(&arguments.listen);
    let listen = match port {
        "0" => Some(format!("{host}:{}", ports.take()?)),
        _ => None,
    };
    let is_of_calls = listen.is_some() || port.parse().is_ok_and(|port: u16| port == first);
    if arguments.lanes.compat.is_some() {
        match ports.take() {
            Ok(port) => arguments.lanes.data_port = port,
            // The one port is that of the calls, and data has any.
            Err(_) if is_single && is_of_calls => {}
            Err(error) => return Err(error.into()),
        }
    }
    arguments.listen = listen.unwrap_or_else(|| arguments.listen.clone());
    Ok(())
}

fn over(engine: &Engine) -> String {
    let names: Vec<_> = engine.transport_kinds().map(handfast::TransportKind::name).collect();
    names.join(" and ")
}

/// Logs with `-v` the unused RDMA devices, and whether they are usable.
fn tell_of_rdma() {
    match handfast_transport_rdma::discover(&handfast_transport_rdma::root()) {
        Ok(devices) => {
            for handfast_transport_rdma::Device { name, driver, .. } in devices {
                info!(%name, %driver, "unused RDMA device: --transport rdma or auto uses it");
            }
        }
        Err(error) => info!(%error, "lanes run over TCP"),
    }
    if let Err(error) = handfast_transport_rdma::availability() {
        info!(%error, "lanes run over TCP");
    }
}

/// Raises the soft limit of descriptors to the hard limit: the usual soft limit is below the number
/// that peers may open, and each lane is a descriptor.
pub(crate) fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // If refused, the old limit remains, and connections past it are closed.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// A segment to serve.
struct Source {
    name: String,
    memory: Memory,
    path: Option<PathBuf>,
    grants: Vec<Grant>,
}

/// Validates the options of segments.
pub(crate) fn check(memory: &[String], files: &[String], read_only: bool) -> Outcome {
    sources(memory, files, read_only, Memory::zeroed).map(drop)
}

fn sources(
    memory: &[String],
    files: &[String],
    read_only: bool,
    allocate: impl Fn(usize) -> Result<Memory, MemoryError>,
) -> Result<Vec<Source>, Failure> {
    let mut sources = Vec::new();
    let default = [DEFAULT_MEMORY.to_owned()];
    let nothing = memory.is_empty() && files.is_empty();
    for text in if nothing { &default[..] } else { memory } {
        let (text, grants) = granted_to(text, read_only)?;
        let (name, bytes) = text.split_once('=').unwrap_or(("memory", text));
        if let Some((_, other)) = bytes.split_once(',') {
            let text =
                format!("'{other}' is no grant: write read=PEERS, write=PEERS or read-write=PEERS");
            return Err(Failure::Usage(text));
        }
        let bytes = size::parse_positive(bytes).map_err(Failure::Usage)?;
        let memory = allocate(usize::try_from(bytes).unwrap_or(usize::MAX));
        let memory = memory?;
        sources.push(Source { name: name.to_owned(), memory, path: None, grants });
    }
    for text in files {
        let (text, grants) = granted_to(text, read_only)?;
        let (name, path) = named_path(text)?;
        let memory = map(&path, !read_only)?;
        sources.push(Source { name, memory, path: Some(path), grants });
    }
    let mut names: Vec<&str> = sources.iter().map(|source| &*source.name).collect();
    names.sort_unstable();
    if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        let text = format!("two segments are named '{}'; name them NAME=SIZE, NAME=PATH", twice[0]);
        return Err(Failure::Usage(text));
    }
    Ok(sources)
}

/// Splits the grants off an option.
fn granted_to(text: &str, read_only: bool) -> Result<(&str, Vec<Grant>), Failure> {
    let (rest, grants) = grants::split(text)?;
    match grants.iter().find(|grant| read_only && grant.access().remote_write) {
        None => Ok((rest, grants)),
        Some(grant) => Err(Failure::Usage(format!("'{grant}' contradicts --read-only"))),
    }
}

fn named_path(text: &str) -> Result<(String, PathBuf), Failure> {
    if let Some((name, path)) = text.split_once('=') {
        return Ok((name.to_owned(), path.into()));
    }
    let name = Path::new(text).file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| Failure::Usage(format!("'{text}' needs a name: NAME=PATH")))?;
    Ok((name.to_owned(), text.into()))
}

fn map(path: &Path, writable: bool) -> Result<Memory, Failure> {
    let (file, bytes) = files::open(path, OpenOptions::new().read(true).write(writable))?;
    if bytes == 0 {
        return Err(Failure::state(path, "is empty; a segment has at least one byte"));
    }
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    Ok(Memory::map_file(&file, writable, bytes)?)
}

pub(crate) async fn stdin_ends() {
    // The end and an error both mean that the parent process is gone.
    let _ = tokio::io::copy(&mut tokio::io::stdin(), &mut tokio::io::sink()).await;
}
