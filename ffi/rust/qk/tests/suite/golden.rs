//! The golden files of tests/golden, written by the packages themselves: what loads has their
//! bits, what quantizes has bitsandbytes' bytes, what is to be refused says why.
use crate::common::{dense_bytes, golden};
use qk::io::{Checkpoint, CheckpointOptions, Dialect};
use qk::{Context, Desc, Format, Kind, Layout, Plane, Status, Tensor};

const FOLDERS: [(&str, Dialect); 21] = [
    ("awq_gemm_channel", Dialect::AWQ_GEMM),
    ("awq_gemm_g128", Dialect::AWQ_GEMM),
    ("awq_gemm_g64", Dialect::AWQ_GEMM),
    ("awq_gemv_g128", Dialect::AWQ_GEMV),
    ("awq_gemv_g32", Dialect::AWQ_GEMV),
    ("awq_gemv_g64", Dialect::AWQ_GEMV),
    ("bnb_fp4", Dialect::BITSANDBYTES),
    ("bnb_fp4_nested", Dialect::BITSANDBYTES),
    ("bnb_nf4", Dialect::BITSANDBYTES),
    ("bnb_nf4_nested", Dialect::BITSANDBYTES),
    ("bnb_nf4_nested_bf16_storage", Dialect::BITSANDBYTES),
    ("ct_int4_asym_channel", Dialect::COMPRESSED_TENSORS),
    ("ct_int4_asym_g32", Dialect::COMPRESSED_TENSORS),
    ("ct_int4_sym_channel", Dialect::COMPRESSED_TENSORS),
    ("ct_int4_sym_g128", Dialect::COMPRESSED_TENSORS),
    ("ct_int4_sym_g32", Dialect::COMPRESSED_TENSORS),
    ("gptq_v1_asym_g32", Dialect::GPTQ_V1),
    ("gptq_v1_asym_g64", Dialect::GPTQ_V1),
    ("gptq_v1_sym_g128", Dialect::GPTQ_V1),
    ("gptq_v2_asym_g128", Dialect::GPTQ_V2),
    ("gptq_v2_sym_g32", Dialect::GPTQ_V2),
];

fn compare(context: &Context, truth: &Checkpoint<'_>, layer: &str, weight: &Tensor<'_>) {
    let expected = truth.tensor(&format!("{layer}.weight")).unwrap();
    let desc = Desc::new(expected.dtype.format().unwrap(), expected.shape);
    let mut dense = Tensor::new(context, &desc).unwrap();
    context.dequantize(weight, &mut dense).unwrap();
    assert!(dense_bytes(context, &dense) == expected.data, "{layer} has other bits");
}

#[test]
fn layers_have_their_packages_bits() {
    let context = Context::new().unwrap();
    for (folder, dialect) in FOLDERS {
        let truth = Checkpoint::open(golden(folder).join("truth.safetensors")).unwrap();
        let copied = Checkpoint::open(golden(folder)).unwrap();
        // The repository's files stay as they are while the tests run.
        let mapped =
            unsafe { Checkpoint::map(golden(folder), &CheckpointOptions::default()) }.unwrap();
        let mut layers = 0;
        for layer in copied.layers().filter(|layer| layer.dialect != Dialect::DENSE) {
            assert_eq!(layer.dialect, dialect, "{}", layer.name);
            assert_eq!(copied.verify_layer(&layer.name).unwrap(), "", "{}", layer.name);
            let (weight, bias) = copied.load(&context, &layer.name).unwrap();
            assert_eq!(weight.desc().unwrap().shape(), layer.desc.unwrap().shape());
            assert_eq!(bias.is_some(), layer.has_bias);
            compare(&context, &truth, &layer.name, &weight);
            let (in_place, _) = mapped.load_in_place(&context, &layer.name).unwrap();
            compare(&context, &truth, &layer.name, &in_place);
            layers += 1;
        }
        assert!(layers > 0, "{folder}");
    }
}

