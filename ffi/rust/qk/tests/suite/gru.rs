//! A GRU's life: float, ranges, integers, bytes, and back; streaming equals one call.
use crate::common::{one_thread, weights};
use qk::{
    Calibration, Codes, Context, Error, Gru, GruConfig, GruQuant, GruRanges, GruTensor, Preset,
    Status, Tensor, TrainedGru,
};

const C: usize = 5;
const H: usize = 7;
const STEPS: usize = 40;
const BATCH: usize = 2;

fn trained(context: &Context, preset: Preset) -> TrainedGru {
    let config = GruConfig {
        calibration: Calibration::MSE,
        flags: GruConfig::UNIFORM_TABLES,
        ..GruConfig::new(C as i32, H as i32, preset)
    };
    let (w_ih, w_hh) = (weights(3 * H * C, 1), weights(3 * H * H, 2));
    let (b_ih, b_hh) = (weights(3 * H, 3), weights(3 * H, 4));
    TrainedGru::new(context, &config, &w_ih, &w_hh, Some(&b_ih), Some(&b_hh)).unwrap()
}

fn signal<'a>(context: &Context, data: &'a [f32], steps: usize) -> Tensor<'a> {
    Tensor::borrow(context, &[steps as i64, BATCH as i64, C as i64], data).unwrap()
}

fn frozen(context: &Context, preset: Preset) -> Gru {
    let data = weights(STEPS * BATCH * C, 5);
    let mut gru = trained(context, preset);
    gru.calibrate(context, &signal(context, &data, STEPS), None).unwrap();
    gru.freeze(context).unwrap()
}

/// y of all steps, run in calls of `chunk` steps.
fn run(context: &Context, gru: &Gru, data: &[f32], chunk: usize) -> Vec<f32> {
    let mut y = vec![0f32; STEPS * BATCH * H];
    let mut state = gru.state(context, BATCH as i32).unwrap();
    let parts = data.chunks(chunk * BATCH * C).zip(y.chunks_mut(chunk * BATCH * H));
    for (x, y) in parts {
        let steps = x.len() / (BATCH * C);
        let shape = [steps as i64, BATCH as i64, H as i64];
        let mut out = Tensor::borrow_mut(context, &shape, y).unwrap();
        gru.run(context, &mut state, &signal(context, x, steps), &mut out).unwrap();
    }
    y
}

#[test]
fn streaming_equals_one_call_and_survives_saving() {
    let context = one_thread();
    let data = weights(STEPS * BATCH * C, 6);
    for preset in [Preset::W8A8, Preset::W8H16, Preset::W16A16] {
        let gru = frozen(&context, preset);
        let whole = run(&context, &gru, &data, STEPS);
        assert!(whole.iter().any(|value| *value != 0.0));
        assert_eq!(run(&context, &gru, &data, 1), whole);
        assert_eq!(run(&context, &gru, &data, 7), whole);
        let loaded = Gru::load(&context, &gru.save().unwrap()).unwrap();
        assert_eq!(run(&context, &loaded, &data, STEPS), whole);
    }
}

#[test]
fn integers_out_and_in() {
    let context = one_thread();
    for (preset, wide) in [(Preset::W8H16, false), (Preset::W16A16, true)] {
        let gru = frozen(&context, preset);
        let model = gru.model().unwrap();
        assert_eq!((model.input_size, model.hidden_size), (C as i32, H as i32));
        assert_eq!(matches!(model.w, Codes::I16(_)), wide);
        let again = Gru::from_model(&context, &model).unwrap();
        assert_eq!(again.model().unwrap(), model);
        assert_eq!(again.save().unwrap(), gru.save().unwrap());

        let x = GruTensor::X.0 as usize;
        let scale = gru.scale(GruTensor::X, 0).unwrap();
        assert_eq!(scale, (model.shift[x], model.zero_point[x]));
        let (shift, _) = gru.scale(GruTensor::W, 3 * H as i32 - 1).unwrap();
        assert_eq!(shift, model.w_shift[3 * H - 1].into());

        let mut short = model;
        short.bw = &model.bw[1..];
        let error = Gru::from_model(&context, &short).err().unwrap();
        assert_eq!(error.status(), Status::BUFFER_SIZE);
        assert_eq!(error.message(), "bw: has 20 elements, must have 21");
        let mut other = model;
        other.w = Codes::I8(&[1; 3 * H * C]);
        if wide {
            let error = Gru::from_model(&context, &other).err().unwrap();
            assert_eq!(error.status(), Status::FORMAT, "{error}");
        }
    }
}

