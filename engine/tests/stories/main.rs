//! What users of the engine see, on sockets of this machine.

mod helpers;
mod restart;
mod transfers;
