//! A mixture of experts as gpt-oss has it: two products for a token and the experts it is for.
//!
//!     cargo run --example experts FOLDER GATE_UP DOWN
//!
//! GATE_UP and DOWN are names of [`Checkpoint::expert_layers`].
use qk::io::Checkpoint;
use qk::{Context, Desc, Experts, Format, Plane, Product, Tensor};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [path, gate_up, down] = match &arguments[..] {
        [path, gate_up, down] => [path, gate_up, down],
        _ => {
            eprintln!("usage: experts FOLDER GATE_UP DOWN");
            std::process::exit(2)
        }
    };
    let context = Context::new()?;
    let checkpoint = Checkpoint::open(path)?;
    let (gate_up, gate_up_bias) = checkpoint.load_experts(&context, gate_up, None)?;
    let (down, down_bias) = checkpoint.load_experts(&context, down, None)?;
    let (k, inner) = match (gate_up.desc()?.shape(), down.desc()?.shape()) {
        (&[_, _, k], &[_, n, inner]) if n == k => (k, inner),
        _ => return Err("GATE_UP and DOWN are not the two of one mixture".into()),
    };

    // What a router gives: two experts for each token, and their shares.
    let (chosen, shares) = ([0, 1], [0.75f32, 0.25]);
    let chosen = Tensor::borrow(&context, &[1, 2], &chosen)?;
    let shares = Tensor::borrow(&context, &[1, 2], &shares)?;
    let first = Experts::new(&chosen).swiglu_clamped(7.0, 1.702).interleaved();
    let second = Experts::new(&chosen).weight(&shares);

    let token: Vec<f32> = (0..k).map(|i| (i % 7) as f32 * 0.125).collect();
    let x = Tensor::borrow(&context, &[1, k], &token)?;
    let mut middle = Tensor::new(&context, &Desc::new(Format::F32, &[1, 2, inner]))?;
    let mut y = Tensor::new(&context, &Desc::new(Format::F32, &[1, k]))?;
    let mut up = Product::new(&x, &gate_up, &mut middle).with_experts(&first);
    if let Some(bias) = &gate_up_bias {
        up = up.with_bias(bias);
    }
    let mut back = Product::after(&up, &down, &mut y).with_experts(&second);
    if let Some(bias) = &down_bias {
        back = back.with_bias(bias);
    }
    context.multiply(&[up, back])?;

    let mut results = vec![0f32; k as usize];
    y.download(&context, Plane::DATA, &mut results)?;
    for (i, value) in results.iter().take(4).enumerate() {
        println!("y[{i}] = {value}");
    }
    Ok(())
}
