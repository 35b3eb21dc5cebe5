"""Small trainings in DeepSpeed and Megatron Core, on the CPU. Arguments: the scenarios to run, one after the other."""

import contextlib
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader, TensorDataset

from tests.data.training.evidence import draw, report, run_each

# What they say of what is deprecated in torch, and of kernels that are not there, is not what is tested here.
warnings.simplefilter("ignore")
# Nothing is to be compiled: a machine may have no compiler.
os.environ.update(DS_ACCELERATOR="cpu", TORCHDYNAMO_DISABLE="1")
os.environ.setdefault("LOCAL_RANK", "0")

RANKS = int(os.environ.get("WORLD_SIZE", "1"))
RANK = int(os.environ.get("RANK", "0"))


@contextlib.contextmanager
def process_group(scenario: str) -> Iterator[None]:
    """A process group on gloo of this scenario's own: several follow each other in one job."""
    store: Any = dist.HashStore()
    if RANKS > 1:
        job = os.environ.get("TORCHELASTIC_RUN_ID") or os.environ["JOB"]
        store = dist.FileStore(f"{tempfile.gettempdir()}/large-{job}-{scenario}", RANKS)
    dist.init_process_group("gloo", store=store, rank=RANK, world_size=RANKS)
    yield
    dist.barrier()
    dist.destroy_process_group()


@contextlib.contextmanager
def shared_folder() -> Iterator[str]:
    """A folder that all ranks see."""
    with tempfile.TemporaryDirectory() as mine:
        box = [mine]
        dist.broadcast_object_list(box, 0)
        yield box[0]
        dist.barrier()


def copied(parameters: Iterable[nn.Parameter]) -> nn.ParameterList:
    """Parameters as numpy can read them: it knows no bfloat16."""
    return nn.ParameterList([nn.Parameter(parameter.detach().float()) for parameter in parameters])


def deepspeed_config(stage: int, **more: Any) -> dict[str, Any]:
    """Two micro-batches a step."""
    return {
        "train_micro_batch_size_per_gpu": 8,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 1.0,
        "steps_per_print": 1000,
        "zero_optimization": {"stage": stage},
        **more,
    }


def made_up(samples: int) -> TensorDataset:
    """A regression."""
    inputs = torch.randn(samples, 16) + RANK
    return TensorDataset(inputs, inputs.sum(1, keepdim=True))


def imported_deepspeed() -> Any:
    """DeepSpeed, which is to compile no kernels."""
    deepspeed = import_module("deepspeed")
    deepspeed.ops.__compatible_ops__ = {}
    return deepspeed


def train_with_deepspeed(name: str, config: dict[str, Any], samples: int = 64) -> None:
    """Steps of two micro-batches, a validation of two batches, and a checkpoint, which is loaded.

    The parameters are in two groups, as is usual: biases have no weight decay.
    """
    deepspeed = imported_deepspeed()
    model = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.1), nn.Linear(32, 1))
    weights, biases = ([p for p in model.parameters() if (p.ndim > 1) is matrix] for matrix in (True, False))
    groups = [{"params": weights, "weight_decay": 0.1}, {"params": biases, "weight_decay": 0.0}]
    with process_group(name):
        engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(groups, lr=1e-2), config=config)
        dtype = next(engine.module.parameters()).dtype
        for inputs, targets in DataLoader(made_up(samples), batch_size=8, shuffle=True):
            loss = nn.functional.mse_loss(engine((inputs + draw()).to(dtype)).float(), targets)
            engine.backward(loss)
            engine.step()
        engine.eval()
        with torch.no_grad():
            for inputs, _ in DataLoader(made_up(16), batch_size=8):
                engine(inputs.to(dtype))
        with shared_folder() as folder:
            engine.save_checkpoint(folder)
            if config["zero_optimization"]["stage"] < 3:  # it loads into a new engine only
                engine.load_checkpoint(folder)
        with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
            weights_then = copied(engine.module.parameters())
        report(name, weights_then, rank=RANK, global_steps=engine.global_steps, skipped=engine.skipped_steps)
        engine.destroy()


def deepspeed_fp32() -> None:
    """Without ZeRO: the engine clips by a function of its own."""
    train_with_deepspeed("deepspeed_fp32", deepspeed_config(0))


