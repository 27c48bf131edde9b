use std::path::PathBuf;

use qk::{Context, Plane, Tensor};

pub fn repository(path: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../..")).join(path)
}

pub fn golden(name: &str) -> PathBuf {
    repository("tests/golden/data").join(name)
}

pub fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// A dense tensor's bytes, whatever its format.
pub fn dense_bytes(context: &Context, tensor: &Tensor<'_>) -> Vec<u8> {
    let desc = tensor.desc().unwrap();
    let mut bytes = vec![0xa5u8; desc.plane_bytes(Plane::DATA).unwrap()];
    tensor.download(context, Plane::DATA, &mut bytes).unwrap();
    bytes
}

/// Numbers of a fixed sequence, products of two in [-1, 1): heavy tails as weights have them.
pub fn weights(count: usize, mut seed: u64) -> Vec<f32> {
    let mut next = move || {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((seed >> 40) as f32) / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next() * next()).collect()
}

pub fn one_thread() -> Context {
    let options = qk::ContextOptions { thread_count: 1, ..Default::default() };
    Context::with_options(&options).unwrap()
}
