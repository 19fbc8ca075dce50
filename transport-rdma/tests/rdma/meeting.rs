//! Two hosts with a kernel each that tell a story together, and meet in between.

use crate::wires::nics;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Longest wait for a word is twice this: the guests' processors are emulated and shared.
const PATIENCE: Duration = Duration::from_secs(30);
/// The address at which the hosts synchronize.
const MEETING: (&str, u16) = ("10.0.0.1", 18_517);

/// The other host, by lines of text.
pub(crate) struct Other(BufReader<TcpStream>);

impl Other {
    pub(crate) fn meet(host: u8) -> Self {
        let stream = if host == 0 {
            TcpListener::bind(MEETING).unwrap().accept().unwrap().0
        } else {
            let since = Instant::now();
            loop {
                match TcpStream::connect(MEETING) {
                    Ok(stream) => break stream,
                    Err(error) => assert!(since.elapsed() < PATIENCE, "{error}"),
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        };
        stream.set_read_timeout(Some(2 * PATIENCE)).unwrap();
        Self(BufReader::new(stream))
    }

    /// Both say so; neither goes on before.
    pub(crate) fn both(&mut self, word: &str) {
        self.tell(word);
        assert_eq!(self.hear(), word);
    }

    pub(crate) fn tell(&mut self, line: &str) {
        self.0.get_mut().write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    pub(crate) fn hear(&mut self) -> String {
        let mut heard = String::new();
        self.0.read_line(&mut heard).unwrap();
        heard.trim_end().to_owned()
    }
}

/// The number of this host, if there are two.
pub(crate) fn host() -> Option<u8> {
    let there = nics().map(|nic| std::fs::exists(format!("/sys/class/infiniband/{nic}")).unwrap());
    let one_nic = there == [true, false];
    let is_one_of_two = std::env::var("HANDFAST_HOSTS").is_ok_and(|hosts| hosts == "2");
    assert!(one_nic || !is_one_of_two, "one of two guests has a NIC of its own: {there:?}");
    let host = std::env::var("HANDFAST_HOST").ok().filter(|_| is_one_of_two);
    if host.is_none() {
        let name = std::thread::current().name().unwrap_or("a story").to_owned();
        let line = format!("skipped: {name}: it needs two guests with a NIC each\n");
        // The macros that print would print into the capture of the test harness.
        std::io::stderr().write_all(line.as_bytes()).unwrap();
    }
    host.map(|host| host.parse().unwrap())
}
