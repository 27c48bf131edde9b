//! Lists of products, and what one would run as.
use crate::common::{one_thread, weights};
use qk::{Context, ContextOptions, Desc, Format, Layout, Product, Status, Tensor};

fn packed(context: &Context, n: i64, k: i64) -> Tensor<'static> {
    let values = weights((n * k) as usize, 3);
    let desc = Desc::new(Format::NF4, &[n, k]).scales(Format::F32, 64);
    let mut row = Tensor::new(context, &desc).unwrap();
    let dense = Tensor::borrow(context, &[n, k], &values).unwrap();
    context.quantize(&dense, &mut row).unwrap();
    let mut packed = Tensor::new(context, &desc.layout(Layout::PACKED)).unwrap();
    context.repack(&row, &mut packed).unwrap();
    packed
}

#[test]
fn a_list_gives_what_each_gives() {
    let context = one_thread();
    let (w, v) = (packed(&context, 64, 128), packed(&context, 24, 64));
    let (x, bias) = (weights(3 * 128, 5), weights(24, 7));
    let (mut y, mut z, mut expected) = ([0f32; 3 * 64], [0f32; 3 * 24], [0f32; 3 * 24]);
    let x = Tensor::borrow(&context, &[3, 128], &x).unwrap();
    let bias = Tensor::borrow(&context, &[24], &bias).unwrap();
    {
        let mut ty = Tensor::borrow_mut(&context, &[3, 64], &mut y).unwrap();
        let mut tz = Tensor::borrow_mut(&context, &[3, 24], &mut z).unwrap();
        let first = Product::new(&x, &w, &mut ty);
        let second = Product::after(&first, &v, &mut tz).with_bias(&bias);
        context.multiply(&[first, second]).unwrap();
    }
    let middle = Tensor::borrow(&context, &[3, 64], &y).unwrap();
    let mut out = Tensor::borrow_mut(&context, &[3, 24], &mut expected).unwrap();
    context.linear(&middle, &v, Some(&bias), &mut out).unwrap();
    drop(out);
    assert_eq!(z, expected);
    assert!(z.iter().any(|&value| value != 0.0));
    context.multiply(&[]).unwrap();
}

#[test]
fn a_wrong_product_is_named_and_none_runs() {
    let context = one_thread();
    let (w, v) = (packed(&context, 64, 128), packed(&context, 24, 64));
    let x = weights(3 * 128, 5);
    let (mut y, mut z) = ([7f32; 3 * 64], [7f32; 3 * 24]);
    let x = Tensor::borrow(&context, &[3, 128], &x).unwrap();
    let mut ty = Tensor::borrow_mut(&context, &[3, 64], &mut y).unwrap();
    let mut tz = Tensor::borrow_mut(&context, &[3, 24], &mut z).unwrap();
    let list = [Product::new(&x, &w, &mut ty), Product::new(&x, &v, &mut tz)];
    let error = context.multiply(&list).unwrap_err();
    assert_eq!(error.status(), Status::SHAPE);
    assert_eq!(error.message(), "products[1]: w: k is 64, x has k 128");
    assert_eq!(context.explain(&list[1]).unwrap_err().message(), "w: k is 64, x has k 128");
    drop((ty, tz));
    assert_eq!((y[0], z[0]), (7.0, 7.0));
}

#[test]
fn plans_say_what_runs() {
    let exact = one_thread();
    let flags = ContextOptions::INT8_ACTIVATIONS;
    let mode = ContextOptions { thread_count: 1, flags, ..Default::default() };
    let mode = Context::with_options(&mode).unwrap();
    for (m, classes) in [(1, [(1, 2), (1, i32::MAX)]), (3, [(3, i32::MAX), (1, i32::MAX)])] {
        for (context, class) in [&exact, &mode].into_iter().zip(classes) {
            let w = packed(context, 64, 128);
            let x = Tensor::new(context, &Desc::new(Format::F32, &[m, 128])).unwrap();
            let mut y = Tensor::new(context, &Desc::new(Format::F32, &[m, 64])).unwrap();
            let list = [Product::new(&x, &w, &mut y)];
            let bytes = context.multiply_workspace(&list).unwrap();
            match context.explain(&list[0]) {
                Ok(plan) => {
                    assert!(!plan.kernel.is_empty());
                    assert_eq!((plan.batch_first, plan.batch_last), class);
                    assert_eq!((plan.workspace_bytes, bytes), (0, 0));
                }
                Err(error) => {
                    assert_eq!(error.status(), Status::WORKSPACE);
                    assert!(bytes > 0);
                }
            }
        }
    }
}
