//! A frozen GRU's integers: as slices with lengths on this side, as pointers on libqk's.
use std::os::raw::c_void;
use std::slice::from_raw_parts;

use crate::codes::code;
use crate::error::{check_length, Result};
use crate::sys;

const TENSORS: usize = sys::QK_GRU_TENSOR_COUNT as usize;

code!(
    /// The quantized tensors inside the cell; the number indexes [`Model`]'s arrays.
    GruTensor {
        X = QK_GRU_X, H = QK_GRU_H, W = QK_GRU_W, R = QK_GRU_R, BW = QK_GRU_BW, BR = QK_GRU_BR,
        IH = QK_GRU_IH, HH = QK_GRU_HH,
        UPDATE_IN = QK_GRU_UPDATE_IN, UPDATE_OUT = QK_GRU_UPDATE_OUT,
        RESET_IN = QK_GRU_RESET_IN, RESET_OUT = QK_GRU_RESET_OUT,
        NEW_IN = QK_GRU_NEW_IN, NEW_OUT = QK_GRU_NEW_OUT,
    }
);

/// How one of them is quantized.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GruQuant {
    /// 4 to 16; biases 4 to 32.
    pub bits: i32,
    /// Never for X, H, weights and biases.
    pub is_unsigned: bool,
    /// Zero point 0; always so for weights and biases.
    pub is_symmetric: bool,
    /// Weights and biases: 0 one scale a tensor, 1 a gate, 2 a channel; else 0.
    pub granularity: i32,
}

impl From<GruQuant> for sys::qk_gru_quant {
    fn from(quant: GruQuant) -> sys::qk_gru_quant {
        sys::qk_gru_quant {
            bits: quant.bits,
            is_unsigned: quant.is_unsigned.into(),
            is_symmetric: quant.is_symmetric.into(),
            granularity: quant.granularity,
        }
    }
}

impl From<sys::qk_gru_quant> for GruQuant {
    fn from(raw: sys::qk_gru_quant) -> GruQuant {
        GruQuant {
            bits: raw.bits,
            is_unsigned: raw.is_unsigned != 0,
            is_symmetric: raw.is_symmetric != 0,
            granularity: raw.granularity,
        }
    }
}

/// Weights: I8 up to 8 bits, else I16.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Codes<'a> {
    I8(&'a [i8]),
    I16(&'a [i16]),
}

impl<'a> Codes<'a> {
    fn len(&self) -> usize {
        match self {
            Codes::I8(codes) => codes.len(),
            Codes::I16(codes) => codes.len(),
        }
    }

    /// libqk takes the width from the tensor's bits.
    fn pointer(&self, name: &str, bits: i32, needed: Option<usize>) -> Result<*const c_void> {
        check_length(name, self.len(), needed)?;
        let (pointer, is_wide) = match self {
            Codes::I8(codes) => (codes.as_ptr() as *const c_void, false),
            Codes::I16(codes) => (codes.as_ptr() as *const c_void, true),
        };
        if is_wide != (bits > 8) {
            let why = format!("{name}: {bits} bits are stored as {}", width_name(bits));
            return Err(crate::Error::new(crate::Status::FORMAT, why));
        }
        Ok(pointer)
    }

    unsafe fn from_raw(pointer: *const c_void, bits: i32, length: usize) -> Codes<'a> {
        if bits > 8 {
            return Codes::I16(from_raw_parts(pointer as *const i16, length));
        }
        Codes::I8(from_raw_parts(pointer as *const i8, length))
    }
}

fn width_name(bits: i32) -> &'static str {
    if bits > 8 {
        "I16"
    } else {
        "I8"
    }
}

/// Sigmoid or tanh as lines from input code to output code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // qk.h explains them
pub struct GruTable<'a> {
    pub kind: i32,
    pub shift: i32,
    pub width_log2: i32,
    pub first: i32,
    /// Empty for UNIFORM tables.
    pub threshold: &'a [i32],
    pub slope: &'a [i32],
    pub intercept: &'a [i32],
}

impl<'a> GruTable<'a> {
    fn to_raw(self, name: &str) -> Result<sys::qk_gru_table> {
        let count = self.slope.len();
        check_length(&format!("{name}.intercept"), self.intercept.len(), Some(count))?;
        let has_knots = self.kind == sys::QK_GRU_TABLE_KNOTS;
        let knots = if has_knots { count } else { 0 };
        check_length(&format!("{name}.threshold"), self.threshold.len(), Some(knots))?;
        let threshold = if has_knots { self.threshold.as_ptr() } else { std::ptr::null() };
        Ok(sys::qk_gru_table {
            kind: self.kind,
            count: i32::try_from(count).unwrap_or(i32::MAX),
            shift: self.shift,
            width_log2: self.width_log2,
            first: self.first,
            reserved: 0,
            threshold,
            slope: self.slope.as_ptr(),
            intercept: self.intercept.as_ptr(),
        })
    }

