//! What a call of `linear` costs over the same call from C, on a shape so small that little else
//! is left: best of several rounds of each, alternating.
//!
//!     cargo run --release --example call_overhead [calls a round]
use std::time::Instant;

use qk::{sys, Context, ContextOptions, Desc, Format, Tensor};

const N: i64 = 8;
const K: i64 = 32;
const ROUNDS: usize = 15;

fn nanoseconds(calls: u32, mut call: impl FnMut()) -> f64 {
    let start = Instant::now();
    for _ in 0..calls {
        call();
    }
    start.elapsed().as_nanos() as f64 / f64::from(calls)
}

fn main() -> qk::Result<()> {
    let calls = std::env::args().nth(1).and_then(|calls| calls.parse().ok()).unwrap_or(200_000);
    let options = ContextOptions { thread_count: 1, ..Default::default() };
    let context = Context::with_options(&options)?;
    let weights: Vec<f32> = (0..N * K).map(|i| (i % 7) as f32 - 3.0).collect();
    let dense = Tensor::borrow(&context, &[N, K], &weights)?;
    let mut w = Tensor::new(&context, &Desc::new(Format::NF4, &[N, K]).scales(Format::F32, 32))?;
    context.quantize(&dense, &mut w)?;
    let (ones, mut results) = ([1f32; K as usize], [0f32; N as usize]);
    let x = Tensor::borrow(&context, &[1, K], &ones)?;
    let mut y = Tensor::borrow_mut(&context, &[1, N], &mut results)?;

    let (mut rust, mut c) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..ROUNDS {
        rust = rust.min(nanoseconds(calls, || {
            context.linear(&x, &w, None, &mut y).expect("equal shapes");
        }));
        let [tx, tw, ty] = [x.as_raw(), w.as_raw(), y.as_raw()];
        c = c.min(nanoseconds(calls, || unsafe {
            let null = std::ptr::null();
            assert_eq!(sys::qk_linear(context.as_raw(), tx, tw, null, ty), sys::QK_OK);
        }));
    }
    println!("qk_linear {N} x {K}, best of {ROUNDS} rounds of {calls} calls:");
    println!("from C's interface {c:.1} ns, from Rust's {rust:.1} ns, overhead {:.1} ns", rust - c);
    Ok(())
}
