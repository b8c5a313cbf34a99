#pragma once

#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#define GLOO_STORE_HAS_STORE_V2 1

namespace gloo {

class IStore {
 public:
  using Bytes = std::vector<char>;
  using Keys = std::vector<std::string>;

  virtual ~IStore() = default;
  virtual void set(const std::string& key, const Bytes& data) = 0;
  virtual Bytes get(const std::string& key) = 0;
  virtual Bytes wait_get(const std::string& key, const std::chrono::milliseconds& timeout) {
    wait({key}, timeout);
    return get(key);
  }
  virtual void wait(const Keys& keys, const std::chrono::milliseconds& timeout) = 0;
  virtual bool has_v2_support() = 0;
  virtual std::vector<Bytes> multi_get(const Keys& keys) = 0;
  virtual void multi_set(const Keys& keys, const std::vector<Bytes>& values) = 0;
  virtual void append(const std::string& key, const Bytes& value) = 0;
  virtual int64_t add(const std::string& key, int64_t value) = 0;
};

namespace rendezvous {

class Store : public IStore {
 public:
  ~Store() override = default;
  void set(const std::string& key, const Bytes& data) override = 0;
  Bytes get(const std::string& key) override = 0;
  virtual void wait(const Keys& keys) = 0;
  void wait(const Keys& keys, const std::chrono::milliseconds&) override { wait(keys); }
  bool has_v2_support() override { return false; }
  std::vector<Bytes> multi_get(const Keys&) override { throw std::logic_error("multi_get: no extended store"); }
  void multi_set(const Keys&, const std::vector<Bytes>&) override {
    throw std::logic_error("multi_set: no extended store");
  }
  void append(const std::string&, const Bytes&) override { throw std::logic_error("append: no extended store"); }
  int64_t add(const std::string&, int64_t) override { throw std::logic_error("add: no extended store"); }
};

}  // namespace rendezvous
}  // namespace gloo
