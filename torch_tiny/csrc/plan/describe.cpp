#include "plan/describe.h"

#include <cstdio>

#include "core/arguments.h"
#include "core/call_key.h"

namespace tiny {
namespace {

// Appends JSON to a string; commas are put by the caller's use of `list`.
class Writer {
 public:
  explicit Writer(std::string& out) : out_(out) {}

  void text(const std::string& value) {
    out_ += '"';
    for (const char c : value) {
      if (c == '"' || c == '\\') {
        out_ += '\\';
      }
      out_ += c < ' ' ? ' ' : c;
    }
    out_ += '"';
  }
  void number(int64_t value) {
    out_ += std::to_string(value);
  }
  void raw(const char* value) {
    out_ += value;
  }
  template <typename Items, typename Body>
  void list(const Items& items, const Body& body) {
    out_ += '[';
    bool first = true;
    for (const auto& item : items) {
      if (!first) {
        out_ += ',';
      }
      first = false;
      body(item);
    }
    out_ += ']';
  }
  void numbers(c10::IntArrayRef values) {
    list(values, [&](int64_t value) { number(value); });
  }

 private:
  std::string& out_;
};

// ["t", slot, offset, dtype, sizes, strides]: a tensor; then whether it is conjugated and whether
// it is negated, where it is either. ["v", value, dtype, sizes, wrapped]: a CPU tensor that came
// with the call. ["d", value, class]: a float, which is known where it has a class. ["z", value]:
// a complex number.
// ["n", value, dtypes]: a list of numbers. ["l", ...]: a list of tensors. ["i", ...], ["b", ...]:
// lists. ["s", text]. ["?"]: anything else.
class CallWriter {
 public:
  CallWriter(std::string& out, const Trace& trace, const Call& call)
      : write_(out), trace_(trace), call_(call), signature_(*call.signature) {}

  void write() {
    write_.raw("{\"op\":");
    write_.text(signature_.op->name);
    write_.raw(",\"args\":[");
    bool first = true;
    for_each_argument(signature_, [&](const Token& token, c10::ArrayRef<Token> items) {
      if (!first) {
        write_.raw(",");
      }
      first = false;
      argument(token, items);
    });
    write_.raw("],\"fresh\":");
    write_.number(call_.first_fresh);
    write_.raw(",\"results\":");
    write_.list(signature_.results, [&](const Result& result) { this->result(result); });
    const auto default_type = static_cast<c10::ScalarType>(signature_.words.back());
    if (default_type != c10::kFloat) {
      write_.raw(",\"default\":\"");
      write_.raw(c10::toString(default_type));
      write_.raw("\"");
    }
    // What it draws depends on what was drawn before; what is not PyTorch's may do anything.
    const auto& op = *signature_.op;
    if (signature_.draws_hidden || op.generator >= 0 || !op.builtin) {
      write_.raw(",\"ordered\":true");
    }
    write_.raw("}");
  }

 private:
  void result(const Result& result) {
    if (!result.defined) {
      return write_.raw("null");
    }
    write_.raw("[\"");
    write_.raw(c10::toString(result.spec.dtype));
    write_.raw("\",");
    write_.numbers(result.spec.sizes);
    write_.raw(",");
    write_.numbers(result.spec.strides);
    write_.raw(",");
    write_.number(result.offset);
    bits(result.spec);
    write_.raw("]");
  }

  void argument(const Token& token, c10::ArrayRef<Token> items) {
    switch (token.kind) {
      case Token::Kind::kTensor:
        return tensor(token.place);
      case Token::Kind::kValue:
        return value(token.place);
      case Token::Kind::kNoTensor:
        return write_.raw("null");
      case Token::Kind::kConstant:
        return constant(token.constant);
      case Token::Kind::kTensorList:
      case Token::Kind::kOptionalTensorList:
        write_.raw("[\"l\"");
        for (const auto& item : items) {
          write_.raw(",");
          argument(item, {});
        }
        return write_.raw("]");
    }
  }

