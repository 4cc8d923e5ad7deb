"""Names that users may give, and default values; this module does not import torch."""

from . import rooms

ENGINES = ("auto", "cuda", *rooms.names("engine"))
# The modes of an A/B: with and without a flush of the L2 before each launch.
MODES = ("cold", "hot")
# Each baseline's title, its class, and the only kind of device that it runs on, if there is one.
BASELINES = {
    "cudnn:fp32": ("cuDNN, TF32 off", "fp32", "cuda"),
    "cudnn:tf32": ("cuDNN, TF32 on", "tf32", "cuda"),
    "cudnn:fp32:channels_last": ("cuDNN, TF32 off, inputs already channels_last", "fp32", "cuda"),
    "cudnn:tf32:channels_last": ("cuDNN, TF32 on, inputs already channels_last", "tf32", "cuda"),
    "cudnn:bf16": ("cuDNN, bf16", "bf16", "cuda"),
    "cudnn:bf16:channels_last": ("cuDNN, bf16, inputs already channels_last", "bf16", "cuda"),
    "cudnn:fp16": ("cuDNN, fp16", "fp16", "cuda"),
    "cudnn:fp16:channels_last": ("cuDNN, fp16, inputs already channels_last", "fp16", "cuda"),
    "torch:im2col": ("pad, im2col, torch.matmul", "fp32", None),
    "torch:cpu": ("torch on the CPU", "fp32", "cpu"),
}
# The number of generated problems in a default check.
COUNT = 40
# A smaller relative difference of two times counts as the same.
THRESHOLD = 0.01
# The seconds for the rounds of one mode of an A/B.
SECONDS = 10.0
# The endings of a figure's file.
ENDINGS = (".png", ".svg", ".pdf", ".jpg")
