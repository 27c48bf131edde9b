//! Slices along n and k: their values are the whole weight's there. The weights' planes are random
//! bytes, so that a byte from the wrong place is a wrong value.
use crate::common::{dense_bytes, golden, one_thread};
use qk::{Context, Desc, Format, Grouping, Layout, Plane, Status, Tensor};

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % end
    }

    fn plane(&mut self, plane: Plane, kind: Format, bytes: usize) -> Vec<u8> {
        let mut from = |count: usize, mut one: Box<dyn FnMut(u64) -> Vec<u8>>| {
            (0..count).flat_map(|_| one(self.below(1 << 31))).collect()
        };
        let halves = |low: u16| Box::new(move |r| (low + (r % 1024) as u16).to_ne_bytes().to_vec());
        match (plane, kind) {
            (Plane::ORDER, _) => {
                let k = bytes as i32 / 4; // 7 and k have no common divisor: a permutation
                (0..k).flat_map(|column| (column * 7 % k).to_ne_bytes()).collect()
            }
            (_, Format::F32) => {
                from(bytes / 4, Box::new(|r| (0.5 + r as f32 / 2e9).to_ne_bytes().to_vec()))
            }
            (_, Format::F16) => from(bytes / 2, halves(0x3800)),
            (_, Format::BF16) => from(bytes / 2, halves(0x3e00)),
            (_, Format::E4M3 | Format::E8M0) => {
                from(bytes, Box::new(|r| vec![40 + (r % 80) as u8]))
            }
            _ => from(bytes, Box::new(|r| vec![r as u8])),
        }
    }

    fn tensor(&mut self, context: &Context, desc: Desc) -> Tensor<'static> {
        let mut made = Tensor::new(context, &desc).unwrap();
        let raw = *desc.as_raw();
        for plane in (0..qk::sys::QK_PLANE_COUNT).map(Plane) {
            let bytes = desc.plane_bytes(plane).unwrap();
            let scale = Format(raw.scale_format);
            let float_min = raw.flags & qk::sys::QK_TENSOR_FLOAT_MIN as u32 != 0;
            let kind = match plane {
                Plane::DATA if raw.group_size == 0 => desc.format(),
                Plane::SCALE => scale,
                Plane::ZERO if float_min => scale,
                Plane::DATA | Plane::ZERO => Format::I8,
                _ => Format::F32,
            };
            if bytes > 0 {
                made.upload(context, plane, &self.plane(plane, kind, bytes)).unwrap();
            }
        }
        made
    }
}

fn values(context: &Context, tensor: &Tensor<'_>) -> Vec<[u8; 4]> {
    let desc = tensor.desc().unwrap();
    let bytes = if desc.as_raw().group_size == 0 {
        dense_bytes(context, tensor)
    } else {
        let mut dense = Tensor::new(context, &Desc::new(Format::F32, desc.shape())).unwrap();
        context.dequantize(tensor, &mut dense).unwrap();
        dense_bytes(context, &dense)
    };
    bytes.chunks(4).map(|b| [b[0], b[1], b[2], b[3]]).collect()
}

fn check(context: &Context, tensor: &Tensor<'_>, cuts: &[(usize, i64, i64)]) {
    let desc = tensor.desc().unwrap();
    let (k, whole) = (desc.shape()[1] as usize, values(context, tensor));
    for &(dim, begin, end) in cuts {
        let part = tensor.slice(context, dim, begin, end).unwrap();
        let (first, last) = (begin as usize, end as usize);
        let expected: Vec<_> = match dim {
            0 => whole[first * k..last * k].to_vec(),
            _ => whole.chunks(k).flat_map(|row| &row[first..last]).copied().collect(),
        };
        assert_eq!(part.desc().unwrap().as_raw().layout, Layout::ROW.0);
        assert!(values(context, &part) == expected, "{desc:?} {dim} {begin} {end}");
    }
}

fn cuts(n: i64, k: i64) -> Vec<(usize, i64, i64)> {
    let rows = [(0, n), (0, 1), (3, 8), (8, 16), (n - 3, n), (n / 2, n)];
    let columns = [(0, k), (0, 16), (16, 48), (32, k), (16, 37)];
    let rows = rows.iter().map(|&(begin, end)| (0, begin, end));
    rows.chain(columns.iter().map(|&(begin, end)| (1, begin, end))).collect()
}

#[test]
fn four_bits_of_every_layout() {
    let (context, mut random) = (one_thread(), Random(1));
    let layouts = [
        Layout::ROW,
        Layout::ROW_HIGH,
        Layout::AWQ_GEMM,
        Layout::AWQ_GEMV,
        Layout::GPTQ,
        Layout::GPTQ_V1,
        Layout::WORD,
    ];
    for layout in layouts {
        for (n, k) in [(24, 96), (19, 117)] {
            for group in [16, 32, Desc::GROUP_ROW] {
                let desc = Desc::new(Format::U4_AFFINE, &[n, k]).scales(Format::F16, group);
                let desc = desc.layout(layout).grouping(Grouping::ALONG_K);
                for desc in [desc, desc.symmetric()] {
                    check(&context, &random.tensor(&context, desc), &cuts(n, k));
                }
            }
        }
    }
}

