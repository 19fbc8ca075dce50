//! Memory of accelerators over RDMA: scripted NICs reach the memory of scripted GPUs by dma-bufs, and a
//! processor that touches it ends the test. Each story has a process of its own.
#![allow(unsafe_code)]

use super::{MANAGED, has_networks, story};
use handfast::accelerators::Driver;
use handfast::rdma::RdmaOptions;
use handfast::topology::PriorityMatrix;
use handfast::{
    Access, Engine, Error, Memory, Registration, Segment, Stage, TransportChoice, TransportKind,
};
use handfast_fabric_control::{Fabric, Process, is_scripted};
use handfast_fabric_cuda::Control;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;

/// Several slices, and a part of a page.
const BYTES: usize = (3 << 20) + 4_099;
/// Profiles whose drivers register dma-bufs, the last of which the connection manager connects, and one whose
/// driver does not.
const OFFERED: [&str; 4] = ["strict", "mlx5", "irdma", "iwarp"];
const ABSENT: &str = "rxe";
/// Profiles whose NICs reach the memory by a module of the kernel.
const BY_MODULE: [&str; 4] = [ABSENT, "erdma-rocev2", "erdma-standard:retry_ms=2", "siw"];
/// Long enough for anything a story waits for.
const PATIENCE: Duration = Duration::from_secs(10);
/// Writes of which the nearer NIC moves most, and those within which a lane is up.
const WRITES: u64 = 20;
const WRITES_UNTIL_UP: u32 = 20_000;
/// `CUDA_ERROR_OUT_OF_MEMORY` and `CUDA_ERROR_NOT_SUPPORTED`.
const OUT_OF_MEMORY: i32 = 2;
const NOT_SUPPORTED: i32 = 801;

/// The devices of a process.
struct Machine {
    fabric: Fabric,
    cuda: Control,
    driver: Arc<Driver>,
    runtime: Runtime,
}

/// Runs a story in a process with two NICs of each of these profiles.
fn on(profiles: &[&str], name: &str, story: impl Fn(&Machine)) {
    if is_scripted() {
        let machine = Machine::find();
        story(&machine);
        assert_eq!(machine.fabric.run("laws"), "");
        return;
    }
    for profile in profiles {
        let is_managed = MANAGED.contains(profile);
        if !is_managed || has_networks() {
            let devices = format!("own0={profile},peer0={profile}:numbers_from=1000");
            passes(&devices, is_managed, name);
        }
    }
}

/// Runs a story in a process with these NICs.
fn passes(devices: &str, is_managed: bool, name: &str) {
    let process = Process::new(devices).unwrap();
    let output = story(&process, is_managed, &format!("gpu::{name}")).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{devices}: {text}{errors}");
}

/// An engine that serves memory, and one that has opened it.
struct Ends {
    owner: Engine,
    served: Registration,
    user: Engine,
    segment: Segment,
}

impl Machine {
    fn find() -> Self {
        let cuda = Control::load().unwrap();
        let driver = Driver::open(Some(cuda.path().as_os_str())).unwrap();
        let runtime = Runtime::new().unwrap();
        Self { fabric: Fabric::find().unwrap(), cuda, driver, runtime }
    }

    fn memory_at(&self, address: u64, bytes: usize) -> Memory {
        // SAFETY: a test that frees the bytes expects the driver to refuse copies to them.
        let memory = unsafe { self.driver.device_memory(address, bytes, Arc::new(())) };
        memory.unwrap().unwrap()
    }

    fn memory(&self, device: i32, bytes: usize) -> Memory {
        self.memory_at(self.cuda.allocate(device, bytes), bytes)
    }

    async fn engine(device: &str) -> Engine {
        Self::engine_of(TransportChoice::Rdma, device).await
    }

