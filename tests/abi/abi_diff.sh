#!/bin/sh
# Today's binary interface against each released one, by libabigail.
#     abi_diff.sh --check ALL CXX JANSSON_INCLUDE FOLDER    exit 1 where a release would break
#     abi_diff.sh --pin VERSION CXX JANSSON_INCLUDE FOLDER    writes tests/abi/previous/VERSION
#
# Types are read from debug information, which released builds do not carry: the sources that define
# the public functions are compiled once more with it, and what they call is left undefined, for
# nothing here runs. abi.shared shows that the real libraries have the same symbols.
set -eu
mode=$1
what=$2
cxx=$3
jansson=$4
folder=$5
here=$(cd "$(dirname "$0")" && pwd)
source=$here/../..
mkdir -p "$folder"

# library NAME ROOM FLAGS...: FOLDER/NAME.so from the files of the room that define qk_* functions
library() {
    name=$1
    room=$2
    shift 2
    rm -rf "${folder:?}/$name"
    mkdir "$folder/$name"
    defines='^(qk_status|const char \*|int64_t|void|uint32_t) ?qk_'
    # shellcheck disable=SC2013 # names of ours, without blanks
    for file in $(grep -lE "$defines" "$room"/*.cpp); do
        # shellcheck disable=SC2086 # compilers may carry flags
        ${CCACHE:-} $cxx -std=c++20 -g -O0 -fPIC -fvisibility=hidden -fno-exceptions -fno-rtti \
            '-DQK_API=__attribute__((visibility("default")))' "-I$source/include" "$@" \
            -c "$file" -o "$folder/$name/$(basename "$file").o"
    done
    $cxx -shared "$folder/$name"/*.o -o "$folder/$name.so"
}
library libqk "$source/src/api" "-I$source/src" "-I$source/kernels"
library libqk_io "$source/src/io" "-I$jansson" -D_FILE_OFFSET_BITS=64

# dump NAME: the library's public types and symbols alone
dump() {
    abidw --headers-dir "$source/include" --drop-private-types --no-show-locs --no-corpus-path \
        --no-comp-dir-path --type-id-style hash "$folder/$1.so" > "$folder/$1.abi"
}
dump libqk
dump libqk_io
if [ "$mode" = --pin ]; then
    mkdir -p "$here/previous/$what"
    cp "$source/include/qk.h" "$source/include/qk_io.h" "$here/layout.json" \
        "$folder/libqk.abi" "$folder/libqk_io.abi" "$here/previous/$what/"
    cp "$here/consumer.c" "$source/tests/consumer/project/list.c" \
        "$source/examples/c/gru_stacked.c" "$source/examples/c/quantize_dequantize.c" \
        "$here/previous/$what/"
    exit 0
fi

# abidiff for all but the structs that may grow, which its suppressions cannot tell from changed
# ones; layout.py for those, field by field.
compare() { # RELEASE_FOLDER
    for name in libqk libqk_io; do
        abidiff --no-added-syms --suppressions "$here/abi_diff.suppr" "$1/$name.abi" \
            "$folder/$name.abi" || return 1
    done
    PYTHONDONTWRITEBYTECODE=1 python3 "$here/layout.py" --since "$1/layout.json" "$here/layout.json"
}
for release in "$here"/previous/*/; do
    compare "$release" || { echo "FAIL: what was built against $release would break" && exit 1; }
    echo "compared with $(basename "$release")"
done

# The comparison itself, on planted changes of what was released.
planted() { # WANTED_EXIT NAME FILE SED_SCRIPT
    rm -rf "$folder/planted"
    cp -r "$release" "$folder/planted"
    sed "$4" "$release/$3" > "$folder/planted/$3"
    if cmp -s "$release/$3" "$folder/planted/$3"; then
        echo "FAIL: $2 planted nothing" && exit 1
    fi
    status=0
    compare "$folder/planted" > "$folder/planted.log" 2>&1 || status=1
    [ $status -eq "$1" ] ||
        { cat "$folder/planted.log" && echo "FAIL: $2: $status, not $1" && exit 1; }
}
planted 1 "a removed function" libqk.abi 's/qk_linear\b/qk_linear_of_old/g'
planted 1 "another result" libqk.abi \
    "/decl name='qk_repack'/,/<\/function-decl>/s/return type-id='.*'/return type-id='f0981eeb'/"
planted 1 "another kind of field" libqk.abi \
    "/class-decl name='qk_gru_quant'/,/<\/class-decl>/s/in-bits='32'/in-bits='64'/"
planted 1 "another argument" layout.json 's/"k", "int64_t"\|"m_max", "int64_t"/"m_max", "int32_t"/'
planted 1 "a field that moved" layout.json 's/"rank": {"offset": 28/"rank": {"offset": 24/'
planted 1 "another value" layout.json 's/"QK_FORMAT_NF4": 17/"QK_FORMAT_NF4": 18/'
planted 0 "an appended field" layout.json \
    '/"qk_gru_config"/,/}/{s/"bytes": 32/"bytes": 28/;/"calibration"/s/,$//;/"reserved"/d}'
echo "planted changes: 6 refused, 1 accepted"
