//! One program for all tests: they link once.
mod common;
mod experts;
#[cfg(feature = "io")]
mod golden;
mod gru;
mod product;
mod shared;
mod slice;
mod status;
mod trace;