#[test]
fn gates_and_float_agree() {
    let context = one_thread();
    let data = weights(STEPS * BATCH * C, 5);
    let x = signal(&context, &data, STEPS);
    let mut gru = trained(&context, Preset::W16A16);
    gru.calibrate(&context, &x, None).unwrap();
    let shape = [STEPS as i64, BATCH as i64, H as i64];
    let (mut exact, mut y) = (vec![0f32; STEPS * BATCH * H], vec![0f32; STEPS * BATCH * H]);
    let mut gates = vec![0f32; STEPS * BATCH * 4 * H];
    let mut out = Tensor::borrow_mut(&context, &shape, &mut exact).unwrap();
    gru.run_float(&context, &x, None, &mut out).unwrap();
    drop(out);
    let gru = gru.freeze(&context).unwrap();
    let mut state = gru.state(&context, BATCH as i32).unwrap();
    {
        let wide = [STEPS as i64, BATCH as i64, 4 * H as i64];
        let mut y = Tensor::borrow_mut(&context, &shape, &mut y).unwrap();
        let mut gates = Tensor::borrow_mut(&context, &wide, &mut gates).unwrap();
        gru.run_gates(&context, &mut state, &x, &mut y, &mut gates).unwrap();
    }
    let sum = |values: &mut dyn Iterator<Item = f32>| values.map(|v| v * v).sum::<f32>();
    let noise = sum(&mut exact.iter().zip(&y).map(|(a, b)| a - b));
    let power = sum(&mut exact.iter().copied());
    // How exact it is, tests/gru measures; an array or gate in another's place would leave an
    // error of the size of the signal.
    assert!(noise < power / 100.0, "noise {noise}, power {power}");
    assert!(gates.chunks(4 * H).all(|row| row[..2 * H].iter().all(|g| (0.0..=1.0).contains(g))));

    let mut h = vec![0f32; BATCH * H];
    state.read(&context, &mut h).unwrap();
    assert_eq!(h, y[(STEPS - 1) * BATCH * H..]);
    state.reset(&context).unwrap();
    state.write(&context, &h).unwrap();
    let mut again = vec![1f32; BATCH * H];
    state.read(&context, &mut again).unwrap();
    assert_eq!(again, h);
    assert_eq!(state.read(&context, &mut [0f32; 3]).unwrap_err().status(), Status::BUFFER_SIZE);
}

#[test]
fn a_refused_freeze_gives_the_gru_back() {
    let context = one_thread();
    let mut gru = trained(&context, Preset::W8A8);
    let quant = GruQuant { bits: 6, is_unsigned: false, is_symmetric: true, granularity: 2 };
    gru.set_quant(GruTensor::W, quant).unwrap();
    let bad = GruQuant { bits: 40, ..quant };
    assert_eq!(gru.set_quant(GruTensor::W, bad).unwrap_err().status(), Status::ARGUMENT);
    let refused = gru.freeze(&context).err().expect("no calibration, no freeze");
    assert_eq!(refused.error.status(), Status::STATE);
    let mut gru = refused.gru;
    let data = weights(STEPS * BATCH * C, 5);
    let x = signal(&context, &data, STEPS);
    assert_eq!(
        gru.calibrate(&context, &x, Some(&[0.0; 3])).unwrap_err().status(),
        Status::BUFFER_SIZE
    );
    gru.calibrate(&context, &x, Some(&[0.0; BATCH * H])).unwrap();
    let gru = gru.freeze(&context).unwrap();
    assert_eq!(gru.model().unwrap().quant[GruTensor::W.0 as usize], quant);
    assert_eq!(gru.workspace(&context, BATCH as i32, 8).map(|_| ()), Ok::<(), Error>(()));
}