def deepspeed_fp16() -> None:
    """The dynamic loss scale begins too high: two steps are skipped."""
    deepspeed = imported_deepspeed()
    # It would be slow, and so it is refused; torch itself computes in it.
    deepspeed.get_accelerator().is_fp16_supported = lambda: True
    half = {"enabled": True, "initial_scale_power": 16, "hysteresis": 1}
    train_with_deepspeed("deepspeed_fp16", deepspeed_config(1, fp16=half))


def deepspeed_zero2() -> None:
    """Gradients and the optimizer's state are spread over the ranks."""
    train_with_deepspeed("deepspeed_zero2", deepspeed_config(2, bf16={"enabled": True}))


def deepspeed_zero3() -> None:
    """And the parameters."""
    train_with_deepspeed("deepspeed_zero3", deepspeed_config(3, bf16={"enabled": True}))


def deepspeed_pipeline() -> None:
    """Two stages, three steps of two micro-batches each."""
    deepspeed = imported_deepspeed()
    with process_group("deepspeed_pipeline"):
        deepspeed.init_distributed()  # takes the group that is there
        model = deepspeed.pipe.PipelineModule(
            layers=[nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16), nn.Linear(16, 1)],
            num_stages=RANKS,
            loss_fn=nn.functional.mse_loss,
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=deepspeed_config(0))
        batches = iter(DataLoader(made_up(48), batch_size=8))
        for _ in range(3):
            engine.train_batch(batches)
        report("deepspeed_pipeline", copied(engine.module.parameters()), rank=RANK, global_steps=engine.global_steps)
        engine.destroy()


class WithoutGpu(TorchFunctionMode):
    """Megatron Core asks for a GPU by name wherever it makes a tensor: here it gets the CPU, and is told otherwise."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.type and len(args) == 1:
            return func(*args).replace("torch.", "torch.cuda.")
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs = {**kwargs, "device": "cpu"}
        return func(*args, **kwargs)


def pretend_gpu() -> None:
    """What Megatron Core asks of the device itself, answered by the CPU: its number, its generator, and so on."""
    random: Any = import_module("megatron.core.tensor_parallel.random")
    cuda: Any = torch.cuda
    cuda.current_device = lambda: torch.device("cpu")
    cuda.synchronize = lambda: None
    cuda.get_rng_state = torch.get_rng_state
    cuda.manual_seed = torch.manual_seed
    random._get_cuda_rng_state = lambda *_args, **_kwargs: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, **_kwargs: torch.set_rng_state(state)
    random.model_parallel_cuda_manual_seed(7)


def train_with_megatron(
    name: str,
    *,
    tensor: int = 1,
    pipeline: int = 1,
    fp16: bool = False,
    distributed_optimizer: bool = False,
    saves: bool = False,
) -> None:
    """Four steps of two micro-batches of a small GPT, and perhaps a checkpoint, which is loaded."""
    core = import_module("megatron.core")
    with process_group(name), WithoutGpu():
        core.parallel_state.initialize_model_parallel(tensor, pipeline)
        pretend_gpu()
        config = core.transformer.TransformerConfig(
            num_layers=2,
            hidden_size=16,
            num_attention_heads=2,
            attention_dropout=0.0,
            use_cpu_initialization=True,
            gradient_accumulation_fusion=False,
            fp16=fp16,
            params_dtype=torch.float16 if fp16 else torch.float32,
            pipeline_dtype=torch.float32,
            deallocate_pipeline_outputs=pipeline > 1,
        )
        model, optimizer = megatron_model(core, config, fp16, distributed_optimizer)
        made = 0
        for _ in range(4):
            model.zero_grad_buffer()
            optimizer.zero_grad()
            run = import_module("megatron.core.pipeline_parallel.schedules").get_forward_backward_func()
            run(
                forward_step_func=forward_step,
                data_iterator=texts(),
                model=model,
                num_microbatches=2,
                seq_length=8,
                micro_batch_size=2,
                forward_only=False,
            )
            made += optimizer.step()[0]
        if saves:
            with shared_folder() as folder:
                state = {"model": model.module.sharded_state_dict()}
                core.dist_checkpointing.save(state, folder)
                core.dist_checkpointing.load(state, folder)
        report(name, copied(model.parameters()), rank=RANK, made=made)
        core.parallel_state.destroy_model_parallel()


def megatron_model(core: Any, config: Any, fp16: bool, distributed_optimizer: bool) -> tuple[Any, Any]:
    """A GPT as Megatron-LM builds it, and its optimizer."""
    gpt, distributed = import_module("megatron.core.models.gpt"), import_module("megatron.core.distributed")
    specs = import_module("megatron.core.models.gpt.gpt_layer_specs")
    optimizers = import_module("megatron.core.optimizer")
    model = gpt.GPTModel(
        config=config,
        transformer_layer_spec=specs.get_gpt_layer_local_spec(),
        vocab_size=64,
        max_sequence_length=8,
        pre_process=core.parallel_state.is_pipeline_first_stage(),
        post_process=core.parallel_state.is_pipeline_last_stage(),
    )
    if fp16:
        model = core.transformer.module.Float16Module(config, model)
    wrapping = distributed.DistributedDataParallelConfig(use_distributed_optimizer=distributed_optimizer)
    model = distributed.DistributedDataParallel(config, wrapping, model)
    settings = optimizers.OptimizerConfig(
        optimizer="adam",
        lr=1e-3,
        fp16=fp16,
        params_dtype=config.params_dtype,
        initial_loss_scale=2.0**19,
        hysteresis=1,
        use_distributed_optimizer=distributed_optimizer,
    )
    optimizer = optimizers.get_megatron_optimizer(settings, [model])
    config.finalize_model_grads_func = distributed.finalize_model_grads
    config.grad_scale_func = optimizer.scale_loss
    return model, optimizer


def texts() -> Iterator[Tensor]:
    """Batches of two texts."""
    while True:
        yield torch.randint(0, 64, (2, 9))


def forward_step(batches: Iterator[Tensor], model: Any) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, Any]]]:
    """As Megatron-LM's: the output of a micro-batch, and what makes a loss of it."""
    tokens = next(batches)
    draw()
    losses = model(tokens[:, :-1], torch.arange(8)[None].expand(2, 8), None, labels=tokens[:, 1:])
    return losses, lambda output: (output.float().mean(), {"loss": output.detach().float().mean()})


