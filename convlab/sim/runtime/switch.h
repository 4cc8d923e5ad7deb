// The context switch of fibers: saves registers on one stack, and loads them from another.
#pragma once
extern "C" void sim_switch(void** save, void* load);
extern "C" void sim_fiber_start();
#if defined(__x86_64__)
asm(R"(
.text
.globl sim_switch
.type sim_switch,@function
sim_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");
static void* first_frame(char* top) {
    auto* sp = reinterpret_cast<void**>(top) - 2;
    *sp = reinterpret_cast<void*>(sim_fiber_start);  // `ret` jumps here; 6 registers are below it
    return sp - 6;
}
#elif defined(__aarch64__)
asm(R"(
.text
.globl sim_switch
.type sim_switch,%function
sim_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
)");
static void* first_frame(char* top) {
    auto* sp = reinterpret_cast<void**>(top) - 20;
    sp[11] = reinterpret_cast<void*>(sim_fiber_start);  // x30
    return sp;
}
#else
#error "the simulator's fibers support x86-64 and aarch64 only"
#endif
