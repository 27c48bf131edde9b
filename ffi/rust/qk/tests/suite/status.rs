//! Every hundred of the status codes reaches Rust with libqk's own sentence.
use crate::common::{one_thread, weights};
use qk::{
    Context, ContextOptions, Desc, Device, Error, Format, InstructionSets, Kind, Layout, Plane,
    Status, Tensor,
};

fn refused<T>(result: qk::Result<T>, status: Status, sentence: &str) {
    let error: Error = result.err().expect("a refusal");
    assert_eq!(error.status(), status, "{error}");
    assert!(error.message().contains(sentence), "{:?} in {:?}", sentence, error.message());
    assert_eq!(error.to_string(), error.message());
}

#[test]
fn call_errors() {
    let context = one_thread();
    let x = Tensor::new(&context, &Desc::new(Format::F32, &[1, 8])).unwrap();
    let w = Tensor::new(&context, &Desc::new(Format::F32, &[4, 9])).unwrap();
    let mut y = Tensor::new(&context, &Desc::new(Format::F32, &[1, 4])).unwrap();
    refused(context.linear(&x, &w, None, &mut y), Status::SHAPE, "9");
    refused(Tensor::new(&context, &Desc::new(Format(77), &[4])), Status::FORMAT, "77");
    refused(Tensor::new(&context, &Desc::new(Format::F32, &[2; 5])), Status::SHAPE, "rank");
    refused(y.upload(&context, Plane::DATA, &[0f32; 3]), Status::BUFFER_SIZE, "12");
    refused(y.download(&context, Plane(99), &mut [0f32; 4]), Status::ARGUMENT, "99");

    // What has no context says what the status means.
    refused(Desc::new(Format::F32, &[4]).plane_bytes(Plane(99)), Status::ARGUMENT, "");
    // What this crate refuses itself names the argument too.
    let memory = [0f32; 7];
    refused(Tensor::borrow(&context, &[2, 4], &memory), Status::BUFFER_SIZE, "memory: has 7");
    refused(Tensor::borrow(&context, &[-1, 4], &memory), Status::SHAPE, "memory");
    refused(Tensor::borrow(&context, &[1 << 62, 4], &memory), Status::SHAPE, "memory");
    refused(Tensor::borrow(&context, &[7], &[0u8; 7]), Status::FORMAT, "u8");
}

#[test]
fn read_only_is_never_written() {
    let context = one_thread();
    let memory = weights(64, 1);
    let mut borrowed = Tensor::borrow(&context, &[64], &memory).unwrap();
    let copy = memory.clone();
    refused(borrowed.upload(&context, Plane::DATA, &[1f32; 64]), Status::STATE, "read-only");
    let ones = [1f32; 64];
    let from = Tensor::borrow(&context, &[64], &ones).unwrap();
    refused(context.dequantize(&from, &mut borrowed), Status::STATE, "read-only");
    assert_eq!(memory, copy);
}

#[test]
fn planes_are_measured() {
    let context = one_thread();
    let desc = Desc::new(Format::NF4, &[4, 64]).scales(Format::F32, 64);
    let (data, scale) = ([0x77u8; 128], [0u8; 16]);
    Tensor::borrow_planes(&context, &desc, &[&data, &scale]).unwrap();
    let short = Tensor::borrow_planes(&context, &desc, &[&data[1..], &scale]);
    refused(short, Status::BUFFER_SIZE, "planes[0]: has 127 bytes, must have 128");
    refused(Tensor::borrow_planes(&context, &desc, &[&data]), Status::NULL, "");
    let (long_data, long_scale) = ([0x77u8; 256], [0u8; 20]);
    for (data, scale, sentence) in [
        (&long_data[..129], &scale[..], "planes[0]: has 129 bytes, must have 128"),
        (&long_data[..], &scale[..], "planes[0]: has 256 bytes, must have 128"),
        (&data[..], &long_scale[..], "planes[1]: has 20 bytes, must have 16"),
        (&data[..], &scale[..15], "planes[1]: has 15 bytes, must have 16"),
        (&[], &scale[..], "planes[0]: has 0 bytes, must have 128"),
    ] {
        let borrowed = Tensor::borrow_planes(&context, &desc, &[data, scale]);
        refused(borrowed, Status::BUFFER_SIZE, sentence);
        let (mut data, mut scale) = (data.to_vec(), scale.to_vec());
        let written = Tensor::borrow_planes_mut(&context, &desc, &mut [&mut data, &mut scale]);
        refused(written, Status::BUFFER_SIZE, sentence);
    }
    let extra = Tensor::borrow_planes(&context, &desc, &[&data, &scale, &scale]);
    refused(extra, Status::BUFFER_SIZE, "planes[2]: has 16 bytes, must have 0");
    for length in [7, 9, 16] {
        let mut memory = vec![0f32; length];
        let sentence = format!("memory: has {length} elements, must have 8");
        let borrowed = Tensor::borrow(&context, &[2, 4], &memory);
        refused(borrowed, Status::BUFFER_SIZE, &sentence);
        let written = Tensor::borrow_mut(&context, &[2, 4], &mut memory);
        refused(written, Status::BUFFER_SIZE, &sentence);
    }
}

