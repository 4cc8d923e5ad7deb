"""What may be asked for by name, and what is taken where nothing is: known before torch is there."""

from . import rooms

ENGINES = ("auto", "cuda", *rooms.names("engine"))
MODES = ("cold", "hot")  # of an A/B
# Each baseline's title, its class, and the kind of device it runs on if only one does.
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
COUNT = 40  # generated problems of a default check
THRESHOLD = 0.01  # below it two times are called the same
SECONDS = 10.0  # for the rounds of one mode
ENDINGS = (".png", ".svg", ".pdf", ".jpg")  # of the files that a figure is written to
