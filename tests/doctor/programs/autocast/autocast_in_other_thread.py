"""Two copies of a model, each in its own thread."""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

from doctor.loops import batches, half_autocast

CODE = "AUTOCAST_IN_OTHER_THREAD"


def train(*, inside: bool) -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in batches(3):
        optimizer.zero_grad()
        outputs = {}

        def work(part, outputs=outputs, images=images) -> None:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=inside):
                outputs[part] = model(images[part::2])

        with torch.autocast("cpu", dtype=torch.bfloat16):
            workers = [threading.Thread(target=work, args=(part,)) for part in range(2)]
            for each in workers:
                each.start()
            for each in workers:
                each.join()
            loss = sum(
                nn.functional.cross_entropy(outputs[part], labels[part::2]) for part in range(2)
            )
        loss.backward()
        optimizer.step()


def broken() -> None:
    train(inside=False)


def mended() -> None:
    train(inside=True)


def broken_in_a_pool() -> None:
    torch.manual_seed(0)
    models = [nn.Linear(6, 3), nn.Linear(6, 3)]
    optimizer = torch.optim.Adam([p for each in models for p in each.parameters()], lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    with ThreadPoolExecutor(2) as pool:
        for images, labels in batches(3):
            optimizer.zero_grad()
            with half_autocast():
                outputs = [each.result() for each in [pool.submit(m, images) for m in models]]
                loss = sum(nn.functional.cross_entropy(each, labels) for each in outputs)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()


def healthy_evaluation_in_a_thread() -> None:
    torch.manual_seed(0)
    model, other = nn.Linear(6, 3), nn.Linear(6, 3).eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in batches(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            worker = threading.Thread(target=other, args=(images,))
            worker.start()
            loss = nn.functional.cross_entropy(model(images), labels)
            worker.join()
        loss.backward()
        optimizer.step()
