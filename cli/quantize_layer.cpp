#include "quantize_layer.hpp"

#include <algorithm>

#include "scan.hpp"

namespace {

struct Job {
    const Context &context;
    const qk_layer &layer;
    const qk_tensor_desc &desc;
    qk_writer *writer;
    int threads;
    LayerError *error;
};

bool is_nested(const qk_tensor_desc &desc) { return desc.scale_format == QK_FORMAT_LUT8; }

qk_tensor_desc some_rows(const qk_tensor_desc &desc, int64_t rows) {
    qk_tensor_desc some = desc;
    some.shape[0] = rows;
    return some;
}

std::vector<char> download(const Job &job, const qk_tensor *tensor, qk_plane plane) {
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    check(qk_tensor_describe(tensor, &desc), job.layer.name, nullptr);
    size_t bytes = 0;
    check(qk_tensor_plane_bytes(&desc, plane, &bytes), job.layer.name, nullptr);
    std::vector<char> content(bytes);
    check(qk_tensor_download(job.context.get(), tensor, plane, content.data(), bytes),
          job.layer.name, qk_context_error(job.context.get()));
    return content;
}

[[noreturn]] void fail_overflow(const Job &job) {
    throw Failure(kFailed, std::string(job.layer.name) +
                               ": weights so large that their scales overflow to infinity");
}

// Finite weights can still be too large for the type of the scales, or for their mean. Scales
// between codes are seen when the piece is compared; those of one byte hold any finite weights.
void refuse_overflow(const Job &job, const qk_tensor *quantized, const qk_tensor_desc &desc) {
    const bool nested = is_nested(desc);
    const bool one_byte =
        desc.scale_format == QK_FORMAT_E8M0 || desc.scale_format == QK_FORMAT_E4M3;
    if (is_records(desc) || one_byte) return;
    const std::vector<char> scales =
        download(job, quantized, nested ? QK_PLANE_SCALE_BIAS : QK_PLANE_SCALE);
    const qk_dtype dtype = nested ? QK_DTYPE_F32 : dtype_of(desc.scale_format);
    const int64_t bytes = static_cast<int64_t>(scales.size());
    if (count_values(dtype, scales.data(), bytes).infinite > 0) fail_overflow(job);
}

Tensor quantize(const Job &job, const qk_tensor *dense, const qk_tensor_desc &desc) {
    qk_tensor *created = nullptr;
    check(qk_tensor_create(job.context.get(), &desc, &created), job.layer.name,
          qk_context_error(job.context.get()));
    Tensor quantized(created);
    if (is_nested(desc)) {
        float table[256];
        check(qk_dynamic_table(table), "table", nullptr);
        check(
            qk_tensor_upload(job.context.get(), created, QK_PLANE_SCALE_CODE, table, sizeof table),
            job.layer.name, qk_context_error(job.context.get()));
    }
    check(qk_quantize(job.context.get(), dense, created), job.layer.name,
          qk_context_error(job.context.get()));
    refuse_overflow(job, created, desc);
    return quantized;
}

// The same weights in the layout, and with the zeros, that the description stores.
Tensor repack(const Job &job, const qk_tensor *quantized, int64_t rows) {
    const qk_tensor_desc desc = some_rows(job.desc, rows);
    qk_tensor *created = nullptr;
    check(qk_tensor_create(job.context.get(), &desc, &created), job.layer.name,
          qk_context_error(job.context.get()));
    Tensor stored(created);
    check(qk_repack(job.context.get(), quantized, created), job.layer.name,
          qk_context_error(job.context.get()));
    return stored;
}

void write(const Job &job, const qk_tensor *piece) {
    qk_io_message message = {};
    check(qk_writer_write_layer(job.writer, job.context.get(), job.layer.name, piece, &message), "",
          message.text);
}

// Takes a piece, as it was written, into the layer's error.
void compare_piece(const Job &job, LayerRows *dense, const RowBlock &block, Tensor written) {
    const char *originals = static_cast<const char *>(block.planes[QK_PLANE_DATA]);
    const int64_t row_bytes = dense->columns() * element_bytes(block.desc.format);
    LayerRows decoded(job.context, job.layer.name, std::move(written));
    for (int64_t at = 0; at < decoded.rows();) {
        const RowBlock some = decoded.block(at);
        compare({block.desc.format, originals + at * row_bytes}, decoded.values(some), some.count,
                dense->columns(), job.threads, job.error);
        at += some.count;
    }
    const bool finite = job.error->decoded_nan + job.error->decoded_infinite == 0;
    if (is_records(job.desc) && !finite) fail_overflow(job);
}

// The dense pieces of the layer, in order.
template <class Use>
void for_each_piece(const Job &job, LayerRows *rows, Progress *progress, Use use) {
    for (int64_t at = 0; at < rows->rows();) {
        const RowBlock block = rows->block(at);
        const Tensor dense = rows->tensor(block);
        use(block, dense.get());
        progress->advance(job.layer.bytes * block.count / rows->rows(), job.layer.name);
        at += block.count;
    }
}

// All scales of the layer as one tensor: each is the only weight of its row, so that its row's
// scale is the scale itself, and nested scales come out as for the whole layer.
Tensor nest(const Job &job, std::vector<float> *scales) {
    const int64_t count = static_cast<int64_t>(scales->size());
    qk_tensor_desc desc = job.desc;
    desc.shape[0] = count;
    desc.shape[1] = 1;
    desc.group_size = QK_GROUP_ROW;
    desc.grouping = QK_GROUPING_ALONG_K;
    const Tensor dense = wrap_dense(job.context, QK_FORMAT_F32, count, 1, scales->data());
    return quantize(job, dense.get(), desc);
}

Tensor wrap(const Job &job, const qk_tensor_desc &desc, void *const *planes) {
    qk_tensor *wrapped = nullptr;
    check(qk_tensor_wrap(job.context.get(), &desc, planes, QK_PLANE_COUNT, &wrapped),
          job.layer.name, qk_context_error(job.context.get()));
    return Tensor(wrapped);
}

// The scales of all pieces are quantized together, so the pieces are quantized twice.
void quantize_nested(const Job &job, LayerRows *rows, Progress *progress) {
    qk_tensor_desc plain = job.desc;
    plain.scale_format = QK_FORMAT_F32;
    std::vector<float> scales;
    for_each_piece(job, rows, progress, [&](const RowBlock &block, const qk_tensor *dense) {
        const Tensor piece = quantize(job, dense, some_rows(plain, block.count));
        const std::vector<char> bytes = download(job, piece.get(), QK_PLANE_SCALE);
        const float *values = reinterpret_cast<const float *>(bytes.data());
        scales.insert(scales.end(), values, values + bytes.size() / sizeof(float));
    });
    const Tensor nested = nest(job, &scales);
    std::vector<char> codes = download(job, nested.get(), QK_PLANE_SCALE);
    std::vector<char> seconds = download(job, nested.get(), QK_PLANE_SCALE2);
    std::vector<char> table = download(job, nested.get(), QK_PLANE_SCALE_CODE);
    std::vector<char> bias = download(job, nested.get(), QK_PLANE_SCALE_BIAS);
    std::vector<char> data;
    for_each_piece(job, rows, progress, [&](const RowBlock &block, const qk_tensor *dense) {
        const int64_t weights = block.count * rows->columns();
        const size_t group =
            static_cast<size_t>(block.begin * rows->columns() / job.desc.group_size);
        data.resize(static_cast<size_t>(weights + 1) / 2);
        void *planes[QK_PLANE_COUNT] = {data.data(), &scales[group]};
        const Tensor piece = wrap(job, some_rows(plain, block.count), planes);
        check(qk_quantize(job.context.get(), dense, piece.get()), job.layer.name,
              qk_context_error(job.context.get()));
        void *shared[QK_PLANE_COUNT] = {data.data(),  &codes[group],
                                        nullptr,      &seconds[group / 256 * sizeof(float)],
                                        table.data(), bias.data()};
        Tensor whole = wrap(job, some_rows(job.desc, block.count), shared);
        write(job, whole.get());
        compare_piece(job, rows, block, std::move(whole));
    });
}

}  // namespace