    unsafe fn from_raw(raw: &sys::qk_gru_table) -> GruTable<'a> {
        let count = raw.count as usize;
        let has_knots = raw.kind == sys::QK_GRU_TABLE_KNOTS;
        GruTable {
            kind: raw.kind,
            shift: raw.shift,
            width_log2: raw.width_log2,
            first: raw.first,
            threshold: if has_knots { from_raw_parts(raw.threshold, count) } else { &[] },
            slope: from_raw_parts(raw.slope, count),
            intercept: from_raw_parts(raw.intercept, count),
        }
    }
}

/// A frozen GRU, gates in the order u (z), r, n.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // qk.h explains them
pub struct Model<'a> {
    pub flags: u32,
    pub input_size: i32,
    pub hidden_size: i32,
    pub h_view_shift: i32,
    pub quant: [GruQuant; TENSORS],
    pub shift: [i32; TENSORS],
    pub zero_point: [i32; TENSORS],
    /// `[3h]`, as the other three.
    pub w_shift: &'a [i8],
    pub r_shift: &'a [i8],
    pub bw_shift: &'a [i8],
    pub br_shift: &'a [i8],
    /// `[3h,c]`.
    pub w: Codes<'a>,
    /// `[3h,h]`.
    pub r: Codes<'a>,
    /// `[3h]`.
    pub bw: &'a [i32],
    /// `[3h]`.
    pub br: &'a [i32],
    pub update: GruTable<'a>,
    pub reset: GruTable<'a>,
    pub candidate: GruTable<'a>,
}

impl<'a> Model<'a> {
    /// What libqk reads; every length is checked here, everything else there.
    pub(crate) fn to_raw(self) -> Result<sys::qk_gru_model> {
        let h = usize::try_from(self.hidden_size).ok();
        let c = usize::try_from(self.input_size).ok();
        let rows = h.and_then(|h| h.checked_mul(3));
        let times = |size: Option<usize>| rows.and_then(|rows| rows.checked_mul(size?));
        for (name, length) in [
            ("w_shift", self.w_shift.len()),
            ("r_shift", self.r_shift.len()),
            ("bw_shift", self.bw_shift.len()),
            ("br_shift", self.br_shift.len()),
            ("bw", self.bw.len()),
            ("br", self.br.len()),
        ] {
            check_length(name, length, rows)?;
        }
        let bits = |which: GruTensor| self.quant[which.0 as usize].bits;
        Ok(sys::qk_gru_model {
            struct_size: std::mem::size_of::<sys::qk_gru_model>() as u32,
            flags: self.flags,
            input_size: self.input_size,
            hidden_size: self.hidden_size,
            h_view_shift: self.h_view_shift,
            reserved: 0,
            quant: self.quant.map(Into::into),
            shift: self.shift,
            zero_point: self.zero_point,
            w_shift: self.w_shift.as_ptr(),
            r_shift: self.r_shift.as_ptr(),
            bw_shift: self.bw_shift.as_ptr(),
            br_shift: self.br_shift.as_ptr(),
            w: self.w.pointer("w", bits(GruTensor::W), times(c))?,
            r: self.r.pointer("r", bits(GruTensor::R), times(h))?,
            bw: self.bw.as_ptr(),
            br: self.br.as_ptr(),
            update: self.update.to_raw("update")?,
            reset: self.reset.to_raw("reset")?,
            candidate: self.candidate.to_raw("candidate")?,
        })
    }

    /// # Safety
    /// `raw` is what qk_gru_describe filled for a GRU that lives for `'a`.
    pub(crate) unsafe fn from_raw(raw: &sys::qk_gru_model) -> Model<'a> {
        let (c, h) = (raw.input_size as usize, raw.hidden_size as usize);
        let bits = |which: GruTensor| raw.quant[which.0 as usize].bits;
        Model {
            flags: raw.flags,
            input_size: raw.input_size,
            hidden_size: raw.hidden_size,
            h_view_shift: raw.h_view_shift,
            quant: raw.quant.map(Into::into),
            shift: raw.shift,
            zero_point: raw.zero_point,
            w_shift: from_raw_parts(raw.w_shift, 3 * h),
            r_shift: from_raw_parts(raw.r_shift, 3 * h),
            bw_shift: from_raw_parts(raw.bw_shift, 3 * h),
            br_shift: from_raw_parts(raw.br_shift, 3 * h),
            w: Codes::from_raw(raw.w, bits(GruTensor::W), 3 * h * c),
            r: Codes::from_raw(raw.r, bits(GruTensor::R), 3 * h * h),
            bw: from_raw_parts(raw.bw, 3 * h),
            br: from_raw_parts(raw.br, 3 * h),
            update: GruTable::from_raw(&raw.update),
            reset: GruTable::from_raw(&raw.reset),
            candidate: GruTable::from_raw(&raw.candidate),
        }
    }
}