    async fn engine_of(choice: TransportChoice, device: &str) -> Engine {
        let devices = vec![device.to_owned()];
        let rdma = RdmaOptions::default().with(|it| it.devices = devices);
        let builder = Engine::builder().transport(choice).rdma(rdma);
        builder.listen("127.0.0.1:0").start().await.unwrap()
    }

    async fn ends(&self, memory: &Memory) -> Ends {
        let owner = Self::engine("peer0").await;
        let register = owner.register("cache").access(Access::READ_WRITE);
        let served = register.serve(memory.whole()).unwrap();
        let user = Self::engine("own0").await;
        let segment = user.open(owner.address()).await.unwrap();
        Ends { owner, served, user, segment }
    }

    /// The error of serving memory.
    fn refusal(&self, memory: &Memory, access: Access) -> Error {
        self.runtime.block_on(async {
            let owner = Self::engine("peer0").await;
            let refused = owner.register("cache").access(access).serve(memory.whole());
            let error = refused.expect_err("it was registered");
            owner.close().await;
            assert_eq!(error.stage(), Stage::Registration);
            error
        })
    }

    /// Lets the kernel know the addresses of GPUs.
    fn load_module(&self) {
        let sys = PathBuf::from(std::env::var_os("SYSFS_PATH").unwrap());
        std::fs::create_dir_all(sys.join("module/nvidia_peermem")).unwrap();
    }

    /// Bytes that the GPU's driver has copied.
    fn copied(&self) -> u64 {
        self.cuda.live().copied
    }
}

impl Ends {
    async fn close(self) {
        drop(self.served);
        self.user.close().await;
        self.owner.close().await;
    }
}

fn pattern(seed: usize) -> Vec<u8> {
    (0..BYTES).map(|at| (at * 31 + at / 251 + seed * 7) as u8).collect()
}

fn filled(memory: Memory, seed: usize) -> Memory {
    memory.copy_in(0, &pattern(seed)).unwrap();
    memory
}

fn content(memory: &Memory, offset: usize, bytes: usize) -> Vec<u8> {
    let mut content = vec![0; bytes];
    memory.copy_out(offset, &mut content).unwrap();
    content
}

fn host() -> Memory {
    Memory::zeroed(BYTES).unwrap()
}

/// Writes and reads in both directions between the kinds of memory of both sides.
async fn exchange(machine: &Machine, there: &Memory, here: &[Memory]) {
    let ends = machine.ends(there).await;
    for (seed, memory) in here.iter().enumerate() {
        let memory = filled(memory.clone(), seed);
        let before = machine.copied();
        ends.segment.write(&memory.whole(), 0).await.unwrap();
        assert_eq!(machine.copied(), before, "no byte passes through the host");
        assert_eq!(content(there, 0, BYTES), pattern(seed));
        filled(there.clone(), seed + 10);
        let before = machine.copied();
        ends.segment.read(&memory.whole(), 0).await.unwrap();
        assert_eq!(machine.copied(), before, "no byte passes through the host");
        assert_eq!(content(&memory, 0, BYTES), pattern(seed + 10));
    }
    ends.close().await;
}

/// Bytes go between devices, and between a device and the host, at either side, past the processors.
#[test]
fn nics_move_bytes_between_devices_and_host() {
    on(&OFFERED, "nics_move_bytes_between_devices_and_host", |machine| {
        machine.runtime.block_on(async {
            let here = [machine.memory(0, BYTES), machine.memory(1, BYTES), host()];
            exchange(machine, &machine.memory(1, BYTES), &here).await;
            exchange(machine, &host(), &here[..2]).await;
        });
        assert_eq!(machine.cuda.live().flushes, 0, "the devices keep the order");
    });
}

