//! Reasons for unusable RDMA, and errors of verbs calls.

use handfast_core::transport::{Side, TransportError};
use handfast_transport::LimitReached;

/// The `call` of a [`VerbsError`] that refuses foreign memory since a fork would give its pages away.
pub const FORK_STEP: &str = "fork";

/// Reasons for the unavailability of RDMA in this process.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RdmaUnavailable {
    /// The program was built without the cargo feature `verbs`.
    #[error("this program was built without RDMA (cargo feature 'verbs')")]
    NotBuilt,
    /// libibverbs could not be loaded or is too old.
    #[error("RDMA needs the library {library}, and loading it failed: {detail}")]
    NoLibrary {
        /// Its file name.
        library: &'static str,
        /// The loader's message.
        detail: String,
    },
    /// Listing the devices failed.
    #[error("RDMA devices cannot be listed: error {code}")]
    NoList {
        /// The value of errno.
        code: i32,
    },
    /// The library is installed, but the machine has no RDMA device.
    #[error("this machine has no RDMA device")]
    NoDevice,
}

/// The reason why no queue pair of this process can connect through the kernel's connection manager.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManagerUnavailable {
    /// There is no RDMA in this program, or librdmacm could not be loaded or is too old.
    #[error(transparent)]
    Library(#[from] RdmaUnavailable),
    /// The library cannot open the kernel's connection manager.
    #[error(
        "{}; is the kernel module rdma_ucm loaded, and may this process open \
         /dev/infiniband/rdma_cm?",
        words_of(*.code)
    )]
    NoChannel {
        /// The value of errno.
        code: i32,
    },
}

/// A call of the verbs library that failed, or something the device reported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{device}: {call} failed: {detail}{}", limit_words(.limit.as_ref()))]
pub struct VerbsError {
    /// The side at fault, as far as visible here.
    pub side: Side,
    /// The call, such as `ibv_modify_qp(RTR)`.
    pub call: &'static str,
    /// The call's return value, made positive; errno for calls that return a pointer or a
    /// descriptor; the status of a completion; 0 for a failed local check.
    pub code: i32,
    /// The device, by name.
    pub device: String,
    /// Description of the failure.
    pub detail: String,
    /// The limit that was reached, if that is the cause.
    pub limit: Option<LimitReached>,
}

fn limit_words(limit: Option<&LimitReached>) -> String {
    limit.map_or_else(String::new, |limit| format!("; {limit}"))
}

impl From<VerbsError> for TransportError {
    fn from(error: VerbsError) -> Self {
        let VerbsError { side, call, code, device, detail, limit } = error;
        let limit = limit_words(limit.as_ref());
        Self { side, call: call.into(), code, detail: format!("{device}: {detail}{limit}") }
    }
}

impl From<RdmaUnavailable> for VerbsError {
    fn from(error: RdmaUnavailable) -> Self {
        let code = if let RdmaUnavailable::NoList { code } = error { code } else { 0 };
        Self {
            side: Side::Local,
            call: "ibv_get_device_list",
            code,
            device: String::new(),
            detail: error.to_string(),
            limit: None,
        }
    }
}

/// The error in a verbs call's return value, if any: 0 is none, and the sign differs between
/// drivers. errno belongs to another call.
#[cfg(feature = "verbs")]
pub(crate) fn code_of(returned: i32) -> Option<i32> {
    (returned != 0).then_some(returned.saturating_abs())
}

/// Description of an error number.
pub(crate) fn words_of(code: i32) -> String {
    /// The kernel-internal ENOTSUPP, which some drivers return and the C library does not know.
    const KERNEL_NOT_SUPPORTED: i32 = 524;
    match code {
        KERNEL_NOT_SUPPORTED => "the driver does not support this (error 524)".to_owned(),
        code => std::io::Error::from_raw_os_error(code).to_string(),
    }
}

#[cfg(all(test, feature = "verbs"))]
mod tests {
    use super::*;

    #[test]
    fn the_return_value_is_the_error_whatever_its_sign() {
        assert_eq!(code_of(0), None);
        assert_eq!(code_of(libc::EINVAL), Some(libc::EINVAL));
        assert_eq!(code_of(-libc::EIO), Some(libc::EIO));
        assert_eq!(code_of(i32::MIN), Some(i32::MAX));
        assert!(words_of(524).contains("not support"));
        assert!(words_of(libc::ETIMEDOUT).contains("timed out"));
    }
}
