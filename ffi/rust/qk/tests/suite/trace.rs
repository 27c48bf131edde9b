//! What a context's trace is told, and how long it is kept.
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::weights;
use qk::{Context, ContextOptions, Desc, Format, Layout, Product, Status, Tensor, Trace};

fn options() -> ContextOptions {
    ContextOptions { thread_count: 1, ..Default::default() }
}

/// y of 3 x 128 by 8 x 128; every value of it is 128.
fn multiply(context: &Context) -> [f32; 24] {
    let (ones, mut y) = ([1f32; 8 * 128], [0f32; 24]);
    let x = Tensor::borrow(context, &[3, 128], &ones[..3 * 128]).unwrap();
    let w = Tensor::borrow(context, &[8, 128], &ones).unwrap();
    let mut out = Tensor::borrow_mut(context, &[3, 8], &mut y).unwrap();
    context.linear(&x, &w, None, &mut out).unwrap();
    drop(out);
    y
}

#[test]
fn each_kernel_is_told_once() {
    let told = Arc::new(Mutex::new(Vec::<Trace>::new()));
    let list = told.clone();
    let tell = move |call| list.lock().unwrap().push(call);
    let context = Context::with_trace(&options(), tell).unwrap();
    let (values, rows) = (weights(64 * 128, 3), weights(3 * 128, 5));
    let dense = Tensor::borrow(&context, &[64, 128], &values).unwrap();
    let desc = Desc::new(Format::NF4, &[64, 128]).scales(Format::F32, 64);
    let mut row = Tensor::new(&context, &desc).unwrap();
    context.quantize(&dense, &mut row).unwrap();
    let mut w = Tensor::new(&context, &desc.layout(Layout::PACKED)).unwrap();
    context.repack(&row, &mut w).unwrap();
    let x = Tensor::borrow(&context, &[3, 128], &rows).unwrap();
    let mut y = Tensor::new(&context, &Desc::new(Format::F32, &[3, 64])).unwrap();
    context.linear(&x, &w, None, &mut y).unwrap();
    let plan = context.explain(&Product::new(&x, &w, &mut y)).unwrap();
    assert!(context.quantize(&x, &mut row).is_err()); // no kernel runs

    let told = told.lock().unwrap();
    let calls: Vec<_> = told.iter().map(|call| (call.operation, &call.shape[..])).collect();
    let expected: [(&str, &[i64]); 3] =
        [("quantize", &[64, 128]), ("repack", &[64, 128]), ("multiply", &[3, 64, 128])];
    assert_eq!(calls, expected);
    assert_eq!(told[2].kernel, plan.kernel);
    for call in told.iter() {
        assert!(!call.kernel.is_empty() && call.seconds >= 0.0, "{call:?}");
        assert_eq!(call.status, Status(0));
    }
}

#[test]
fn a_trace_moves_with_its_context_and_goes_with_it() {
    let calls = Arc::new(AtomicUsize::new(0));
    let count = calls.clone();
    let context = Context::with_trace(&options(), move |_| {
        count.fetch_add(1, Ordering::Relaxed);
    });
    let context = context.unwrap();
    multiply(&context);
    let context = std::thread::spawn(move || {
        multiply(&context);
        context
    });
    let context = context.join().unwrap();
    assert_eq!((calls.load(Ordering::Relaxed), Arc::strong_count(&calls)), (2, 2));
    drop(context);
    assert_eq!(Arc::strong_count(&calls), 1);
    let (count, wrong) = (calls.clone(), ContextOptions { device_index: 99, ..options() });
    let refused = Context::with_trace(&wrong, move |_| {
        count.fetch_add(1, Ordering::Relaxed);
    });
    assert!(refused.is_err());
    assert_eq!(Arc::strong_count(&calls), 1);
}

#[test]
fn a_trace_that_panics_fails_alone() {
    let mut calls = 0;
    let context = Context::with_trace(&options(), move |_| {
        calls += 1;
        panic!("call {calls} of a trace that is meant to fail");
    });
    let context = context.unwrap();
    for _ in 0..2 {
        assert_eq!(multiply(&context), [128.0; 24]);
    }
}

thread_local! {
    static OWN: RefCell<Option<Rc<Context>>> = RefCell::new(None);
}

#[test]
fn a_trace_cannot_use_its_own_context() {
    let reached = Arc::new(AtomicUsize::new(0));
    let count = reached.clone();
    let context = Context::with_trace(&options(), move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        let own = OWN.with(|own| own.borrow().clone()).unwrap();
        let _ = own.info(); // panics
        count.fetch_add(100, Ordering::Relaxed);
    });
    let context = Rc::new(context.unwrap());
    OWN.with(|own| *own.borrow_mut() = Some(context.clone()));
    assert_eq!(multiply(&context), [128.0; 24]);
    assert_eq!(reached.load(Ordering::Relaxed), 1);
    assert_eq!(context.info().unwrap().thread_count, 1);
}