/// With `auto` two processes of one host share memory before they use their devices, which move what
/// cannot be shared: a GPU's bytes, of either side.
#[test]
fn auto_shares_memory_and_leaves_gpus_to_devices() {
    on(&["mlx5"], "auto_shares_memory_and_leaves_gpus_to_devices", |machine| {
        let packets = || machine.fabric.run("packets peer0").parse::<u64>().unwrap();
        machine.runtime.block_on(async {
            let owner = Machine::engine_of(TransportChoice::Auto, "peer0").await;
            let user = Machine::engine_of(TransportChoice::Auto, "own0").await;
            let preferred: Vec<_> = user.transport_kinds().take(2).collect();
            assert_eq!(preferred, [TransportKind::Shm, TransportKind::Rdma]);
            let (there, gpu) = (owner.allocate(BYTES).unwrap(), machine.memory(1, BYTES));
            let serve = |name: &str, memory: &Memory| {
                let register = owner.register(name).access(Access::READ_WRITE);
                register.serve(memory.whole()).unwrap()
            };
            let served = [serve("host", &there), serve("gpu", &gpu)];
            let open =
                async |name: &str| user.open(&format!("{}/{name}", owner.address())).await.unwrap();
            let (segment, accelerated) = (open("host").await, open("gpu").await);
            let near = filled(host(), 1);
            let shared = async {
                while segment.transport_kind() != Some(TransportKind::Shm) {
                    segment.write(&near.whole(), 0).await.unwrap();
                }
            };
            tokio::time::timeout(PATIENCE, shared).await.expect("the lane shares memory");
            let before = packets();
            let near = filled(host(), 2);
            segment.write(&near.whole(), 0).await.unwrap();
            assert_eq!((packets(), content(&there, 0, BYTES)), (before, pattern(2)));
            let (copied, lanes) = (machine.copied(), user.counters().lanes);
            accelerated.write(&near.whole(), 0).await.unwrap();
            assert!(packets() > before, "the device moves the bytes of the peer's GPU");
            assert_eq!(content(&gpu, 0, BYTES), pattern(2));
            let before = packets();
            let own = filled(machine.memory(0, BYTES), 3);
            let copied_to_fill = machine.copied();
            segment.write(&own.whole(), 0).await.unwrap();
            assert!(packets() > before, "and those of the own GPU");
            assert_eq!(content(&there, 0, BYTES), pattern(3));
            assert_eq!(machine.copied(), copied_to_fill, "no byte passes through the host");
            assert!(
                copied_to_fill > copied && user.counters().lanes == lanes,
                "over the same lane"
            );
            machine.fabric.run("fail call own0 ibv_reg_mr 12 times 100");
            let refused = filled(host(), 4);
            segment.write(&refused.whole(), 0).await.unwrap();
            assert_eq!(content(&there, 0, BYTES), pattern(4), "a copy needs no registration");
            let registered = || machine.fabric.run("count own0 ibv_reg_mr").parse::<u64>().unwrap();
            let tried = registered();
            for _ in 0..10 {
                segment.write(&refused.whole(), 0).await.unwrap();
            }
            let again = registered() - tried;
            assert!(again < 10, "refused memory is registered at each submission: {again}");
            machine.fabric.run("pass");
            drop(served);
            user.close().await;
            owner.close().await;
        });
    });
}

/// A block within its allocation, off the pages at both ends, is moved alone.
#[test]
fn part_of_an_allocation_is_served_alone() {
    on(&["mlx5"], "part_of_an_allocation_is_served_alone", |machine| {
        machine.runtime.block_on(async {
            let whole = machine.memory(1, BYTES);
            let (start, bytes) = (4_096 * 3 + 513, 700_001);
            let there = machine.memory_at(whole.address() + start as u64, bytes);
            let ends = machine.ends(&there).await;
            let source = filled(machine.memory(0, BYTES), 3);
            ends.segment.write(&source.span(17, bytes - 20).unwrap(), 5).await.unwrap();
            let mut expected = vec![0; BYTES];
            expected[start + 5..][..bytes - 20].copy_from_slice(&pattern(3)[17..][..bytes - 20]);
            assert!(content(&whole, 0, BYTES) == expected, "other bytes changed");
            ends.segment.write(&source.span(0, 1).unwrap(), bytes as u64).await.unwrap_err();
            ends.close().await;
        });
    });
}

