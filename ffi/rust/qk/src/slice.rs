//! Slices of weights: bytes moved once, when a model is loaded, so they go by way of the host. The
//! places of codes, scales and zeros in layout `ROW` are docs/formats.md's.
use std::ops::Range;

use crate::error::{Error, Result, Status};
use crate::{sys, Context, Desc, Format, Grouping, Layout, Plane, Tensor};

const SMALLEST_GROUP: usize = 16; // qk.h, qk_tensor_desc
const SMALLEST_GROUP_OF_I8: usize = 8;

impl Tensor<'_> {
    /// Rows (dim 0) or columns (dim 1) of a weight `[n,k]` as one of their own, in layout `ROW`:
    /// a share for each of several devices. Values are the same bits. Groups are smaller where a
    /// slice begins within one, and second groups where those of nested scales are cut. A dense
    /// tensor has slices too. What `context` needs is in memory of its device; the way is through
    /// the host.
    ///
    /// ```
    /// use qk::{Context, Plane, Tensor};
    ///
    /// let context = Context::new()?;
    /// let values = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0];
    /// let whole = Tensor::borrow(&context, &[2, 3], &values)?;
    /// let mut part = [0.0f32; 4];
    /// whole.slice(&context, 1, 1, 3)?.download(&context, Plane::DATA, &mut part)?;
    /// assert_eq!(part, [2.0, 3.0, 5.0, 6.0]);
    /// # Ok::<(), qk::Error>(())
    /// ```
    pub fn slice(
        &self,
        context: &Context,
        dim: usize,
        begin: i64,
        end: i64,
    ) -> Result<Tensor<'static>> {
        let mut desc = self.desc()?;
        let cut = Cut::new(&desc, dim, begin, end)?;
        desc.raw.flags &= !(sys::QK_TENSOR_READ_ONLY as u32);
        let by_rows = if desc.raw.layout == Layout::ROW.0 {
            None
        } else {
            desc = desc.layout(Layout::ROW);
            let mut made = Tensor::new(context, &desc)?;
            context.repack(self, &mut made)?;
            Some(made)
        };
        let mut planes = Vec::new();
        for plane in 0..sys::QK_PLANE_COUNT {
            let mut bytes = vec![0u8; desc.plane_bytes(Plane(plane))?];
            if !bytes.is_empty() {
                let from = by_rows.as_ref().unwrap_or(self);
                from.download(context, Plane(plane), &mut bytes)?;
            }
            planes.push(bytes);
        }
        let (desc, planes) = cut.apply(desc, planes);
        let mut out = Tensor::new(context, &desc)?;
        for (plane, bytes) in planes.iter().enumerate().filter(|(_, bytes)| !bytes.is_empty()) {
            out.upload(context, Plane(plane as i32), bytes)?;
        }
        Ok(out)
    }
}

/// Rows and columns that stay, and the groups of what they become.
struct Cut {
    n: usize,
    k: usize,
    rows: Range<usize>,
    columns: Range<usize>,
    straddles: bool, // groups of the whole weight run on over the ends of rows
    old_size: usize, // of a group
    size: usize,
}

