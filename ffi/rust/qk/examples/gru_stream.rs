//! Quantizes a trained GRU, saves and loads it, and streams a signal through it step by step.
//!
//!     cd examples/gru
//!     cargo run --example gru_stream denoiser.safetensors calibration.f32 test.f32
use qk::io::Checkpoint;
use qk::{Context, ContextOptions, Gru, GruConfig, Preset, Tensor, TrainedGru};

const C: usize = 16;
const H: usize = 64;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

fn weights(file: &Checkpoint, name: &str) -> qk::Result<Vec<f32>> {
    Ok(floats(file.tensor(name)?.data))
}

/// One sequence: [t,1,c].
fn signal<'a>(context: &Context, values: &'a [f32]) -> qk::Result<Tensor<'a>> {
    Tensor::borrow(context, &[(values.len() / C) as i64, 1, C as i64], values)
}

fn output<'a>(context: &Context, values: &'a mut [f32]) -> qk::Result<Tensor<'a>> {
    Tensor::borrow_mut(context, &[(values.len() / H) as i64, 1, H as i64], values)
}

fn main() -> Outcome<()> {
    let paths: Vec<String> = std::env::args().skip(1).collect();
    let [file, learn, test] = match paths.as_slice() {
        [file, learn, test] => [file, learn, test],
        _ => {
            eprintln!("usage: gru_stream WEIGHTS CALIBRATION TEST");
            std::process::exit(2)
        }
    };
    let options =
        ContextOptions { thread_count: 1, workspace_bytes: 1 << 20, ..Default::default() };
    let context = Context::with_options(&options)?;
    let file = Checkpoint::open(file)?;
    let (learn, x) = (floats(&std::fs::read(learn)?), floats(&std::fs::read(test)?));
    let steps = x.len() / C;

    let mut trained = TrainedGru::new(
        &context,
        &GruConfig::new(C as i32, H as i32, Preset::W8H16),
        &weights(&file, "gru.weight_ih_l0")?,
        &weights(&file, "gru.weight_hh_l0")?,
        Some(&weights(&file, "gru.bias_ih_l0")?),
        Some(&weights(&file, "gru.bias_hh_l0")?),
    )?;
    trained.calibrate(&context, &signal(&context, &learn)?, None)?; // what ranges do values take?
    let mut exact = vec![0f32; steps * H]; // to compare with
    let x_all = signal(&context, &x)?;
    trained.run_float(&context, &x_all, None, &mut output(&context, &mut exact)?)?;
    let image = trained.freeze(&context).map_err(qk::Error::from)?.save()?; // integers from here on
    let gru = Gru::load(&context, &image)?;

    let (mut y, mut whole) = (vec![0f32; steps * H], vec![0f32; steps * H]);
    let mut state = gru.state(&context, 1)?;
    for (x, y) in x.chunks(C).zip(y.chunks_mut(H)) {
        gru.run(&context, &mut state, &signal(&context, x)?, &mut output(&context, y)?)?;
    }
    state.reset(&context)?;
    gru.run(&context, &mut state, &x_all, &mut output(&context, &mut whole)?)?;

    let square = |value: f64| value * value;
    let power: f64 = exact.iter().map(|e| square((*e).into())).sum();
    let noise: f64 = exact.iter().zip(&y).map(|(e, y)| square(f64::from(*e) - f64::from(*y))).sum();
    let sqnr = 10.0 * (power / noise).log10();
    println!("{C} inputs, {H} units: {} bytes", image.len());
    println!("SQNR against float: {sqnr:.2} dB");
    println!("{steps} calls of one step and one call of {steps}: equal bits: {}", y == whole);
    // What W8H16 must reach on any network.
    if y != whole || sqnr < 29.5 {
        return Err("not what a GRU of this kind must give".into());
    }
    Ok(())
}
