//! Raw declarations of `qk.h` and, with the feature `io`, `qk_io.h`. The headers are the
//! documentation; the crate `qk` is the safe interface.
#![allow(non_camel_case_types)]

mod qk;
pub use qk::*;

#[cfg(feature = "io")]
mod qk_io;
#[cfg(feature = "io")]
pub use qk_io::*;
