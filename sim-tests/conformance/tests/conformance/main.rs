//! The simulated fabric compared with the kernel's. The kernel runs with the feature `verbs` in a
//! guest of `cargo xtask guest`; elsewhere its recording replaces it.

mod devices;
#[cfg(feature = "verbs")]
mod guest;
mod managed;
mod recorded;
#[cfg(feature = "verbs")]
mod replay;
#[cfg(feature = "verbs")]
mod scripted;
#[cfg(feature = "verbs")]
mod siw;
#[cfg(feature = "verbs")]
mod soft_roce;
