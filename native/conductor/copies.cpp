#include "conductor/copies.h"

#include <dlfcn.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <stdexcept>
#include <thread>

namespace moesaic {
namespace {

// The driver is loaded when it is first used: the library does not depend on it.
class Driver {
 public:
  Driver() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) throw std::runtime_error("the CUDA driver (libcuda.so.1) is not installed");
    find(library, "cuCtxSetCurrent", set_current);
    find(library, "cuMemcpyHtoDAsync_v2", copy);
    find(library, "cuStreamWriteValue32_v2", write_value);
  }

  int (*set_current)(void*);
  int (*copy)(std::uintptr_t, const void*, std::size_t, void*);
  int (*write_value)(void*, std::uintptr_t, std::uint32_t, unsigned);

 private:
  template <class Function>
  static void find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (!function) throw std::runtime_error(std::string("the CUDA driver is too old: it has no ") + name);
  }
};

void require(int result, const char* call) {
  if (result) throw std::runtime_error(std::string(call) + " failed with CUDA error " + std::to_string(result));
}

class CudaCopies : public Copies {
 public:
  CudaCopies(std::uintptr_t context, std::uintptr_t stream, std::uint32_t* flag, std::uintptr_t device_flag)
      : Copies(flag),
        context_(reinterpret_cast<void*>(context)),
        stream_(reinterpret_cast<void*>(stream)),
        device_flag_(device_flag) {}

  void attach() override { require(driver_.set_current(context_), "cuCtxSetCurrent"); }

  void start(std::uintptr_t to, std::uintptr_t from, std::size_t bytes, std::uint32_t ticket) override {
    if (bytes) require(driver_.copy(to, reinterpret_cast<const void*>(from), bytes, stream_), "cuMemcpyHtoDAsync");
    for (const std::uintptr_t flag : {device_flag_, reinterpret_cast<std::uintptr_t>(flag_)})
      if (flag) require(driver_.write_value(stream_, flag, ticket, 0), "cuStreamWriteValue32");
  }

 private:
  Driver driver_;
  void *context_, *stream_;
  std::uintptr_t device_flag_;
};

class HostCopies : public Copies {
 public:
  HostCopies(std::uint32_t* flag, std::int64_t nanoseconds)
      : Copies(flag), duration_(nanoseconds), thread_([this] { run(); }) {}

  ~HostCopies() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }

  void start(std::uintptr_t to, std::uintptr_t from, std::size_t bytes, std::uint32_t ticket) override {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back({to, from, bytes, ticket});
    }
    wake_.notify_one();
  }

 private:
  struct Copy {
    std::uintptr_t to, from;
    std::size_t bytes;
    std::uint32_t ticket;
  };

  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
      const Copy copy = queue_.front();
      queue_.pop_front();
      lock.unlock();
      const auto end = std::chrono::steady_clock::now() + duration_;
      if (copy.bytes)
        std::memcpy(reinterpret_cast<void*>(copy.to), reinterpret_cast<const void*>(copy.from), copy.bytes);
      std::this_thread::sleep_until(end);
      std::atomic_ref(*flag_).store(copy.ticket, std::memory_order_release);
      lock.lock();
    }
  }

  const std::chrono::nanoseconds duration_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Copy> queue_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Copies> cuda_copies(std::uintptr_t context, std::uintptr_t stream, std::uint32_t* flag,
                                    std::uintptr_t device_flag) {
  return std::make_unique<CudaCopies>(context, stream, flag, device_flag);
}

std::unique_ptr<Copies> host_copies(std::uint32_t* flag, std::int64_t nanoseconds) {
  return std::make_unique<HostCopies>(flag, nanoseconds);
}

}  // namespace moesaic
