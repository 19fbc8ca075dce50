//! Messages of authentication: the head of a hello, which is readable, and its sealed content.

use super::policy::{Identity, KEY_ID_BYTES_MAX};
use crate::identity::{Incarnation, NodeName};
use alloc::string::String;
use alloc::vec::Vec;

/// The first eight bytes of an authenticated connection and of its answer. As a little-endian number
/// it is above 2^63, so it is no length of a plain frame: a peer that does not know it closes the
/// connection. No byte of it is ASCII or the start of a TLS record.
pub const AUTH_MAGIC: [u8; 8] = [0xF4, 0xA1, 0xD9, 0xBC, 0xC7, 0x93, 0xE8, 0xFD];
/// Version of the messages of keys. Others are refused.
pub const AUTH_VERSION: u8 = 1;
/// In place of a version: a TLS connection follows the hello, whose id is empty.
pub const AUTH_TLS: u8 = 2;
/// Longest hello or answer after its length field, in bytes.
pub const AUTH_MESSAGE_BYTES_MAX: usize = 1024;

/// The readable head of a hello: the version, and the id of the key that the rest is sealed with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthHelloHead {
    /// Version of the messages.
    pub version: u8,
    /// Id of the key.
    pub key: String,
}

/// The sealed content of a hello: the dialling node, and the node that it means to reach, if it
/// knows a name. The answer has the same form, without the latter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AuthHello {
    /// The sender.
    pub from: Identity,
    /// The addressed node.
    pub to: Option<NodeName>,
}

/// Errors of decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the authentication message is malformed")]
pub struct AuthMessageError;

impl AuthHelloHead {
    /// Encodes the head. The sealed content follows.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(2 + self.key.len());
        bytes.push(self.version);
        put_text(&mut bytes, &self.key, KEY_ID_BYTES_MAX);
        bytes
    }

    /// Splits a hello into its head and its sealed content. Of an unknown version the head alone is
    /// read.
    ///
    /// # Errors
    /// [`AuthMessageError`].
    pub fn decode(bytes: &[u8]) -> Result<(Self, &[u8]), AuthMessageError> {
        let (version, rest) = bytes.split_first().ok_or(AuthMessageError)?;
        let (key, sealed) = take_text(rest, KEY_ID_BYTES_MAX)?;
        Ok((Self { version: *version, key: key.into() }, sealed))
    }
}

impl AuthHello {
    /// Encodes the content.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.from.incarnation.0.to_le_bytes().to_vec();
        put_name(&mut bytes, self.from.name.as_str());
        put_name(&mut bytes, self.to.as_ref().map_or("", NodeName::as_str));
        bytes
    }

    /// Decodes the content.
    ///
    /// # Errors
    /// [`AuthMessageError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, AuthMessageError> {
        let (incarnation, rest) = bytes.split_first_chunk().ok_or(AuthMessageError)?;
        let incarnation = Incarnation(u128::from_le_bytes(*incarnation));
        let (name, rest) = take_name(rest)?;
        let (to, rest) = take_name(rest)?;
        if !rest.is_empty() || incarnation == Incarnation::UNKNOWN {
            return Err(AuthMessageError);
        }
        let named = |text: &str| NodeName::new(text).map_err(|_| AuthMessageError);
        let to = if to.is_empty() { None } else { Some(named(to)?) };
        Ok(Self { from: Identity { name: named(name)?, incarnation }, to })
    }
}

/// Writes a text of less than 256 bytes.
fn put_text(bytes: &mut Vec<u8>, text: &str, bytes_max: usize) {
    let text = text.get(..text.len().min(bytes_max)).unwrap_or_default();
    bytes.push(u8::try_from(text.len()).unwrap_or_default());
    bytes.extend_from_slice(text.as_bytes());
}

fn take_text(bytes: &[u8], bytes_max: usize) -> Result<(&str, &[u8]), AuthMessageError> {
    let (length, rest) = bytes.split_first().ok_or(AuthMessageError)?;
    split_text(rest, usize::from(*length), bytes_max)
}

fn put_name(bytes: &mut Vec<u8>, name: &str) {
    let length = u16::try_from(name.len()).unwrap_or_default();
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(&name.as_bytes()[..usize::from(length)]);
}

fn take_name(bytes: &[u8]) -> Result<(&str, &[u8]), AuthMessageError> {
    let (length, rest) = bytes.split_first_chunk().ok_or(AuthMessageError)?;
    split_text(rest, usize::from(u16::from_le_bytes(*length)), NodeName::BYTES_MAX)
}

fn split_text(
    bytes: &[u8],
    length: usize,
    bytes_max: usize,
) -> Result<(&str, &[u8]), AuthMessageError> {
    if length > bytes_max {
        return Err(AuthMessageError);
    }
    let (text, rest) = bytes.split_at_checked(length).ok_or(AuthMessageError)?;
    Ok((core::str::from_utf8(text).map_err(|_| AuthMessageError)?, rest))
}
