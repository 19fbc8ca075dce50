//! Stories about the verbs fabric: what each device does, step by step and packet by packet.

mod attacks;
mod delivery;
mod helpers;
mod limits;
mod lives;
mod states;
mod statuses;