#[test]
fn planes_that_are_borrowed_are_never_written() {
    let context = one_thread();
    let desc = Desc::new(Format::NF4, &[4, 64]).scales(Format::F32, 64);
    let (data, scale) = ([0x77u8; 128], [0u8; 16]);
    let mut borrowed = Tensor::borrow_planes(&context, &desc, &[&data, &scale]).unwrap();
    let written = borrowed.upload(&context, Plane::DATA, &[0u8; 128]);
    refused(written, Status::STATE, "read-only");
    let values = weights(256, 1);
    let dense = Tensor::borrow(&context, &[4, 64], &values).unwrap();
    refused(context.quantize(&dense, &mut borrowed), Status::STATE, "read-only");
    assert_eq!(data, [0x77; 128]);
}

#[test]
fn unsupported_and_absent() {
    let context = one_thread();
    let packed = Desc::new(Format::NF4, &[4, 64]).scales(Format::F32, 64).layout(Layout::PACKED);
    refused(packed.plane_bytes(Plane::DATA), Status::UNSUPPORTED, "");
    let integers = Tensor::new(&context, &Desc::new(Format::I8, &[4, 8])).unwrap();
    let x = Tensor::new(&context, &Desc::new(Format::F32, &[1, 8])).unwrap();
    let mut y = Tensor::new(&context, &Desc::new(Format::F32, &[1, 4])).unwrap();
    let error = context.linear(&x, &integers, None, &mut y).unwrap_err();
    assert!(matches!(error.status().kind(), Kind::Call | Kind::Unsupported), "{error}");
    // One more device than there is.
    let none = ContextOptions {
        device: Device::CUDA,
        device_index: qk::device_count(Device::CUDA).unwrap(),
        ..Default::default()
    };
    let error = Context::with_options(&none).err().unwrap();
    assert_eq!(error.status().kind(), Kind::Unsupported, "{error}");
}

#[test]
fn a_cap_on_instruction_sets_shows() {
    let options = ContextOptions {
        thread_count: 1,
        workspace_bytes: 4096,
        instruction_sets: InstructionSets::GENERIC,
        ..Default::default()
    };
    let info = Context::with_options(&options).unwrap().info().unwrap();
    assert_eq!(
        (info.device, info.device_index, info.thread_count, info.workspace_bytes),
        (Device::CPU, 0, 1, 4096)
    );
    assert_eq!(info.instruction_sets, InstructionSets::GENERIC);
    let all = one_thread().info().unwrap().instruction_sets;
    assert_eq!(all & InstructionSets::GENERIC, InstructionSets::GENERIC);
}

#[test]
fn modes_of_a_context() {
    let modes = |flags| {
        Context::with_options(&ContextOptions { flags, thread_count: 1, ..Default::default() })
    };
    modes(ContextOptions::INT8_ACTIVATIONS).unwrap();
    modes(ContextOptions::BF16_PRODUCTS).unwrap();
    assert_eq!(modes(1 << 31).err().unwrap().status().kind(), Kind::Call);
}

#[test]
fn exhausted() {
    let context = one_thread();
    let huge = Desc::new(Format::F32, &[1 << 46, 1 << 10]); // 2^58 bytes
    refused(Tensor::new(&context, &huge), Status::MEMORY, "memory");
    let still = Tensor::new(&context, &Desc::new(Format::F32, &[4]));
    assert!(still.is_ok(), "a refusal changes nothing");
}

#[test]
#[cfg(feature = "io")]
fn stored_bytes() {
    use qk::io::Checkpoint;
    let missing = Checkpoint::open(crate::common::golden("no_such_folder"));
    refused(missing, Status::FILE, "no_such_folder");
    refused(Checkpoint::open("a\0b"), Status::ARGUMENT, "zero byte");
    refused(Checkpoint::from_memory(b"not a safetensors file", None), Status::CORRUPT, "memory");
    let context = one_thread();
    refused(qk::Gru::load(&context, &[7; 64]), Status::CORRUPT, "");
    let checkpoint = Checkpoint::open(crate::common::golden("dense")).unwrap();
    refused(checkpoint.load(&context, "nothing"), Status::ARGUMENT, "nothing");
    refused(checkpoint.tensor("nothing"), Status::ARGUMENT, "nothing");
    refused(checkpoint.layer("nothing"), Status::ARGUMENT, "nothing");
}

/// 4xx needs a failing GPU and 9xx a bug in libqk, so no call here ends in them; what is made of
/// them is shown all the same.
#[test]
fn every_hundred_has_a_kind() {
    let kinds = [
        (Status::ARGUMENT, Kind::Call),
        (Status::NO_DEVICE, Kind::Unsupported),
        (Status::WORKSPACE, Kind::Exhausted),
        (Status::DEVICE_FAULT, Kind::Device),
        (Status::FILE, Kind::Stored),
        (Status::INTERNAL, Kind::Internal),
        (Status(777), Kind::Unknown),
    ];
    for (status, kind) in kinds {
        assert_eq!(status.kind(), kind);
        assert!(!status.to_string().is_empty());
    }
}
