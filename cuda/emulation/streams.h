// Emulated streams, events and graphs. Work that is given to a stream runs when somebody waits for it, in one of two
// unlucky orders: so a wait that the host code forgot shows as a wrong result.
//
// Within a stream work keeps its order; between streams only waits do. Thread rule: any thread; options and the set of
// waits while nobody else is here.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>

namespace llmsrv::emulation {

using Work = std::function<void()>;

struct Stream;
struct Event;
struct Graph;

enum class StreamOrder {
  kLate,         // nothing runs before somebody waits for it, and then only what is waited for
  kOthersFirst,  // when somebody waits for a stream, all others run first, as far as they may
};

struct StreamOptions {
  StreamOrder order = StreamOrder::kLate;
  std::string left_out;  // passes this wait by: a name out of reached_waits()
};
StreamOptions& stream_options();

// All waits since the set was last cleared, by the numbers of what takes part: "stream 1 waits for event 0", "the host
// waits for stream 0". Streams and events are counted from when there were none. A wait for an event that was never
// recorded is none.
std::set<std::string>& reached_waits();

Stream* create_stream();
void destroy_stream(Stream* stream);  // its work is run
Event* create_event();
Event* create_timed_event();
void destroy_event(Event* event);  // all work is run

// Runs at once without a stream: launches of tests that have none.
void submit(Stream* stream, Work work);
void record(Event* event, Stream* stream);
void wait(Stream* stream, Event* event);
// Whether the host would have to wait for it.
bool is_busy(const Stream* stream);
bool is_ahead(const Event* event);
// These run work, and pass on what it throws; what is left of a stream that failed never runs.
void synchronize(Stream* stream);
void synchronize(Event* event);
void synchronize_all();
// By the device's clock, which counts a microsecond for each piece of work that ran, whatever it was. Throws Error for
// an event that is not timed or not reached.
double elapsed_s(const Event* from, const Event* to);

// Throws Error for events between the two: graphs here are runs of copies and launches.
void begin_capture(Stream* stream);
Graph* end_capture(Stream* stream);
void launch_graph(Graph* graph, Stream* stream);
void destroy_graph(Graph* graph);

}  // namespace llmsrv::emulation
