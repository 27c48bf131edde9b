"""bitsandbytes 0.50 on an x86-64 CPU, in numpy: which bytes it stores, which values they are.

Written from its documented formats and from what it answers; README.md states the rules.
"""
import numpy as np

f32 = np.float32
SMALLEST_ABSMAX = f32(1e-38)
NF4 = np.array([-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
                -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
                0.07958029955625534, 0.16093020141124725, 0.24611230194568634,
                0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
                0.7229568362236023, 1.0], f32)
FP4_HALF = np.array([0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0], f32) / f32(12)
FP4 = np.concatenate([FP4_HALF, f32(0) - FP4_HALF])  # code 8 is +0 in the table of the files
TABLES = {"nf4": NF4, "fp4": FP4}


def dynamic_map():
    values = [0.0, 1.0]
    for i in range(7):
        m = 1 << i
        step = f32((f32(1) - f32(0.1)) / f32(m))
        # float64 holds these products exactly, so one rounding to f32 is a fused multiply-add.
        edge = [f32(float(step) * j + float(f32(0.1))) if j < (m + 1) / 2
                else f32(1.0 - float(step) * (m - j)) for j in range(m + 1)]
        edge = np.array(edge, f32)
        middle = ((edge[:-1] + edge[1:]) / f32(2)).astype(f32)
        scaled = (f32(10.0 ** (i - 6)) * middle).astype(f32)
        values += scaled.tolist() + (-scaled).tolist()
    return np.array(sorted(values), f32)


def blocks_of(x, blocksize):
    for start in range(0, x.size, blocksize):
        yield slice(start, min(start + blocksize, x.size))


def scaled_blocks_4bit(x, blocksize):
    """x / absmax, and absmax: full blocks multiply by the reciprocal, the partial one divides."""
    scaled, absmax = np.empty_like(x), []
    with np.errstate(over="ignore", invalid="ignore"):
        for block in blocks_of(x, blocksize):
            values = x[block]
            largest = np.abs(values).max()
            if values.size == blocksize:
                absmax.append(largest)
                values = values * (f32(1) / max(largest, SMALLEST_ABSMAX))
            else:
                absmax.append(max(largest, SMALLEST_ABSMAX))
                values = values / absmax[-1]
            scaled[block] = np.clip(values, f32(-1), f32(1))
    return scaled, np.array(absmax, f32)


def quantize_4bit(x, quant_type, blocksize):
    """Packed bytes and absmax."""
    table = TABLES[quant_type]
    order = np.argsort(table, kind="stable")
    thresholds = ((table[order[:-1]] + table[order[1:]]) / f32(2)).astype(f32)
    scaled, absmax = scaled_blocks_4bit(x, blocksize)
    if scaled.size % 2:
        scaled = np.append(scaled, f32(0))  # so the padding nibble is the code of 0, not 0
    # A tie belongs to the lower value: count the thresholds strictly below.
    codes = order[np.searchsorted(thresholds, scaled, side="left")].astype(np.uint8)
    return codes[0::2] << 4 | codes[1::2], absmax


def quantize_8bit(x, code, blocksize):
    """Codes and absmax: nearest to a point of a grid of 65536, not to the value itself."""
    middle = (f32(0.5) * (code[:-1] + code[1:])).astype(f32)
    grid = (f32(-1) + (f32(2) * np.arange(65536, dtype=f32)) / f32(65535)).astype(f32)
    lookup = np.searchsorted(middle, grid, side="left").astype(np.uint8)
    out, absmax = np.zeros(x.size, np.uint8), []
    for block in blocks_of(x, blocksize):
        largest = np.abs(x[block]).max()
        absmax.append(largest)
        if largest == 0:
            continue
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            scaled = np.clip(x[block] * (f32(1) / largest), f32(-1), f32(1)).astype(f32)
            index = (scaled + f32(1)) * f32(0.5) * f32(65535) + f32(0.5)
        index[np.isnan(index)] = 0  # 0 * inf, where 1 / absmax overflowed
        out[block] = lookup[index.astype(np.int64)]
    return out, np.array(absmax, f32)


def cascade_sum(rows):
    """torch's order of summation over the first axis."""
    size = rows.shape[0]
    power = max(4, (0 if size <= 1 else (size - 1).bit_length()) // 4)
    step = 1 << power
    level = np.zeros((4,) + rows.shape[1:], f32)
    i = 0
    while i + step <= size:
        for _ in range(step):
            level[0] += rows[i]
            i += 1
        for j in range(1, 4):
            level[j] += level[j - 1]
            level[j - 1] = 0
            if i & ((step - 1) << (j * power)):
                break
    for row in rows[i:]:
        level[0] += row
    for j in range(1, 4):
        level[0] += level[j]
    return level[0]


def torch_sum(x):
    """torch.sum of a contiguous f32 vector on one x86-64 thread: 4 accumulators of 8 lanes."""
    lanes = 8 if x.size >= 8 else 1
    vectors = x.size // lanes
    rows = x[:vectors * lanes].reshape(vectors, lanes)
    quads = vectors // 4
    with np.errstate(over="ignore"):
        return sum_rows(x, rows, quads, lanes)


def sum_rows(x, rows, quads, lanes):
    partial = cascade_sum(rows[:quads * 4].reshape(quads, 4, lanes))
    for row in rows[quads * 4:]:
        partial[0] += row
    for k in range(1, 4):
        partial[0] += partial[k]
    if lanes == 1:
        return partial[0][0]
    total = f32(0)
    for value in x[rows.size:]:
        total += value
    for value in partial[0]:
        total += value
    return total


def nest(absmax, code):
    """Double quantization of absmax: codes, second absmax, offset."""
    offset = f32(torch_sum(absmax) / f32(absmax.size))
    codes, second = quantize_8bit((absmax - offset).astype(f32), code, 256)
    return codes, second, offset


def dequantize(codes, table, absmax, blocksize):
    """The fp32 product, before the one rounding to the output type."""
    scale = np.repeat(absmax, blocksize)[:codes.size]
    return (table[codes] * scale).astype(f32)


def unnest(codes, table, absmax, offset, blocksize=256):
    return (dequantize(codes, table, absmax, blocksize) + f32(offset)).astype(f32)


def unpack(packed):
    packed = packed.reshape(-1).view(np.uint8)
    return np.stack([packed >> 4, packed & 15], axis=1).reshape(-1)
