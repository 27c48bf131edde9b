//! What a GRU has seen: the ranges of calibration, and the codes that a run cut.
use std::mem::size_of;

use crate::error::{check_length, Result};
use crate::{sys, Context, GruState, GruTensor, TrainedGru};

const TENSORS: usize = sys::QK_GRU_TENSOR_COUNT as usize;

/// What calibration has seen of x, h, ih, hh and the gates; [`GruTensor`]'s numbers are indexes.
#[derive(Clone, PartialEq, Debug)]
pub struct GruRanges {
    /// Steps times sequences.
    pub samples: i64,
    /// W, R, BW, BR: 0, their values are known.
    pub min: [f64; TENSORS],
    /// As `min`.
    pub max: [f64; TENSORS],
    /// `[c]` of x over the samples, and `[h]` of h; bias correction needs both, empty: not there.
    pub x_sum: Vec<f64>,
    /// As `x_sum`.
    pub h_sum: Vec<f64>,
}

/// How many codes were cut to their range, of how many samples.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GruClipped {
    /// Steps times sequences that were counted.
    pub samples: i64,
    /// W, R, BW, BR: 0.
    pub codes: [i64; TENSORS],
}

impl GruClipped {
    /// Of one tensor.
    pub fn of(&self, which: GruTensor) -> i64 {
        self.codes[which.0 as usize]
    }
}

type Taker = unsafe extern "C" fn(
    *mut sys::qk_context,
    *mut sys::qk_gru,
    *const sys::qk_gru_ranges,
) -> sys::qk_status;

impl TrainedGru {
    /// What has been seen so far.
    pub fn ranges(&self, context: &Context) -> Result<GruRanges> {
        let [c, h] = self.sizes();
        let (mut x_sum, mut h_sum) = (vec![0.0; c], vec![0.0; h]);
        let mut raw = raw_ranges(&mut x_sum, &mut h_sum);
        context
            .check(unsafe { sys::qk_gru_get_ranges(context.as_raw(), self.as_raw(), &mut raw) })?;
        Ok(GruRanges { samples: raw.samples, min: raw.min, max: raw.max, x_sum, h_sum })
    }

    /// Takes these for what has been seen.
    pub fn set_ranges(&mut self, context: &Context, ranges: &GruRanges) -> Result<()> {
        self.take_ranges(context, ranges, sys::qk_gru_set_ranges)
    }

    /// Widens what has been seen by what another GRU of the same weights has.
    pub fn merge_ranges(&mut self, context: &Context, ranges: &GruRanges) -> Result<()> {
        self.take_ranges(context, ranges, sys::qk_gru_merge_ranges)
    }

    fn take_ranges(&mut self, context: &Context, ranges: &GruRanges, taker: Taker) -> Result<()> {
        let [c, h] = self.sizes();
        for (name, sum, size) in [("x_sum", &ranges.x_sum, c), ("h_sum", &ranges.h_sum, h)] {
            if !sum.is_empty() {
                check_length(name, sum.len(), Some(size))?;
            }
        }
        let (mut x_sum, mut h_sum) = (ranges.x_sum.clone(), ranges.h_sum.clone());
        let mut raw = raw_ranges(&mut x_sum, &mut h_sum);
        raw.samples = ranges.samples;
        raw.min = ranges.min;
        raw.max = ranges.max;
        context.check(unsafe { taker(context.as_raw(), self.as_raw(), &raw) })
    }
}

fn raw_ranges(x_sum: &mut [f64], h_sum: &mut [f64]) -> sys::qk_gru_ranges {
    let address = |sum: &mut [f64]| match sum.len() {
        0 => std::ptr::null_mut(),
        _ => sum.as_mut_ptr(),
    };
    sys::qk_gru_ranges {
        struct_size: size_of::<sys::qk_gru_ranges>() as u32,
        reserved: 0,
        samples: 0,
        min: [0.0; TENSORS],
        max: [0.0; TENSORS],
        x_sum: address(x_sum),
        h_sum: address(h_sum),
    }
}

impl GruState {
    /// Later runs count, from zero, the codes that are cut; many times slower, the same bits.
    pub fn count_clipped(&mut self, context: &Context, on: bool) -> Result<()> {
        context.check(unsafe {
            sys::qk_gru_state_count_clipped(context.as_raw(), self.as_raw(), on.into())
        })
    }

    /// What was counted.
    pub fn clipped(&self, context: &Context) -> Result<GruClipped> {
        let mut raw = sys::qk_gru_clipped {
            struct_size: size_of::<sys::qk_gru_clipped>() as u32,
            reserved: 0,
            samples: 0,
            codes: [0; TENSORS],
        };
        context.check(unsafe {
            sys::qk_gru_state_clipped(context.as_raw(), self.as_raw(), &mut raw)
        })?;
        Ok(GruClipped { samples: raw.samples, codes: raw.codes })
    }
}
