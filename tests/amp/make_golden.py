#!/usr/bin/env python3
"""Writes what Python's mixed precision does, next to this script: scales.txt, grad_scaler.txt, autocast_dtypes.txt and
bf16_training.txt.

scales.txt: a row of good and overflowing steps for some options. A line:
  init growth backoff interval : steps (g good, i infinite) : scale after each : growth tracker after each

grad_scaler.txt: 200 scripted steps of torch.amp.GradScaler with growth_interval 3. A line is a step and the state after it:
  gradient_a gradient_b flags new_scale : scale tracker : parameters of a : parameters of b
Numbers are hexadecimal floats. gradient_b is - when b takes no part. Flags: u unscales a first and clips it to norm 1, v
unscales b and doesn't step it, s saves the state into a new scaler afterwards, n doesn't (so that there is always one).
new_scale is - unless Update sets the scale.

autocast_dtypes.txt: operation, dtype of its result under bfloat16, the same under float16, on the CPU.

bf16_training.txt: sum of the training images; every tenth of 300 losses of ConvNet in float32, and in bfloat16; accuracies.
"""
import importlib.util
import os
import random

import torch
import torch.nn.functional as F

HERE = os.path.dirname(os.path.abspath(__file__))
MODELS = os.path.join(HERE, "..", "models")


