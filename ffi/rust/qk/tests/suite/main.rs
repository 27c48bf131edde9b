//! One program for all tests: they link once.
mod common;
#[cfg(feature = "io")]
mod golden;
mod gru;
mod product;
mod shared;
mod status;
mod trace;
