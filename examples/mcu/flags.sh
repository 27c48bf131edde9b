# shellcheck shell=sh disable=SC2034,SC2086
# Sourced by the scripts of examples/mcu and by tools/mcu_size, which set $root. A board: a
# compiler, an emulator and its tick, hundredths of a nanosecond, which is an instruction under
# qemu -icount shift=0.
mcu_boards="m0 m4 m33 m55 rv32"
mcu_common="-std=c++20 -Wall -Wextra -Werror -ffreestanding -fno-exceptions -fno-rtti
    -fno-use-cxa-atexit -fno-threadsafe-statics -ffunction-sections -fdata-sections -Os"

mcu_board() { # board: sets what belongs to it
    mcu_prefix=arm-none-eabi mcu_emulator=qemu-system-arm
    case $1 in
        m0) mcu_flags="-mthumb -mcpu=cortex-m0plus" mcu_machine="-M microbit" mcu_tick=6250 ;;
        m4) mcu_flags="-mthumb -mcpu=cortex-m4" mcu_machine="-M mps2-an386" mcu_tick=4000 ;;
        m33) mcu_flags="-mthumb -mcpu=cortex-m33+nofp" mcu_machine="-M mps2-an505" mcu_tick=5000 ;;
        m55) # MVE on integers
            mcu_flags="-mthumb -mcpu=cortex-m55+nofp -mfloat-abi=hard"
            mcu_machine="-M mps3-an547" mcu_tick=3125 ;;
        rv32)
            mcu_prefix=riscv64-unknown-elf mcu_emulator=qemu-system-riscv32 mcu_tick=100
            mcu_flags="-march=rv32imc -mabi=ilp32 -msave-restore -mcmodel=medany"
            mcu_machine="-M virt -bios none" ;;
    esac
}

mcu_has_board() {
    mcu_board "$1"
    command -v $mcu_prefix-g++ >/dev/null && command -v $mcu_emulator >/dev/null
}

mcu_compile() { # folder with qk_gru.cpp, object, more flags
    $mcu_prefix-g++ $mcu_common $mcu_flags ${3-} -c "$1/qk_gru.cpp" -o "$2"
}

mcu_link() { # board, program, objects
    mcu_board "$1"
    mcu_script=$1.ld mcu_program=$2
    shift 2
    $mcu_prefix-g++ $mcu_flags "$@" -nostdlib -Wl,--gc-sections -L"$root/examples/mcu" \
        -T"$root/examples/mcu/$mcu_script" -lgcc -o "$mcu_program"
}

mcu_emulate() { # board, program; what it prints goes to program.txt
    mcu_board "$1"
    $mcu_emulator $mcu_machine -nographic -monitor none -serial none -icount shift=0 \
        -semihosting-config enable=on,target=native -kernel "$2" >"$2.txt" 2>&1 </dev/null ||
        { cat "$2.txt"; return 1; }
}

mcu_allow() { # "board build what" of budget.txt, measured
    mcu_most=$(awk -v key="$1" '$1 " " $2 " " $3 == key { print $4 }' \
        "$root/examples/mcu/budget.txt")
    [ -z "$mcu_most" ] || [ "$2" -le "$mcu_most" ] ||
        { echo "$1: $2, allowed are $mcu_most"; exit 1; }
}

# Bytes of code and constants of the step alone, then of the step and the loader that checks a file,
# both with what they need of libgcc and without anything else.
mcu_sizes() { # object
    for mcu_roots in "" "-u qk_gru_cell_load"; do
        $mcu_prefix-g++ $mcu_flags -e qk_gru_cell_step $mcu_roots "$1" -nostdlib \
            -Wl,--gc-sections -Wl,--unresolved-symbols=ignore-all -lgcc -o "$1.elf" 2>/dev/null
        $mcu_prefix-size "$1.elf" | awk 'NR == 2 { print $1 }'
    done
}
