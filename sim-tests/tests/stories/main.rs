//! Stories about the rules: the shipping ones hold, and each broken variant is found out.

mod shipping;
mod sweep;
mod variants;
