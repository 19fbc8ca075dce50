//! The simulated fabric beside the kernel's.
//!
//! With the feature `verbs` and in a guest of `cargo xtask guest` the kernel is asked again;
//! elsewhere what was recorded of it speaks.

mod devices;
#[cfg(feature = "verbs")]
mod guest;
mod recorded;
#[cfg(feature = "verbs")]
mod siw;