#[test]
fn what_cannot_be_loaded_says_why() {
    let context = Context::new().unwrap();
    for (folder, reason) in [
        ("awq_gemv_fast_refused", "gemv_fast"),
        ("awq_marlin_refused", "marlin"),
    ] {
        let checkpoint = Checkpoint::open(golden(folder)).unwrap();
        for layer in checkpoint.layers() {
            let why = layer.desc.unwrap_err();
            assert_eq!(why.status(), Status::UNSUPPORTED);
            assert!(why.message().contains(reason), "{why}");
            let refused = checkpoint.load(&context, &layer.name).err().unwrap();
            assert_eq!(refused.status().kind(), Kind::Unsupported);
            assert!(refused.message().contains(reason), "{refused}");
        }
    }
}

struct Oracle {
    context: Context,
    inputs: Checkpoint<'static>,
    expected: Checkpoint<'static>,
}

impl Oracle {
    fn check_plane(&self, tensor: &Tensor<'_>, plane: Plane, name: &str) {
        let truth = self.expected.tensor(name).unwrap();
        let mut bytes = vec![0xa5u8; truth.data.len()];
        tensor.download(&self.context, plane, &mut bytes).unwrap();
        assert!(bytes == truth.data, "{name} has other bytes");
    }

    /// `stem` is "x.nf4.bs64".
    fn check(&self, stem: &str, nested: bool) {
        let mut parts = stem.rsplitn(3, '.');
        let block: i32 = parts.next().unwrap()[2..].parse().unwrap();
        let kind = parts.next().unwrap();
        let file = self.inputs.tensor(parts.next().unwrap()).unwrap();
        let dense_format = file.dtype.format().unwrap();
        let mut x = Tensor::new(&self.context, &Desc::new(dense_format, file.shape)).unwrap();
        x.upload(&self.context, Plane::DATA, file.data).unwrap();

        let (format, layout) = match kind {
            "nf4" => (Format::NF4, Layout::ROW_HIGH),
            "fp4" => (Format::FP4_BNB, Layout::ROW_HIGH),
            _ => (Format::LUT8, Layout::ROW),
        };
        let scales = if nested { Format::LUT8 } else { Format::F32 };
        let desc = Desc::new(format, file.shape).scales(scales, block).layout(layout);
        let mut q = Tensor::new(&self.context, &desc).unwrap();
        let table = qk::dynamic_table().unwrap();
        if format == Format::LUT8 {
            q.upload(&self.context, Plane::TABLE, &table).unwrap();
        }
        if nested {
            q.upload(&self.context, Plane::SCALE_CODE, &table).unwrap();
        }
        self.context.quantize(&x, &mut q).unwrap();

        if nested {
            self.check_plane(&q, Plane::SCALE_BIAS, &format!("{stem}.nested.offset"));
            self.check_plane(&q, Plane::SCALE2, &format!("{stem}.nested.nested_absmax"));
            self.check_plane(&q, Plane::SCALE, &format!("{stem}.nested.absmax"));
        } else {
            let data = if format == Format::LUT8 { "data" } else { "packed" };
            self.check_plane(&q, Plane::DATA, &format!("{stem}.{data}"));
            self.check_plane(&q, Plane::SCALE, &format!("{stem}.absmax"));
        }
    }
}

#[test]
fn quantizing_gives_bitsandbytes_bytes() {
    let folder = golden("bnb_quantize_oracle");
    let oracle = Oracle {
        context: Context::new().unwrap(),
        inputs: Checkpoint::open(folder.join("inputs.safetensors")).unwrap(),
        expected: Checkpoint::open(folder.join("expected.safetensors")).unwrap(),
    };
    let (mut cases, mut nested_cases) = (0, 0);
    for tensor in oracle.expected.tensors() {
        if let Some(stem) = tensor.name.strip_suffix(".nested.offset") {
            oracle.check(stem, true);
            nested_cases += 1;
        } else if let Some(stem) =
            tensor.name.strip_suffix(".packed").or_else(|| tensor.name.strip_suffix(".data"))
        {
            oracle.check(stem, false);
            cases += 1;
        }
    }
    assert!(cases >= 80 && nested_cases >= 20, "{cases} and {nested_cases} cases");

    let map = oracle.expected.tensor("dynamic_map").unwrap();
    assert_eq!(crate::common::f32s(map.data), qk::dynamic_table().unwrap());
}
