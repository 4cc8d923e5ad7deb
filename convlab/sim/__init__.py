"""The simulator: an unchanged ``.cu`` file runs on the CPU, in a child process, which may crash.

``README.md``, next to this file, says what each module does, and in which order to read them.
"""
