#!/bin/sh
# go.sh tests SOURCE_DIR PREFIX WORKING_FOLDER: gofmt, go vet, the packages' tests under the race
# detector, the examples.
set -eu
source=$2 prefix=$3 work=$4
module=$source/ffi/go

for tool in go gcc pkg-config; do
    command -v $tool > /dev/null || {
        echo "skipped: $tool is not installed"
        exit 77
    }
done
cd "$module"
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name qk.pc)")
export PKG_CONFIG_PATH
# Nothing is fetched: the module needs nothing but Go itself.
export GOPROXY=off GOFLAGS="-mod=readonly -p=2" GOTOOLCHAIN=local CGO_ENABLED=1 \
    GOCACHE="$work/go_cache"
# Go's cache does not see that a library has changed: its sum makes other flags.
sum=$(cat "$(dirname "$PKG_CONFIG_PATH")"/libqk*.a | cksum | cut -d ' ' -f 1)
export CGO_CFLAGS="-O2 -g -DQK_LIBRARIES=$sum"
go version
unformatted=$(gofmt -l .)
if [ -n "$unformatted" ]; then
    echo "FAIL: gofmt would change: $unformatted"
    exit 1
fi
# The package of the ABI has no goroutines for the race detector to watch.
go test -vet=all ./internal/...
go test -race -vet=all . ./checkpoint

echo "== examples"
mkdir -p "$work/go_examples"
go build -o "$work/go_examples" ./examples/...
examples=$work/go_examples
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
"$examples/quantize_and_save" "$work/quantized_by_go.safetensors"
(cd "$source/examples/gru" &&
    "$examples/gru_stream" denoiser.safetensors calibration.f32 test.f32)
"$examples/call_overhead" 1000
if ldd "$examples/call_overhead" | grep -E 'libqk|jansson'; then
    echo "FAIL: libqk.a alone was asked for"
    exit 1
fi
