use crate::error::{check, Result};
use crate::{sys, Format, Grouping, Layout, Plane};

/// What a tensor is: shape, format, layout, groups. Starts dense in row-major order; the other
/// functions return it changed.
#[derive(Clone, Copy)]
pub struct Desc {
    pub(crate) raw: sys::qk_tensor_desc,
}

impl Desc {
    /// One group of codes a row.
    pub const GROUP_ROW: i32 = sys::QK_GROUP_ROW;

    /// A weight is `[n, k]` in every layout. More than four dimensions are refused when used.
    pub fn new(format: Format, shape: &[i64]) -> Desc {
        let mut raw = sys::qk_tensor_desc {
            struct_size: std::mem::size_of::<sys::qk_tensor_desc>() as u32,
            format: format.0,
            scale_format: 0,
            layout: sys::QK_LAYOUT_ROW,
            group_size: 0,
            grouping: sys::QK_GROUPING_DEFAULT,
            scale_group_size: 0,
            rank: i32::try_from(shape.len()).unwrap_or(i32::MAX),
            flags: 0,
            reserved: 0,
            shape: [0; sys::QK_MAX_RANK as usize],
            row_stride: 0,
        };
        for (to, from) in raw.shape.iter_mut().zip(shape) {
            *to = *from;
        }
        Desc { raw }
    }

    /// Codes in groups of `group_size` (or [`Desc::GROUP_ROW`]) share a scale of this format;
    /// [`Format::LUT8`] nests the scales.
    pub fn scales(mut self, format: Format, group_size: i32) -> Desc {
        self.raw.scale_format = format.0;
        self.raw.group_size = group_size;
        self
    }

    /// Where codes are stored.
    pub fn layout(mut self, layout: Layout) -> Desc {
        self.raw.layout = layout.0;
        self
    }

    /// Which codes share a scale.
    pub fn grouping(mut self, grouping: Grouping) -> Desc {
        self.raw.grouping = grouping.0;
        self
    }

    /// Nested scales: how many share a second scale.
    pub fn scale_groups(mut self, scale_group_size: i32) -> Desc {
        self.raw.scale_group_size = scale_group_size;
        self
    }

    /// `U4_AFFINE` without zeros: every zero is 8.
    pub fn symmetric(mut self) -> Desc {
        self.raw.flags |= sys::QK_TENSOR_SYMMETRIC as u32;
        self
    }

    /// `E8M0` and `E4M3` scales are multiplied by one number of the tensor, in plane `GLOBAL`.
    pub fn global(mut self) -> Desc {
        self.raw.flags |= sys::QK_TENSOR_GLOBAL as u32;
        self
    }

    /// The same with one number a row.
    pub fn global_rows(mut self) -> Desc {
        self.raw.flags |= sys::QK_TENSOR_GLOBAL_ROWS as u32;
        self
    }

    /// Scales are divided by the numbers of plane `GLOBAL`.
    pub fn global_divides(mut self) -> Desc {
        self.raw.flags |= sys::QK_TENSOR_GLOBAL_DIVIDES as u32;
        self
    }

    /// `U4_AFFINE` and `S8`: code * scale - minimum; plane `ZERO` has the minima, stored as scales.
    pub fn float_min(mut self) -> Desc {
        self.raw.flags |= sys::QK_TENSOR_FLOAT_MIN as u32;
        self
    }

    /// Columns are stored in an order of their own, in plane `ORDER` (act-order).
    pub fn ordered(mut self) -> Desc {
        self.raw.flags |= sys::QK_TENSOR_ORDERED as u32;
        self
    }

    /// Dense: elements from a row to the next, for a slice of a wider array.
    pub fn row_stride(mut self, row_stride: i64) -> Desc {
        self.raw.row_stride = row_stride;
        self
    }

    /// Dense: stored as `[k, n]`, which the output of `dequantize` may be.
    pub fn column_major(mut self) -> Desc {
        self.raw.flags |= sys::QK_TENSOR_COLUMN_MAJOR as u32;
        self
    }

    /// Never accepted as an output.
    pub fn read_only(mut self) -> Desc {
        self.raw.flags |= sys::QK_TENSOR_READ_ONLY as u32;
        self
    }

    /// What a code means.
    pub fn format(&self) -> Format {
        Format(self.raw.format)
    }

    /// The logical sizes.
    pub fn shape(&self) -> &[i64] {
        &self.raw.shape[..self.raw.rank.clamp(0, sys::QK_MAX_RANK) as usize]
    }

    /// How many elements the shape has; None where that overflows.
    pub(crate) fn count(&self) -> Option<usize> {
        let mut sizes = self.shape().iter();
        sizes.try_fold(1usize, |count, size| count.checked_mul(usize::try_from(*size).ok()?))
    }

    /// Every field.
    pub fn as_raw(&self) -> &sys::qk_tensor_desc {
        &self.raw
    }

    /// Bytes of one plane; 0 for a plane that the format does not have.
    pub fn plane_bytes(&self, plane: Plane) -> Result<usize> {
        let mut bytes = 0;
        check(unsafe { sys::qk_tensor_plane_bytes(&self.raw, plane.0, &mut bytes) })?;
        Ok(bytes)
    }
}

impl PartialEq for Desc {
    fn eq(&self, other: &Desc) -> bool {
        let key = |d: &Desc| {
            let raw = d.raw;
            let codes = (raw.format, raw.scale_format, raw.layout, raw.grouping, raw.flags);
            (codes, raw.group_size, raw.scale_group_size, raw.rank, raw.shape, raw.row_stride)
        };
        key(self) == key(other)
    }
}

impl std::fmt::Debug for Desc {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.raw.fmt(out)
    }
}
