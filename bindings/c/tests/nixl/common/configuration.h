// Stands in for the header of this name of NIXL: settings come from the environment alone, and not from a
// file in TOML.
#pragma once

#include <cstdlib>
#include <string>

namespace nixl::config {

inline std::string getValueDefaulted(const std::string &name, const std::string &fallback) {
    const char *value = std::getenv(name.c_str());
    return value ? value : fallback;
}

} // namespace nixl::config
