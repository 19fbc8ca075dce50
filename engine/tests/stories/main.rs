//! What users of the engine see, on sockets of this machine and in a simulated network.

mod crossing;
mod helpers;
mod hostile;
mod limits;
mod mute;
mod names;
mod races;
mod recorded;
mod restart;
mod simulated;
mod transfers;
mod transports;
