//! Stub used when the `tls` feature is off: no value of these types exists.

use self::certificates::Certificates;
use super::DialError;
use crate::control::frame::{OwnedFrame, ReadError};
use handfast_core::auth::{AnswerSeen, AuthHello, AuthPolicy, Inbound};
use handfast_transport_tcp::{Look, Stream};
use std::io;

pub(crate) mod certificates {
    use crate::api::auth::CertificateFile;
    use handfast_core::NodeName;
    use handfast_core::auth::{AuthFailure, CertificateFault, Proof};

    /// Contents of the files.
    #[derive(Clone, PartialEq, Eq)]
    pub(crate) struct Texts {
        pub(crate) authority: Vec<u8>,
        pub(crate) certificate: Vec<u8>,
        pub(crate) key: Vec<u8>,
        pub(crate) revocations: Vec<u8>,
    }

    /// The check of revocation lists.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Lists {
        Checked,
        Earlier,
    }

    #[derive(Debug)]
    pub(crate) enum Certificates {}

    impl Certificates {
        pub(crate) fn new(
            _texts: &Texts,
            _lists: Lists,
        ) -> Result<Self, (CertificateFile, String)> {
            Err((CertificateFile::Certificate, "this build has no TLS (feature `tls`)".into()))
        }

        pub(crate) fn check(&self, _name: &NodeName) -> Result<(), AuthFailure> {
            match *self {}
        }

        pub(crate) fn fault_now(&self) -> Option<CertificateFault> {
            match *self {}
        }

        pub(crate) fn is_valid(&self, chain: &super::Chain) -> bool {
            match *chain {}
        }

        pub(crate) fn proof(&self, chain: &super::Chain, _peer: &NodeName) -> Proof {
            match *chain {}
        }

        pub(crate) fn host(&self) -> Option<String> {
            match *self {}
        }

        pub(crate) fn listening_name(&self, _address: &str) -> String {
            match *self {}
        }
    }
}

pub(super) enum Session {}

pub(crate) enum Chain {}

pub(super) fn end_of(chain: &Chain) -> &[u8] {
    match *chain {}
}

impl Session {
    pub(super) async fn dial<S: Stream>(
        _stream: &mut S,
        certificates: &Certificates,
        _hello: &AuthHello,
        _look: &Look,
    ) -> Result<(Option<Self>, AnswerSeen), DialError> {
        match *certificates {}
    }

    pub(super) async fn accept<S: Stream>(
        _stream: &mut S,
        certificates: &Certificates,
        _policy: &AuthPolicy,
        _inbound: &mut Inbound,
    ) -> Result<Self, ReadError> {
        match *certificates {}
    }

    pub(super) fn chain(&self) -> Option<Chain> {
        match *self {}
    }

    pub(super) fn sealed(&mut self, _bytes: &[u8]) -> io::Result<Vec<u8>> {
        match *self {}
    }

    pub(super) async fn send<S: Stream>(
        &mut self,
        _stream: &mut S,
        _bytes: &[u8],
    ) -> io::Result<()> {
        match *self {}
    }

    pub(super) async fn receive<S: Stream>(
        &mut self,
        _stream: &mut S,
        _look: &Look,
        _bytes_max: usize,
    ) -> Result<OwnedFrame, ReadError> {
        match *self {}
    }
}
