//! Products with experts, against products of one row, and the projections of files.
use crate::common::{one_thread, weights};
use qk::{Activation, Context, Desc, Experts, Format, Product, Status, Tensor};

const E: usize = 5;
const N: usize = 32;
const K: usize = 64;
const T: usize = 3;
const TOP: usize = 2;
const SHARES: [f32; T * TOP] = [0.75, 0.25, 0.5, 0.125, 1.0, 2.0];
const CHOSEN: [i32; T * TOP] = [4, 0, 2, 2, 1, 3];

/// The experts as one weight, and each alone.
fn quantized(context: &Context) -> (Tensor<'static>, Vec<Tensor<'static>>) {
    let values = weights(E * N * K, 3);
    let make = |shape: &[i64], values: &[f32]| {
        let desc = Desc::new(Format::NF4, shape).scales(Format::F32, 32);
        let mut made = Tensor::new(context, &desc).unwrap();
        context.quantize(&Tensor::borrow(context, shape, values).unwrap(), &mut made).unwrap();
        made
    };
    let (n, k) = (N as i64, K as i64);
    let alone = values.chunks(N * K).map(|part| make(&[n, k], part)).collect();
    (make(&[E as i64, n, k], &values), alone)
}

fn multiplied(context: &Context, x: &[f32], w: &Tensor<'_>) -> Vec<f32> {
    let mut y = vec![0f32; N];
    let x = Tensor::borrow(context, &[1, K as i64], x).unwrap();
    let mut out = Tensor::borrow_mut(context, &[1, N as i64], &mut y).unwrap();
    context.linear(&x, w, None, &mut out).unwrap();
    drop(out);
    y
}

fn run(
    context: &Context,
    x: &[f32],
    w: &Tensor<'_>,
    experts: &Experts<'_>,
    shape: &[i64],
) -> qk::Result<Vec<f32>> {
    let mut y = vec![7f32; shape.iter().product::<i64>() as usize];
    let x = Tensor::borrow(context, &[T as i64, K as i64], x)?;
    let mut out = Tensor::borrow_mut(context, shape, &mut y)?;
    let product = Product::new(&x, w, &mut out).with_experts(experts);
    assert!(!context.explain(&product)?.kernel.is_empty());
    context.multiply(&[product])?;
    drop(out);
    Ok(y)
}

fn routing<'a, V: qk::Element>(context: &Context, values: &'a [V]) -> Tensor<'a> {
    Tensor::borrow(context, &[T as i64, TOP as i64], values).unwrap()
}

#[test]
fn a_slot_is_its_own_product() {
    let context = one_thread();
    let (w, alone) = quantized(&context);
    let x = weights(T * K, 5);
    let shape = [T as i64, TOP as i64, N as i64];
    let chosen = routing(&context, &CHOSEN);
    let y = run(&context, &x, &w, &Experts::new(&chosen), &shape).unwrap();
    for (slot, (z, &e)) in y.chunks(N).zip(&CHOSEN).enumerate() {
        let token = &x[slot / TOP * K..][..K];
        assert_eq!(z, multiplied(&context, token, &alone[e as usize]), "slot {}", slot);
    }
    let some = routing(&context, &[-1, E as i32, 0, 0, 0, 0]);
    let y = run(&context, &x, &w, &Experts::new(&some), &shape).unwrap();
    assert!(y[..N].iter().all(|&value| value == 0.0));
    assert!(y[N..2 * N].iter().all(|value| value.is_nan()));
    assert_eq!(y[2 * N..3 * N], multiplied(&context, &x[K..2 * K], &alone[0]));
}

/// Each slot's row by products of one row, joined by `join` and added up by weight, in f64.
fn expected(
    context: &Context,
    x: &[f32],
    alone: &[Tensor<'_>],
    join: impl Fn(&[f32]) -> Vec<f64>,
) -> Vec<f64> {
    let mut y = Vec::new();
    for (t, token) in x.chunks(K).enumerate() {
        let mut sums = Vec::new();
        for slot in t * TOP..(t + 1) * TOP {
            let row = join(&multiplied(context, token, &alone[CHOSEN[slot] as usize]));
            sums.resize(row.len(), 0.0);
            let share = f64::from(SHARES[slot]);
            sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += share * value);
        }
        y.extend(sums);
    }
    y
}

fn assert_near(found: &[f32], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (&a, &b) in found.iter().zip(expected) {
        assert!((f64::from(a) - b).abs() <= 1e-5 * b.abs() + 1e-6, "{a} is not {b}");
    }
}

