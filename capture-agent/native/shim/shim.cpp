// Calls a C++ function that returns a std::string, and lets no exception out.
//
// Rust cannot do either: a string comes back through a hidden pointer (rdi on x86-64, x8 on aarch64), and an exception
// that meets Rust's frames aborts the process. This file includes no header and defines no string. A class of the right
// size with a destructor is returned in the same way, and the destructor called is the string's own. It is linked with
// no C++ runtime (-nostdlib): what it needs of one is looked up, when it is loaded, in the runtime that PyTorch itself
// has loaded. So only one runtime ever sees the exceptions, whatever compiler built this.

using Size = decltype(sizeof 0);
using Sink = void (*)(void *context, const char *bytes, Size length);

// Only declared: its table of virtual functions and its type information are the runtime's.
namespace std {
class exception {
public:
  virtual ~exception();
  virtual const char *what() const noexcept;
};
} // namespace std

// The destructors of std::string by their symbols: of today's ABI, and of the one before GCC 5.
extern "C" void destroy_new(void *) noexcept __asm__("_ZNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEED1Ev");
extern "C" void destroy_old(void *) noexcept __asm__("_ZNSsD1Ev");

namespace {

// Today's string: where its bytes are, how many, and room for short ones, into which the pointer may point.
struct NewString {
  const char *bytes;
  Size length;
  char room[16];
  ~NewString() { destroy_new(this); }
};

// The old string: where its bytes are; their number stands before them, followed by capacity and owners.
struct OldString {
  const char *bytes;
  ~OldString() { destroy_old(this); }
};

static_assert(sizeof(NewString) == 32 && sizeof(OldString) == 8, "the strings of a 64-bit machine");

Size length_of(const NewString &string) { return string.length; }
Size length_of(const OldString &string) { return reinterpret_cast<const Size *>(string.bytes)[-3]; }

// What an exception says, cut to the room there is; always ends with a zero.
void say(const char *what, char *said, Size room) {
  Size n = 0;
  while (n + 1 < room && what[n] != 0) {
    said[n] = what[n];
    n++;
  }
  said[n] = 0;
}

// 0: the bytes went to `sink`, which must not throw. 1: `function` threw, and `said` tells what.
template <class String> int call(void *function, Sink sink, void *context, char *said, Size room) {
  try {
    const String string = reinterpret_cast<String (*)()>(function)();
    sink(context, string.bytes, length_of(string));
    return 0;
  } catch (const std::exception &error) {
    say(error.what(), said, room);
  } catch (...) {
    say("something that is no std::exception was thrown", said, room);
  }
  return 1;
}

} // namespace

extern "C" int tidegauge_call_new(void *function, Sink sink, void *context, char *said, Size room) {
  return call<NewString>(function, sink, context, said, room);
}

extern "C" int tidegauge_call_old(void *function, Sink sink, void *context, char *said, Size room) {
  return call<OldString>(function, sink, context, said, room);
}