// A GLOBAL number comes from all weights, words along the columns hold rows that are far apart.
int64_t rows_between_pieces(const qk_tensor_desc &stored) {
    const bool whole = is_by_columns(stored) || (stored.flags & QK_TENSOR_GLOBAL) != 0;
    return whole ? stored.shape[0] : rows_between_cuts(stored);
}

void quantize_layer(const Context &context, const qk_layer &layer, Tensor weight, const Stored &as,
                    qk_writer *writer, Progress *progress, LayerError *error,
                    int64_t piece_weights) {
    const qk_tensor_desc &desc = as.stored;
    const Job job = {context, layer, desc, writer, thread_count(context), error};
    const int64_t n = desc.shape[0], k = desc.shape[1];
    const int64_t cut = rows_between_pieces(desc);
    const int64_t fit = piece_weights / k / cut * cut;
    LayerRows rows(context, layer.name, std::move(weight), std::max(fit, cut) * k);
    const bool one_piece = std::max(fit, cut) >= n;
    if (is_nested(desc) && !one_piece) {
        quantize_nested(job, &rows, progress);
        return;
    }
    for_each_piece(job, &rows, progress, [&](const RowBlock &block, const qk_tensor *dense) {
        Tensor piece = quantize(job, dense, some_rows(as.quantized, block.count));
        const bool as_is = as.quantized.layout == desc.layout && as.quantized.flags == desc.flags;
        if (!as_is) piece = repack(job, piece.get(), block.count);
        write(job, piece.get());
        compare_piece(job, &rows, block, std::move(piece));
    });
}
