"""The simulator: an unchanged ``.cu`` file runs on the CPU, in a process that may die.

======================  =====================================================================
``engine.py``           the seam: the engine "sim", as the core asks for it
``launch.py``           a kernel bound to one problem's tensors
``simulation.py``       the memory that both processes see, and one run of a convolution
``rewrite.py``          CUDA C++ to C++, line for line
``library.py``          that, compiled
``include/``            what the rewritten source is compiled against
``runtime/``            CUDA threads as fibers, blocks over the cores, memory traffic counted
``host.py``             the torch-free process that forks one child per launch
``findings.py``         what the child reported, in lines of source and indices
``operations.py``       floating-point operations, from the machine code that ran
``trace.py``            the child's report as counters, lines, launches
``any_kernel.py``       one run of any kernel that is not a convolution
======================  =====================================================================
"""
