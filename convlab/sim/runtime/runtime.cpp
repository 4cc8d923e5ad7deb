// The simulator's runtime: it runs CUDA threads as fibers and checks and counts their accesses.
//
//   launch    One worker (an OS thread) per core takes blocks, and runs each of them to its end. If
//             blocks turn out to depend on one another, or if there is something to report, the run
//             is repeated with one block at a time (Turns): then the report is the same each time.
//   fiber     Each thread of a block has its own stack. It runs until it blocks at a barrier or a
//             warp operation, or until its access log is full; then the next thread runs. Nothing
//             preempts a thread. If a block seems to spin on a flag of a block that has not begun,
//             the runtime starts one more worker.
//   schedule  The number of an order. In schedule 0 a thread runs until it blocks. In the others it
//             also switches before some accesses, which the number selects. In odd schedules the
//             last block and the last thread run first. No schedule changes a correct result.
//   hooks     g++ compiles the kernel with -fsanitize=thread, so the kernel calls a function of
//             hooks.h before each load and store.
//   warp      Each lane logs its accesses and its backward jumps. When no lane of the warp can run,
//             the runtime walks the logs in the order in which a GPU runs the lanes: lanes that are
//             behind in the code run first, until they reach the others. The accesses of lanes that
//             execute an instruction together are one warp request. The runtime counts its 32-byte
//             sectors (global memory) or its wavefronts (shared memory: 32 banks of 4 bytes; lanes
//             that read the same word share a broadcast).
//   shadow    Each word of shared memory, and of each buffer that a kernel may write, has a cell.
//             The cell stores which threads accessed the word last, and when: in which phase of the
//             block (between which barriers), and after which operation of the warp. Two accesses
//             without synchronization between them are a race, whichever of them ran first.
//   signal    A fence and, after it, an atomic or volatile store orders threads too (order.h).
//   finding   The runtime reports an error once for each code address. It ends a thread that cannot
//             go on; the other threads run on. So one run finds all errors.
//
// All parts are one translation unit, so that the compiler can inline across them. Each part
// includes what it uses. Read them in this order.
#include "order_types.h"
#include "types.h"
#include "async_types.h"
#include "switch.h"
#include "worker.h"
#include "findings.h"
#include "memory.h"
#include "streams.h"
#include "fibers.h"
#include "barriers.h"
#include "order.h"
#include "access.h"
#include "shadow.h"
#include "notes.h"
#include "requests.h"
#include "reconverge.h"
#include "async.h"
#include "signals.h"
#include "launch.h"
#include "host.h"
#include "cuda_api.h"
#include "tensor.h"
#include "meet.h"
#include "cublas.h"
#include "ptx.h"
#include "hooks.h"