def megatron_plain() -> None:
    """One rank, single precision."""
    train_with_megatron("megatron_plain", saves=True)


def megatron_fp16() -> None:
    """The dynamic loss scale begins too high: steps are skipped."""
    train_with_megatron("megatron_fp16", fp16=True)


def megatron_distributed_optimizer() -> None:
    """Two replicas, each of which steps its half of the parameters."""
    train_with_megatron("megatron_distributed_optimizer", distributed_optimizer=True, saves=True)


def megatron_tensor() -> None:
    """Each layer is spread over both ranks."""
    train_with_megatron("megatron_tensor", tensor=2)


def megatron_pipeline() -> None:
    """A layer a stage; the stages free their outputs, and call autograd's engine by themselves."""
    train_with_megatron("megatron_pipeline", pipeline=2)


SCENARIOS: dict[str, Callable[[], None]] = {
    scenario.__name__: scenario
    for scenario in (
        deepspeed_fp32,
        deepspeed_fp16,
        deepspeed_zero2,
        deepspeed_zero3,
        deepspeed_pipeline,
        megatron_plain,
        megatron_fp16,
        megatron_distributed_optimizer,
        megatron_tensor,
        megatron_pipeline,
    )
}


IMPORTED = (
    "deepspeed",
    "deepspeed.runtime.zero.muon.muon_optimizer",
    "megatron.core.models.gpt.gpt_layer_specs",
    "megatron.core.optimizer",
)


def import_once(names: Sequence[str]) -> None:
    """Import what the scenarios need before they fork: it takes seconds."""
    for name in IMPORTED if len(names) > 1 else ():
        if any(scenario.startswith(name.partition(".")[0]) for scenario in names):
            import_module(name)


if __name__ == "__main__":
    # DeepSpeed's launcher adds an argument of its own.
    wanted = [name for name in sys.argv[1:] if name in SCENARIOS]
    import_once(wanted)
    run_each(SCENARIOS, wanted)
