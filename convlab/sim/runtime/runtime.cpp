// The simulator's runtime: CUDA threads as fibers, blocks over the cores, memory traffic counted.
//
//   launch    blocks are handed to one OS thread per core; a block runs to its end on one of them.
//   fiber     each thread of a block has a stack of its own and runs until it must wait: at a
//             barrier, at a warp operation, or because its access log is full. Then the next one
//             that can go on does. Nothing is preemptive; but where a block seems to wait for one
//             that has not begun, a further worker begins it.
//   schedule  number 0 is that order. In a higher one, threads also lose their turn before some
//             accesses (which, the number decides), and in an odd one the last block and the last
//             thread come first. What a kernel computes may not depend on it.
//   hooks     the kernel is compiled with -fsanitize=thread, and the __tsan_* functions it calls
//             before each load and store are the ones in hooks.h.
//   warp      each lane logs its accesses, and where it jumped back; when no lane of the warp can
//             go on, the logs are walked in the order in which a GPU would run the lanes: those
//             that are least far in the code first, until the others are met. What lanes do at one
//             instruction at one time is one warp request, and its 32-byte sectors (global) or
//             wavefronts (shared: 32 banks of 4 bytes, equal words broadcast) are counted.
//   shadow    each word of shared memory, and of the buffers that a kernel may write, has a cell
//             that knows who wrote and read it last, and when: in which phase of the block (between
//             which barriers) and after which operation of the warp. Two accesses that nothing
//             orders are a race, whichever order they happened to come in.
//   finding   what a GPU would not forgive is written to the report, once for each line of source.
//             The thread ends there and the others go on, so that one run tells all.
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
#include "meeting.h"
#include "async.h"
#include "signals.h"
#include "launch.h"
#include "host.h"
#include "cuda_api.h"
#include "tensor.h"
#include "cublas.h"
#include "hooks.h"
