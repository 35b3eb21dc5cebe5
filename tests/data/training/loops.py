"""Training loops of every common shape. Arguments: the scenarios to run, one after the other."""

import sys
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, get_worker_info

from tests.data.training.evidence import draw, report, run_each

Batch = tuple[Tensor, Tensor]


def make_loader(batches: int, size: int = 8) -> DataLoader[Batch]:
    """`batches` shuffled batches of a made-up regression."""
    inputs = torch.randn(batches * size, 16)
    return DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=size, shuffle=True)


def make_model() -> nn.Sequential:
    """A small network that draws random numbers while it trains."""
    return nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1))


def plain() -> None:
    """Two epochs of four steps, with clipping, a scheduler and a validation of two batches after each."""
    model, loader, held_out = make_model(), make_loader(4), make_loader(2)
    criterion = nn.MSELoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    for _epoch in range(2):
        model.train()
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = criterion(model(inputs.to("cpu") + draw()), targets)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
        model.eval()
        with torch.no_grad():
            for inputs, targets in held_out:
                criterion(model(inputs), targets)
    report("plain", model)


def accumulation() -> None:
    """Twelve micro-batches, three to a step."""
    model, loader = make_model(), make_loader(12)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    for number, (inputs, targets) in enumerate(loader):
        loss = nn.functional.mse_loss(model(inputs + draw()), targets) / 3
        loss.backward()
        if number % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()
    report("accumulation", model)


def gan() -> None:
    """Five iterations of two optimizers: first the critic, then the generator."""
    generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 16))
    critic = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
    teach_critic = torch.optim.Adam(critic.parameters(), lr=1e-3)
    teach_generator = torch.optim.Adam(generator.parameters(), lr=1e-3)
    for inputs, _ in make_loader(5):
        fakes = generator(torch.randn(len(inputs), 4) + draw())
        teach_critic.zero_grad()
        (critic(fakes.detach()).mean() - critic(inputs).mean()).backward()
        teach_critic.step()
        teach_generator.zero_grad()
        (-critic(fakes).mean()).backward()
        teach_generator.step()
    report("gan", generator, critic)


def lbfgs() -> None:
    """Three steps whose closures run forward and backward several times inside the optimizer."""
    model = nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    calls = 0
    for inputs, targets in make_loader(3):

        def closure(inputs: Tensor = inputs, targets: Tensor = targets) -> Tensor:
            nonlocal calls
            calls += 1
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            return loss

        optimizer.step(closure)
    report("lbfgs", model, closures=calls)


def scaler() -> None:
    """Six steps under a gradient scaler; the gradient of the third is infinite, so its step is skipped."""
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scale = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for number, (inputs, targets) in enumerate(make_loader(6)):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.mse_loss(model(inputs), targets)
        scaled = scale.scale(loss) * (float("inf") if number == 2 else 1.0)
        scaled.backward()
        scale.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scale.step(optimizer)
        scale.update()
    report("scaler", model, scale=scale.get_scale())


class Recomputed(nn.Module):
    """Two halves whose activations are not kept; dropout must fall the same way again."""

    def __init__(self, *, use_reentrant: bool) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1))
        self.second = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
        self.use_reentrant = use_reentrant

    def forward(self, inputs: Tensor) -> Tensor:
        for half in (self.first, self.second):
            inputs = checkpoint(half, inputs, use_reentrant=self.use_reentrant)
        return inputs


def recompute(name: str, *, use_reentrant: bool) -> None:
    """Four steps whose backward runs the forward once more."""
    model = Recomputed(use_reentrant=use_reentrant)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for inputs, targets in make_loader(4):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs.requires_grad_()), targets).backward()
        optimizer.step()
    report(name, model)


class Stream(IterableDataset[Tensor]):
    """Samples without an end that anybody knows beforehand."""

    def __iter__(self) -> Iterator[Tensor]:
        worker = get_worker_info()
        for number in range(16):
            if worker is None or number % worker.num_workers == worker.id:
                yield torch.full((16,), number / 16)


def iterable() -> None:
    """Two epochs of four steps over a stream that two workers make ahead; the workers stay between the epochs."""
    model = nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    loader = DataLoader(Stream(), 4, num_workers=2, prefetch_factor=4, persistent_workers=True)
    for _epoch in range(2):
        for inputs in loader:
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
    report("iterable", model)


