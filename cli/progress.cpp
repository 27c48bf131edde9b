#include "progress.hpp"

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include <sys/ioctl.h>
#include <unistd.h>

namespace {

volatile std::sig_atomic_t caught_signal = 0;

void remember(int signal) { caught_signal = signal; }

int terminal_columns() {
    winsize size = {};
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

void catch_signals() {
    // A write past the file size limit then fails like one to a full disk, and is cleaned up.
    std::signal(SIGXFSZ, SIG_IGN);
    for (int signal : {SIGINT, SIGTERM, SIGHUP}) {
        if (std::signal(signal, remember) == SIG_IGN) std::signal(signal, SIG_IGN);
    }
}

void die_of_signal() {
    std::signal(caught_signal, SIG_DFL);
    std::raise(caught_signal);
    std::abort();
}

Progress::Progress(const CommonOptions &options, int64_t total)
    : visible_(!options.quiet && !options.json && isatty(STDERR_FILENO) != 0),
      total_(total > 0 ? total : 1),
      next_draw_(std::chrono::steady_clock::now() + std::chrono::milliseconds(300)) {}

Progress::~Progress() {
    if (visible_) std::fputs("\r\033[K", stderr);
}

void Progress::advance(int64_t amount, const std::string &doing) {
    if (caught_signal != 0) throw Interrupted();
    done_ += amount;
    const auto now = std::chrono::steady_clock::now();
    if (!visible_ || now < next_draw_) return;
    next_draw_ = now + std::chrono::milliseconds(100);
    draw(doing);
}

void Progress::draw(const std::string &doing) const {
    constexpr int kBar = 30;
    const double fraction = done_ < total_ ? double(done_) / double(total_) : 1.0;
    std::string line = "[";
    for (int i = 0; i < kBar; ++i) line += i < int(fraction * kBar) ? '#' : '.';
    char percent[16];
    std::snprintf(percent, sizeof percent, "] %3d%% ", int(fraction * 100));
    line += percent + printable(doing);
    const size_t columns = static_cast<size_t>(terminal_columns());
    if (line.size() >= columns) line.resize(columns - 1);
    std::fprintf(stderr, "\r%s\033[K", line.c_str());
    std::fflush(stderr);
}
