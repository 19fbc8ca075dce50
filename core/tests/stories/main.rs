//! The core without I/O: its wire, its life cycle, its transfers.

mod examples;
mod golden;
mod mooncake;
mod node;
mod sharing;
mod transfer;
mod wire;