#[test]
fn nested_scales() {
    let (context, mut random) = (one_thread(), Random(2));
    for scale in [Format::LUT8, Format::I8] {
        for (n, k) in [(24, 96), (40, 1040)] {
            let desc = Desc::new(Format::NF4, &[n, k]).scales(scale, 16).scale_groups(64);
            check(&context, &random.tensor(&context, desc), &cuts(n, k));
        }
    }
    let desc = Desc::new(Format::S8, &[24, 96]).scales(Format::I8, 16).scale_groups(8).float_min();
    check(&context, &random.tensor(&context, desc), &cuts(24, 96));
    let desc = Desc::new(Format::NF4, &[640, 256]).scales(Format::LUT8, 64);
    let whole = random.tensor(&context, desc.layout(Layout::ROW_HIGH));
    for (begin, expected) in
        [(64, (Format::LUT8.0, 256)), (32, (Format::LUT8.0, 128)), (3, (Format::F32.0, 0))]
    {
        let part = whole.slice(&context, 0, begin, 640).unwrap().desc().unwrap();
        assert_eq!((part.as_raw().scale_format, part.as_raw().scale_group_size), expected);
    }
}

#[test]
fn flat_groups_that_straddle_rows() {
    let (context, mut random) = (one_thread(), Random(3));
    for layout in [Layout::ROW, Layout::ROW_HIGH] {
        for scale in [Format::F32, Format::LUT8] {
            for (n, k) in [(24, 96), (19, 112), (24, 128)] {
                let desc = Desc::new(Format::U4_AFFINE, &[n, k]).scales(scale, 64).layout(layout);
                let desc = desc.grouping(Grouping::FLAT);
                let desc = if scale == Format::LUT8 { desc.scale_groups(16) } else { desc };
                check(&context, &random.tensor(&context, desc), &cuts(n, k));
            }
        }
    }
    let desc = Desc::new(Format::NF4, &[8, 40]).scales(Format::F32, 64);
    let whole = random.tensor(&context, desc.grouping(Grouping::FLAT));
    let error = whole.slice(&context, 0, 1, 8).err().unwrap();
    assert!(error.message().contains("within a group of 64 codes, which straddle"), "{error}");
}

#[test]
fn other_formats() {
    let (context, mut random) = (one_thread(), Random(4));
    let of = |format| Desc::new(format, &[24, 96]);
    for desc in [
        of(Format::F32),
        of(Format::S8).scales(Format::F32, Desc::GROUP_ROW),
        of(Format::LUT8).scales(Format::F32, 32),
        of(Format::E4M3).scales(Format::E8M0, 32),
        of(Format::LUT4).scales(Format::F16, 32),
        of(Format::FP4_E2M1).scales(Format::E4M3, 16).global_rows().global_divides(),
        of(Format::S8).scales(Format::BF16, 16).float_min(),
    ] {
        check(&context, &random.tensor(&context, desc), &cuts(24, 96));
    }
    let desc = of(Format::U4_AFFINE).scales(Format::F16, 16).layout(Layout::GPTQ).ordered();
    let whole = random.tensor(&context, desc);
    check(&context, &whole, &[(0, 0, 24), (0, 5, 11)]);
    let error = whole.slice(&context, 1, 16, 32).err().unwrap();
    assert!(error.message().contains("act-order"), "{error}");
}

#[cfg(feature = "io")]
#[test]
fn layers_of_gguf_files() {
    let (context, mut count) = (one_thread(), 0);
    let file = qk::io::Checkpoint::open(golden("gguf/model.gguf")).unwrap();
    for layer in file.layers() {
        let of_blocks = layer.dialect == qk::io::Dialect::GGUF;
        if !of_blocks || layer.desc.map_or(true, |desc| desc.shape().len() != 2) {
            continue;
        }
        let (w, _) = file.load(&context, &layer.name).unwrap();
        let (n, k) = (w.desc().unwrap().shape()[0], w.desc().unwrap().shape()[1]);
        check(&context, &w, &[(0, 0, n), (0, n / 2, n), (1, 0, 32), (1, k - 32, k)]);
        count += 1;
    }
    assert!(count > 5);
}

#[test]
fn bad_ends_are_refused() {
    let (context, mut random) = (one_thread(), Random(5));
    let desc = Desc::new(Format::NF4, &[24, 96]).scales(Format::F32, 32);
    let whole = random.tensor(&context, desc);
    for (dim, begin, end, status, sentence) in [
        (2, 0, 1, Status::ARGUMENT, "dim: is 2"),
        (0, 3, 3, Status::ARGUMENT, "are 3 and 3"),
        (0, -1, 3, Status::ARGUMENT, "are -1 and 3"),
        (0, 0, 25, Status::ARGUMENT, "within 0..24"),
        (1, 8, 16, Status::SHAPE, "multiples of 16"),
    ] {
        let error = whole.slice(&context, dim, begin, end).err().unwrap();
        assert_eq!(error.status(), status);
        assert!(error.message().contains(sentence), "{error}");
    }
    let experts = Desc::new(Format::NF4, &[2, 24, 96]).scales(Format::F32, 32);
    let error = random.tensor(&context, experts).slice(&context, 0, 0, 1).err().unwrap();
    assert!(error.message().contains("has rank 3"), "{error}");
}
