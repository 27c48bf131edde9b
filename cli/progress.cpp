#include "progress.hpp"

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "mapped.hpp"
#include "os.hpp"

namespace {

volatile std::sig_atomic_t caught_signal = 0;

void remember(int signal) { caught_signal = signal; }

// At most this many columns of a printable text.
std::string cut(const std::string &text, size_t columns) {
    size_t end = text.size();
    while (columns_of(text.substr(0, end)) > columns) --end;
    return text.substr(0, end);
}

}  // namespace

void catch_signals() { os::on_interrupt(remember); }

void die_of_signal() {
    std::signal(caught_signal, SIG_DFL);
    std::raise(caught_signal);
    std::abort();
}

Progress::Progress(const CommonOptions &options, int64_t total)
    : visible_(!options.quiet && !options.json && os::terminal_columns() > 0),
      total_(total > 0 ? total : 1),
      next_draw_(std::chrono::steady_clock::now() + std::chrono::milliseconds(300)) {}

Progress::~Progress() { show(""); }

void Progress::advance(int64_t amount, const std::string &doing) {
    if (caught_signal != 0) throw Interrupted();
    check_readable();
    done_ += amount;
    const auto now = std::chrono::steady_clock::now();
    if (!visible_ || now < next_draw_) return;
    next_draw_ = now + std::chrono::milliseconds(100);
    show(bar(doing));
}

std::string Progress::bar(const std::string &doing) const {
    constexpr int kBar = 30;
    const double fraction = done_ < total_ ? double(done_) / double(total_) : 1.0;
    std::string line = "[";
    for (int i = 0; i < kBar; ++i) line += i < int(fraction * kBar) ? '#' : '.';
    char percent[16];
    std::snprintf(percent, sizeof percent, "] %3d%% ", int(fraction * 100));
    line += percent + printable(doing);
    const size_t columns = os::terminal_columns();
    return cut(line, columns > 0 ? columns - 1 : 0);
}

// Blanks, not an escape sequence, wipe what the last line had more.
void Progress::show(const std::string &line) {
    const size_t columns = columns_of(line);
    if (columns == 0 && shown_ == 0) return;
    const std::string blanks(shown_ > columns ? shown_ - columns : 0, ' ');
    std::fprintf(stderr, "\r%s%s%s", line.c_str(), blanks.c_str(), columns == 0 ? "\r" : "");
    std::fflush(stderr);
    shown_ = columns;
}
