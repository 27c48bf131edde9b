//! Lists of products, and what one would run as.
use crate::common::{f32s, one_thread, weights};
use qk::{Context, ContextOptions, Desc, Format, Layout, Plane, Product, Status, Tensor};

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
fn no_rows_are_a_result() {
    let context = one_thread();
    let w = packed(&context, 64, 128);
    let x = Tensor::borrow::<f32>(&context, &[0, 128], &[]).unwrap();
    let mut y = Tensor::new(&context, &Desc::new(Format::F32, &[0, 64])).unwrap();
    context.linear(&x, &w, None, &mut y).unwrap();
    {
        let product = Product::new(&x, &w, &mut y);
        let plan = context.explain(&product).unwrap();
        assert_eq!((plan.kernel.as_str(), plan.workspace_bytes), ("nothing", 0));
        context.multiply(&[product]).unwrap();
    }
    y.upload::<f32>(&context, Plane::DATA, &[]).unwrap();
    y.download::<f32>(&context, Plane::DATA, &mut []).unwrap();
    let none = [0u8; 0];
    Tensor::borrow_planes(&context, &Desc::new(Format::F16, &[0, 128]), &[&none[..]]).unwrap();
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

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

#[test]
fn weights_are_dequantized_to_columns_that_are_apart() {
    let context = one_thread();
    let (n, k, width) = (24, 64, 24 + 5);
    let w = packed(&context, n, k);
    let mut rows = [0f32; 24 * 64];
    context.dequantize(&w, &mut Tensor::borrow_mut(&context, &[n, k], &mut rows).unwrap()).unwrap();
    let desc = Desc::new(Format::F32, &[n, k]).column_major().row_stride(width);
    let mut memory = vec![0xa5u8; desc.plane_bytes(Plane::DATA).unwrap()];
    let mut planes = [&mut memory[..]];
    let mut columns = Tensor::borrow_planes_mut(&context, &desc, &mut planes).unwrap();
    context.dequantize(&w, &mut columns).unwrap();
    drop(columns);
    for (c, column) in f32s(&memory).chunks(width as usize).enumerate() {
        for (r, value) in column.iter().enumerate() {
            if r < n as usize {
                assert_eq!(*value, rows[r * k as usize + c]);
            } else {
                assert_eq!(value.to_bits(), 0xa5a5a5a5);
            }
        }
    }
}

#[test]
fn products_are_transposed_add_up_and_take_slices() {
    let context = one_thread();
    let (m, n, k, width) = (3, 24, 64, 64 + 24);
    let w = packed(&context, n, k);
    let array = weights(3 * 88, 5); // x of 64 columns beside x of 24
    let bytes = bytes_of(&array);
    let slice = |first: i64, columns: i64| {
        let desc = Desc::new(Format::F32, &[m, columns]).row_stride(width);
        let size = desc.plane_bytes(Plane::DATA).unwrap();
        let at = first as usize * 4;
        Tensor::borrow_planes(&context, &desc, &[&bytes[at..at + size]]).unwrap()
    };
    let compact = |first: usize, columns: usize| -> Vec<f32> {
        array.chunks(88).flat_map(|row| row[first..first + columns].to_vec()).collect()
    };
    for transposed in [false, true] {
        let (first, columns, out) = if transposed { (64, n, k) } else { (0, k, n) };
        let run = |x: &Tensor<'_>, start: f32, accumulate: bool| {
            let mut y = vec![start; (m * out) as usize];
            let mut ty = Tensor::borrow_mut(&context, &[m, out], &mut y).unwrap();
            let mut product = Product::new(x, &w, &mut ty);
            if transposed {
                product = product.transposed();
            }
            if accumulate {
                product = product.accumulate();
            }
            context.multiply(&[product]).unwrap();
            drop(ty);
            y
        };
        let values = compact(first as usize, columns as usize);
        let x = Tensor::borrow(&context, &[m, columns], &values).unwrap();
        let once = run(&x, 7.0, false);
        assert_eq!(run(&slice(first, columns), 7.0, false), once);
        let added: Vec<f32> = once.iter().map(|value| 2.0 + value).collect();
        assert_eq!(run(&x, 2.0, true), added);

        let mut dense = vec![0f32; (n * k) as usize];
        let mut rows = Tensor::borrow_mut(&context, &[n, k], &mut dense).unwrap();
        context.dequantize(&w, &mut rows).unwrap();
        drop(rows);
        for (i, found) in once.iter().enumerate() {
            let (row, column) = (i / out as usize, i % out as usize);
            let sum: f64 = (0..columns as usize)
                .map(|j| {
                    let at = if transposed { j * 64 + column } else { column * 64 + j };
                    f64::from(values[row * columns as usize + j]) * f64::from(dense[at])
                })
                .sum();
            assert!((f64::from(*found) - sum).abs() < 1e-5, "{found} {sum}");
        }
    }
}