/// A device that keeps no order sees a write once the write has succeeded, since a read follows it.
#[test]
fn write_is_seen_when_it_has_succeeded() {
    on(&OFFERED, "write_is_seen_when_it_has_succeeded", |machine| {
        machine.cuda.post(true);
        machine.runtime.block_on(async {
            let there = machine.memory(1, BYTES);
            assert!(there.needs_flush());
            let ends = machine.ends(&there).await;
            for seed in 0..3 {
                let source = filled(host(), seed);
                ends.segment.write(&source.whole(), 0).await.unwrap();
                assert!(content(&there, 0, BYTES) == pattern(seed), "the owner misses bytes");
            }
            assert_eq!(machine.cuda.live().pending, 0);
            assert_eq!(machine.cuda.live().flushes, 0, "the owner has no part in it");
            ends.close().await;
        });
    });
}

/// A read into such a device has succeeded once its driver shows the bytes.
#[test]
fn read_is_seen_when_it_has_succeeded() {
    on(&OFFERED, "read_is_seen_when_it_has_succeeded", |machine| {
        machine.cuda.post(true);
        machine.runtime.block_on(async {
            let ends = machine.ends(&filled(host(), 4)).await;
            let target = machine.memory(0, BYTES);
            ends.segment.read(&target.whole(), 0).await.unwrap();
            assert!(content(&target, 0, BYTES) == pattern(4), "the reader misses bytes");
            assert!(machine.cuda.live().flushes > 0);
            machine.cuda.answer("cuFlushGPUDirectRDMAWrites", NOT_SUPPORTED);
            let small = target.span(0, 8).unwrap();
            let error = ends.segment.read(&small, 0).await.unwrap_err();
            assert_eq!(error.diagnosis_id().as_str(), "GPU-ORDER", "{error}");
            ends.segment.read(&small, 0).await.unwrap();
            ends.close().await;
        });
    });
}

/// A write does not succeed before the read behind it, and one whose read the NIC refuses is repeated.
#[test]
fn write_waits_for_the_read_behind_it() {
    on(&["mlx5"], "write_waits_for_the_read_behind_it", |machine| {
        machine.cuda.post(true);
        machine.runtime.block_on(async {
            let there = machine.memory(1, BYTES);
            let ends = machine.ends(&there).await;
            let source = filled(host(), 1);
            let one = source.span(0, 64).unwrap();
            ends.segment.write(&one, 0).await.unwrap();
            let posts = || machine.fabric.run("count own0 ibv_post_send").parse::<u64>().unwrap();
            let before = posts();
            // The write is the first call after this, its read the second.
            machine.fabric.run("fail call own0 ibv_post_send 12 after 1 times 1");
            ends.segment.write(&source.span(100, 64).unwrap(), 100).await.unwrap();
            assert!(posts() >= before + 4, "a write and a read, each twice");
            assert_eq!(content(&there, 100, 64), pattern(1)[100..164]);
            assert_eq!(machine.cuda.live().pending, 0);
            ends.close().await;
        });
    });
}