def conv_net():
    """The class in the script next to conv_net.pth."""
    spec = importlib.util.spec_from_file_location("conv_net", os.path.join(MODELS, "make_golden.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.ConvNet()


def scales():
    random.seed(1206)
    lines = []
    for init, growth, backoff, interval in [(65536., 2., .5, 2), (8., 3., .25, 3), (1., 2., .5, 1), (2.**-120, 2., .5, 4),
                                            (2.**127, 2., .5, 1)]:
        scaler = torch.amp.GradScaler("cpu", init_scale=init, growth_factor=growth, backoff_factor=backoff,
                                      growth_interval=interval)
        p = torch.nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([p], lr=0.)
        steps, after, trackers = "", [], []
        for _ in range(24):
            kind = random.choice("gggi")
            optimizer.zero_grad()
            scaler.scale((p * (float("inf") if kind == "i" else 1e-30)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            steps += kind
            after.append(repr(scaler.get_scale()))
            trackers.append(str(scaler.state_dict()["_growth_tracker"]))
        lines.append(f"{init!r} {growth} {backoff} {interval} : {steps} : {' '.join(after)} : {' '.join(trackers)}")
    return lines


def grad_scaler():
    random.seed(1206)
    new = lambda: torch.amp.GradScaler("cpu", init_scale=1024., growth_interval=3)
    scaler = new()
    a = torch.nn.Parameter(torch.linspace(-1, 1, 4))
    without_gradient = torch.nn.Parameter(torch.ones(3))
    b = torch.nn.Parameter(torch.linspace(-2, 2, 10).view(5, 2))
    of_a = torch.optim.SGD([a, without_gradient], lr=0.125, momentum=0.9)
    of_b = torch.optim.SGD([b], lr=0.0625)
    hexes = lambda t: " ".join(x.hex() for x in t.detach().flatten().tolist())
    float32 = lambda x: torch.tensor(x).item()
    lines = []
    for step in range(200):
        gradient = lambda: float32(random.choice(
            [random.gauss(0, 1)] * 12 + [1e-40, float("inf"), float("nan"), 3e38, -float("inf")]))
        ga = gradient()
        gb = gradient() if random.random() < 0.7 else None
        flags = random.choice("un") + (random.choice("vnnn") if gb is not None else "") + random.choice("snnn")
        of_a.zero_grad()
        of_b.zero_grad()
        losses = [(a * ga).sum(), (a * 0.5).square().sum()]
        if gb is not None:
            losses.append(F.embedding(torch.tensor([1, 3, 1]), b, sparse=True).sum() * gb)
        for loss in scaler.scale(losses):
            loss.backward()
        if "u" in flags:
            scaler.unscale_(of_a)
            torch.nn.utils.clip_grad_norm_([a, without_gradient], 1.0)
        scaler.step(of_a)
        if gb is not None and "v" in flags:
            scaler.unscale_(of_b)
        elif gb is not None:
            scaler.step(of_b)
        scale = float32(2.0 ** random.randint(-3, 12)) if random.random() < 0.05 else None
        scaler.update(scale)
        state = scaler.state_dict()
        if "s" in flags:
            scaler = new()
            scaler.load_state_dict(state)
        number = lambda x: "-" if x is None else x.hex()
        lines.append(f"{number(ga)} {number(gb)} {flags} {number(scale)} : {state['scale'].hex()} {state['_growth_tracker']} : "
                     f"{hexes(a)} : {hexes(b)}")
    return lines


def autocast_dtypes():
    x, v = torch.rand(4, 4) + 0.5, torch.rand(4) + 0.5
    batch, image, video = torch.rand(2, 4, 4) + 0.5, torch.rand(1, 4, 8, 8), torch.rand(1, 4, 4, 4, 4)
    low = lambda t: t.to(torch.get_autocast_dtype("cpu"))
    index = torch.tensor([0, 1, 2, 3])
    operations = {
        "mm": lambda: torch.mm(x, x), "matmul": lambda: torch.matmul(x, v), "bmm": lambda: torch.bmm(batch, batch),
        "addmm": lambda: torch.addmm(x, x, x), "addbmm": lambda: torch.addbmm(x, batch, batch),
        "baddbmm": lambda: torch.baddbmm(batch, batch, batch), "linear": lambda: F.linear(x, x, v),
        "mv": lambda: torch.mv(x, v), "dot": lambda: torch.dot(v, v), "einsum": lambda: torch.einsum("ij,jk->ik", x, x),
        "conv1d": lambda: F.conv1d(batch, torch.ones(2, 4, 3)), "conv2d": lambda: F.conv2d(image, torch.ones(2, 4, 3, 3)),
        "conv3d": lambda: F.conv3d(video, torch.ones(2, 4, 3, 3, 3)),
        "conv_transpose2d": lambda: F.conv_transpose2d(image, torch.ones(4, 2, 3, 3)),
        "prelu": lambda: F.prelu(x, v), "attention": lambda: F.scaled_dot_product_attention(batch, batch, batch),
        "mm_double": lambda: torch.mm(x.double(), x.double()), "mm_low": lambda: torch.mm(low(x), low(x)),
        "mm_mixed": lambda: torch.mm(low(x), x), "add": lambda: x + x, "add_mixed": lambda: x + low(x),
        "mul_low": lambda: low(x) * low(x), "relu_low": lambda: low(x).relu(), "gelu_low": lambda: F.gelu(low(x)),
        "sigmoid_low": lambda: low(x).sigmoid(), "exp_low": lambda: low(x).exp(), "log_low": lambda: low(x).log(),
        "pow_low": lambda: low(x).pow(2), "sum_low": lambda: low(x).sum(), "mean_low": lambda: low(x).mean(),
        "prod_low": lambda: low(x).prod(), "cumsum_low": lambda: low(x).cumsum(0), "softmax_low": lambda: low(x).softmax(1),
        "log_softmax_low": lambda: low(x).log_softmax(1), "layer_norm_low": lambda: F.layer_norm(low(x), (4,)),
        "group_norm_low": lambda: F.group_norm(low(image), 2),
        "batch_norm_low": lambda: F.batch_norm(low(image), torch.zeros(4), torch.ones(4), training=True),
        "max_pool2d_low": lambda: F.max_pool2d(low(image), 2), "avg_pool2d_low": lambda: F.avg_pool2d(low(image), 2),
        "avg_pool3d_low": lambda: F.avg_pool3d(low(video), 2),
        "adaptive_avg_pool2d_low": lambda: F.adaptive_avg_pool2d(low(image), 1),
        "mse_loss_low": lambda: F.mse_loss(low(x), low(x)), "l1_loss_low": lambda: F.l1_loss(low(x), low(x)),
        "smooth_l1_loss_low": lambda: F.smooth_l1_loss(low(x), low(x)), "huber_loss_low": lambda: F.huber_loss(low(x), low(x)),
        "cross_entropy_low": lambda: F.cross_entropy(low(x), index),
        "nll_loss_low": lambda: F.nll_loss(low(x), index), "kl_div_low": lambda: F.kl_div(low(x), low(x), reduction="sum"),
        "bce_with_logits_low": lambda: F.binary_cross_entropy_with_logits(low(x), low(x)),
        "cdist_low": lambda: torch.cdist(low(x), low(x)), "cat_mixed": lambda: torch.cat([low(x), x]),
        "stack_mixed": lambda: torch.stack([low(x), x]), "index_low": lambda: low(x)[index],
        "embedding": lambda: F.embedding(index, x), "argmax_low": lambda: low(x).argmax(),
    }

    def dtype(operation, under):
        with torch.autocast("cpu", dtype=under):
            try:
                return str(operation().dtype).replace("torch.", "")
            except RuntimeError:
                return "error"

    return [f"{name} {dtype(f, torch.bfloat16)} {dtype(f, torch.float16)}" for name, f in operations.items()]


def bf16_training():
    torch.set_num_threads(1)
    torch.manual_seed(1206)
    images, labels = torch.rand(3000, 1, 28, 28), torch.randint(0, 10, (3000,))
    patterns = torch.rand(10, 1, 28, 28)
    images = images + 0.25 * patterns[labels]
    weights = torch.load(os.path.join(MODELS, "conv_net.pth"))["before"]

    def train(autocast):
        model = conv_net()
        model.load_state_dict(weights)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        losses = []
        for step in range(300):
            at = step * 32 % 1984
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = F.cross_entropy(model(images[at:at + 32]), labels[at:at + 32])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        model.eval()
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            accuracy = (model(images[2000:]).argmax(1) == labels[2000:]).float().mean().item()
        return losses, accuracy

    (in_float, float_accuracy), (in_bf16, bf16_accuracy) = train(False), train(True)
    return [images.double().sum().item().hex(), " ".join(x.hex() for x in in_float[9::10]),
            " ".join(x.hex() for x in in_bf16[9::10]), f"{float_accuracy.hex()} {bf16_accuracy.hex()}"]


for make in (scales, grad_scaler, autocast_dtypes, bf16_training):
    with open(os.path.join(HERE, make.__name__ + ".txt"), "w") as file:
        file.write("\n".join(make()) + "\n")