#[test]
fn slots_are_joined_and_added_up() {
    let context = one_thread();
    let (w, alone) = quantized(&context);
    let x = weights(T * K, 5);
    let (chosen, shares) = (routing(&context, &CHOSEN), routing(&context, &SHARES));
    let added = Experts::new(&chosen).weight(&shares);
    let (whole, joined) = ([T as i64, N as i64], [T as i64, N as i64 / 2]);

    let y = run(&context, &x, &w, &added, &whole).unwrap();
    let plain = |row: &[f32]| row.iter().map(|&value| f64::from(value)).collect();
    assert_near(&y, &expected(&context, &x, &alone, plain));

    let y = run(&context, &x, &w, &added.activation(Activation::SILU), &joined).unwrap();
    let silu = |row: &[f32]| {
        let (gate, up) = row.split_at(N / 2);
        let each = gate.iter().zip(up).map(|(&g, &u)| (f64::from(g), f64::from(u)));
        each.map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect()
    };
    assert_near(&y, &expected(&context, &x, &alone, silu));

    let clamped = added.swiglu_clamped(0.5, 1.702).interleaved();
    let y = run(&context, &x, &w, &clamped, &joined).unwrap();
    let swiglu = |row: &[f32]| {
        let each = row.chunks(2).map(|pair| (f64::from(pair[0]), f64::from(pair[1])));
        each.map(|(g, u)| {
            let (g, u) = (g.min(0.5), u.max(-0.5).min(0.5));
            g / (1.0 + (-1.702 * g).exp()) * (u + 1.0)
        })
        .collect()
    };
    assert_near(&y, &expected(&context, &x, &alone, swiglu));
}

#[test]
fn wrong_experts_are_refused() {
    let context = one_thread();
    let (w, alone) = quantized(&context);
    let x = weights(T * K, 5);
    let (chosen, shares) = (routing(&context, &CHOSEN), routing(&context, &SHARES));
    let slots = [T as i64, TOP as i64, N as i64];
    let refused = |w: &Tensor<'_>, experts: Experts<'_>, status: Status, sentence: &str| {
        let error = run(&context, &x, w, &experts, &slots).unwrap_err();
        assert_eq!(error.status(), status, "{}", error);
        assert!(error.message().contains(sentence), "{}", error);
    };
    refused(&alone[0], Experts::new(&chosen), Status::SHAPE, "w:");
    refused(&w, Experts::new(&shares), Status::FORMAT, "expert:");
    refused(&w, Experts::new(&chosen).weight(&shares), Status::SHAPE, "weight:");
    refused(&w, Experts::new(&chosen).activation(Activation(9)), Status::ARGUMENT, "activation");
}

#[cfg(feature = "io")]
mod files {
    use super::*;
    use crate::common::{dense_bytes, golden};
    use qk::io::{Checkpoint, CheckpointOptions};

    fn values(context: &Context, w: &Tensor<'_>) -> Vec<u8> {
        let desc = Desc::new(Format::F32, w.desc().unwrap().shape());
        let mut dense = Tensor::new(context, &desc).unwrap();
        context.dequantize(w, &mut dense).unwrap();
        dense_bytes(context, &dense)
    }

    #[test]
    fn experts_of_a_file_are_one_weight() {
        let context = one_thread();
        let file = Checkpoint::open(golden("gpt_oss")).unwrap();
        let listed: Vec<_> = file.expert_layers().collect();
        assert_eq!(listed.len(), 2);
        for layer in listed {
            let (w, bias) = file.load_experts(&context, &layer.name, None).unwrap();
            let shape = layer.desc.unwrap().shape().to_vec();
            assert_eq!(w.desc().unwrap().shape(), shape);
            assert_eq!(bias.unwrap().desc().unwrap().shape(), &shape[..2]);
            let (whole, _) = file.load(&context, &layer.name).unwrap();
            assert_eq!(values(&context, &w), values(&context, &whole));
            // The repository's files stay as they are while the tests run.
            let options = CheckpointOptions::default();
            let mapped = unsafe { Checkpoint::map(golden("gpt_oss"), &options) }.unwrap();
            let (in_place, _) = mapped.load_experts_in_place(&context, &layer.name).unwrap();
            assert_eq!(values(&context, &w), values(&context, &in_place));
        }
    }

    #[test]
    fn two_projections_are_gate_and_up() {
        let context = one_thread();
        let file = Checkpoint::open(golden("deepseek_v4")).unwrap();
        let name = "layers.0.ffn.experts.*.w1";
        let layer = file.expert_layer(name).unwrap();
        assert_eq!(layer.desc.unwrap().shape(), [1, 13, 96]);
        let (both, bias) = file.load_experts(&context, name, Some(name)).unwrap();
        assert!(bias.is_none());
        let (one, _) = file.load(&context, "layers.0.ffn.experts.0.w1").unwrap();
        assert_eq!(values(&context, &both), values(&context, &one).repeat(2));
    }

    #[test]
    fn what_has_no_experts_says_so() {
        let context = one_thread();
        let file = Checkpoint::open(golden("gpt_oss")).unwrap();
        assert!(file.expert_layer("no.such").unwrap_err().message().contains("no such layer"));
        assert!(file.load_experts(&context, "no.such", None).is_err());
        let name = "model.layers.0.mlp.experts.gate_up_proj";
        let error = file.load_experts(&context, name, Some("a\0b")).err().unwrap();
        assert_eq!(error.message(), "up: has a zero byte, which no name may have");
        let bare = Checkpoint::open(golden("bnb_nf4")).unwrap();
        assert_eq!(bare.expert_layers().count(), 0);
    }
}