impl Cut {
    fn new(desc: &Desc, dim: usize, begin: i64, end: i64) -> Result<Cut> {
        let raw = desc.as_raw();
        if raw.rank != 2 || raw.row_stride != 0 {
            let why = format!("tensor: has rank {}, accepted are compact [n,k]", raw.rank);
            return Err(Error::new(Status::SHAPE, why));
        }
        if dim > 1 {
            let why = format!("dim: is {dim}, accepted are 0 (n) and 1 (k)");
            return Err(Error::new(Status::ARGUMENT, why));
        }
        if begin < 0 || begin >= end || end > raw.shape[dim] {
            let why = format!(
                "begin, end: are {begin} and {end}, accepted is what follows on the other within \
                 0..{}",
                raw.shape[dim]
            );
            return Err(Error::new(Status::ARGUMENT, why));
        }
        if dim == 1 && raw.flags & sys::QK_TENSOR_ORDERED as u32 != 0 {
            let why = "tensor: has an order of columns (act-order), whose groups are not side by \
                       side; accepted is dim 0";
            return Err(Error::new(Status::FORMAT, why.to_string()));
        }
        let (n, k) = (raw.shape[0] as usize, raw.shape[1] as usize);
        let asked = begin as usize..end as usize;
        let (rows, columns) = if dim == 0 { (asked, 0..k) } else { (0..n, asked) };
        let old_size = if raw.group_size > 0 { raw.group_size as usize } else { k };
        let straddles = raw.grouping == Grouping::FLAT.0 && k % old_size != 0;
        let mut size = old_size;
        if raw.group_size > 0 {
            size = gcd(gcd(old_size, columns.start), if straddles { k } else { 0 });
        }
        if size < SMALLEST_GROUP && size != old_size {
            let why = format!(
                "begin: is {begin}, within a group of {old_size} codes{}; slices begin at \
                 multiples of {SMALLEST_GROUP} codes",
                if straddles { ", which straddle rows" } else { "" }
            );
            return Err(Error::new(Status::SHAPE, why));
        }
        Ok(Cut { n, k, rows, columns, straddles, old_size, size })
    }

    /// Description and planes of the slice, of those of the whole in layout `ROW`.
    fn apply(&self, whole: Desc, planes: Vec<Vec<u8>>) -> (Desc, Vec<Vec<u8>>) {
        let mut desc = whole;
        desc.raw.shape[0] = self.rows.len() as i64;
        desc.raw.shape[1] = self.columns.len() as i64;
        let mut made = planes;
        made[DATA] = self.codes(&made[DATA]);
        if whole.raw.group_size == 0 {
            return (desc, made);
        }
        desc.raw.grouping = Grouping::ALONG_K.0;
        if whole.raw.group_size > 0 {
            desc.raw.group_size = self.size as i32;
        }
        let groups = self.groups();
        let float_min = whole.raw.flags & sys::QK_TENSOR_FLOAT_MIN as u32 != 0;
        let old_groups = if self.straddles {
            (self.n * self.k + self.old_size - 1) / self.old_size
        } else {
            self.n * self.groups_of_row()
        };
        made[SCALE] = pick(&made[SCALE], old_groups, &groups);
        if float_min {
            made[ZERO] = pick(&made[ZERO], old_groups, &groups);
        } else if !made[ZERO].is_empty() {
            made[ZERO] = self.zeros(&made[ZERO], &groups, whole.raw.grouping);
        }
        if whole.raw.flags & sys::QK_TENSOR_GLOBAL_ROWS as u32 != 0 {
            made[GLOBAL] = made[GLOBAL][4 * self.rows.start..4 * self.rows.end].to_vec();
        }
        if !made[SCALE2].is_empty() {
            nest(&mut desc, &mut made, &groups);
        }
        (desc, made)
    }

    /// Codes, or elements of a dense tensor; slices of nibbles begin at bytes, as groups do.
    fn codes(&self, data: &[u8]) -> Vec<u8> {
        let row = data.len() / self.n;
        let nibbles = row < self.k || (self.k == 1 && row == 1);
        let bytes = if nibbles {
            self.columns.start / 2..(self.columns.end + 1) / 2
        } else {
            self.columns.start * (row / self.k)..self.columns.end * (row / self.k)
        };
        let mut made = Vec::with_capacity(self.rows.len() * bytes.len());
        for line in data.chunks(row).take(self.rows.end).skip(self.rows.start) {
            made.extend_from_slice(&line[bytes.clone()]);
            if nibbles && self.columns.len() % 2 == 1 {
                *made.last_mut().expect("a row has codes") &= 15; // no neighbour in the padding
            }
        }
        made
    }

    fn groups_of_row(&self) -> usize {
        (self.k + self.old_size - 1) / self.old_size
    }

    /// The old group of each new one.
    fn groups(&self) -> Vec<usize> {
        let old = |row: usize, column: usize| match self.straddles {
            true => (row * self.k + column) / self.old_size,
            false => row * self.groups_of_row() + column / self.old_size,
        };
        let starts = || self.columns.clone().step_by(self.size);
        self.rows.clone().flat_map(|row| starts().map(move |column| old(row, column))).collect()
    }

