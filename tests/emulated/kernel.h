// What a kernel's text needs in any language; the rest is in threads.cpp.
extern "C" {
extern unsigned emulated_group[3], emulated_thread[3];
void emulated_barrier(int line);
}

struct emulated_any {
  void *address;
  template <class T>
  operator T *() const {
    return (T *)address;
  }
};

template <class T, int N>
struct emulated_vector;
template <class T>
struct alignas(2 * sizeof(T)) emulated_vector<T, 2> {
  T x, y;
};
template <class T>
struct alignas(4 * sizeof(T)) emulated_vector<T, 4> {
  T x, y, z, w;
};
