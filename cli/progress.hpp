// A progress bar on stderr, shown only on a terminal; and what Ctrl-C does.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>

#include "common.hpp"

class Progress {
  public:
    Progress(const CommonOptions &options, int64_t total);
    ~Progress();  // clears the bar
    Progress(const Progress &) = delete;
    Progress &operator=(const Progress &) = delete;
    // Counts `amount` more as done. Throws Interrupted after a signal.
    void advance(int64_t amount, const std::string &doing);

  private:
    std::string bar(const std::string &doing) const;
    void show(const std::string &line);
    bool visible_;
    int64_t total_, done_ = 0;
    size_t shown_ = 0;  // columns on the terminal
    std::chrono::steady_clock::time_point next_draw_;
};

// From now on SIGINT, SIGTERM and SIGHUP (Windows: SIGBREAK) wait for the next Progress::advance,
// so that half-written files are removed on the way out.
void catch_signals();
// Ends the process by the signal that came, as if it had never been caught.
[[noreturn]] void die_of_signal();