/// Of two NICs the one that the matrix names for `cuda:1` moves the bytes of that device.
#[test]
fn nic_near_the_gpu_moves_its_bytes() {
    if !is_scripted() {
        let devices = "own0=mlx5,own1=mlx5:numbers_from=500,peer0=mlx5:numbers_from=1000";
        return passes(devices, false, "nic_near_the_gpu_moves_its_bytes");
    }
    let machine = Machine::find();
    let posts = |nic: usize| -> u64 {
        machine.fabric.run(&format!("count own{nic} ibv_post_send")).parse().unwrap()
    };
    machine.runtime.block_on(async {
        let owner = Machine::engine("peer0").await;
        let there = Memory::zeroed(BYTES).unwrap();
        let register = owner.register("cache").access(Access::READ_WRITE);
        let _served = register.serve(there.whole()).unwrap();
        let text = r#"{"cuda:0": [["own0"], ["own1"]], "cuda:1": [["own1"], ["own0"]]}"#;
        let rdma = RdmaOptions::default().with(|it| {
            it.devices = vec!["own0".to_owned(), "own1".to_owned()];
            it.matrix = Some(PriorityMatrix::parse(text).unwrap());
        });
        let builder = Engine::builder().transport(TransportChoice::Rdma).rdma(rdma);
        let user = builder.start().await.unwrap();
        let segment = user.open(owner.address()).await.unwrap();
        for device in [1, 0, 1] {
            let memory = filled(machine.memory(device, BYTES), 1);
            let near = usize::try_from(device).unwrap();
            let write = || segment.batch().write(&memory.span(0, 64).unwrap(), 0);
            // The lane over the other NIC may be up before.
            let before = posts(near);
            for attempt in 0.. {
                write().await.unwrap();
                if posts(near) >= before + WRITES {
                    break;
                }
                assert!(attempt < WRITES_UNTIL_UP, "{} and {}", posts(0), posts(1));
            }
            let before = posts(1 - near);
            for _ in 0..WRITES {
                write().await.unwrap();
            }
            let far = posts(1 - near) - before;
            assert!(far < WRITES / 2, "the far NIC has moved {far} of {WRITES}");
        }
        user.close().await;
        owner.close().await;
    });
}

/// Writes to two devices that complete together have a read each: one device's says nothing of the other.
#[test]
fn each_device_has_a_read_of_its_own() {
    on(&["mlx5"], "each_device_has_a_read_of_its_own", |machine| {
        machine.cuda.post(true);
        machine.runtime.block_on(async {
            let there = [machine.memory(0, BYTES), machine.memory(1, BYTES)];
            let owner = Machine::engine("peer0").await;
            let serve = |at: usize| {
                let name = ["one", "two"][at];
                owner.register(name).access(Access::READ_WRITE).serve(there[at].whole()).unwrap()
            };
            let _served = [serve(0), serve(1)];
            let user = Machine::engine("own0").await;
            let one = user.open(format!("{}/one", owner.address())).await.unwrap();
            let two = user.open(format!("{}/two", owner.address())).await.unwrap();
            let source = filled(host(), 6);
            let span = source.span(0, 64).unwrap();
            one.write(&span, 4_096).await.unwrap();
            two.write(&span, 4_096).await.unwrap();
            let posts = || machine.fabric.run("count own0 ibv_post_send").parse::<u64>().unwrap();
            let before = posts();
            machine.fabric.run("hold completions own0");
            let first = one.write(&span, 0).submit().await.unwrap();
            let second = two.write(&span, 0).submit().await.unwrap();
            let both = async {
                while posts() < before + 2 {
                    tokio::task::yield_now().await;
                }
            };
            tokio::time::timeout(PATIENCE, both).await.expect("both are posted");
            machine.fabric.run("release completions own0");
            first.await.unwrap();
            second.await.unwrap();
            for memory in &there {
                assert_eq!(content(memory, 0, 64), pattern(6)[..64], "the owner misses bytes");
            }
            user.close().await;
            owner.close().await;
        });
    });
}

/// A module of the kernel knows the addresses for a NIC whose driver takes no dma-buf.
#[test]
fn module_for_peer_memory_replaces_the_dma_buf() {
    on(&BY_MODULE, "module_for_peer_memory_replaces_the_dma_buf", |machine| {
        machine.load_module();
        machine.runtime.block_on(async {
            exchange(machine, &machine.memory(1, BYTES), &[machine.memory(0, BYTES)]).await;
        });
    });
}