#[test]
fn lengths_are_checked_before_anything_is_read() {
    let context = one_thread();
    let config = GruConfig::new(C as i32, H as i32, Preset::W8A8);
    let (w_ih, w_hh) = (weights(3 * H * C, 1), weights(3 * H * H, 2));
    let short = TrainedGru::new(&context, &config, &w_ih[1..], &w_hh, None, None);
    assert_eq!(short.err().unwrap().message(), "w_ih: has 104 elements, must have 105");
    let bias = TrainedGru::new(&context, &config, &w_ih, &w_hh, Some(&[0.0]), None);
    assert_eq!(bias.err().unwrap().message(), "b_ih: has 1 elements, must have 21");
    let negative = GruConfig { hidden_size: -1, ..config };
    let error = TrainedGru::new(&context, &negative, &w_ih, &w_hh, None, None).err().unwrap();
    assert_eq!(error.status(), Status::SHAPE);
}

#[test]
fn ranges_are_read_given_and_merged() {
    let context = one_thread();
    let (data, more) = (weights(STEPS * BATCH * C, 5), weights(STEPS * BATCH * C, 6));
    let fresh = || {
        let flags = GruConfig::BIAS_CORRECTION;
        let config = GruConfig { flags, ..GruConfig::new(C as i32, H as i32, Preset::W8A8) };
        let (w_ih, w_hh) = (weights(3 * H * C, 1), weights(3 * H * H, 2));
        TrainedGru::new(&context, &config, &w_ih, &w_hh, None, None).unwrap()
    };
    let seen = |data: &[&Vec<f32>]| {
        let mut gru = fresh();
        for part in data {
            gru.calibrate(&context, &signal(&context, part, STEPS), None).unwrap();
        }
        gru
    };
    let whole = seen(&[&data, &more]);
    let ranges = whole.ranges(&context).unwrap();
    let x = GruTensor::X.0 as usize;
    let largest = data.iter().chain(&more).copied().fold(f32::MIN, f32::max);
    assert_eq!((ranges.samples, ranges.max[x]), (2 * (STEPS * BATCH) as i64, largest.into()));
    let (mut given, mut merged) = (fresh(), fresh());
    given.set_ranges(&context, &ranges).unwrap();
    for part in [&data, &more] {
        let part = seen(&[part]).ranges(&context).unwrap();
        merged.merge_ranges(&context, &part).unwrap();
    }
    assert_eq!(merged.ranges(&context).unwrap(), ranges);
    let image = whole.freeze(&context).unwrap().save().unwrap();
    assert_eq!(given.freeze(&context).unwrap().save().unwrap(), image);
    assert_eq!(merged.freeze(&context).unwrap().save().unwrap(), image);
    for x_sum in [vec![0.0; C - 1], vec![0.0; C + 1]] {
        let wrong = GruRanges { x_sum, ..ranges.clone() };
        let error = fresh().set_ranges(&context, &wrong).unwrap_err();
        assert_eq!(error.status(), Status::BUFFER_SIZE, "{error}");
    }
    let error = trained(&context, Preset::W8A8).set_ranges(&context, &ranges).unwrap_err();
    assert_eq!(error.status(), Status::UNSUPPORTED, "{error}");
}

#[test]
fn codes_that_are_cut_are_counted() {
    let context = one_thread();
    let gru = frozen(&context, Preset::W8H16);
    let mut state = gru.state(&context, BATCH as i32).unwrap();
    let huge = vec![1e6f32; STEPS * BATCH * C];
    let mut y = vec![0f32; STEPS * BATCH * H];
    let shape = [STEPS as i64, BATCH as i64, H as i64];
    for on in [true, false] {
        state.count_clipped(&context, on).unwrap();
        let mut out = Tensor::borrow_mut(&context, &shape, &mut y).unwrap();
        gru.run(&context, &mut state, &signal(&context, &huge, STEPS), &mut out).unwrap();
        let clipped = state.clipped(&context).unwrap();
        assert_eq!(clipped.samples, (STEPS * BATCH) as i64);
        assert_eq!(clipped.of(GruTensor::X), (STEPS * BATCH * C) as i64);
        assert_eq!(clipped.of(GruTensor::W), 0);
    }
}
