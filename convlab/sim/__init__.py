"""The simulator: run an unchanged ``.cu`` file on the CPU, in a child process.

``README.md`` in this folder says what each module does, and in which order to read them.
"""