/// The error of a machine with neither gives both reasons and the id of the problem.
#[test]
fn refusal_gives_both_reasons() {
    on(&[ABSENT, "mlx5", "siw"], "refusal_gives_both_reasons", |machine| {
        let memory = machine.memory(1, BYTES);
        let listed = machine.fabric.execute("fail call peer0 ibv_reg_dmabuf_mr 95");
        listed.unwrap();
        let error = machine.refusal(&memory, Access::READ_WRITE);
        let text = error.to_string();
        assert_eq!(error.diagnosis_id().as_str(), "GPU-NOPEER", "{text}");
        assert!(text.contains("the memory of cuda:1") && text.contains("does not offer"), "{text}");
        assert!(text.contains("no module for peer memory is loaded (nvidia_peermem)"), "{text}");
        machine.load_module();
        machine.fabric.run("fail call peer0 ibv_reg_mr 14 after 1");
        let text = machine.refusal(&memory, Access::READ_WRITE).to_string();
        assert!(text.contains("over nvidia_peermem: Bad address"), "{text}");
    });
}

/// A driver that exports no memory, or not this one, is named with its reason.
#[test]
fn failed_export_names_driver_and_reason() {
    on(&["mlx5"], "failed_export_names_driver_and_reason", |machine| {
        let memory = machine.memory(0, BYTES);
        let call = "cuMemGetHandleForAddressRange";
        for (code, name) in [(NOT_SUPPORTED, "NOT_SUPPORTED"), (OUT_OF_MEMORY, "OUT_OF_MEMORY")] {
            machine.cuda.answer(call, code);
            let error = machine.refusal(&memory, Access::READ);
            let text = error.to_string();
            assert_eq!(error.diagnosis_id().as_str(), "GPU-EXPORT", "{text}");
            assert!(text.contains(call) && text.contains(name), "{text}");
        }
        let incapable = machine.cuda.allocate_incapable(0, BYTES);
        let error = machine.refusal(&machine.memory_at(incapable, BYTES), Access::READ);
        assert_eq!(error.diagnosis_id().as_str(), "GPU-EXPORT");
        assert!(error.to_string().contains("gpuDirectRDMACapable"), "{error}");
        machine.runtime.block_on(async { machine.ends(&memory).await.close().await });
    });
}

/// Memory that was freed is refused, and what peers write to a region of it reaches no other memory.
#[test]
fn freed_memory_is_never_another_ones() {
    on(&OFFERED, "freed_memory_is_never_another_ones", |machine| {
        let gone = machine.memory(0, BYTES);
        assert!(machine.cuda.free(gone.address()));
        let error = machine.refusal(&gone, Access::READ);
        assert_eq!(error.diagnosis_id().as_str(), "GPU-POINTER", "{error}");
        machine.runtime.block_on(async {
            let there = machine.memory(1, BYTES);
            let ends = machine.ends(&there).await;
            assert!(machine.cuda.free(there.address()));
            // Usually at the same address.
            let next = machine.memory(1, BYTES);
            ends.segment.write(&filled(host(), 5).whole(), 0).await.unwrap();
            assert!(content(&next, 0, BYTES) == vec![0; BYTES], "another allocation was written");
            ends.close().await;
        });
    });
}

/// Memory that peers may write and not read cannot be served by a device that keeps no order.
#[test]
fn unreadable_memory_needs_an_order() {
    on(&["mlx5"], "unreadable_memory_needs_an_order", |machine| {
        machine.runtime.block_on(async {
            let owner = Machine::engine("peer0").await;
            let memory = machine.memory(0, BYTES);
            drop(owner.register("cache").access(Access::WRITE).serve(memory.whole()).unwrap());
            owner.close().await;
        });
        machine.cuda.post(true);
        // The other device has a context of its own, whose order is looked up again.
        let error = machine.refusal(&machine.memory(1, BYTES), Access::WRITE);
        assert_eq!(error.diagnosis_id().as_str(), "GPU-ORDER", "{error}");
        assert!(error.to_string().contains("Access::READ_WRITE"), "{error}");
    });
}
