// SPDX-License-Identifier: Apache-2.0
//
// JSON, written only: an object that grows field by field, in order.
#pragma once

#include <charconv>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace linattn::bench {

class Json {
 public:
  Json& add(std::string_view name, std::string_view value) { return put(name, quoted(value)); }
  Json& add(std::string_view name, const char* value) { return put(name, quoted(value)); }
  Json& add(std::string_view name, const Json& value) { return put(name, value.text()); }
  // Not finite: null.
  Json& add(std::string_view name, std::floating_point auto value) {
    return put(name, std::isfinite(value) ? digits(value) : "null");
  }
  Json& add(std::string_view name, std::integral auto value) {
    return put(name, std::to_string(value));
  }
  Json& add(std::string_view name, const std::vector<std::int64_t>& values) {
    std::string list;
    for (const std::int64_t value : values)
      list += (list.empty() ? "" : ", ") + std::to_string(value);
    return put(name, "[" + list + "]");
  }
  Json& add(std::string_view name, const std::vector<Json>& values) {
    std::string list;
    for (const Json& value : values) list += (list.empty() ? "\n  " : ",\n  ") + value.text();
    return put(name, "[" + list + "\n]");
  }
  std::string text() const { return "{" + fields_ + "}"; }

 private:
  Json& put(std::string_view name, const std::string& value) {
    fields_ += (fields_.empty() ? "" : ", ") + quoted(name) + ": " + value;
    return *this;
  }
  static std::string digits(double value) {
    char buffer[32];
    const auto end =
        std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::general, 6);
    return {buffer, end.ptr};
  }
  static std::string quoted(std::string_view text) {
    std::string all = "\"";
    for (const char c : text) {
      if (c == '"' || c == '\\') all += '\\';
      all += c == '\n' ? ' ' : c;
    }
    return all + "\"";
  }

  std::string fields_;
};

}  // namespace linattn::bench
