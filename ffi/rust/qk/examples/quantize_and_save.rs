//! Quantizes a weight matrix to NF4 with nested scales, writes it as bitsandbytes does, loads it
//! again and shows what it cost.
//!
//!     cargo run --example quantize_and_save out.safetensors
use qk::io::{Checkpoint, Dialect, Writer};
use qk::{Context, Desc, Format, Layout, Plane, Tensor};

const ROWS: i64 = 96;
const COLUMNS: i64 = 256;
const LAYER: &str = "model.layers.0.mlp.up_proj";

/// Heavy tails, as weights have them: products of two numbers in [-1, 1).
fn random_weights(count: usize) -> Vec<f32> {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next() * next()).collect()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).unwrap_or_else(|| {
        eprintln!("usage: quantize_and_save out.safetensors");
        std::process::exit(2)
    });
    let context = Context::new()?;
    let weights = random_weights((ROWS * COLUMNS) as usize);
    let dense = Tensor::borrow(&context, &[ROWS, COLUMNS], &weights)?;

    // 64 codes share a scale; scales are 8-bit codes of a table of 256 values.
    let desc =
        Desc::new(Format::NF4, &[ROWS, COLUMNS]).scales(Format::LUT8, 64).layout(Layout::ROW_HIGH);
    let mut nf4 = Tensor::new(&context, &desc)?;
    nf4.upload(&context, Plane::SCALE_CODE, &qk::dynamic_table()?)?;
    context.quantize(&dense, &mut nf4)?;

    let mut writer = Writer::new(&path)?;
    writer.metadata("format", "pt")?;
    writer.declare_layer(Dialect::BITSANDBYTES, LAYER, &desc, Format::F32)?;
    writer.write_layer(&context, LAYER, &nf4)?;
    writer.finish()?;

    let checkpoint = Checkpoint::open(&path)?;
    let (loaded, _) = checkpoint.load(&context, LAYER)?;
    let mut decoded = vec![0f32; weights.len()];
    let mut back = Tensor::borrow_mut(&context, &[ROWS, COLUMNS], &mut decoded)?;
    context.dequantize(&loaded, &mut back)?;
    drop(back);

    let worst = weights.iter().zip(&decoded).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
    let bytes = checkpoint.layer(LAYER)?.bytes;
    println!("{ROWS} x {COLUMNS} weights: {} bytes as f32, {bytes} in {path}", 4 * weights.len());
    println!("worst error {worst:.4}");
    // Half of the widest gaps: .152 NF4, .007 scales.
    if worst > 0.16 {
        return Err("the weights did not come back".into());
    }
    Ok(())
}
