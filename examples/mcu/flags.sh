# shellcheck shell=sh disable=SC2034,SC2086
# Sourced by examples/mcu/run and tools/mcu_size, which set $root.
# Speed for the step, size for the rest. GCC 12's first scheduler spills the step's registers.
mcu_common="-std=c++20 -Wall -Wextra -Werror -mthumb -ffreestanding -fno-exceptions -fno-rtti
    -fno-use-cxa-atexit -fno-threadsafe-statics -ffunction-sections -fdata-sections
    -fno-tree-loop-distribute-patterns -I$root/include -I$root/src -I$root/examples/mcu"
mcu_step="-O2 -fno-schedule-insns -fno-tree-vectorize -fno-tree-loop-im"
mcu_rest="-Os"
mcu_m4="-mcpu=cortex-m4"
mcu_m55="-mcpu=cortex-m55+nofp -mfloat-abi=hard"  # MVE on integers

mcu_objects() { # folder, CPU flags, more flags: step.o and load.o, the loader
    case ${3-} in
        *QK_GRU_8_BIT*) mcu_sources=small_image ;;
        *) mcu_sources="check derive image" ;;
    esac
    arm-none-eabi-g++ $mcu_common $mcu_step $2 ${3-} -c "$root/examples/mcu/step.cpp" -o "$1/step.o"
    mcu_parts=
    for mcu_source in $mcu_sources; do
        arm-none-eabi-g++ $mcu_common $mcu_rest $2 ${3-} -c "$root/src/gru/$mcu_source.cpp" \
            -o "$1/$mcu_source.o"
        mcu_parts="$mcu_parts $1/$mcu_source.o"
    done
    arm-none-eabi-ld -r $mcu_parts -o "$1/load.o"
}

# Bytes of code and constants of the step alone, then of the step and the loader that checks a file,
# both with what they need of libgcc and without anything else.
mcu_sizes() { # folder, CPU flags
    mcu_load=$(arm-none-eabi-nm "$1/load.o" | awk '$2 == "T" && /image_read/ { print $3 }')
    mcu_run=$(arm-none-eabi-nm "$1/step.o" | awk '$2 == "T" && /step/ { print $3 }')
    for mcu_roots in "-e $mcu_run" "-e $mcu_run -u $mcu_load"; do
        arm-none-eabi-g++ -mthumb $2 $mcu_roots "$1/step.o" "$1/load.o" -nostdlib \
            -Wl,--gc-sections -Wl,--unresolved-symbols=ignore-all -lgcc \
            -o "$1/size.elf" 2>/dev/null
        arm-none-eabi-size "$1/size.elf" | awk 'NR == 2 { print $1 }'
    done
}
