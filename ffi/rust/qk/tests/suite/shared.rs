//! The thread rule: one context a thread; tensors that are not written and frozen GRUs shared.
use crate::common::{one_thread, weights};
use qk::{Context, Desc, Format, Gru, GruConfig, Plane, Preset, Tensor, TrainedGru};

fn movable<T: Send>() {}
fn shareable<T: Send + Sync>() {}

#[test]
fn types_say_the_rule() {
    movable::<Context>();
    movable::<TrainedGru>();
    movable::<qk::GruState>();
    shareable::<Tensor<'static>>();
    shareable::<Gru>();
    shareable::<qk::Error>();
    #[cfg(feature = "io")]
    {
        shareable::<qk::io::Checkpoint<'static>>();
        movable::<qk::io::Writer>();
    }
}

#[test]
fn threads_read_one_weight() {
    let (n, k) = (24, 128);
    let context = one_thread();
    let values = weights(n * k, 3);
    let dense = Tensor::borrow(&context, &[n as i64, k as i64], &values).unwrap();
    let desc = Desc::new(Format::NF4, &[n as i64, k as i64]).scales(Format::F16, 32);
    let mut w = Tensor::new(&context, &desc).unwrap();
    context.quantize(&dense, &mut w).unwrap();
    let x = weights(k, 4);
    let multiply = |context: &Context| {
        let mut y = vec![0f32; n];
        let row = Tensor::borrow(context, &[1, k as i64], &x).unwrap();
        let mut out = Tensor::borrow_mut(context, &[1, n as i64], &mut y).unwrap();
        for _ in 0..50 {
            context.linear(&row, &w, None, &mut out).unwrap();
        }
        drop(out);
        y
    };
    let expected = multiply(&context);
    assert!(expected.iter().any(|value| *value != 0.0));
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| multiply(&one_thread()))).collect();
        for thread in threads {
            assert_eq!(thread.join().unwrap(), expected);
        }
    });
}

#[test]
fn a_tensor_outlives_its_context_and_moves() {
    let context = one_thread();
    let mut tensor = Tensor::new(&context, &Desc::new(Format::F32, &[3])).unwrap();
    tensor.upload(&context, Plane::DATA, &[1f32, 2.0, 3.0]).unwrap();
    drop(context);
    let values = std::thread::spawn(move || {
        let mut values = [0f32; 3];
        tensor.download(&one_thread(), Plane::DATA, &mut values).unwrap();
        values
    });
    assert_eq!(values.join().unwrap(), [1.0, 2.0, 3.0]);
}

#[test]
fn threads_run_one_gru() {
    let (c, h, steps) = (3usize, 8usize, 20usize);
    let context = one_thread();
    let config = GruConfig::new(c as i32, h as i32, Preset::W8H16);
    let (w_ih, w_hh) = (weights(3 * h * c, 5), weights(3 * h * h, 6));
    let mut trained = TrainedGru::new(&context, &config, &w_ih, &w_hh, None, None).unwrap();
    let data = weights(steps * c, 7);
    let x = Tensor::borrow(&context, &[steps as i64, 1, c as i64], &data).unwrap();
    trained.calibrate(&context, &x, Some(&vec![0.0; h])).unwrap();
    let gru = trained.freeze(&context).unwrap();
    let run = |context: &Context| {
        let mut y = vec![0f32; steps * h];
        let mut state = gru.state(context, 1).unwrap();
        let mut out = Tensor::borrow_mut(context, &[steps as i64, 1, h as i64], &mut y).unwrap();
        gru.run(context, &mut state, &x, &mut out).unwrap();
        drop(out);
        y
    };
    let expected = run(&context);
    assert!(expected.iter().any(|value| *value != 0.0));
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| run(&one_thread()))).collect();
        for thread in threads {
            assert_eq!(thread.join().unwrap(), expected);
        }
    });
}
