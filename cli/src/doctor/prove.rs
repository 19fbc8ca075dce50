//! `handfast doctor --prove`: what profiles assume of an RDMA device, measured.

use super::Doctor;
use crate::failure::{Failure, Outcome};

#[cfg(feature = "verbs")]
mod report;

#[cfg(not(feature = "verbs"))]
pub(super) fn run(_: &Doctor) -> Outcome {
    Err(not_proven(
        "configuration",
        "the start of the program",
        "this program was built without RDMA (cargo feature 'verbs')",
        "build with `--features verbs` (docs/hardware.md)",
    ))
}

fn not_proven(side: &str, stage: &str, cause: impl ToString, cure: &'static str) -> Failure {
    let (side, stage, cause) = (side.to_owned(), stage.to_owned(), cause.to_string());
    Failure::NotProven { side, stage, cause, cure }
}

#[cfg(feature = "verbs")]
pub(super) use with_verbs::run;

#[cfg(feature = "verbs")]
mod with_verbs {
    use super::{Doctor, Failure, Outcome, not_proven, report};
    use crate::{output, terminal};
    use handfast_transport_rdma::{
        RdmaUnavailable, VerbsError, Verdict, availability, discover, prove,
    };
    use std::fs::OpenOptions;
    use std::io::Write;
    use std::path::Path;

    pub(in super::super) fn run(arguments: &Doctor) -> Outcome {
        if let Some(file) = arguments.output.as_deref().filter(|file| file.exists()) {
            return Err(Failure::state(file, "exists; name another file with --output"));
        }
        let known = availability().map_err(|unavailable| without_devices(&unavailable))?;
        let [first, second] = devices(&arguments.device, &known)?;
        let proof = prove(&first, &second).map_err(|error| refused(&error))?;
        let json = report::json(&proof, &arguments.root);
        if let Some(file) = &arguments.output {
            write(file, &json)?;
        }
        match arguments.json {
            true => output::say_json(&json)?,
            false => {
                let style = terminal::style(arguments.lang);
                output::say(format_args!("{}", report::words(&proof, &style).trim_end()))?;
            }
        }
        match proof.count(Verdict::Differs) {
            0 => Ok(()),
            count => Err(Failure::Disproven(count)),
        }
    }

    /// The requester's device and the responder's.
    fn devices(named: &[String], known: &[String]) -> Result<[String; 2], Failure> {
        match named {
            [] => {
                let first = usable(known);
                let first = first.ok_or_else(|| without_devices(&RdmaUnavailable::NoDevice))?;
                Ok([first.clone(), first])
            }
            [one] if !one.is_empty() => Ok([one.clone(), one.clone()]),
            [one, other] if !one.is_empty() && !other.is_empty() => {
                Ok([one.clone(), other.clone()])
            }
            _ => {
                let text = "--prove measures one device or two: --device NAME or NAME,NAME";
                Err(Failure::Usage(text.to_owned()))
            }
        }
    }

    /// The first device with an active port, or else the first one.
    fn usable(known: &[String]) -> Option<String> {
        let listed = discover(&handfast_transport_rdma::root()).unwrap_or_default();
        let is_active = |name: &&String| {
            let found = listed.iter().find(|device| device.name == **name);
            let port = found.and_then(|device| device.ports.first());
            port.is_some_and(handfast_transport_rdma::Port::is_active)
        };
        known.iter().find(is_active).or(known.first()).cloned()
    }

    fn without_devices(unavailable: &RdmaUnavailable) -> Failure {
        let cure = match unavailable {
            RdmaUnavailable::NotBuilt => "build with `--features verbs` (docs/hardware.md)",
            RdmaUnavailable::NoLibrary { .. } => {
                "install rdma-core (libibverbs1 and ibverbs-providers)"
            }
            RdmaUnavailable::NoList { .. } => {
                "load the kernel module ib_uverbs, and check /dev/infiniband"
            }
            RdmaUnavailable::NoDevice => "check the device's driver; `rdma link` lists the devices",
        };
        not_proven("local", "ibv_get_device_list", unavailable, cure)
    }

    fn refused(error: &VerbsError) -> Failure {
        let side = format!("{:?}", error.side).to_lowercase();
        not_proven(
            &side,
            error.call,
            format_args!("{}: {}", error.device, error.detail),
            cure(error.call),
        )
    }

    fn cure(call: &str) -> &'static str {
        match call {
            "ibv_get_device_list" => "name a device with --device; `rdma link` lists them",
            "the choice of devices" => "name one device, or two of one kind",
            "ibv_query_port" => "bring the port up (`ip link set NETDEV up`); `rdma link` shows it",
            "ibv_query_gid_table" => "give the port's network interface an IPv4 address",
            "ibv_reg_mr" => "raise the limit of locked memory (`ulimit -l`)",
            "ibv_modify_qp(RTR)" => "check the path between both ports, or name one device alone",
            _ => "stop other programs that use the device, and run again",
        }
    }

    fn write(file: &Path, json: &serde_json::Value) -> Outcome {
        let written = OpenOptions::new().write(true).create_new(true).open(file);
        let written = written.and_then(|mut written| {
            written.write_all(format!("{json:#}\n").as_bytes())?;
            written.sync_all()
        });
        written.map_err(|error| Failure::file(file, "writing", error))?;
        output::note(format_args!("wrote {}", file.display()));
        Ok(())
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        /// One name is a device with itself, two are a pair, and more are none.
        #[test]
        fn one_or_two_devices_are_named() {
            let of = |text: &str| {
                let names: Vec<_> = text.split(',').map(str::to_owned).collect();
                devices(&names, &[])
            };
            assert_eq!(of("a").ok().unwrap(), ["a", "a"]);
            assert_eq!(of("a,b").ok().unwrap(), ["a", "b"]);
            for wrong in ["", "a,", ",b", "a,b,c"] {
                assert_eq!(of(wrong).err().unwrap().exit_code(), 2, "{wrong}");
            }
        }

        /// Without a device the error names side, stage, cause and cure.
        #[test]
        fn error_without_device_names_four_things() {
            let error = devices(&[], &[]).err().unwrap();
            let text = error.to_string();
            for part in ["side local", "stage ibv_get_device_list", "no RDMA device", "rdma link"] {
                assert!(text.contains(part), "{text}");
            }
            assert_eq!(error.exit_code(), 2);
        }
    }
}
