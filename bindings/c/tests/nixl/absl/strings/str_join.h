// Stands in for the part of Abseil that formats the descriptors of NIXL in messages.
#pragma once

#include <sstream>
#include <string>

namespace absl {

struct PairFormatter {
    const char *between;
    explicit PairFormatter(const char *between_) : between(between_) {}
};

template <typename Pairs>
std::string StrJoin(const Pairs &pairs, const char *separator, const PairFormatter &formatter) {
    std::ostringstream joined;
    const char *before = "";
    for (const auto &[first, second] : pairs) {
        joined << before << first << formatter.between << second;
        before = separator;
    }
    return joined.str();
}

} // namespace absl
