#include "cuda/emulation/streams.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda/emulation/emulator.h"

namespace llmsrv::emulation {

// Recorded so often, and so often reached by the streams that recorded it, the last time at `work_count`.
struct Event {
  int number = 0;
  bool is_timed = false;
  std::uint64_t work_count = 0;
  std::uint64_t recorded = 0;
  std::uint64_t done = 0;
  Stream* recorded_by = nullptr;
};

struct Graph {
  std::vector<Work> works;
};

namespace {

constexpr double kWorkSeconds = 1e-6;

// What a stream does next: work, or an event to reach (`sets`), or to wait for.
struct Task {
  Work work;
  Event* event = nullptr;
  std::uint64_t ticket = 0;
  Stream* source = nullptr;  // of an event that is waited for
  bool sets = false;
};

}  // namespace

struct Stream {
  int number = 0;
  std::deque<Task> tasks;
  std::unique_ptr<Graph> capture;
};

namespace {

// Held by whoever looks at streams and events or runs their work.
std::recursive_mutex& mutex() {
  static std::recursive_mutex mutex;
  return mutex;
}

using Lock = std::lock_guard<std::recursive_mutex>;

// In the order of creation.
std::vector<Stream*>& streams() {
  static std::vector<Stream*> streams;
  return streams;
}
std::vector<Event*>& events() {
  static std::vector<Event*> events;
  return events;
}

// Pieces of work that ran on any stream: the device's clock.
std::uint64_t& work_count() {
  static std::uint64_t count = 0;
  return count;
}

std::string name_of(const Stream* stream) { return "stream " + std::to_string(stream->number); }
std::string name_of(const Event* event) { return "event " + std::to_string(event->number); }

// A new one with a number of its own.
template <typename T>
T* numbered(std::vector<T*>& all) {
  static int next = 0;
  if (all.empty()) next = 0;
  all.push_back(new T);
  all.back()->number = next++;
  return all.back();
}

// True when this wait is to be passed by.
bool left_out(const std::string& wait) {
  reached_waits().insert(wait);
  return wait == stream_options().left_out;
}

bool is_blocked(const Task& task) { return task.event != nullptr && !task.sets && task.event->done < task.ticket; }

// Runs the first task. REQUIRES: there is one, and it is not blocked
void run_first(Stream& stream) {
  const Task task = std::move(stream.tasks.front());
  stream.tasks.pop_front();
  if (task.sets) {
    task.event->done = std::max(task.event->done, task.ticket);
    task.event->work_count = work_count();
  }
  if (!task.work) return;
  ++work_count();
  try {
    task.work();
  } catch (...) {
    for (Stream* each : streams()) each->tasks.clear();  // a device that failed does nothing more
    throw;
  }
}

void run_others(const Stream& last) {
  for (bool progressed = true; progressed;) {
    progressed = false;
    for (Stream* stream : streams()) {
      if (stream == &last || stream->tasks.empty() || is_blocked(stream->tasks.front())) continue;
      run_first(*stream);
      progressed = true;
    }
  }
}

// Runs the stream until `enough`.
void run_until(Stream& stream, const std::function<bool()>& enough) {
  while (!enough() && !stream.tasks.empty()) {
    if (stream_options().order == StreamOrder::kOthersFirst) run_others(stream);
    if (enough() || stream.tasks.empty()) return;  // the others may have needed some of it
    const Task& first = stream.tasks.front();
    if (is_blocked(first)) {
      const Task awaited = first;
      run_until(*awaited.source, [&] { return awaited.event->done >= awaited.ticket; });
      if (is_blocked(awaited)) throw Error(name_of(&stream) + " waits for ever");
    }
    run_first(stream);
  }
}

void require_no_capture(const Stream& stream, const char* what) {
  if (stream.capture != nullptr) throw Error(std::string("a capture has ") + what);
}

}  // namespace

StreamOptions& stream_options() {
  static StreamOptions options;
  return options;
}

std::set<std::string>& reached_waits() {
  static std::set<std::string> waits;
  return waits;
}

Stream* create_stream() {
  const Lock lock(mutex());
  return numbered(streams());
}

void destroy_stream(Stream* stream) {
  const Lock lock(mutex());
  run_until(*stream, [] { return false; });
  std::erase(streams(), stream);
  delete stream;
}

Event* create_event() {
  const Lock lock(mutex());
  return numbered(events());
}

Event* create_timed_event() {
  Event* event = create_event();
  event->is_timed = true;
  return event;
}

void destroy_event(Event* event) {
  const Lock lock(mutex());
  synchronize_all();  // streams may still have to reach it
  std::erase(events(), event);
  delete event;
}

void submit(Stream* stream, Work work) {
  if (stream == nullptr) return work();
  const Lock lock(mutex());
  if (stream->capture != nullptr) {
    stream->capture->works.push_back(std::move(work));
  } else {
    stream->tasks.push_back({std::move(work)});
  }
}

void record(Event* event, Stream* stream) {
  const Lock lock(mutex());
  require_no_capture(*stream, "an event");
  event->recorded_by = stream;
  stream->tasks.push_back({{}, event, ++event->recorded, nullptr, true});
}

void wait(Stream* stream, Event* event) {
  const Lock lock(mutex());
  require_no_capture(*stream, "a wait");
  if (event->recorded == 0 || left_out(name_of(stream) + " waits for " + name_of(event))) return;
  stream->tasks.push_back({{}, event, event->recorded, event->recorded_by, false});
}

bool is_busy(const Stream* stream) {
  const Lock lock(mutex());
  return !stream->tasks.empty();
}

bool is_ahead(const Event* event) {
  const Lock lock(mutex());
  return event->done < event->recorded;
}

void synchronize(Stream* stream) {
  const Lock lock(mutex());
  require_no_capture(*stream, "a synchronization");
  if (!left_out("the host waits for " + name_of(stream))) run_until(*stream, [] { return false; });
}

void synchronize(Event* event) {
  const Lock lock(mutex());
  if (event->recorded == 0 || left_out("the host waits for " + name_of(event))) return;
  run_until(*event->recorded_by, [&] { return event->done >= event->recorded; });
}

void synchronize_all() {
  const Lock lock(mutex());
  const std::vector<Stream*> all = streams();
  for (Stream* stream : all) run_until(*stream, [] { return false; });
}

double elapsed_s(const Event* from, const Event* to) {
  const Lock lock(mutex());
  for (const Event* event : {from, to}) {
    if (!event->is_timed) throw Error(name_of(event) + " has no time");
    if (event->recorded == 0 || event->done < event->recorded) throw Error(name_of(event) + " is not reached yet");
  }
  return kWorkSeconds * (static_cast<double>(to->work_count) - static_cast<double>(from->work_count));
}

void begin_capture(Stream* stream) {
  const Lock lock(mutex());
  require_no_capture(*stream, "another capture");
  stream->capture = std::make_unique<Graph>();
}

Graph* end_capture(Stream* stream) {
  const Lock lock(mutex());
  if (stream->capture == nullptr) throw Error("the end of a capture that never began");
  return stream->capture.release();
}

void launch_graph(Graph* graph, Stream* stream) {
  const Lock lock(mutex());
  for (const Work& work : graph->works) submit(stream, work);
}

void destroy_graph(Graph* graph) { delete graph; }

}  // namespace llmsrv::emulation
