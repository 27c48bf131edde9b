//! 4-bit weights and integer GRUs: the safe interface to libqk.
//!
//! The names and rules are those of `qk.h`; each function's comment there says what it does. What
//! Rust adds:
//!
//! * A refused call is an [`Error`] with its [`Status`] and libqk's one sentence.
//! * The header's thread rule is the types' own. A [`Context`] serves one thread at a time: it is
//!   `Send`, not `Sync`. A [`Tensor`] that is not written and a frozen [`Gru`] may be read by many
//!   contexts at once: both are `Sync`, and what writes takes `&mut`.
//! * A tensor over borrowed memory carries its lifetime, so that the memory outlives it.
//! * Slices come with lengths, and every length is checked before libqk sees a pointer.
//!
//! ```
//! use qk::{Context, Desc, Format, Tensor};
//!
//! let context = Context::new()?;
//! let weights: Vec<f32> = (0..8 * 64).map(|i| (i % 7) as f32).collect();
//! let dense = Tensor::borrow(&context, &[8, 64], &weights)?;
//! let desc = Desc::new(Format::NF4, &[8, 64]).scales(Format::F32, 64);
//! let mut nf4 = Tensor::new(&context, &desc)?;
//! context.quantize(&dense, &mut nf4)?;
//!
//! let (x, mut y) = ([1.0f32; 64], [0.0f32; 8]);
//! let x = Tensor::borrow(&context, &[1, 64], &x)?;
//! context.linear(&x, &nf4, None, &mut Tensor::borrow_mut(&context, &[1, 8], &mut y)?)?;
//! assert!(y[0] > 0.0);
//! # Ok::<(), qk::Error>(())
//! ```
#![warn(missing_docs)]

mod codes;
mod context;
mod desc;
mod error;
mod experts;
mod gru;
mod gru_model;
mod gru_seen;
#[cfg(feature = "io")]
pub mod io;
mod product;
mod slice;
mod tensor;
mod trace;

pub use codes::{Activation, Device, Format, Grouping, Layout, Plane};
pub use context::{Context, ContextInfo, ContextOptions, InstructionSets, Stream};
pub use desc::Desc;
pub use error::{Error, Kind, Result, Status};
pub use experts::Experts;
pub use gru::{Calibration, FreezeError, GateOrder, Gru, GruConfig, GruState, Preset, TrainedGru};
pub use gru_model::{Codes, GruQuant, GruTable, GruTensor, Model};
pub use gru_seen::{GruClipped, GruRanges};
pub use product::{Plan, Product};
pub use tensor::{Element, Tensor, BF16, F16};
pub use trace::Trace;

/// The declarations of the C headers, for what this crate does not wrap.
pub use qk_sys as sys;

/// major * 10000 + minor * 100 + patch of the linked library.
pub fn version() -> u32 {
    unsafe { sys::qk_version() }
}

/// Backends, architectures and compiler of the linked library, for bug reports.
pub fn build_info() -> String {
    unsafe { error::text(sys::qk_build_info()) }
}

/// How many devices of this kind there are; 0 where the backend is not built in.
pub fn device_count(device: Device) -> Result<i32> {
    let mut count = 0;
    error::check(unsafe { sys::qk_device_count(device.0, &mut count) })?;
    Ok(count)
}

/// bitsandbytes' "dynamic" code of 256 values, for [`Plane::TABLE`] and [`Plane::SCALE_CODE`].
pub fn dynamic_table() -> Result<[f32; 256]> {
    let mut table = [0.0; 256];
    error::check(unsafe { sys::qk_dynamic_table(table.as_mut_ptr()) })?;
    Ok(table)
}
