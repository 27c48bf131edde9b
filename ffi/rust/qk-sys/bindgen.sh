#!/bin/sh
# bindgen.sh INCLUDE_FOLDER OUT_FOLDER: writes qk.rs and qk_io.rs, made by bindgen 0.60.1 and
# libclang 14 (Debian 12: packages bindgen and libclang1-14). With src as OUT_FOLDER it renews what
# is committed; a test compares.
set -eu
include=$1 out=$2
# This bindgen stumbles over how libclang 16 and later names unnamed enums.
: "${LIBCLANG_PATH:=/usr/lib/llvm-14/lib}"
export LIBCLANG_PATH

# generate HEADER OPTIONS...: unnamed enums become i32, as the header's own codes are. A line a
# statement, then rustfmt where there is one (blanks and last commas are all it changes).
generate() {
    header=$1
    shift
    printf '// Made by bindgen.sh from %s.h; do not edit.\n' "$header"
    bindgen "$include/$header.h" --disable-header-comment --no-layout-tests \
        --no-rustfmt-bindings --no-prepend-enum-name --size_t-is-usize \
        --default-macro-constant-type signed --allowlist-function 'qk_.*' \
        --allowlist-type 'qk_.*' --allowlist-var 'QK_.*' "$@" -- -I"$include" |
        sed 's/ \([;{}]\) /\1\n/g' |
        sed -e 's/: _bindgen_ty_[0-9]* = /: i32 = /' -e '/pub type _bindgen_ty_/d' \
            -e '/pub type __u*int/d' |
        if command -v rustfmt > /dev/null; then rustfmt --config max_width=100; else cat; fi
}
generate qk > "$out/qk.rs"
generate qk_io --blocklist-file '.*/qk\.h' --raw-line 'use crate::qk::*;' > "$out/qk_io.rs"
