// Handles of C++ that close themselves, errors as exceptions, and operations whose completions call functions.
//
//     c++ -std=c++17 raii.cpp $(pkg-config --cflags --libs liburingfs) -o raii && ./raii raii.img

#include <array>
#include <cstdio>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include <uringfs.h>

namespace {

// The value of a call, or an exception with the text of its failure.
template <typename Result>
Result check(Result result) {
    if (result < 0) {
        throw std::system_error(static_cast<int>(-result), std::generic_category(), uringfs_error_text());
    }
    return result;
}

template <auto Close>
struct Closer {
    template <typename Handle>
    void operator()(Handle *handle) const {
        Close(handle);
    }
};

using Volume = std::unique_ptr<uringfs_volume, Closer<uringfs_volume_close>>;
using File = std::unique_ptr<uringfs_file, Closer<uringfs_file_close>>;
using Directory = std::unique_ptr<uringfs_directory, Closer<uringfs_directory_close>>;

Volume create_volume(const std::string &path, std::uint64_t bytes) {
    uringfs_format_options options{};
    options.size = sizeof options;
    options.bytes = bytes;
    uringfs_volume *volume;
    check(uringfs_volume_create(path.c_str(), &options, &volume));
    return Volume(volume);
}

// A volume that is closed in its destructor cannot say what failed.
void close(Volume volume) {
    check(uringfs_volume_close(volume.release()));
}

File open_file(const Volume &volume, const std::string &path, std::uint32_t flags) {
    uringfs_open_options options{};
    options.size = sizeof options;
    options.flags = flags;
    uringfs_file *file;
    check(uringfs_file_open(volume.get(), path.c_str(), &options, &file));
    return File(file);
}

std::vector<std::string> names(const Volume &volume, const std::string &path) {
    uringfs_directory *opened;
    check(uringfs_directory_open(volume.get(), path.c_str(), &opened));
    Directory directory(opened);
    uringfs_entry entry{};
    entry.size = sizeof entry;
    std::vector<std::string> names;
    while (check(uringfs_directory_next(directory.get(), &entry)) == 1) {
        names.emplace_back(entry.name);
    }
    return names;
}

class Reactor {
  public:
    Reactor() {
        uringfs_reactor *reactor;
        check(uringfs_reactor_create(nullptr, &reactor));
        reactor_.reset(reactor);
    }

    // Calls `then` with the bytes when they are there. The memory is the operation's until then.
    void read(const File &file, std::size_t length, std::uint64_t offset, std::function<void(std::vector<char>)> then) {
        auto operation = std::make_unique<Operation>(Operation{std::vector<char>(length), std::move(then)});
        check(uringfs_queue_read(reactor_.get(), file.get(), operation->memory.data(), length, offset,
                                 reinterpret_cast<std::uintptr_t>(operation.get())));
        // From here on the completion owns it.
        operation.release();
        in_flight_++;
    }

    // Until all operations have completed.
    void run() {
        while (in_flight_ > 0) {
            std::array<uringfs_completion, 16> completions;
            int count = check(uringfs_reactor_reap(reactor_.get(), completions.data(), 1, completions.size(), -1));
            in_flight_ -= count;
            for (int i = 0; i < count; i++) {
                complete(completions[i]);
            }
        }
    }

  private:
    struct Operation {
        std::vector<char> memory;
        std::function<void(std::vector<char>)> then;
    };

    static void complete(const uringfs_completion &completion) {
        std::unique_ptr<Operation> operation(reinterpret_cast<Operation *>(completion.user_data));
        if (completion.result < 0) {
            throw std::system_error(static_cast<int>(-completion.result), std::generic_category(), "reading");
        }
        operation->memory.resize(static_cast<std::size_t>(completion.result));
        operation->then(std::move(operation->memory));
    }

    std::unique_ptr<uringfs_reactor, Closer<uringfs_reactor_close>> reactor_;
    int in_flight_ = 0;
};

}  // namespace

int main(int argc, char **argv) try {
    if (argc != 2) {
        std::fprintf(stderr, "usage: raii IMAGE\n");
        return 2;
    }
    Volume volume = create_volume(argv[1], 64 << 20);
    try {
        open_file(volume, "/missing", URINGFS_OPEN_READ);
    } catch (const std::system_error &error) {
        std::printf("%s\n", error.code() == std::errc::no_such_file_or_directory ? "no such file" : error.what());
    }
    {
        File file = open_file(volume, "/words", URINGFS_OPEN_READ | URINGFS_OPEN_WRITE | URINGFS_OPEN_CREATE);
        const std::string text = "one two three ";
        check(uringfs_file_write(file.get(), text.data(), text.size(), 0, URINGFS_WRITE_DURABLE));
        Reactor reactor;
        std::string words[2];
        reactor.read(file, 3, 0, [&](std::vector<char> bytes) { words[0].assign(bytes.begin(), bytes.end()); });
        reactor.read(file, 3, 4, [&](std::vector<char> bytes) { words[1].assign(bytes.begin(), bytes.end()); });
        reactor.run();
        std::printf("%s, %s\n", words[0].c_str(), words[1].c_str());
    }
    for (const std::string &name : names(volume, "/")) {
        std::printf("/%s\n", name.c_str());
    }
    close(std::move(volume));
    return 0;
} catch (const std::exception &error) {
    std::fprintf(stderr, "raii: %s\n", error.what());
    return 1;
}