    /// Nibbles, low first: a flat tensor's are one run, else rows begin at bytes.
    fn zeros(&self, plane: &[u8], groups: &[usize], grouping: i32) -> Vec<u8> {
        let (of_row, flat) = (self.groups_of_row(), grouping == Grouping::FLAT.0);
        let old = |group: usize| match flat {
            true => nibble(plane, group),
            false => nibble(&plane[group / of_row * ((of_row + 1) / 2)..], group % of_row),
        };
        let mut made = Vec::new();
        for row in groups.chunks(groups.len() / self.rows.len()) {
            for pair in row.chunks(2) {
                made.push(old(pair[0]) | pair.get(1).map_or(0, |&group| old(group) << 4));
            }
        }
        made
    }
}

const DATA: usize = sys::QK_PLANE_DATA as usize;
const SCALE: usize = sys::QK_PLANE_SCALE as usize;
const ZERO: usize = sys::QK_PLANE_ZERO as usize;
const SCALE2: usize = sys::QK_PLANE_SCALE2 as usize;
const SCALE_CODE: usize = sys::QK_PLANE_SCALE_CODE as usize;
const SCALE_BIAS: usize = sys::QK_PLANE_SCALE_BIAS as usize;
const GLOBAL: usize = sys::QK_PLANE_GLOBAL as usize;
const MIN2: usize = sys::QK_PLANE_MIN2 as usize;

/// Second scales of groups as small as they must be, or else the scales as the f32 that they are.
fn nest(desc: &mut Desc, planes: &mut [Vec<u8>], groups: &[usize]) {
    let is_i8 = desc.raw.scale_format == Format::I8.0;
    let given = desc.raw.scale_group_size as usize;
    let second = if given == 0 { 256 } else { given };
    let numbers: Vec<_> = groups.iter().map(|group| group / second).collect();
    let smallest = if is_i8 { SMALLEST_GROUP_OF_I8 } else { SMALLEST_GROUP };
    let mut size = second;
    while size >= smallest {
        if numbers.chunks(size).all(|chunk| chunk.iter().all(|number| *number == chunk[0])) {
            desc.raw.scale_group_size = size as i32;
            let starts: Vec<_> = numbers.iter().copied().step_by(size).collect();
            for plane in [SCALE2, MIN2] {
                let count = planes[plane].len() / 4;
                planes[plane] = pick(&planes[plane], count, &starts);
            }
            return;
        }
        if size % 2 == 1 {
            break;
        }
        size /= 2;
    }
    let (scale_code, bias) = (floats(&planes[SCALE_CODE]), floats(&planes[SCALE_BIAS]));
    for (codes, second) in [(SCALE, SCALE2), (ZERO, MIN2)] {
        let seconds = floats(&std::mem::take(&mut planes[second]));
        if seconds.is_empty() {
            continue; // no minima
        }
        let each = planes[codes].iter().zip(&numbers).map(|(&code, &number)| match is_i8 {
            true => f32::from(code as i8) * seconds[number],
            false => scale_code[usize::from(code)] * seconds[number] + bias[0],
        });
        planes[codes] = each.flat_map(f32::to_ne_bytes).collect();
    }
    planes[SCALE_CODE].clear();
    planes[SCALE_BIAS].clear();
    desc.raw.scale_format = Format::F32.0;
    desc.raw.scale_group_size = 0;
}

/// Elements of a plane that has `count` of them.
fn pick(plane: &[u8], count: usize, elements: &[usize]) -> Vec<u8> {
    if plane.is_empty() {
        return Vec::new();
    }
    let size = plane.len() / count;
    elements.iter().flat_map(|&element| &plane[element * size..][..size]).copied().collect()
}

fn floats(plane: &[u8]) -> Vec<f32> {
    plane.chunks(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect()
}

fn nibble(plane: &[u8], index: usize) -> u8 {
    plane[index / 2] >> (4 * (index % 2)) & 15
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 {
        return a;
    }
    gcd(b, a % b)
}
