// Stands in for the header of this name of NIXL, which needs a newer Abseil than distributions have: its
// plugin and the test of it are compiled with these lines on standard error.
#pragma once

#include <cassert>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <sstream>

namespace handfast {

class Line {
    std::ostringstream text;
    bool is_last;

public:
    explicit Line(bool is_last_ = false) : is_last(is_last_) {}

    ~Line() {
        std::cerr << text.str() << std::endl;
        if (is_last) std::abort();
    }

    template <typename Part> Line &operator<<(const Part &part) {
        text << part;
        return *this;
    }
};

} // namespace handfast

#define NIXL_ERROR handfast::Line()
#define NIXL_ERROR_FUNC handfast::Line() << __func__ << ": "
#define NIXL_WARN handfast::Line()
#define NIXL_INFO handfast::Line()
#define NIXL_DEBUG handfast::Line()
#define NIXL_TRACE handfast::Line()
#define NIXL_ASSERT(is_so) \
    if (is_so) {           \
    } else                 \
        handfast::Line(true) << #is_so << " "
#define NIXL_ASSERT_ALWAYS(is_so) NIXL_ASSERT(is_so)