  void tensor(uint32_t place) {
    const auto& spec = signature_.specs[place];
    const auto& use = trace_.uses[call_.first_use + place];
    write_.raw("[\"t\",");
    write_.number(use.slot);
    write_.raw(",");
    write_.number(use.offset);
    write_.raw(",\"");
    write_.raw(c10::toString(spec.dtype));
    write_.raw("\",");
    write_.numbers(spec.sizes);
    write_.raw(",");
    write_.numbers(spec.strides);
    bits(spec);
    write_.raw("]");
  }

  void bits(const Spec& spec) {
    if (spec.conj || spec.neg) {
      write_.raw(spec.conj ? ",1" : ",0");
      write_.raw(spec.neg ? ",1" : ",0");
    }
  }

  void value(uint32_t index) {
    const auto& value = trace_.values[call_.first_value + index];
    if (value.isComplexDouble()) {
      write_.raw("[\"z\",");
      write_.number(index);
      return write_.raw("]");
    }
    if (value.isDouble()) {
      write_.raw("[\"d\",");
      write_.number(index);
      write_.raw(",");
      write_.number(static_cast<int64_t>(float_class(value.toDouble())));
      return write_.raw("]");
    }
    if (value.isList() && !value.isTensorList() && !value.isOptionalTensorList()) {
      write_.raw("[\"n\",");
      write_.number(index);
      write_.raw(",");
      write_.list(value.toList().vec(), [&](const c10::IValue& item) {
        write_.raw(item.isDouble() ? "\"Double\"" : item.isInt() ? "\"Long\"" : "\"?\"");
      });
      return write_.raw("]");
    }
    if (!value.isTensor() || !value.toTensor().defined()) {
      return write_.raw("[\"?\"]");
    }
    const auto& tensor = value.toTensor();
    write_.raw("[\"v\",");
    write_.number(index);
    write_.raw(",\"");
    write_.raw(c10::toString(tensor.scalar_type()));
    write_.raw("\",");
    write_.numbers(tensor.sizes());
    write_.raw(tensor.unsafeGetTensorImpl()->is_wrapped_number() ? ",1]" : ",0]");
  }

  void constant(const c10::IValue& value) {
    if (value.isNone()) {
      write_.raw("null");
    } else if (value.isInt()) {
      write_.number(value.toInt());
    } else if (value.isBool()) {
      write_.raw(value.toBool() ? "true" : "false");
    } else if (value.isString()) {
      write_.raw("[\"s\",");
      write_.text(value.toStringRef());
      write_.raw("]");
    } else if (value.isIntList()) {
      write_.raw("[\"i\",");
      write_.numbers(value.toIntVector());
      write_.raw("]");
    } else if (value.isBoolList()) {
      write_.raw("[\"b\",");
      write_.list(
          value.toBoolList().vec(), [&](bool item) { write_.raw(item ? "true" : "false"); });
      write_.raw("]");
    } else if (value.isDevice()) {
      write_.raw("[\"device\"]");
    } else {
      write_.raw("[\"?\"]");
    }
  }

  Writer write_;
  const Trace& trace_;
  const Call& call_;
  const Signature& signature_;
};

}  // namespace

std::string describe(const Trace& trace, const Plan& plan) {
  std::string out = "{\"slots\":";
  Writer write(out);
  size_t slot = 0;
  write.list(trace.slots, [&](const c10::intrusive_ptr<TinyStorage>& storage) {
    write.raw("[");
    write.number(storage ? static_cast<int64_t>(storage->nbytes()) : 0);
    write.raw(plan.temporary[slot++] ? ",1]" : ",0]");
  });
  write.raw(",\"calls\":");
  write.list(trace.calls, [&](const Call& call) { CallWriter(out, trace, call).write(); });
  write.raw("}");
  return out;
}

}  // namespace tiny
