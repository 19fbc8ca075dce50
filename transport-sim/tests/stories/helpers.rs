//! Two NICs with a region each, and ways to connect them.

use handfast_transport_sim::verbs::*;

/// First address of a region.
pub(crate) const BASE: u64 = 0x1000;
/// Length of a region in bytes.
pub(crate) const SIZE: usize = 4_096;
/// Entries of each queue.
pub(crate) const DEPTH: u32 = 16;

/// One side.
#[derive(Clone, Copy)]
pub(crate) struct End {
    pub(crate) nic: usize,
    pub(crate) number: u32,
    pub(crate) keys: Keys,
}

/// Two sides and what is between them.
pub(crate) struct Duo {
    pub(crate) fabric: Fabric,
    pub(crate) a: End,
    pub(crate) b: End,
}

/// Profiles on which queue pairs can be connected without a connection manager.
pub(crate) fn connectable() -> impl Iterator<Item = &'static Profile> {
    PROFILES.into_iter().filter(|profile| profile.name != "erdma-standard")
}

/// Two NICs with a region each and a queue pair that nothing was done to.
pub(crate) fn fresh(profile: &'static Profile) -> Duo {
    let mut fabric = Fabric::default();
    let mut end = |fill: u8| {
        let nic = fabric.add_nic(profile);
        let keys = fabric.register(nic, BASE, vec![fill; SIZE], Access::ALL).expect("room");
        let number = fabric.create_queue_pair(nic, DEPTH, DEPTH).expect("room");
        End { nic, number, keys }
    };
    let (a, b) = (end(0xaa), end(0xbb));
    Duo { fabric, a, b }
}

/// The same, connected, with sequence numbers that differ.
pub(crate) fn connected(profile: &'static Profile) -> Duo {
    let mut duo = fresh(profile);
    duo.connect(1_000, 2_000);
    duo
}

impl Duo {
    /// Connects both ends: `a` starts at one sequence number, `b` at the other.
    pub(crate) fn connect(&mut self, psn_a: u32, psn_b: u32) {
        let (a, b) = (self.a, self.b);
        connect(&mut self.fabric, a, b, psn_a, psn_b).expect("a is connected");
        connect(&mut self.fabric, b, a, psn_b, psn_a).expect("b is connected");
    }

    /// Posts a write of a few bytes from the start of `a`'s region to an offset in `b`'s.
    pub(crate) fn write(&mut self, wr_id: u64, offset: u64, length: u32) {
        let request = self.write_request(wr_id, offset, length);
        self.fabric.post_send(self.a.nic, self.a.number, request).expect("posted");
    }

    pub(crate) fn write_request(&self, wr_id: u64, offset: u64, length: u32) -> WorkRequest {
        let kind = SendKind::Write { rkey: self.b.keys.rkey, address: BASE + offset };
        self.request(wr_id, kind, length)
    }

    pub(crate) fn read_request(&self, wr_id: u64, offset: u64, length: u32) -> WorkRequest {
        let kind = SendKind::Read { rkey: self.b.keys.rkey, address: BASE + offset };
        self.request(wr_id, kind, length)
    }

    pub(crate) fn request(&self, wr_id: u64, kind: SendKind, length: u32) -> WorkRequest {
        let lkey = self.a.keys.lkey;
        WorkRequest { wr_id, kind, lkey, local: BASE, length, signalled: true }
    }

    pub(crate) fn post(&mut self, request: WorkRequest) -> Result<(), VerbsError> {
        self.fabric.post_send(self.a.nic, self.a.number, request)
    }

    /// Posts a receive at `b`.
    pub(crate) fn receive(&mut self, wr_id: u64, length: u32) -> Result<(), VerbsError> {
        let receive = Receive { wr_id, lkey: self.b.keys.lkey, local: BASE, length };
        self.fabric.post_receive(self.b.nic, self.b.number, receive)
    }

    /// Everything that was completed at an end: work, and how it ended.
    pub(crate) fn ends(&mut self, end: End) -> Vec<(u64, Status)> {
        let mut ends = Vec::new();
        while let Some(completion) = self.fabric.poll(end.nic) {
            ends.push((completion.wr_id, completion.status));
        }
        ends
    }

    /// Bytes of `b`'s region.
    pub(crate) fn at_b(&self, offset: usize, length: usize) -> &[u8] {
        &self.fabric.memory(self.b.nic, self.b.keys).expect("registered")[offset..][..length]
    }

    pub(crate) fn state(&self, end: End) -> QpState {
        self.fabric.queue_pair(end.nic, end.number).expect("there").state()
    }

    pub(crate) fn modify(&mut self, end: End, state: QpState) -> Result<(), VerbsError> {
        self.fabric.modify(end.nic, end.number, &Attributes::to(state))
    }

    /// Ends a queue pair as it should be ended: ERR, drained, destroyed.
    pub(crate) fn retire(&mut self, end: End) {
        self.modify(end, QpState::Err).expect("put in error");
        self.ends(end);
        self.fabric.destroy_queue_pair(end.nic, end.number).expect("destroyed");
    }

    pub(crate) fn create(&mut self, nic: usize) -> u32 {
        self.fabric.create_queue_pair(nic, DEPTH, DEPTH).expect("room")
    }
}

/// The GID of a NIC that a connection uses.
pub(crate) fn gid(fabric: &Fabric, nic: usize) -> (u8, Gid) {
    let index = fabric.nic(nic).profile().gid_index.expect("a usable GID");
    (index, fabric.nic(nic).gids()[usize::from(index)].expect("an entry"))
}

/// INIT, RTR and RTS towards a peer.
pub(crate) fn connect(
    fabric: &mut Fabric,
    own: End,
    peer: End,
    own_psn: u32,
    peer_psn: u32,
) -> Result<(), VerbsError> {
    let (index, _) = gid(fabric, own.nic);
    let (_, dgid) = gid(fabric, peer.nic);
    let steps = [
        Attributes::to_init(Access::ALL),
        Attributes::to_rtr(index, dgid, peer.number, peer_psn),
        Attributes::to_rts(own_psn),
    ];
    steps.iter().try_for_each(|step| fabric.modify(own.nic, own.number, step))
}
