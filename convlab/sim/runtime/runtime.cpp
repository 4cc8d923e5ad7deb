// The simulator's runtime: CUDA threads as fibers, blocks over the cores, memory traffic counted.
//
//   launch    blocks are handed to one OS thread per core; a block runs to its end on one of them.
//   fiber     each thread of a block has its own stack and runs until it must wait: at a barrier,
//             at a warp operation, or because its access log is full. Then the next one that can
//             run does. Nothing is preemptive. If a block seems to wait for one that has not begun,
//             another worker begins that one.
//   schedule  number 0 is that order. With a higher number, threads also switch before some
//             accesses, which the number selects. With an odd number, the last block and the last
//             thread run first. A correct kernel's result does not depend on the schedule.
//   hooks     the kernel is compiled with -fsanitize=thread, and calls the __tsan_* functions in
//             hooks.h before each load and store.
//   warp      each lane logs its accesses, and where it jumped back. When no lane of the warp can
//             run, the logs are walked in the order in which a GPU would run the lanes: lanes that
//             are behind in the code run first, until they reach the others. The accesses of lanes
//             that execute an instruction together are one warp request. Its 32-byte sectors
//             (global) or wavefronts (shared: 32 banks of 4 bytes, equal words broadcast) are
//             counted.
//   shadow    each word of shared memory, and of the buffers that a kernel may write, has a cell.
//             It records which thread wrote and read the word last, and when: in which phase of the
//             block (between which barriers) and after which operation of the warp. Two accesses
//             with no synchronization between them are a race, in whichever order they ran.
//   finding   an error is written to the report, once for each line of source. The thread ends
//             there and the others go on, so that one run finds all errors.
//
// The parts are one translation unit, so that hot paths are inlined across them. Each includes what
// it uses; this is the order in which to read them.
#include "types.h"
#include "async_types.h"
#include "switch.h"
#include "worker.h"
#include "findings.h"
#include "memory.h"
#include "fibers.h"
#include "barriers.h"
#include "access.h"
#include "shadow.h"
#include "requests.h"
#include "reconverge.h"
#include "async.h"
#include "signals.h"
#include "launch.h"
#include "host.h"
#include "cuda_api.h"
#include "tensor.h"
#include "cublas.h"
#include "hooks.h"