def ahead() -> None:
    """Four steps; each batch is fetched before the one at hand is used."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    batches = iter(make_loader(4))
    batch = next(batches, None)
    while batch is not None:
        following = next(batches, None)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(batch[0]), batch[1]).backward()
        optimizer.step()
        batch = following
    report("ahead", model)


def distillation() -> None:
    """Two epochs of three steps with a teacher, as the tutorial has it: nothing says that the teacher is frozen."""
    teacher, student, loader, held_out = make_model(), make_model(), make_loader(3), make_loader(1)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-2)
    teacher.eval()
    for _epoch in range(2):
        student.train()
        for inputs, targets in loader:
            optimizer.zero_grad()
            with torch.no_grad():
                taught = teacher(inputs)
            outputs = student(inputs)
            (nn.functional.mse_loss(outputs, targets) + nn.functional.mse_loss(outputs, taught)).backward()
            optimizer.step()
        student.eval()
        with torch.no_grad():
            for inputs, _targets in held_out:
                student(inputs)
    report("distillation", student, teacher)


def averaged(
    name: str = "averaged", kept: Callable[[DataLoader[Batch]], DataLoader[Batch]] = lambda made: made
) -> None:
    """Two epochs of three steps, each followed by a validation of the average of the weights, and of that alone."""
    model, loader, held_out = make_model(), kept(make_loader(3)), kept(make_loader(2))
    average = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _epoch in range(2):
        model.train()
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
            average.update_parameters(model)
        average.eval()
        with torch.no_grad():
            for inputs, _targets in held_out:
                average(inputs)
    report(name, model, average)


class RepeatingLoader(DataLoader[Batch]):
    """As that of Ultralytics: one iterator for all epochs, made for good, with the workers it may have."""

    def __init__(self, loader: DataLoader[Batch]):
        super().__init__(loader.dataset, batch_sampler=Repeated(loader.batch_sampler))
        self._batches = len(loader)
        self._kept = super().__iter__()

    def __iter__(self) -> Iterator[Batch]:
        for _ in range(self._batches):
            yield next(self._kept)


class Repeated:
    """A sampler that begins anew for ever."""

    def __init__(self, sampler: Iterable[list[int]]):
        self._sampler = sampler

    def __iter__(self) -> Iterator[list[int]]:
        while True:
            yield from self._sampler


def repeating() -> None:
    """The same from loaders that keep their iterators, made before the optimizer."""
    averaged("repeating", RepeatingLoader)


def ensemble() -> None:
    """Four batches, on each of which three models are trained one after the other."""
    models = [make_model() for _ in range(3)]
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-2) for model in models]
    for inputs, targets in make_loader(4):
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
    report("ensemble", *models)


def folds() -> None:
    """Five trainings of three steps and a validation; what each of them has made is kept to the end."""
    kept: list[tuple[nn.Module, torch.optim.Optimizer]] = []
    for _fold in range(5):
        model, loader, held_out = make_model(), make_loader(3), make_loader(1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        kept.append((model, optimizer))
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for inputs, _targets in held_out:
                model(inputs)
    report("folds", *(model for model, _ in kept))


def in_backward() -> None:
    """Four steps in which each parameter is updated as soon as it has its gradient, and by nothing else."""
    model = make_model()
    optimizers = {parameter: torch.optim.AdamW([parameter], lr=1e-2) for parameter in model.parameters()}

    def update(parameter: Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    for inputs, targets in make_loader(4):
        nn.functional.mse_loss(model(inputs), targets).backward()
    report("in_backward", model)


def long() -> None:
    """Four hundred steps without a loader."""
    model = nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(400):
        optimizer.zero_grad()
        model(torch.randn(4, 16)).square().mean().backward()
        optimizer.step()
    report("long", model)


SCENARIOS: dict[str, Callable[[], None]] = {
    "plain": plain,
    "accumulation": accumulation,
    "gan": gan,
    "lbfgs": lbfgs,
    "scaler": scaler,
    "recompute": lambda: recompute("recompute", use_reentrant=False),
    "reentrant": lambda: recompute("reentrant", use_reentrant=True),
    "iterable": iterable,
    "ahead": ahead,
    "distillation": distillation,
    "averaged": averaged,
    "repeating": repeating,
    "ensemble": ensemble,
    "folds": folds,
    "in_backward": in_backward,
    "long": long,
}

if __name__ == "__main__":
    run_each(SCENARIOS, sys.argv[1:])
