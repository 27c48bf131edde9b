#!/bin/sh
# rust.sh STEP SOURCE_DIR PREFIX WORKING_FOLDER, where STEP is
#     tests      the crates' tests and examples, with the library found by pkg-config and by QK_DIR
#     bindings   what is committed is what bindgen makes of the headers
#     vendored   the library built from the repository by the crate itself
set -eu
step=$1 source=$2 prefix=$3 work=$4
crates=$source/ffi/rust

need() {
    command -v "$1" > /dev/null || {
        echo "skipped: $1 is not installed"
        exit 77
    }
}

if [ "$step" = bindings ]; then
    need bindgen
    mkdir -p "$work/bindings"
    "$crates/qk-sys/bindgen.sh" "$source/include" "$work/bindings"
    # Token by token: rustfmt may be missing here.
    tokens() { tr -d ' \n' < "$1" | sed 's/,\([])}>]\)/\1/g; s/;/;\n/g'; }
    for file in qk.rs qk_io.rs; do
        tokens "$crates/qk-sys/src/$file" > "$work/bindings/committed"
        tokens "$work/bindings/$file" > "$work/bindings/made"
        diff "$work/bindings/committed" "$work/bindings/made" || {
            echo "FAIL: run ffi/rust/qk-sys/bindgen.sh include ffi/rust/qk-sys/src"
            exit 1
        }
    done
    echo "the committed bindings are bindgen's"
    exit 0
fi

need cargo
need pkg-config
cargo --version
cd "$crates"
export CARGO_NET_OFFLINE=true CARGO_TARGET_DIR="$work/cargo" RUSTFLAGS="-D warnings"
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name qk.pc)")
export PKG_CONFIG_PATH

if [ "$step" = vendored ]; then
    unset QK_DIR
    PKG_CONFIG=false cargo test --locked --target-dir "$work/vendored" -p qk-sys
    exit 0
fi

cargo test --locked --jobs 2
examples=$CARGO_TARGET_DIR/debug/examples
echo "== examples"
for name in load_and_multiply quantize_and_save gru_stream experts; do # alone: how to call it
    said=$("$examples/$name" 2>&1) && code=0 || code=$?
    case "$code $said" in
        "2 usage: $name "*) ;;
        *) echo "FAIL: $name without arguments leaves with $code and says: $said"; exit 1 ;;
    esac
done
"$examples/load_and_multiply" "$source/tests/golden/data/bnb_nf4_nested"
"$examples/load_and_multiply" "$source/tests/golden/data/awq_gemm_g128" \
    model.layers.0.self_attn.q_proj
if "$examples/load_and_multiply" "$source/tests/golden/data/awq_marlin_refused"; then
    echo "FAIL: a layer that qk cannot load was loaded"
    exit 1
fi
mixture=model.layers.0.mlp.experts
"$examples/experts" "$source/tests/golden/data/gpt_oss" $mixture.gate_up_proj $mixture.down_proj
"$examples/quantize_and_save" "$work/quantized_by_rust.safetensors"
(cd "$source/examples/gru" &&
    "$examples/gru_stream" denoiser.safetensors calibration.f32 test.f32)

echo "== QK_DIR, without checkpoint files"
PKG_CONFIG=false QK_DIR=$prefix cargo build --locked --target-dir "$work/cargo_core" -p qk \
    --no-default-features --example call_overhead
"$work/cargo_core/debug/examples/call_overhead" 1000
if ldd "$work/cargo_core/debug/examples/call_overhead" | grep -E 'libqk|jansson'; then
    echo "FAIL: libqk.a alone was asked for"
    exit 1
fi
