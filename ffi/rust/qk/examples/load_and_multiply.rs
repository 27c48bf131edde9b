//! Loads a layer of a quantized checkpoint and multiplies by it.
//!
//!     cargo run --example load_and_multiply model.safetensors [layer]
use qk::io::{Checkpoint, Dialect};
use qk::{Context, Tensor};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().unwrap_or_else(|| {
        eprintln!("usage: load_and_multiply model.safetensors [layer]");
        std::process::exit(2)
    });
    let context = Context::new()?;
    let checkpoint = Checkpoint::open(path)?;
    let layer = match arguments.next() {
        Some(name) => checkpoint.layer(&name)?,
        None => checkpoint
            .layers()
            .find(|layer| layer.desc.is_ok() && layer.dialect != Dialect::DENSE)
            .ok_or("no quantized layer that qk can load")?,
    };
    let (w, bias) = checkpoint.load(&context, &layer.name)?;
    let (n, k) = match *w.desc()?.shape() {
        [n, k] => (n, k),
        _ => unreachable!("a layer's weight has two dimensions"),
    };
    println!("{}: {}, {n} x {k}", layer.name, layer.dialect.name());

    let ones = vec![1f32; k as usize];
    let mut results = vec![0f32; n as usize];
    let x = Tensor::borrow(&context, &[1, k], &ones)?;
    let mut y = Tensor::borrow_mut(&context, &[1, n], &mut results)?;
    context.linear(&x, &w, bias.as_ref(), &mut y)?;
    drop(y); // the results are ours again
    for (i, value) in results.iter().take(4).enumerate() {
        println!("y[{i}] = {value}");
    }
    Ok(())
}
