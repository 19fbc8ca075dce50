//! Nodes with certificates: the handshake of TLS in symbols, changes of files, and expiry.

use super::setup::AuthBackend;
use super::term::{Certificate, Fresh, Run, Session, TLS, Term};
use super::world::{AuthWorld, Carries, OWN, name};
use handfast_core::auth::{
    AUTH_TLS, AnswerSeen, AuthHello, CertificateFault, Inbound, certified_part,
};

impl AuthWorld {
    /// The fault of a certificate in the eyes of a node's operator.
    pub(super) fn fault(&self, node: usize, certificate: Certificate) -> Option<CertificateFault> {
        let trusted = self.nodes[node].certificate.as_ref().map(|(_, trusted)| trusted);
        if !trusted.is_some_and(|trusted| trusted.contains(&certificate.authority)) {
            return Some(CertificateFault::UnknownAuthority);
        }
        self.expired.contains(&certificate).then_some(CertificateFault::Expired)
    }

    /// The fault that the caller finds.
    pub(super) fn verified(
        &self,
        node: usize,
        certificate: Certificate,
    ) -> Result<(), CertificateFault> {
        match self.fault(node, certificate) {
            Some(CertificateFault::Expired) if self.is(AuthBackend::ExpiryIgnored) => Ok(()),
            fault => fault.map_or(Ok(()), Err),
        }
    }

    fn names(&self, certificate: Certificate, run: Run) -> bool {
        let is_named =
            certified_part(&self.identity(run).name) == name(certificate.holder).as_str();
        is_named || self.is(AuthBackend::CertificateUnbound)
    }

    /// The listening side answers the first message of TLS.
    pub(super) fn open_tls(
        &mut self,
        wire: usize,
        node: usize,
        inbound: &mut Inbound,
        number: Fresh,
    ) -> bool {
        let policy = self.nodes[node].policy.clone();
        if inbound.handle_tls(&policy, AUTH_TLS).is_err() {
            return false;
        }
        let Some((certificate, _)) = self.nodes[node].certificate else { return false };
        let session = Session { key: TLS, dialling: number, listening: self.draw() };
        self.wires[wire].sessions[1] = Some(session);
        self.send(wire, 1, Term::TlsAnswer { session, certificate });
        true
    }

    /// The listening side verifies the certificate of the dialling one.
    pub(super) fn finish_tls(
        &mut self,
        wire: usize,
        node: usize,
        inbound: &mut Inbound,
        term: Term,
    ) -> bool {
        let Term::TlsFinish { session, certificate, from, to } = term else { return false };
        if self.wires[wire].sessions[1] != Some(session) {
            return false;
        }
        let policy = self.nodes[node].policy.clone();
        let hello = AuthHello { from: self.identity(from), to: to.map(name) };
        let presented = self.verified(node, certificate);
        let presented = presented.map(|()| (hello, self.names(certificate, from)));
        if inbound.handle_certificate(&policy, presented).is_err() {
            return false;
        }
        self.wires[wire].certificates[1] = Some(certificate);
        let own = self.nodes[node].run;
        self.send(wire, 1, Term::TlsWelcome { session, from: own });
        true
    }

    /// The dialling side verifies the certificate of the listening one, and shows its own.
    pub(super) fn answer_tls(
        &mut self,
        wire: usize,
        node: usize,
        session: Session,
        certificate: Certificate,
    ) -> Result<(), CertificateFault> {
        self.verified(node, certificate)?;
        self.wires[wire].sessions[0] = Some(session);
        self.wires[wire].certificates[0] = Some(certificate);
        let (own, run) = (self.nodes[node].certificate.clone(), self.nodes[node].run);
        let Some((certificate, _)) = own else { return Ok(()) };
        let to = self.wires[wire].ends[1].filter(|_| !self.setup.by_address);
        self.send(wire, 0, Term::TlsFinish { session, certificate, from: run, to });
        Ok(())
    }

    /// The dialling side learns who has answered.
    pub(super) fn welcomed(&self, wire: usize, session: Session, from: Run) -> AnswerSeen {
        match self.wires[wire].certificates[0] {
            Some(certificate) if self.wires[wire].sessions[0] == Some(session) => {
                AnswerSeen::Certified(self.identity(from), self.names(certificate, from))
            }
            _ => AnswerSeen::Nothing,
        }
    }

    /// The attacker connects to a node, for calls; to one with a certificate with its first message.
    pub(super) fn intrude(&mut self, node: usize) {
        let wire = self.connect(None, node, None);
        if self.nodes[node].certificate.is_some() && self.setup.stolen.is_empty() {
            self.wires[wire].inboxes[1].push_back(Term::TlsHello { number: OWN });
        }
    }

    /// The files of a node change. It serves and dials by the new ones at once.
    pub(super) fn reload(&mut self, node: usize) {
        let plan = self.setup.nodes[node].clone();
        let mut next = self.nodes[node].clone();
        if let Some(keys) = plan.keys_later {
            next = self.started(node, keys, Vec::new());
            next = self.certified(node, next, self.nodes[node].certificate.clone());
            next.remembered = self.nodes[node].remembered.clone();
        }
        next.certificate = plan.certificate_later.or(next.certificate);
        next.policy = next.policy.at_epoch(self.nodes[node].policy.epoch() + 1);
        next.has_reloaded = true;
        self.nodes[node] = next;
        self.end_withdrawn(node);
    }

    /// A certificate expires, and every node looks at its sessions again.
    pub(super) fn expire(&mut self, place: usize) {
        self.expired.insert(self.setup.expiring[place]);
        for node in &mut self.nodes {
            let epoch = node.policy.epoch() + 1;
            node.policy = node.policy.clone().at_epoch(epoch);
        }
        (0..self.nodes.len()).for_each(|node| self.end_withdrawn(node));
    }

    /// Messages of TLS that the attacker makes: with certificates that it has, and in sessions to
    /// which it has contributed.
    pub(super) fn push_certified(&self, wire: usize, side: usize, forged: &mut Vec<Term>) {
        if self.setup.nodes.iter().all(|plan| plan.certificate.is_none()) {
            return;
        }
        let others = self.claimable(wire, side);
        let certificates = &self.setup.stolen_certificates;
        if side == 1 {
            let to = self.wires[wire].ends[1];
            let own = self.wires[wire].sessions[1].filter(|session| session.dialling == OWN);
            let Some(session) = own else { return };
            for from in others {
                let finish = |certificate: &Certificate| Term::TlsFinish {
                    session,
                    certificate: *certificate,
                    from,
                    to,
                };
                forged.extend(certificates.iter().map(finish));
            }
            self.push_requests(wire, session, forged);
        } else if let Carries::Calls { sent: Some(sent), .. } = &self.wires[wire].carries {
            let session = Session { key: TLS, dialling: *sent, listening: OWN };
            let answer =
                |certificate: &Certificate| Term::TlsAnswer { session, certificate: *certificate };
            forged.extend(certificates.iter().map(answer));
            forged.extend(others.map(|from| Term::TlsWelcome { session, from }));
        }
    }
}
